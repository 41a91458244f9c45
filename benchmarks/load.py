"""How fast does a checkpoint load from a warm disk, compared with `safetensors`' own `load_file`
and a plain read?

    python benchmarks/load.py [--device cpu] [--dtype bfloat16] [--gigabytes 1] [--shards 1]
        [--repeats 5] [--threads 2]
    python benchmarks/load.py --device cuda --shapes paper --shards 8
    python benchmarks/load.py --device cuda --shapes 27b --folder DISK [--seconds 150]

Writes a Llama checkpoint of random weights to a temporary folder (in `--folder`), of about
`--gigabytes` or, with `--shapes paper`, of 7.7B parameters. In one process, in turn, after a
warm-up of each, it times our `load_decoder` in the stored type, `load_file`, and reading the files
into one reused buffer. On a CPU `load_file` maps the file and reads nothing. The baseline there is
`load_file` and a copy of each tensor, the cost of a model that owns its weights; the mapping alone
is shown too. Prints the bound first, a table, and one JSON line last.

`--shapes 27b` is the largest that a disk of 64 GB holds: Gemma 2 27B in bfloat16, 54 GB in 12
files. It is loaded once with nothing of it in the page cache, and twice with all of it, next to
reading the files by `--threads` threads and to the link's speed; with the memory of the host that
each load takes, and the most that it may take. Each step prints its line when it ends.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line as cli
import safetensors
import torch
from load_large import run as run_large
from provenance import commit, config_of
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from bass.checkpoints.folder import DTYPES, INDEX, SINGLE
from bass.checkpoints.weights import load_decoder
from bass.engine.cost import measure_peaks
from bass.models.llama import Llama, LlamaConfig

BUFFER = 64 << 20
PAPER = LlamaConfig(51200, 4096, 11008, 36, 32, 32, 128, 2048)
PAPER_SIZE = 7.7e9  # parameters


def sized(total: float, dtype: torch.dtype) -> LlamaConfig:
    """A Llama of about `total` bytes."""
    ends, layer = 2 * 32000 * 2048, 4 * 2048 * 2048 + 3 * 2048 * 5632
    return LlamaConfig(
        32000, 2048, 5632, max(1, round((total / dtype.itemsize - ends) / layer)), 16, 16, 128, 2048
    )


def write(folder: Path, config: LlamaConfig, dtype: torch.dtype, shards: int) -> None:
    """Write the checkpoint: slices of one random block, since zeros might load faster."""
    parameters = dict(Llama(config, "meta").named_parameters())
    sources = Llama.sources(config)
    shapes = {
        n: s
        for ours, source in sources.items()
        for n, s in zip(source.tensors, source.shapes(parameters[ours].shape), strict=True)
    }
    block = torch.randn(max(torch.Size(shape).numel() for shape in shapes.values())).to(dtype)
    names, places = list(shapes), {}
    shards = min(shards, len(names))
    step = -(-len(names) // shards)
    for i in range(shards):
        file = SINGLE if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * step : (i + 1) * step]
        save_file(
            {
                name: block[: torch.Size(shapes[name]).numel()].view(shapes[name]).clone()
                for name in part
            },
            folder / file,
        )
        places |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")


def read_plainly(paths: list[Path], buffer: memoryview) -> int:
    """Read the files into the buffer; return the number of bytes."""
    total = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):  # pyright: ignore[reportAttributeAccessIssue]
                total += count
    return total


def ways(
    folder: Path, paths: list[Path], buffer: memoryview, device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """The ways to load the files, by name."""

    def theirs() -> object:
        return [load_file(path, device=str(device)) for path in paths]

    def copied() -> object:
        return [
            {name: tensor.clone() for name, tensor in load_file(path).items()} for path in paths
        ]

    own: dict[str, Callable[[], object]] = {
        "plain reading": lambda: read_plainly(paths, buffer),
        "bass load_decoder": lambda: load_decoder(folder, device, dtype),
        "load_file": theirs,
    }
    return own | {"load_file, copied": copied} if device.type == "cpu" else own


def timed(
    runs: dict[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each repeat, in turn."""
    seconds: dict[str, list[float]] = {what: [] for what in runs}
    for turn in range(repeats + 1):  # the first is the warm-up
        for what, run in runs.items():
            began = time.perf_counter()
            held = run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[what].append(time.perf_counter() - began)
            del held
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()  # every load includes the allocation of its memory
    return seconds


