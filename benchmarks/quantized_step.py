"""ms per token of quantized checkpoints next to bfloat16, on the shapes of a well-known pair.

    python benchmarks/quantized_step.py [--pair llama] [--formats bf16 fp8-blocks fp8-rows int8-rows
        int4 gptq awq] [--repeats 3] [--new-tokens 128] [--k 4] [--seconds 240] [--folder FOLDER]
        [--results FILE]
    python benchmarks/quantized_step.py --hidden 128 --layers 2 --device cpu    # a trial

Writes the target with random numbers in each format as public checkpoints store it, one after the
other, in memory (/dev/shm) or in `--folder`. The draft is in bfloat16. Timed are autoregressive
decoding at the batch sizes 1 and 8, and `--k` drafted tokens at 1, accepted with a probability of
0.8 at each position, so the text is meaningless. Times are wall times from the end of the prefill,
as those of `bass bench`. The bound is the bytes of a step at the bandwidth of a copy, with the
weights as they are stored. No format is begun after `--seconds`. Prints a line for each setting,
then a table, and one JSON line last; `--results` keeps finished formats.
"""

import argparse
import gc
import json
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_parts import Results
from provenance import commit, config_of
from random_checkpoint import FORMATS, WRITERS, place_for, shrunk, write
from rich.console import Console
from rich.table import Table
from write_shapes import MIXTURES, PAIRS

from bass.api.llm import serve
from bass.api.loading import ModelCache
from bass.api.options import LoadOptions
from bass.api.plan import find_device
from bass.checkpoints.weights import read_index
from bass.engine.cost import model_cost
from bass.experiments.bench.figures import figures_of
from bass.experiments.bench.measure import Bench, measure_machine, pass_bytes
from bass.experiments.bench.options import BenchOptions, Method, methods_of
from bass.experiments.bench.record import Machine, Setting
from bass.experiments.bench.run import constant_length, free, prompts_for
from bass.policies import Fixed
from bass.provenance.environment import device_name

