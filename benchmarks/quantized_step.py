"""ms per token of quantized checkpoints next to bfloat16, on the shapes of a well-known pair.

    python benchmarks/quantized_step.py [--pair llama] [--formats bf16 fp8-blocks fp8-rows int8-rows
        int4 gptq awq] [--repeats 3] [--new-tokens 128] [--k 4] [--seconds 240] [--folder FOLDER]
        [--results FILE]
    python benchmarks/quantized_step.py --pair gpt-oss    # bf16 and mxfp4
    python benchmarks/quantized_step.py --hidden 128 --layers 2 --device cpu    # a trial

Writes the target with random numbers in each format as public checkpoints store it, one after the
other, in memory (/dev/shm) or in `--folder`. The draft is in bfloat16. Timed are autoregressive
decoding at the batch sizes 1 and 8, and `--k` drafted tokens at 1, accepted with a probability of
0.8 at each position, so the text is meaningless. Times are wall times from the end of the prefill,
as those of `bass bench`. The bound is the bytes of a step at the bandwidth of a read, with the
weights as they are stored and the experts that a step is expected to read. No format is begun after
`--seconds`. Prints a line for each setting, then a table, and one JSON line last; `--results` keeps
finished formats.
"""

import argparse
import gc
import json
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_line as cli
import torch
from gpu_parts import Results
from provenance import commit, config_of
from random_checkpoint import FORMATS, WRITERS, bytes_of, place_for, shrunk, write
from rich.console import Console
from rich.table import Table
from write_shapes import MIXTURES, PAIRS, Config, context_of

from bass.api.llm import serve
from bass.api.loading import ModelCache
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan, find_device
from bass.checkpoints.weights import read_index
from bass.engine.cost import PassCost, measure_peaks, pass_cost
from bass.experiments.bench import Timing, methods_of, prompts_for, row_of
from bass.experiments.provenance import device_name
from bass.experiments.settings import BenchOptions, request_of
from bass.ops.experts import Experts

ACCEPTANCE, REFERENCE = 0.8, "bf16"
OF_EXPERTS = "gpt-oss"  # the pair whose experts are quantized
COLUMNS = "format,stored GB,loaded GB,load s,method,batch,ms/token,spread,bound,share,step ms,bf16"
FIGURES = (
    *("wall_ms_per_token", "least", "most", "wall_ms_per_step"),
    *("wall_ms_per_step_over_expected_tau", "tau", "mbu", "prefill_seconds"),
)
Row = dict[str, Any]


