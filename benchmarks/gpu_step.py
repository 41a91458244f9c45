"""`bass bench` for the shapes of well-known pairs on a GPU, one after the other.

    python benchmarks/gpu_step.py [--pairs paper llama qwen3 qwen2.5 gemma2 opt codegen]
        [--quantization none int8 fp8 int8-weight] [--results FOLDER] [--warm-up] [--host]
        [--kernels] [OPTIONS OF `bass bench`, such as --batches 1 8 --methods plain 4 --repeats 5]

The pairs are those of `write_shapes.py`, by default the dense ones without heads, with random
weights in bfloat16 and an acceptance of 0.8 at each position, so the text is meaningless. Without
`--methods`, plain decoding is compared with 7 drafted tokens for "paper", and with 4 for the
others. Each pair is a process of its own, whose tables go to standard error; a quantization applies
to both models. The last line is the JSON of all pairs. `--results` keeps a file for each pair: the
same command measures the missing ones.

`--warm-up` times `LLM.warm_up` for lengths 0 to 16 instead, with all batch sizes up to each one: in
a new engine, and in a second one, whose kernels are compiled. `--host` counts the host's waits for
the device in a step instead, and `--kernels` shows what a step launches, with the time of each.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import command_line as cli
import torch
from gpu_parts import kernels_per_step, synchronisations
from provenance import commit, config_of
from write_shapes import HEADS, MIXTURES, PAIRS, SHAPES

import bass
from bass.api.llm import LLM
from bass.cli.bench import read
from bass.errors import BassError
from bass.experiments.bench import methods_of
from bass.verifiers import Synthetic

LONGEST, PROMPT, ACCEPTANCE, SHOWN = 16, 150, 0.8, 40
REQUEST: dict[str, Any] = {"max_new_tokens": 256, "temperature": 1.0, "top_p": 1.0}
DENSE = [pair for pair in PAIRS if pair not in MIXTURES]  # the pairs by default
LENGTHS = {"paper": 7}  # drafted tokens by default; else 4


def folders(pair: str) -> dict[str, str]:
    """The folders of a pair, as options."""
    return {role: str(SHAPES / pair / role) for role in ("target", "draft")}


def words_of(pair: str, quantization: str, more: list[str]) -> list[str]:
    """The options of `bass bench`."""
    own = {**folders(pair), "load-format": "dummy", "acceptance": str(ACCEPTANCE)}
    own |= {"quantization": quantization, "temperature": "1", "top-p": "1"}
    words = [word for name, value in own.items() for word in (f"--{name}", value)]
    if not any(word.partition("=")[0] == "--methods" for word in more):
        words += ["--methods", "plain", str(LENGTHS.get(pair, 4))]
    return [*words, "--json", *more]


def bench(words: list[str], file: Path | None) -> dict[str, Any] | None:
    """The JSON of `bass bench`, from the file where it is; None after a failure and its message."""
    if file is not None and file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "bass", "bench", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return None
    if file is not None:
        file.write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


def loaded(pair: str, quantization: str, batch: int, k: int | None = None) -> LLM:
    """The pair with k drafted tokens; None: with a policy of up to `LONGEST`."""
    return bass.load(
        **folders(pair),
        policy="goodput" if k is None else None,
        num_speculative_tokens=k,
        cuda_graphs="lazy",
        verifier=Synthetic(ACCEPTANCE),
        max_batch_size=batch,
        quantization=quantization,
        load_format="dummy",
    )


def prompts(batch: int) -> list[list[int]]:
    """Random prompts."""
    drawn = torch.randint(0, 50000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    return drawn.tolist()


def warm_up(pair: str, quantization: str, batch: int) -> dict[str, Any]:
    """Seconds to capture lengths 0 to 16, with the kernels as cached, then with all compiled."""
    llm, seconds, graphs = loaded(pair, quantization, batch), [], 0
    for _ in range(2):
        one = LLM(llm.models, replace(llm.plan, max_batch_size=batch))
        began = time.perf_counter()
        one.warm_up()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        storage = one._engines.storage
        graphs = 0 if storage is None else len(storage.shapes())
    print(
        f"{pair} {quantization}, batch {batch}: {graphs} graphs of lengths 0 to {LONGEST} in "
        f"{seconds[0]:.1f} s, again in {seconds[1]:.1f} s",
        file=sys.stderr,
    )
    return {"seconds": seconds[0], "again": seconds[1], "graphs": graphs}


def waits(pair: str, quantization: str, batch: int) -> dict[str, Any]:
    """The host's waits for the device in a step."""
    options = REQUEST | {"ignore_eos": True}
    found = synchronisations(loaded(pair, quantization, batch), prompts(batch), options)
    print(f"{pair} {quantization}, batch {batch}: {found:.2f} waits a step", file=sys.stderr)
    return {"synchronisations_per_step": found}


