"""How long does a new process take to its first token, and where does the time go?

    python benchmarks/cold_start.py --target FOLDER --draft FOLDER
    python benchmarks/cold_start.py --shapes qwen3 [--folder FOLDER] [--k 4] [--runs 2]
        [--captures lazy] [--evict] [--seconds 120]
    python benchmarks/cold_start.py --shapes qwen3 --hidden 128 --layers 2 --device cpu    # a trial

With `--shapes` it writes a pair of `write_shapes.py` with random numbers to a temporary folder
first, Qwen3-8B with 0.6B by default. Then new processes load the pair and generate from 150 token
ids, as `bass generate` does: one with no compiled kernel (an empty TRITON_CACHE_DIR), then `--runs`
with the kernels of the first. `--captures all` captures as `bass.load` does, all graphs for 8 rows,
and `lazy` those that the call can need. `--evict` drops the checkpoints from the page cache before
each process. The parts, in seconds:

    torch       interpreter and import of torch
    bass        import of bass, with the command line
    device      start of the device (a CUDA context)
    headers     configs, headers of the files, options
    draft       weights
    target      weights
    caches      allocation of keys and values, engine
    captures    kernels compiled or loaded, trials and captures of CUDA graphs
    prefill     the prompt, to the start of the first step
    step        the first step

Aim: 12 s to the first token with kernels on disk. Prints a line for each process, a table, and one
JSON line last.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line as cli
from provenance import commit, config_of
from write_shapes import PAIRS

AIM = 12.0  # seconds
CHILD = "--child"  # the first word to a process that is timed
PARTS = ("torch", "bass", "device", "headers", "draft", "target", "caches", "captures", "prefill",
         "step")  # fmt: skip
PROMPT = 150  # tokens


def child(arguments: argparse.Namespace) -> dict[str, float]:
    """What a new process does up to the first token: seconds of each part."""
    began = arguments.began
    import torch

    marks = {"torch": time.perf_counter()}
    import bass.cli.generate  # noqa: F401  # with the options and the display of a command
    from bass.api.llm import LLM
    from bass.api.options import LoadOptions
    from bass.api.plan import LoadPlan
    from bass.checkpoints.weights import CheckpointIndex

    marks["bass"] = time.perf_counter()
    options = LoadOptions(
        target=arguments.target, draft=arguments.draft, num_speculative_tokens=arguments.k,
        device=arguments.device,
    )  # fmt: skip
    plan = LoadPlan.of(options)
    device, loads, load = plan.target.device, dict[str, float](), CheckpointIndex.load
    if device.type == "cuda":
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    marks["device"] = time.perf_counter()

    def timed(index: CheckpointIndex, *rest: Any) -> Any:
        before = time.perf_counter()
        loaded = load(index, *rest)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if not loaded.embed.is_meta:  # it has values
            role = "target" if index.folder == Path(arguments.target) else "draft"
            loads[role] = time.perf_counter() - before
        return loaded

    CheckpointIndex.load = timed
    models = plan.read()
    loaded = time.perf_counter()
    llm = LLM(models, plan)
    if arguments.captures == "all" and llm.graphs:
        llm.warm_up()
    warm = time.perf_counter()
    generation = llm.stream([[*range(1, PROMPT + 1)]], max_new_tokens=64, ignore_eos=True)
    marks["caches"] = time.perf_counter()
    next(iter(generation))
    ended, trace = time.perf_counter(), generation.run.trace
    captures = warm - loaded + trace.capture_seconds
    prefill = max(trace.prefilled.values())
    found = {"torch": marks["torch"] - began, "bass": marks["bass"] - marks["torch"]}
    found |= {"device": marks["device"] - marks["bass"], **loads, "captures": captures}
    found["headers"] = loaded - marks["device"] - sum(loads.values())
    found |= {"caches": marks["caches"] - warm, "prefill": prefill}
    found["step"] = ended - marks["caches"] - trace.capture_seconds - prefill
    generation.close()
    return {name: found[name] for name in PARTS} | {"total": ended - began}


def started(arguments: argparse.Namespace, kernels: Path) -> dict[str, float]:
    """The parts of a new process. kernels: the folder of its compiled kernels."""
    own = config_of(arguments) | {"began": time.perf_counter()}  # the clock of the whole system
    command = [sys.executable, str(Path(__file__)), CHILD, json.dumps(own)]
    environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def the_pair(arguments: argparse.Namespace) -> Iterator[list[Path]]:
    """The folders of target and draft."""
    if arguments.target is not None:
        yield [arguments.target, arguments.draft]
        return
    from random_checkpoint import bytes_of, shrunk, write  # not in the processes that are timed

    pair = PAIRS[arguments.shapes]
    configs = [shrunk(config, arguments.hidden, arguments.layers) for config in pair]
    cli.check_room(sum(map(bytes_of, configs)), arguments.folder)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folders = [Path(name, role) for role in ("target", "draft")]
        began, size = time.perf_counter(), 0
        for folder, config in zip(folders, configs, strict=True):
            size += write(folder, config, shards=4)
        print(f"written: {size / 1e9:.2f} GB in {time.perf_counter() - began:.1f} s")
        yield folders


def processes(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    """Each process: its kernels, and its parts."""
    until = time.perf_counter() + arguments.seconds
    with the_pair(arguments) as folders, tempfile.TemporaryDirectory() as kernels:
        arguments.target, arguments.draft = folders
        files = [path for folder in folders for path in folder.glob("*.safetensors")]
        for run in range(1 + arguments.runs):
            name = "kernels on disk" if run else "no kernels"
            if time.perf_counter() > until:
                print(f"{name}: no time left")
                return
            if arguments.evict:
                from host import evict

                evict(files)
            yield name, started(arguments, Path(kernels))


def show(rows: list[tuple[str, dict[str, float]]]) -> None:
    """A column for each process."""
    from rich.console import Console
    from rich.table import Table

    table = Table("seconds", *(name for name, _ in rows), title="a new process to its first token")
    for part in (*PARTS, "total"):
        table.add_row(part, *(f"{seconds[part]:.2f}" for _, seconds in rows))
    table.add_row("total without captures", *(f"{s['total'] - s['captures']:.2f}" for _, s in rows))
    Console(width=120).print(table)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--target", type=cli.checkpoint, help="a folder, instead of `--shapes`")
    parser.add_argument("--draft", type=cli.checkpoint)
    parser.add_argument(
        "--shapes", default="qwen3", choices=PAIRS, help="a pair of write_shapes.py"
    )
    parser.add_argument("--folder", type=cli.folder, help="where to write the pair")
    parser.add_argument("--k", type=cli.drafted, default=4)
    parser.add_argument("--runs", type=cli.positive, default=2, help="with kernels on disk")
    parser.add_argument("--captures", default="lazy", choices=("lazy", "all"))
    parser.add_argument("--evict", action="store_true")
    parser.add_argument("--device", type=cli.device, default="cuda")
    parser.add_argument(
        "--seconds", type=cli.seconds, default=3600, help="start no process after this"
    )
    cli.add_trial(parser)
    arguments = parser.parse_args(argv)
    if (arguments.target is None) != (arguments.draft is None):
        parser.error("`--target` and `--draft` go together: give both, or `--shapes`.")
    cli.check_trial(parser, arguments, PAIRS[arguments.shapes])
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Start the processes; returns the exit status."""
    arguments, status = parse(argv), 0
    config, rows = config_of(arguments), list[tuple[str, dict[str, float]]]()
    try:
        for name, seconds in processes(arguments):
            rows.append((name, seconds))
            print(f"{name}: " + ", ".join(f"{n} {s:.2f}" for n, s in seconds.items()), flush=True)
    except KeyboardInterrupt:
        print("Interrupted.")
        status = cli.INTERRUPTED
    except subprocess.CalledProcessError:  # after its message
        status = cli.FAILED
    show(rows)
    best = min((s["total"] for name, s in rows if name != "no kernels"), default=None)
    if best is not None:
        print(f"first token with kernels on disk: {best:.2f} s; aim: {AIM:.0f} s")
    record = {"benchmark": "cold_start", "commit": commit(), "config": config, "aim": AIM}
    print(json.dumps(record | {"processes": [{"kernels": n} | s for n, s in rows]}))
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        with cli.explained():
            print(json.dumps(child(argparse.Namespace(**json.loads(sys.argv[2])))))
    else:
        cli.run(main)