def free() -> None:
    """Free the engines of the last measurement, with their graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Runner:
    """Measures the target in `home`, in each format, with the draft there."""

    home: Path
    target: Config
    arguments: argparse.Namespace
    bandwidth: float
    console: Console

    def rows(self, name: str) -> list[Row]:
        """The settings of a format."""
        folder, began = self.home / name, time.perf_counter()
        try:
            write(folder, self.target, name, WRITERS)
            written = time.perf_counter()
            cache = ModelCache()
            plan = LoadPlan.of(self.methods(folder)[1])
            loaded = serve(plan, cache).models.target  # the pair, which serves its target alone
            if plan.target.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = {"write_s": written - began, "load_s": time.perf_counter() - written}
            cost = pass_cost(loaded)
            stored = stored_cost(folder, cost)
            facts = {"format": name, "stored_gb": gb_of(stored), "loaded_gb": gb_of(cost)}
            del loaded
            rows = []
            for figures in self.figures(folder, cache, cost, stored):
                rows.append(facts | seconds | figures)
                self.console.print(said(rows[-1]), markup=False)
            return rows
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            free()

    def methods(self, folder: Path) -> tuple[LoadOptions, LoadOptions]:
        """Autoregressive decoding, and `--k` drafted tokens."""
        options = LoadOptions(
            target=folder, draft=self.home / "draft", device=self.arguments.device
        )
        wanted = BenchOptions(methods=["plain", self.arguments.k], acceptance=ACCEPTANCE)
        plain, drafting = methods_of(wanted, options).values()
        return plain, drafting

    def figures(
        self, folder: Path, cache: ModelCache, loaded: PassCost, stored: PassCost
    ) -> Iterator[Row]:
        """Those of each setting; the bound counts the stored weights."""
        a = self.arguments
        options = BenchOptions(
            batches=(1, 8), repeats=a.repeats, max_new_tokens=a.new_tokens,
            prompt_length=a.prompt_length,
        )  # fmt: skip
        plain, drafting = self.methods(folder)
        for name, method, batch in (("plain", plain, 1), ("plain", plain, 8), ("", drafting, 1)):
            free()
            plan = LoadPlan.of(replace(method, max_batch_size=batch))
            k = 0 if name else a.k
            llm = serve(plan, cache)
            prompts = prompts_for(llm.models, options)[0][""][:batch]
            timing = Timing(llm, [prompts], request_of(options))
            if cuda := plan.target.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            about = {"method": name or f"k={k}", "batch": batch}
            about["warm_up_s"] = timing.warm_up()
            for i in range(options.repeats):
                timing.call(i + 1)
            about["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9 if cuda else None
            found, tokens = row_of(timing, ACCEPTANCE), batch * (k + 1)
            more = stored.bytes_read(tokens) - loaded.bytes_read(tokens)
            steps = (
                found["wall_ms_per_token"] / found["wall_ms_per_step"]
            )  # for each token of a row
            bound = found["bound_ms_per_token"] + more * steps / self.bandwidth * 1e3
            about |= {figure: found[figure] for figure in FIGURES}
            about |= {"bound_ms_per_token": bound}
            yield about | {"share_of_bound": bound / found["wall_ms_per_token"]}
            del timing, llm


def stored_cost(folder: Path, loaded: PassCost) -> PassCost:
    """The cost with the bytes of the stored weights; an embedding that is only looked up is not
    read.
    """
    index = read_index(folder)
    read = {*index.sources} - (set() if index.decoder.head is None else {"embed"})
    modules = index.decoder.named_modules()
    experts = tuple(f"{path}." for path, module in modules if isinstance(module, Experts))

    def size(parameters: Iterable[str]) -> int:
        tensors = {tensor for name in parameters for tensor in index.sources[name].tensors}
        return sum(index.files.stored[t].nbytes for t in tensors)

    of_experts = {name for name in read if name.startswith(experts)}
    return replace(loaded, weight_bytes=size(read - of_experts), expert_bytes=size(of_experts))


def gb_of(cost: PassCost) -> float:
    """All weights that a pass can read."""
    return (cost.weight_bytes + cost.expert_bytes) / 1e9


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
        times = [f"{ms:.3f}", f"{row['least']:.3f}-{row['most']:.3f}"]
        times += [f"{row['bound_ms_per_token']:.3f}", f"{row['share_of_bound']:.0%}"]
        ratio = f"{ms / reference[setting]:.2f}" if setting in reference else ""
        step = f"{row['wall_ms_per_step']:.2f}"
        table.add_row(row["format"], *sizes, setting[0], str(setting[1]), *times, step, ratio)
    return table


def formats_of(pair: str) -> list[str]:
    """The formats that quantize its linear layers, or its experts, after the reference."""
    named = (name for name, form in FORMATS.items() if form.of_experts == (pair == OF_EXPERTS))
    return [REFERENCE, *named]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    names, pairs = (REFERENCE, *FORMATS), [p for p in PAIRS if p not in MIXTURES or p == OF_EXPERTS]
    parser.add_argument("--pair", default="llama", choices=pairs)
    parser.add_argument("--formats", nargs="+", choices=names, help="of the pair's")
    parser.add_argument("--repeats", type=cli.positive, default=3)
    parser.add_argument("--new-tokens", type=cli.positive, default=128)
    parser.add_argument("--prompt-length", type=cli.positive, default=150)
    parser.add_argument("--k", type=cli.drafted, default=4)
    parser.add_argument("--seconds", type=cli.seconds, default=3600)
    parser.add_argument("--device", type=cli.device, default="cuda")
    cli.add_trial(parser)
    parser.add_argument("--folder", type=cli.folder, help="where to write the checkpoints")
    parser.add_argument("--results", type=cli.results_file)
    arguments = parser.parse_args(argv)
    cli.check_trial(parser, arguments, PAIRS[arguments.pair])
    context = min(map(context_of, PAIRS[arguments.pair]))
    if arguments.prompt_length + arguments.new_tokens > context:
        parser.error(
            f"`--prompt-length` and `--new-tokens` must be {context} tokens or fewer together: the "
            f"context of `{arguments.pair}`."
        )
    fitting = formats_of(arguments.pair)
    arguments.formats = arguments.formats or fitting
    if wrong := [name for name in arguments.formats if name not in fitting]:
        parser.error(
            f"`--pair {arguments.pair}` is not measured in {', '.join(wrong)}: give `--formats` of "
            f"{', '.join(fitting)}."
        )
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the formats; returns the exit status."""
    arguments, began, status = parse(argv), time.perf_counter(), 0
    console, device = Console(width=150, highlight=False), find_device(arguments.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    name_of_device, bandwidth = device_name(device), measure_peaks(device, dtype).bandwidth
    results = Results(arguments.results, name_of_device)
    console.print(f"{name_of_device}; bound: bytes of a step at {bandwidth / 1e12:.2f} TB/s")
    config = config_of(arguments)
    about = {n: config[n] for n in config if n not in ("formats", "seconds", "folder", "results")}
    found: dict[str, Any] = {}
    target, draft = (
        shrunk(config, arguments.hidden, arguments.layers) for config in PAIRS[arguments.pair]
    )
    with place_for(bytes_of(target) + bytes_of(draft), arguments.folder) as home:
        runner = Runner(home, target, arguments, bandwidth, console)
        write(home / "draft", draft, REFERENCE, WRITERS)
        for name in arguments.formats:
            if time.perf_counter() - began > arguments.seconds:
                console.print(f"{name}: no time left")
                continue
            try:
                key = f"{name} {json.dumps(about)}"
                found[name] = results.measured(key, lambda n=name: {"rows": runner.rows(n)})
            except KeyboardInterrupt:
                console.print(f"{name}: interrupted")
                status = cli.INTERRUPTED
                break
            except Exception:  # the other formats are measured all the same
                console.print(f"{name} failed:\n{traceback.format_exc()}", markup=False)
                status = cli.FAILED
            gc.collect()
    console.print(table_of(found, f"{arguments.pair}, {name_of_device}"))
    record = {"benchmark": "quantized_step", "commit": commit(), "torch": torch.__version__}
    record |= {"device": name_of_device, "bandwidth": bandwidth}
    rows = [row for name in found for row in found[name]["rows"]]
    print(json.dumps(record | {"config": config, "rows": rows}))
    return status


if __name__ == "__main__":
    cli.run(main)
