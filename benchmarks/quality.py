"""What does a quantization cost in quality, and how many bytes does it save?

    BASS_DATA=FOLDER python benchmarks/quality.py [--target T --draft D] [--documents 100]
        [--prompts 16] [--new-tokens 256] [--quantized FOLDER ...]

FOLDER (or --data) holds HumanEval.jsonl.gz and mbpp.jsonl. The pair, by default the embedded one,
is measured unquantized in `--dtype` (the baseline), in bfloat16, and with each quantization of
target and draft; or, with `--quantized`, with each of these checkpoints (such as `python -m
unit.stored_quantizations TARGET FOLDER` writes in tests/) as the target and the draft unquantized:

* bits per byte and perplexity of the target on the first documents of both sets (prompt and
  canonical solution; the first token is given);
* greedy output for the first HumanEval prompts, by speculative decoding, compared with the
  baseline's: the share of prompts with all tokens equal, and the number of equal tokens before the
  first difference (median; `--new-tokens` where all are equal);
* tau (tokens per target call) and the share of drafted tokens that are accepted.

Prints the bytes of the weights first, a table, and one JSON line last. No figure is a time.
"""

import argparse
import gzip
import json
import math
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import command_line as cli
import numpy as np
import torch
from provenance import commit
from rich.console import Console
from rich.table import Table

import bass
from bass import pair
from bass.api.resolve import names
from bass.engine.scorer import ModelScorer
from bass.records import CacheBudget, RowAssignment, Window
from bass.text import Tokenizer

ROWS, SPAN_STEP = 8, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FILES = ("HumanEval.jsonl.gz", "mbpp.jsonl")


