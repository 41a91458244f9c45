"""How often does rounding make greedy speculative decoding differ from autoregressive decoding?

    python benchmarks/rounding.py [--families NAME ...] [--lengths 4 7] [--batches 1 8] [--rows]
        [--prompts 16] [--new-tokens 64] [--hidden 1024] [--layers 8] [--vocabulary 65536]
        [--device cuda] [--dtype bfloat16] [--results FILE]

Of every family a model with random weights, drafted for by itself, and `pair`, the embedded pair
on Python prompts. Both are lossless up to rounding: a window of k+1 tokens and single tokens are
products of different shapes, whose sums are rounded in different orders. The columns:

    exact         share of texts with the same tokens as autoregressive decoding at this batch size
    first         median number of tokens before the first one that differs, of the other texts
    per 1,000     divergences in 1,000 tokens, each text counted up to its first
    gap, ulp      difference of the two largest logits at the first divergence, computed token by
                  token: the median, and the median and largest in units of the dtype's spacing at
                  the largest logit
    two           share of divergences in which the two tokens are those of the two largest logits
    repeats       share of texts whose second half has a period of at most 16 tokens

`--rows` compares the logits of windows of k+1 tokens with those of single tokens, bit by bit: the
share of equal logits, of tokens all whose logits are equal, and of equal argmax, and the largest
difference in units of the spacing at the largest logit. Prints Markdown tables, and one JSON line
last.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_line as cli
import numpy as np
import torch
from gpu_parts import Results
from provenance import commit, config_of
from random_families import CONTEXT, families, sharpen

import bass
from bass.api.llm import LLM, plain
from bass.checkpoints.folder import DTYPES
from bass.engine.engines import CAPACITY_STEP
from bass.engine.scorer import ModelScorer
from bass.experiments.prompts import PYTHON
from bass.policies import Fixed
from bass.process import cpu_name
from bass.records import CacheBudget, RowAssignment, Window

PAIR = "pair"
PROMPT_LENGTH = 64  # of the random prompts
PERIOD = 16
WINDOWS = 4  # of each text, that `--rows` compares
COLUMNS = (
    *("model", "batch", "k", "tau", "texts", "exact", "first", "per 1,000"),
    *("gap", "gap, ulp", "largest, ulp", "two", "repeats"),
)
ROW_COLUMNS = (
    *("model", "batch", "k", "tokens"),
    *("equal logits", "equal tokens", "equal argmax", "largest, ulp"),
)
Texts = list[list[int]]


@dataclass(frozen=True)
class Gap:
    """The two largest logits where two texts part. ulp: the dtype's spacing at the largest."""

    logits: float
    ulp: float
    two: bool