def kernels(pair: str, quantization: str, batch: int) -> dict[str, Any]:
    """Launches and ms of each kernel of a step, of which the longest are printed."""
    llm = loaded(pair, quantization, batch, LENGTHS.get(pair, 4))
    found = kernels_per_step(llm, prompts(batch), REQUEST | {"ignore_eos": True})
    launches, ms = (sum(both) for both in zip(*found.values(), strict=True))
    print(f"{pair} {quantization}, batch {batch}: {launches:.0f}, {ms:.3f} ms", file=sys.stderr)
    for name, (count, own) in [*found.items()][:SHOWN]:
        print(f"{own:8.4f} ms {count:6.1f} x {name:.100}", file=sys.stderr)
    return {"launches_and_ms": found}


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """The script's own options, and those of `bass bench`."""
    parser = cli.Parser(__doc__, allow_abbrev=False)
    parser.add_argument("--pairs", nargs="+", default=DENSE, choices=[*PAIRS, *HEADS])
    parser.add_argument("--quantization", nargs="+", default=["none"])
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 8])
    parser.add_argument("--results", type=cli.new_folder)
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    arguments, more = parser.parse_known_args(argv)
    elsewhere = any(word.partition("=")[0] == "--device" for word in more)
    on_gpu = arguments.warm_up or arguments.host or arguments.kernels
    if not torch.cuda.is_available() and (on_gpu or not elsewhere):
        parser.error(
            "there is no CUDA device here: give `--device cpu`, without `--warm-up`, `--host` and "
            "`--kernels`."
        )
    try:  # before one pair is measured, and another cannot be
        for pair, quantization in product(arguments.pairs, arguments.quantization):
            _, options, load_options = read(words_of(pair, quantization, more))
            methods_of(options, load_options)
    except BassError as error:
        parser.error(" ".join(str(error).split()))
    return arguments, more


def main(argv: list[str] | None = None) -> int:
    """Run the pairs; returns the exit status."""
    arguments, more = parse(argv)
    if arguments.results is not None:
        arguments.results.mkdir(parents=True, exist_ok=True)
    words = ["--batches", *map(str, arguments.batches), *more]
    given = arguments.warm_up, arguments.host, arguments.kernels
    instead = [*zip(given, (warm_up, waits, kernels), strict=True)]
    record: dict[str, Any] = {}
    for pair, quantization in product(arguments.pairs, arguments.quantization):
        name = f"{pair} {quantization}"
        print(name, file=sys.stderr)
        one = next((own for wanted, own in instead if wanted), None)
        results = arguments.results
        file = None if results is None else results / f"{pair}-{quantization}.json"
        record[name] = (
            bench(words_of(pair, quantization, words), file)
            if one is None
            else {b: one(pair, quantization, b) for b in arguments.batches}
        )
    about = {"benchmark": "gpu_step", "commit": commit(), "torch": torch.__version__}
    print(json.dumps(about | {"config": config_of(arguments), "more": more, "results": record}))
    return cli.FAILED if None in record.values() else 0


if __name__ == "__main__":
    cli.run(main)