def read_texts(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """HumanEval's prompts, its prompts with solutions, and MBPP's solutions."""
    with gzip.open(folder / FILES[0], "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    with (folder / FILES[1]).open(encoding="utf-8") as lines:
        solutions = [json.loads(line)["code"] for line in lines]
    return (
        [p["prompt"] for p in problems],
        [p["prompt"] + p["canonical_solution"] for p in problems],
        solutions,
    )


@torch.inference_mode()
def bits(llm: bass.LLM, documents: list[list[int]]) -> float:
    """Bits of all tokens but the first of each document under the target."""
    models, parts, total = llm.models, llm.parts, 0.0
    documents = sorted(documents, key=len)
    for first in range(0, len(documents), ROWS):
        rows = documents[first : first + ROWS]
        span = -(-max(map(len, rows)) // SPAN_STEP) * SPAN_STEP
        budget = CacheBudget.of(np.full(len(rows), span))
        cache = parts.cache.allocate(models.target.shape, budget, models.device, models.dtype)
        cache.reserve(RowAssignment.of(budget.limits))
        tokens, positions = (
            torch.zeros(len(rows), span, dtype=torch.int64),
            torch.full((len(rows), span), -1),
        )
        for row, document in enumerate(rows):
            tokens[row, : len(document)], positions[row, : len(document)] = (
                torch.tensor(document),
                torch.arange(len(document)),
            )
        scorer = ModelScorer(models.target, cache, parts.attention, len(rows))
        logprobs = (
            scorer(Window(tokens.to(models.device), positions.to(models.device), span))
            .logits[:, :-1]
            .float()
            .log_softmax(-1)
        )
        of_next = logprobs.gather(-1, tokens[:, 1:, None].to(models.device))[..., 0].double().cpu()
        total -= of_next[positions[:, 1:] >= 0].sum().item() / math.log(2)
    return total


def same_before(ours: list[int], theirs: list[int]) -> int:
    """The number of equal tokens before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))


def measure(
    arguments: argparse.Namespace,
    options: dict[str, Any],
    prompts: list[list[int]],
    documents: list[list[int]],
) -> dict[str, Any]:
    """Figures of one pair, and its output for each prompt to compare with the baseline's."""
    llm = bass.load(
        draft=arguments.draft,
        policy="fixed",
        device=arguments.device,
        max_batch_size=ROWS,
        **({"target": arguments.target} | options),
    )
    result = llm.generate(
        prompts, max_new_tokens=arguments.new_tokens, temperature=0, ignore_eos=True
    )
    models = [model for model in (llm.models.target, llm.models.draft) if model is not None]
    return {
        "weight_bytes": [sum(p.nbytes for p in model.parameters()) for model in models],
        "bits": bits(llm, documents),
        "tau": result.stats.tau,
        "acceptance": result.stats.acceptance_rate,
        "output": [completion.token_ids for completion in result.completions],
        "dtype": str(llm.models.dtype).removeprefix("torch."),
    }


def quantized(
    arguments: argparse.Namespace, prompts: list[list[int]], documents: list[list[int]]
) -> dict[str, dict[str, Any]]:
    """Figures without quantization, in bfloat16, and under each quantization."""
    plain = {"dtype": arguments.dtype}
    found = {"none": measure(arguments, plain, prompts, documents)}
    if found["none"]["dtype"] != "bfloat16":
        found["bfloat16"] = measure(arguments, {"dtype": "bfloat16"}, prompts, documents)
    for folder in arguments.quantized:
        found[folder.name] = measure(arguments, plain | {"target": folder}, prompts, documents)
    for name in () if arguments.quantized else names("quantization"):
        if name != "none":
            found[name] = measure(arguments, plain | {"quantization": name}, prompts, documents)
    return found


def compared(
    found: dict[str, dict[str, Any]], size: int, count: int, new_tokens: int
) -> tuple[Table, dict[str, dict[str, Any]]]:
    """The table and the record of the figures, over `size` bytes and `count` tokens."""
    base, record = found["none"], {}
    title = (
        f"{len(base['output'])} prompts, {new_tokens} new tokens each, compared with "
        f"{base['dtype']}"
    )
    table = Table("", "bytes", "bits/byte", "ppl", "same", "before", "tau", "accepted", title=title)
    for name, f in found.items():
        before = [
            same_before(ours, theirs)
            for ours, theirs in zip(f["output"], base["output"], strict=True)
        ]
        record[name] = {
            "weight_bytes": f["weight_bytes"],
            "weight_share": round(f["weight_bytes"][0] / base["weight_bytes"][0], 4),
            "bits_per_byte": round(f["bits"] / size, 5),
            "perplexity": round(2 ** (f["bits"] / count), 4),
            "exact_match": round(sum(n == new_tokens for n in before) / len(before), 4),
            "median_first_divergence": statistics.median(before),
            "tau": round(f["tau"], 3),
            "acceptance": round(f["acceptance"], 4),
        }
        r = record[name]
        cells = (
            f"{r['bits_per_byte']:.4f}",
            f"{r['perplexity']:.3f}",
            f"{r['exact_match']:.0%}",
            f"{r['median_first_divergence']:g}",
        )
        table.add_row(
            name, f"{r['weight_share']:.0%}", *cells, f"{r['tau']:.2f}", f"{r['acceptance']:.1%}"
        )
    return table, record


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("BASS_DATA"))
    parser.add_argument("--target", type=cli.checkpoint, default=str(pair.TARGET))
    parser.add_argument("--draft", type=cli.checkpoint, default=str(pair.DRAFT))
    parser.add_argument("--device", type=cli.device, default=DEVICE)
    parser.add_argument(
        "--dtype",
        default="auto",
        help="of the baseline and of what is not quantized; auto: float32 on a CPU",
    )
    parser.add_argument(
        "--documents", type=cli.positive, default=100, help="of each of the two sets"
    )
    parser.add_argument("--prompts", type=cli.positive, default=16)
    parser.add_argument("--new-tokens", type=cli.positive, default=256)
    parser.add_argument("--quantized", type=cli.checkpoint, nargs="*", default=[])
    parser.add_argument("--threads", type=cli.threads, default=torch.get_num_threads())
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the comparison."""
    arguments = parse(argv)
    for name in FILES:
        cli.data_file(arguments.data, name)
    torch.set_num_threads(arguments.threads)
    console = Console()

    tokenizer = Tokenizer.read(Path(arguments.target))
    if tokenizer is None:
        raise SystemExit(f"`{arguments.target}` has no tokenizer: bits per byte need text.")
    context = bass.load(
        arguments.target, num_speculative_tokens=0, device="cpu"
    ).models.target.shape.max_positions
    texts, solved, solutions = read_texts(arguments.data)
    encoded = {
        text: tokenizer.encode(text)
        for text in solved[: arguments.documents] + solutions[: arguments.documents]
    }
    documents = {text: ids for text, ids in encoded.items() if 1 < len(ids) <= context}
    size, count = (
        sum(len(text.encode()) for text in documents),
        sum(len(ids) - 1 for ids in documents.values()),
    )
    prompts = [tokenizer.encode(text) for text in texts[: arguments.prompts]]

    found = quantized(arguments, prompts, list(documents.values()))
    for name, figures in found.items():
        sizes = ", ".join(
            f"{role} {n / 1e6:.1f} MB"
            for role, n in zip(("target", "draft"), figures["weight_bytes"], strict=False)
        )
        console.print(f"Weights, {name}: {sizes}")
    dropped = len(encoded) - len(documents)
    console.print(
        f"{len(documents)} documents of {size:,} bytes, {count:,} tokens; {dropped} left out: "
        f"beyond the context of {context}."
    )

    table, record = compared(found, size, count, arguments.new_tokens)
    console.print(table)
    config = {name: str(value) for name, value in vars(arguments).items() if name != "data"}
    config |= {"documents": len(documents), "bytes": size, "tokens": count}
    about = {
        "benchmark": "quality",
        "commit": commit(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "config": config | {"baseline": found["none"]["dtype"]},
    }
    print(json.dumps(about | {"found": record}))


if __name__ == "__main__":
    cli.run(main)