@dataclass(frozen=True)
class Probe:
    """The target without graphs, over a cache of its own for rows of up to `capacity` tokens."""

    scorer: ModelScorer
    capacity: int
    device: torch.device

    @classmethod
    def of(cls, llm: LLM, batch: int, capacity: int) -> "Probe":
        """With an empty cache."""
        sizes = np.full(batch, capacity)
        target, device, dtype = llm.models.target, llm.models.device, llm.models.dtype
        cache = llm.parts.cache.allocate(target.shape, CacheBudget.of(sizes), device, dtype)
        cache.reserve(RowAssignment.of(sizes))
        return cls(ModelScorer(target, cache, llm.parts.attention, batch), capacity, device)

    def fill(self, tokens: torch.Tensor, count: int) -> None:
        """Store the first `count` of the tokens [B,W]. The window is always as wide as the rows,
        since kernels are compiled for widths.
        """
        whole = tokens.new_zeros(tokens.shape[0], self.capacity)
        whole[:, :count] = tokens[:, :count]
        places = torch.arange(self.capacity, device=tokens.device)
        places = places.where(places < count, -1).expand(whole.shape).contiguous()
        self.scorer.fill(Window(whole, places, self.capacity))

    def logits(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Logits [B,W,V] after tokens [B,W] at the positions from `start` on."""
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        places = places.expand(tokens.shape).contiguous()
        return self.scorer(Window(tokens.contiguous(), places, self.capacity)).logits.clone()


def spacing(value: float, dtype: torch.dtype) -> float:
    """The distance of the dtype's numbers at a value."""
    return 2.0 ** math.floor(math.log2(max(abs(value), 1e-30))) * torch.finfo(dtype).eps


@torch.inference_mode()
def gap_at(probe: Probe, prefix: list[int], pair: tuple[int, int]) -> Gap:
    """The gap after a prefix, whose last token is fed alone. pair: the tokens that the texts have
    there.
    """
    tokens = torch.tensor([prefix], device=probe.device)
    last = len(prefix) - 1
    probe.fill(tokens, last)
    logits = probe.logits(tokens[:, last:], last)[0, 0]
    (first, second), ids = (values.tolist() for values in logits.float().topk(2))
    ulp = spacing(first, logits.dtype)
    return Gap(first - second, (first - second) / ulp, {*ids} == {*pair})


@torch.inference_mode()
def compare_rows(probe: Probe, tokens: torch.Tensor, width: int) -> dict[str, Any]:
    """Windows of `width` tokens against single tokens, at the last positions of texts [B,W]."""
    length = tokens.shape[1]
    first = length - min(WINDOWS, (length - 1) // width) * width
    probe.fill(tokens, first)
    equal, whole, same, largest, count = 0.0, 0, 0, 0.0, 0
    for start in range(first, length, width):
        places = range(start, start + width)
        single = torch.cat([probe.logits(tokens[:, i : i + 1], i) for i in places], 1)
        wide = probe.logits(tokens[:, start : start + width], start)
        matches = single == wide
        difference = float((single.float() - wide.float()).abs().max())
        equal += float(matches.float().mean(-1).sum())
        whole += int(matches.all(-1).sum())
        same += int((single.argmax(-1) == wide.argmax(-1)).sum())
        largest = max(largest, difference / spacing(float(single.abs().max()), single.dtype))
        count += matches.shape[0] * matches.shape[1]
    return {
        "tokens": count, "equal_logits": equal / count, "equal_tokens": whole / count,
        "equal_argmax": same / count, "largest_ulp": largest,
    }  # fmt: skip


def repeats(text: Sequence[int]) -> bool:
    """Whether the second half of a text has a period of at most `PERIOD` tokens."""
    half = text[len(text) // 2 :]
    return any(half[p:] == half[:-p] for p in range(1, min(PERIOD, len(half) // 2) + 1))


def compare(probe: Probe, prompts: Texts, expected: Texts, found: Texts) -> dict[str, Any]:
    """The texts of speculative decoding against those of autoregressive decoding."""
    at = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), None)
        for x, y in zip(expected, found, strict=True)
    ]
    gaps = [
        gap_at(probe, prompt + x[:i], (x[i], y[i]))
        for prompt, x, y, i in zip(prompts, expected, found, at, strict=True)
        if i is not None
    ]
    parted = [i for i in at if i is not None]
    compared = sum(len(x) if i is None else i + 1 for x, i in zip(expected, at, strict=True))

    def median(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    return {
        "texts": len(expected),
        "exact": at.count(None) / len(at),
        "first_divergence": median(parted),
        "per_1000": 1e3 * len(parted) / compared,
        "gap": median([gap.logits for gap in gaps]),
        "gap_ulp": median([gap.ulp for gap in gaps]),
        "largest_gap_ulp": max((gap.ulp for gap in gaps), default=None),
        "two": statistics.fmean(gap.two for gap in gaps) if gaps else None,
        "repeats": statistics.fmean(map(repeats, expected)),
    }


def loaded(name: str, arguments: argparse.Namespace) -> tuple[LLM, Texts]:
    """A model with a draft, and its prompts."""
    how: dict[str, Any] = {
        "device": arguments.device,
        "dtype": arguments.dtype,
        "cuda_graphs": "lazy" if arguments.device.startswith("cuda") else False,
        "num_speculative_tokens": max(arguments.lengths),
    }
    count = arguments.prompts
    if name == PAIR:
        llm = bass.load(**how)
        assert llm.models.tokenizer is not None
        texts = [llm.models.tokenizer.encode(text) for text in PYTHON]
        rounds = range(-(-count // len(texts)))  # each without one more of the last tokens
        return llm, [text[: len(text) - cut] for cut in rounds for text in texts][:count]
    config = families(arguments.hidden, arguments.layers, arguments.vocabulary)[name]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        llm = bass.load(folder, folder, load_format="dummy", **how)
    assert llm.models.draft is not None
    for decoder in (llm.models.target, llm.models.draft):
        sharpen(decoder)
    random = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, arguments.vocabulary, (count, PROMPT_LENGTH), generator=random)
    return llm, drawn.tolist()


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All settings of one model."""
    began = time.perf_counter()
    llm, prompts = loaded(name, arguments)
    options = {"max_new_tokens": arguments.new_tokens, "temperature": 0, "ignore_eos": True}
    longest = max(map(len, prompts)) + arguments.new_tokens
    capacity = -(-longest // CAPACITY_STEP) * CAPACITY_STEP  # that of the engine
    probe = Probe.of(llm, 1, capacity)
    found, rows = [], []
    for batch in arguments.batches:
        policies = [replace(llm.parts, policy=Fixed(k)) for k in arguments.lengths]
        plans = [replace(llm.plan, parts=parts, max_batch_size=batch) for parts in policies]
        drafted = [LLM(llm.models, plan) for plan in plans]
        reference = plain(drafted[0]).generate(prompts, **options).completions
        expected = [[*one.token_ids] for one in reference]
        for k, one in zip(arguments.lengths, drafted, strict=True):
            result = one.generate(prompts, **options)
            texts = [[*text.token_ids] for text in result.completions]
            shares = compare(probe, prompts, expected, texts)
            found.append({"batch": batch, "k": k, "tau": result.stats.tau, **shares})
        if arguments.rows:
            whole = [[*a, *b] for a, b in zip(prompts, expected, strict=True)][:batch]
            shortest = min(map(len, whole))
            tokens = torch.tensor([text[:shortest] for text in whole], device=llm.models.device)
            of_batch = Probe.of(llm, len(whole), capacity)
            for k in arguments.lengths:
                rows.append({"batch": batch, "k": k, **compare_rows(of_batch, tokens, k + 1)})
    return {"texts": found, "rows": rows, "seconds": time.perf_counter() - began}


def number(value: float | None, form: str) -> str:
    """A cell of a table; a dash for none."""
    return "–" if value is None else format(value, form)


def line(name: str, r: dict[str, Any]) -> str:
    """A row of the first table."""
    shown = [
        name, r["batch"], r["k"], f"{r['tau']:.2f}", r["texts"], f"{r['exact']:.0%}",
        number(r["first_divergence"], "g"), f"{r['per_1000']:.1f}", number(r["gap"], ".3g"),
        number(r["gap_ulp"], ".1f"), number(r["largest_gap_ulp"], ".1f"),
        number(r["two"], ".0%"), f"{r['repeats']:.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, shown))} |"


def line_of_rows(name: str, r: dict[str, Any]) -> str:
    """A row of the second table."""
    shares = (f"{r[share]:.1%}" for share in ("equal_logits", "equal_tokens", "equal_argmax"))
    cells = [name, r["batch"], r["k"], r["tokens"], *shares, f"{r['largest_ulp']:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def heading(columns: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    known = [PAIR, *families(1024, 1, 2)]
    parser.add_argument("--families", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--lengths", nargs="+", type=cli.drafted, default=[4, 7])
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 8])
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--prompts", type=cli.positive, default=16)
    parser.add_argument("--new-tokens", type=cli.integer(1, CONTEXT - PROMPT_LENGTH), default=64)
    parser.add_argument("--hidden", type=cli.integer(128, 1 << 16, 128), default=1024)
    parser.add_argument("--layers", type=cli.layers, default=8)
    parser.add_argument("--vocabulary", type=cli.integer(2), default=65536)
    parser.add_argument("--device", type=cli.device, default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--results", type=cli.results_file)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure every model, and print its rows as soon as they are known."""
    arguments = parse(argv)
    on_gpu = arguments.device.startswith("cuda")
    device = torch.cuda.get_device_name() if on_gpu else cpu_name()
    results = Results(arguments.results, device)
    config = config_of(arguments)
    apart = {name: config[name] for name in config if name not in ("families", "results")}
    print(heading(COLUMNS), flush=True)
    for name in arguments.families:
        key = f"{name} {json.dumps(apart)}"
        found = results.measured(key, lambda name=name: measure(name, arguments))
        for one in found["texts"]:
            print(line(name, one), flush=True)
    if arguments.rows:
        print(f"\n{heading(ROW_COLUMNS)}")
        for name in arguments.families:
            for one in results.found[f"{name} {json.dumps(apart)}"]["rows"]:
                print(line_of_rows(name, one))
    record = {"benchmark": "rounding", "commit": commit(), "torch": torch.__version__}
    print(json.dumps(results.write(record | {"config": config})))


if __name__ == "__main__":
    cli.run(main)