def table_of(seconds: dict[str, list[float]], total: int, arguments: argparse.Namespace) -> Table:
    """Median, spread and rate of each way."""
    median = {what: statistics.median(times) for what, times in seconds.items()}
    table = Table(
        "",
        "seconds",
        "spread",
        "GB/s",
        title=f"{total / 1e9:.2f} GB, {arguments.dtype}, {arguments.device}",
    )
    for what, times in seconds.items():
        rate = (
            ""
            if arguments.device == "cpu" and what == "load_file"
            else f"{total / median[what] / 1e9:.1f}"
        )
        table.add_row(what, f"{median[what]:.3f}", f"{min(times):.3f} - {max(times):.3f}", rate)
    return table


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--device", type=cli.device, default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--shapes", default="sized", choices=("sized", "paper", "27b"))
    parser.add_argument("--gigabytes", type=cli.number(0, above=True), default=1.0)
    parser.add_argument("--shards", type=cli.integer(1, 1000), default=1)
    parser.add_argument("--repeats", type=cli.positive, default=5)
    parser.add_argument("--threads", type=cli.threads, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=cli.folder, help="where to make the temporary folder")
    parser.add_argument(
        "--seconds", type=cli.seconds, default=3600, help="27b: begin no step after this"
    )
    cli.add_trial(parser, "27b: ")
    arguments = parser.parse_args(argv)
    if arguments.shapes != "27b" and (arguments.hidden or arguments.layers):
        parser.error("`--hidden` and `--layers` need `--shapes 27b`.")
    return arguments


def compare(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Compare the ways to load a checkpoint; returns the figures."""
    device, dtype = torch.device(arguments.device), DTYPES[arguments.dtype]
    paper = arguments.shapes == "paper"
    size = PAPER_SIZE * dtype.itemsize if paper else arguments.gigabytes * 1e9
    cli.check_room(size, arguments.folder)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write(folder, PAPER if paper else sized(size, dtype), dtype, arguments.shards)
        paths = sorted(folder.glob("*.safetensors"))
        buffer = memoryview(bytearray(BUFFER))
        total = read_plainly(paths, buffer)

        runs = ways(folder, paths, buffer, device, dtype)
        against = "load_file, copied" if device.type == "cpu" else "load_file"
        if device.type == "cpu":
            bandwidth = measure_peaks(device, torch.float32).bandwidth
            console.print(f"{total / 1e9:.2f} GB in {len(paths)} files; read bandwidth of memory "
                f"{bandwidth / 1e9:.1f} GB/s, "
                          f"{arguments.threads} threads.")  # fmt: skip
            console.print(
                "Bound: every byte is read and written once, so at least "
                f"{2 * total / bandwidth:.2f} s."
            )
        else:
            console.print(
                f"{total / 1e9:.2f} GB in {len(paths)} files. Baseline: plain reading by one "
                f"thread (ours may use {arguments.threads})."
            )

        seconds = timed(runs, arguments.repeats, device)
    median = {what: statistics.median(times) for what, times in seconds.items()}
    console.print(table_of(seconds, total, arguments))
    ratios = {
        f"ours over {what}": round(median["bass load_decoder"] / median[what], 3)
        for what in (against, "plain reading")
    }
    for what, ratio in ratios.items():
        console.print(f"  {ratio:5.2f}x  {what}")
    return {
        "bytes": total,
        "seconds": {what: [round(t, 4) for t in times] for what, times in seconds.items()},
        "ratios": ratios,
    }


def main(argv: list[str] | None = None) -> None:
    """Run the comparison, or load the large checkpoint."""
    arguments, console = parse(argv), Console(highlight=False)
    torch.set_num_threads(arguments.threads)
    record = {
        "benchmark": "load",
        "commit": commit(),
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "config": config_of(arguments),
    }
    measure = run_large if arguments.shapes == "27b" else compare
    print(json.dumps(record | measure(arguments, console)))


if __name__ == "__main__":
    cli.run(main)
