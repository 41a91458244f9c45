"""Does the default policy ever lose to autoregressive decoding, or to the best fixed length?

    python benchmarks/default_policy.py [--device cpu|cuda] [--batches 1 4 8 16] [--repeats 5]
        [--temperatures 0 0.2 0.8 1] [--pairs paper llama] [--acceptances 0.3 0.6 0.8 0.95]
        [--lengths 1 2 3 4 6 8] [--from 64] [--new-tokens 128]

On a CPU: the embedded pair on built-in prompts, with its own draft, with a draft of random weights,
and with `ngram`, at each temperature; by the verifier `coupled`, so that all methods give the same
text. On a GPU: the shapes of `write_shapes.py` with random weights, prompts of 150 tokens and
imposed acceptance, at temperature 1. All methods of a setting take turns in one process, after a
warm-up of each; a length of `--lengths` runs on the engine of `auto`. A figure is tokens/s of whole
calls, in each of which `auto` learns anew, and from a token of a row on (`--from`); medians of the
repeats. Prints a table in Markdown, the worst settings, and one JSON line last.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line as cli
import torch
from provenance import commit, config_of
from safetensors.torch import load_file, save_file
from write_shapes import SHAPES

import bass
from bass import pair
from bass.api.generation import Generation
from bass.api.llm import LLM, plain
from bass.api.options import RequestOptions
from bass.experiments.prompts import PYTHON
from bass.policies import Fixed
from bass.verifiers import Synthetic

PROMPT, DEVIATION = 150, 0.02
PLAIN, AUTO = "plain", "auto"
Setting = tuple[str, str, LLM, dict[str, Any], list[Any]]  # row, column, options, prompts


def random_draft(folder: Path) -> Path:
    """The embedded draft with random weights."""
    torch.manual_seed(0)
    for file in pair.DRAFT.iterdir():
        if file.suffix == ".safetensors":
            weights = {k: DEVIATION * torch.randn_like(v) for k, v in load_file(file).items()}
            save_file(weights, folder / file.name, {"format": "pt"})
        elif file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def on_cpu(arguments: argparse.Namespace) -> Iterator[Setting]:
    """Three drafts at each temperature."""
    with tempfile.TemporaryDirectory() as folder:
        drafts: dict[str, dict[str, Any]] = {
            "the embedded draft": {},
            "a random draft": {"target": pair.TARGET, "draft": random_draft(Path(folder))},
            "`ngram`": {"drafter": "ngram"},
        }
        for name, options in drafts.items():
            most = max(arguments.batches)
            llm = bass.load(**options, verifier="coupled", device="cpu", max_batch_size=most)
            prompts = PYTHON * (1 + llm.max_batch_size // len(PYTHON))
            for temperature in arguments.temperatures:
                yield name, f"{temperature:g}", llm, {"temperature": temperature}, prompts


def on_gpu(arguments: argparse.Namespace) -> Iterator[Setting]:
    """Two pairs at each acceptance."""
    most = max(arguments.batches)
    drawn = torch.randint(0, 50000, (most, PROMPT), generator=torch.Generator().manual_seed(0))
    for name in arguments.pairs:
        folders = {role: str(SHAPES / name / role) for role in ("target", "draft")}
        first = bass.load(**folders, load_format="dummy", max_batch_size=most, cuda_graphs="lazy")
        for a in arguments.acceptances:
            parts = replace(first.parts, verifier=Synthetic(a))
            llm = LLM(first.models, replace(first.plan, parts=parts))
            yield f'"{name}"', f"{a:g}", llm, {"temperature": 1.0, "top_p": 1.0}, drawn.tolist()


def measured(
    llm: LLM, prompts: list[Any], options: dict[str, Any], arguments: argparse.Namespace
) -> list[dict[str, float]]:
    """Tokens/s of each method, medians: of whole calls, and from `arguments.start` on."""
    policies = {AUTO: llm.parts.policy} | {f"k={k}": Fixed(k) for k in arguments.lengths}
    request = {"ignore_eos": True, "max_new_tokens": arguments.new_tokens} | options
    llm.warm_up_for([(prompts, RequestOptions(**request))])
    without, rates = plain(llm), {name: [] for name in (PLAIN, *policies)}
    for repeat in range(arguments.repeats + 1):
        for name, found in rates.items():
            one = without if name == PLAIN else llm
            if name != PLAIN:  # in the graphs of `auto`, whose lengths include those of `--lengths`
                one._engines.parts = replace(llm.parts, policy=policies[name])
            call = one.stream(prompts, seed=repeat, **request)
            found.append(rates_of(call, arguments.start * len(prompts)))
    return [
        {name: statistics.median(both[i] for both in found[1:]) for name, found in rates.items()}
        for i in range(2)
    ]


def rates_of(generation: Generation, start: int) -> tuple[float, float]:
    """Tokens/s of a call, and of its part from the token `start` of all rows on."""
    tokens, first = 0, 0
    began = since = time.perf_counter()
    for event in generation:
        tokens += len(event.token_ids)
        if not first and tokens >= start:
            first, since = tokens, time.perf_counter()
    end = time.perf_counter()
    return tokens / (end - began), (tokens - first) / (end - since)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--device", type=cli.device, default="cpu")
    parser.add_argument("--batches", nargs="+", type=cli.positive)
    parser.add_argument("--repeats", type=cli.positive, default=5)
    parser.add_argument(
        "--temperatures", nargs="+", type=cli.temperature, default=[0, 0.2, 0.8, 1.0]
    )
    parser.add_argument("--pairs", nargs="+", default=["paper", "llama"])
    parser.add_argument("--acceptances", nargs="+", type=cli.share, default=[0.3, 0.6, 0.8, 0.95])
    parser.add_argument("--lengths", nargs="+", type=cli.drafted)
    parser.add_argument("--new-tokens", type=cli.positive, default=128)
    parser.add_argument("--from", dest="start", type=cli.natural, default=64)
    arguments = parser.parse_args(argv)
    gpu = arguments.device == "cuda"
    arguments.batches = arguments.batches or ([1, 8, 32, 64] if gpu else [1, 4, 8, 16])
    arguments.lengths = arguments.lengths or ([1, 2, 4, 6, 10, 16] if gpu else [1, 2, 3, 4, 6, 8])
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Measure all settings; returns the exit status."""
    arguments = parse(argv)
    gpu, found, worst = arguments.device == "cuda", [], {}
    kind = "acceptance" if gpu else "temperature"
    late = f"from token {arguments.start} on"
    print(
        f"|  | {kind} | batch | plain, tokens/s | `auto` over plain | over the best k | {late} | |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row, column, llm, options, prompts in (on_gpu if gpu else on_cpu)(arguments):
        for batch in sorted(arguments.batches, reverse=True):  # storage is made for the largest
            both, words = measured(llm, prompts[:batch], options, arguments), list[str]()
            for part, rate in zip(("whole", late), both, strict=True):
                best = max((name for name in rate if name != AUTO), key=rate.__getitem__)
                for name, other in ((PLAIN, PLAIN), ("the best", best)):
                    ratio, where = rate[AUTO] / rate[other], f"{row} {column} {batch}"
                    key = f"{name}, {part}"
                    worst[key] = min(worst.get(key, (ratio, "")), (ratio, where))
                    words.append(f"{ratio:.2f}" + (f" ({other})" if name != PLAIN else ""))
            speed = f"{both[0][PLAIN]:,.0f}"
            print(f"| {row} | {column} | {batch} | {speed} | {' | '.join(words)} |", flush=True)
            found.append({"row": row, kind: column, "batch": batch, "tokens_per_second": both})
    for name, (ratio, where) in worst.items():
        print(f"least over {name}: {ratio:.3f} ({where})", file=sys.stderr)
    device = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    about = {"benchmark": "default_policy", "commit": commit(), "torch": torch.__version__}
    print(json.dumps(about | {"device": device, "config": config_of(arguments), "found": found}))
    return 0


if __name__ == "__main__":
    cli.run(main)