ACCEPTANCE, REFERENCE = 0.8, "bf16"
ROOM = 24 << 30  # bytes of the largest target and its draft
COLUMNS = "format,stored GB,loaded GB,load s,method,batch,ms/token,spread,bound,share,step ms,bf16"
FIGURES = (
    *("wall_ms_per_token", "spread", "bound_ms_per_token", "share_of_bound", "wall_ms_per_step"),
    *("wall_ms_per_step_over_expected_tau", "tau", "mbu", "prefill_ms", "peak_gb"),
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """Measures the targets in `home`, with the draft there."""

    home: Path
    arguments: argparse.Namespace
    machine: Machine
    console: Console

    def rows(self, name: str) -> list[Row]:
        """The settings of a format."""
        folder, began = self.home / name, time.perf_counter()
        target = shrunk(PAIRS[self.arguments.pair][0], *self.sizes)
        try:
            write(folder, target, name, WRITERS)
            written = time.perf_counter()
            cache = ModelCache()
            plan = self.methods(folder)[1].plan(1)
            loaded = serve(plan, cache).models.target  # the pair, which serves its target alone
            if plan.target.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = {"write_s": written - began, "load_s": time.perf_counter() - written}
            stored, weights = stored_bytes(folder), model_cost(loaded).weight_bytes
            facts = {"format": name, "stored_gb": stored / 1e9, "loaded_gb": weights / 1e9}
            del loaded
            rows = []
            for figures in self.figures(folder, cache, stored - weights):
                rows.append(facts | seconds | figures)
                self.console.print(said(rows[-1]), markup=False)
            return rows
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            free()

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The hidden size and the layers of a trial."""
        return self.arguments.hidden, self.arguments.layers

    def methods(self, folder: Path) -> tuple[Method, Method]:
        """Autoregressive decoding, and `--k` drafted tokens."""
        options = LoadOptions(
            target=folder, draft=self.home / "draft", device=self.arguments.device
        )
        policies = {"plain": None, f"k={self.arguments.k}": Fixed(self.arguments.k)}
        plain, drafting = methods_of(options, policies, ACCEPTANCE)
        return plain, drafting

    def figures(self, folder: Path, cache: ModelCache, more_bytes: int) -> Iterator[Row]:
        """Those of each setting. more_bytes: of the stored weights than of the loaded ones."""
        a = self.arguments
        options = BenchOptions(
            batches=(1, 8), repeats=a.repeats, max_new_tokens=a.new_tokens,
            prompt_length=a.prompt_length,
        )  # fmt: skip
        length = options.prompt_length + options.max_new_tokens // 2
        plain, drafting = self.methods(folder)
        for method, batch in ((plain, 1), (plain, 8), (drafting, 1)):
            free()
            plan = method.plan(batch)
            cuda = plan.target.device.type == "cuda"
            weights = torch.cuda.memory_allocated() if cuda else 0
            llm = serve(plan, cache)
            prompts = prompts_for(llm.models, options, "")[:batch].tolist()
            bench = Bench(llm, prompts, options.request, weights)
            warm_up, peak = bench.warm_up(options.seed)
            calls = [bench.call(options.seed + 1 + i) for i in range(options.repeats)]
            k = constant_length(plan.parts) or 0
            target, draft = pass_bytes(llm, batch, length, k)
            setting = Setting(
                method.label, method.policy, batch, k, target + more_bytes, draft, peak, warm_up,
                calls,
            )  # fmt: skip
            found = figures_of(setting, self.machine, options.max_new_tokens, ACCEPTANCE)
            about = {"method": method.label, "batch": batch, "warm_up_s": warm_up.seconds}
            yield about | {figure: found[figure] for figure in FIGURES}
            del bench, llm


def stored_bytes(folder: Path) -> int:
    """Bytes of the stored weights that a pass reads: without an embedding that is only looked
    up.
    """
    index = read_index(folder)
    used = {tensor for source in index.sources.values() for tensor in source.tensors}
    if index.decoder.head is not None:
        used -= {*index.sources["embed"].tensors}
    return sum(index.files.stored[name].stop - index.files.stored[name].start for name in used)


def said(row: Row) -> str:
    """A setting in a line."""
    return (
        f"{row['format']}, {row['method']}, batch {row['batch']}: "
        f"{row['wall_ms_per_token']:.3f} ms per token, {row['share_of_bound']:.0%} of the bound; "
        f"loaded in {row['load_s']:.1f} s, warm-up {row['warm_up_s']:.1f} s"
    )


def table_of(found: dict[str, Any], title: str) -> Table:
    """The settings of all formats, with the time per token over that in bfloat16."""
    table, reference = Table(*COLUMNS.split(","), title=title), {}
    for row in (row for name in found for row in found[name]["rows"]):
        ms, setting = row["wall_ms_per_token"], (row["method"], row["batch"])
        if row["format"] == REFERENCE:
            reference[setting] = ms
        sizes = [f"{row[n]:.2f}" for n in ("stored_gb", "loaded_gb", "load_s")]
        times = [f"{ms:.3f}", "-".join(f"{x:.3f}" for x in row["spread"])]
        times += [f"{row['bound_ms_per_token']:.3f}", f"{row['share_of_bound']:.0%}"]
        ratio = f"{ms / reference[setting]:.2f}" if setting in reference else ""
        step = f"{row['wall_ms_per_step']:.2f}"
        table.add_row(row["format"], *sizes, setting[0], str(setting[1]), *times, step, ratio)
    return table


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, pairs = (REFERENCE, *FORMATS), [pair for pair in PAIRS if pair not in MIXTURES]
    parser.add_argument("--pair", default="llama", choices=pairs)
    parser.add_argument("--formats", nargs="+", default=list(names), choices=names)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-length", type=int, default=150)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--hidden", type=int, help="a smaller model, for a trial")
    parser.add_argument("--layers", type=int, help="fewer layers, for a trial")
    parser.add_argument("--folder", type=Path, help="where to write the checkpoints")
    parser.add_argument("--results", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the formats."""
    arguments, began = parse(argv), time.perf_counter()
    console, device = Console(width=150, highlight=False), find_device(arguments.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    results, machine = (
        Results(arguments.results, device_name(device)),
        measure_machine(device, dtype),
    )
    console.print(
        f"{machine.device}; bound: bytes of a step at {machine.copy_bandwidth / 1e12:.2f} TB/s"
    )
    config = config_of(arguments)
    about = {n: config[n] for n in config if n not in ("formats", "seconds", "folder", "results")}
    found: dict[str, Any] = {}
    with place_for(ROOM, arguments.folder) as home:
        runner = Runner(home, arguments, machine, console)
        write(home / "draft", shrunk(PAIRS[arguments.pair][1], *runner.sizes), REFERENCE, WRITERS)
        for name in arguments.formats:
            if time.perf_counter() - began > arguments.seconds:
                console.print(f"{name}: no time left")
                continue
            try:
                key = f"{name} {json.dumps(about)}"
                found[name] = results.measured(key, lambda n=name: {"rows": runner.rows(n)})
            except KeyboardInterrupt:
                console.print(f"{name}: interrupted")
                break
            except Exception:  # the other formats are measured all the same
                console.print(f"{name} failed:\n{traceback.format_exc()}", markup=False)
            gc.collect()
    console.print(table_of(found, f"{arguments.pair}, {machine.device}"))
    record = {"benchmark": "quantized_step", "commit": commit(), "torch": torch.__version__}
    record |= {"device": machine.device, "copy_bandwidth": machine.copy_bandwidth}
    rows = [row for name in found for row in found[name]["rows"]]
    print(json.dumps(record | {"config": config, "rows": rows}))


if __name__ == "__main__":
    main()
