"""Run the experiments of the BASS paper, and write the tables of docs/paper.md.

    python benchmarks/paper.py [--output runs/paper] [--wide /dev/shm/wide]
        [--only latency-bf16 latency-int8 lengths drafts layouts shapes problems] [--quick]
        [--device cpu]

Each experiment is a command of `bass` or a benchmark, with its output in a folder of its own:
interrupted, the same command continues. On a GPU the embedded pair is first written in the shapes
of 7.7B and 310M parameters (`examples/widen_pair`), into `--wide`, which takes 16 GB. `--quick`
takes the narrow pair and the `quick` part of each config, to try the command on a CPU: its tables
go to `--output`, and docs/paper.md does not change.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import command_line as cli
import torch
from paper_tables import BUDGETS, METHODS, alone, filled

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/paper.md"
BASS = (sys.executable, "-m", "bass")
ABLATIONS: dict[str, tuple[str, ...]] = {
    "latency-bf16": ("paper-latency",),
    "latency-int8": ("paper-latency", "--quantization", "int8"),
    "lengths": ("paper-draft-length",),
    "drafts": ("paper-draft-size",),
    "layouts": ("paper-pad-split",),
}
# the widened target has the layers of the embedded one at places 6, 12, 18, ... of its 36
WIDE_DRAFTS = {"plain": {"policy.k": 0}, "model": {"drafter": "model"}} | {
    f"self-{n}": {"drafter": "self", "drafter.layers": n} for n in (6, 12, 24)
}
EXPERIMENTS = (*ABLATIONS, "shapes", "problems")
NARROW = ("problems", "latency-bf16", "lengths", "drafts", "layouts")  # what `--quick` runs


def command(name: str, output: Path, pair: list[str], device: str, quick: bool) -> list[str]:
    """The command of an experiment."""
    own = [*pair, "--device", device]
    if name in ABLATIONS:
        config, *more = ABLATIONS[name]
        more += ["--quick"] if quick else []
        more += ["--axes.drafts", json.dumps(WIDE_DRAFTS)] if name == "drafts" and not quick else []
        return [*BASS, "ablate", config, "--output", str(output), *more, *own]
    if name == "shapes":
        script = str(ROOT / "benchmarks/gpu_step.py")
        batches = ["--batches", "1", "2", "4", "8", "16", "--methods", "plain", "bass", "4", "7"]
        return [sys.executable, script, "--pairs", "opt", "codegen", "--results", str(output),
                *batches]  # fmt: skip
    limit = ["--limit", "8"] if quick else []
    return [
        *BASS, "eval", "small", "-n", "8", "--max-new-tokens", "64",
        "--temperature", "0.6", "--methods", *METHODS, "--budgets", *map(str, BUDGETS),
        "--output", str(output), *limit, *own,
    ]  # fmt: skip


def widened(folder: Path) -> list[str]:
    """The pair in the shapes of the paper as options, written unless it is there."""
    if not (folder / "draft" / "config.json").exists():
        script = str(ROOT / "examples/widen_pair/widen.py")
        subprocess.run([sys.executable, script, "--out", str(folder)], check=True)
    return ["--target", str(folder / "target"), "--draft", str(folder / "draft")]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--output", type=cli.new_folder, default=ROOT / "runs/paper")
    parser.add_argument("--wide", type=Path, default=Path("/dev/shm/wide"))
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", type=cli.device, default="cuda")
    arguments = parser.parse_args(argv)
    if arguments.device == "cpu" and not arguments.quick:
        parser.error("the experiments need a CUDA device: give `--quick` to try them on a CPU.")
    if arguments.quick and set(arguments.only or ()) - set(NARROW):
        parser.error(f"`--quick` runs {', '.join(NARROW)}: leave the others out of `--only`.")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the experiments, and write the page; returns the exit status."""
    arguments = parse(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "paper.py: there is no CUDA device here: give `--quick --device cpu` to try it."
        )
    pair = [] if arguments.quick else widened(arguments.wide)
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in arguments.only or (NARROW if arguments.quick else EXPERIMENTS):
        words = command(name, arguments.output / name, pair, arguments.device, arguments.quick)
        print(f"{name}: {' '.join(words[1:])}", file=sys.stderr)
        if (status := subprocess.run(words, check=False).returncode) == cli.INTERRUPTED:
            return status
        failed += [name] if status else []
    page = arguments.output / PAGE.name if arguments.quick else PAGE
    text, absent = filled(PAGE.read_text(encoding="utf-8"), arguments.output)
    page.write_text(alone(text, arguments.output) if arguments.quick else text, encoding="utf-8")
    print(f"{page}: tables written; not yet measured: {', '.join(absent) or 'none'}")
    return cli.FAILED if failed else 0


if __name__ == "__main__":
    cli.run(main)
