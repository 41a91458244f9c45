"""Does time follow what is drafted? Rows of two acceptances, with one length and with their own.

    python benchmarks/ragged.py [--device cpu|cuda] [--pairs embedded eagle3 llama]
        [--batches 8 32 64] [--acceptances 0.9,0.4 0.6,0.6] [--own 8 1] [--lengths 1 2 3 4 6 8]
        [--costs 0.1] [--queue 1] [--repeats 3] [--new-tokens 128] [--padded]
        [--shares 0.25 0.5 1]

Half of the rows accept each drafted token with the first probability, the others with the second,
whatever the tokens are. `own` gives each half its length of `--own`; `budget` is `per-row-budget`
with the mean of these lengths for each row; `trim` drafts the longest of them, and the trim
`survival` keeps what pays by its measured cost, `cost=C` by that cost; `auto` has any length,
without and with that trim. A call ends with its slowest rows, whatever the others draft: with
`--queue N` it has N requests for each row, whose places are refilled. With `--shares`, instead,
this share of the rows drafts the longest of `--own`, the others nothing: milliseconds of a step, by
the tokens of its window, packed and padded. On a GPU: the shapes of `write_shapes.py` with random
weights and prompts of 150 tokens, with `--padded` in padded windows too; on a CPU: the embedded
target with its draft model or a head, whose windows are packed. All methods take turns in one
process, after a warm-up of each. A figure is tokens/s of whole calls, the median of the repeats.
Prints a table in Markdown, and one JSON line last.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, final

import command_line as cli
import numpy as np
import torch
from provenance import commit, config_of
from write_shapes import HEADS, PAIRS, SHAPES

import bass
from bass.api.llm import LLM, plain
from bass.api.options import RequestOptions
from bass.engine import packing, shapes
from bass.experiments.prompts import PYTHON
from bass.interfaces import DraftLengthPolicy, Verifier
from bass.ops.batch_state import leading
from bass.ops.verification import emit, target_after
from bass.policies import Auto, Fixed, RowBudget
from bass.records import Draft, Feedback, Noise, Verdict
from bass.trims import Survival

PROMPT = 150
ON_CPU = ("embedded", "eagle3", "block")  # the embedded target with its draft model, or a head


@final
@dataclass(frozen=True, eq=False)
class TwoKinds(Verifier):
    """Accept each drafted token of an even row with one probability, of an odd row with another:
    two rates, on the device, so that graphs read what they hold.
    """

    lossless: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = False
    caveat: ClassVar[str] = "drafted tokens are accepted at fixed rates"

    rates: torch.Tensor = field(repr=False)

    def __call__(self, draft: Draft, target_probs: torch.Tensor, noise: Noise) -> Verdict:
        rate = self.rates.repeat(1 + len(draft.lengths) // 2)[: len(draft.lengths), None]
        accepted = leading(noise.accept[:, : draft.tokens.shape[1]] < rate, draft.lengths)
        return emit(draft, accepted, target_after(target_probs, accepted), noise)


@final
@dataclass(frozen=True)
class Own(DraftLengthPolicy[int]):
    """The lengths of the first rows, repeated for the others. Its state is the number of rows."""

    constant_length: ClassVar[bool] = True

    each: tuple[int, ...]

    @property
    def max_length(self) -> int:  # type: ignore[override]
        return max(self.each)

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.resize(np.array(self.each, dtype=np.int32), state)

    def update(self, state: int, feedback: Feedback) -> int:
        return state


def rate_of(llm: LLM, prompts: list[Any], request: dict[str, Any], seed: int) -> float:
    """Tokens/s of a call."""
    began = time.perf_counter()
    result = llm.generate(prompts, seed=seed, **request)
    return sum(len(one.token_ids) for one in result.completions) / (time.perf_counter() - began)


def step_ms(llm: LLM, prompts: list[Any], request: dict[str, Any], policy: Any) -> float:
    """Median milliseconds of a step in which all rows decode."""
    llm._engines.parts = replace(llm.parts, policy=policy)
    steps = llm.generate(prompts, **request).trace
    return 1e3 * statistics.median(s.seconds for s in steps if (s.requests >= 0).all())


def by_share(
    llm: LLM, prompts: list[Any], request: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, float]:
    """Milliseconds of a step by the tokens of its window."""
    batch, longest = len(prompts), max(arguments.own)
    sizes, most, found = shapes.PACKED, packing.MOST, dict[str, float]()
    for share in arguments.shares:
        rows = round(share * batch)
        tokens = batch + rows * longest
        for word, shapes.PACKED, packing.MOST in (("", sizes, most), (", padded", (), 0.0)):
            own = Own((longest,) * rows + (0,) * (batch - rows))
            found[f"{tokens}{word}"] = min(
                step_ms(llm, prompts, request, own) for _ in range(arguments.repeats)
            )
    shapes.PACKED, packing.MOST = sizes, most
    return found


def measured(
    name: str, batch: int, arguments: argparse.Namespace
) -> Iterator[tuple[tuple[float, float], dict[str, float]]]:
    """The acceptances, and tokens/s of each method, medians; with `--shares`, `by_share`."""
    acceptance = torch.zeros(2, device=arguments.device)
    verifier, longest = TwoKinds(acceptance), max(*arguments.lengths, *arguments.own)
    options: dict[str, Any] = {"device": arguments.device, "max_batch_size": batch}
    count = batch * arguments.queue
    options |= {"policy": RowBudget(1, max_length=longest), "verifier": verifier}
    if arguments.device == "cpu":
        prompts: list[Any] = (PYTHON * (1 + count // len(PYTHON)))[:count]
        options |= {} if name == "embedded" else {"draft": name}
    else:
        drawn = torch.Generator().manual_seed(0)
        prompts = torch.randint(0, 50000, (count, PROMPT), generator=drawn).tolist()
        folders = {role: str(SHAPES / name / role) for role in ("target", "draft")}
        options |= {**folders, "load_format": "dummy", "cuda_graphs": "lazy"}
    llm = bass.load(**options)
    without = plain(llm)
    request: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": arguments.new_tokens}
    request |= {"temperature": 1.0, "top_p": 1.0}
    if arguments.shares:
        acceptance.copy_(torch.tensor(arguments.acceptances[0]))
        llm.warm_up_for([(prompts, RequestOptions(**request))])
        yield arguments.acceptances[0], by_share(llm, prompts, request, arguments)
        return
    first, second = arguments.own
    fixed, auto = Fixed(max(arguments.own)), Auto(max_length=longest)
    trims = {"trim": (fixed, Survival()), "auto, trim": (auto, Survival())}
    trims |= {f"cost={cost}": (fixed, Survival(cost=cost)) for cost in arguments.costs}
    trimmed = dict[str, LLM]()
    for word, (policy, trim) in trims.items():
        parts = replace(llm.parts, policy=policy, trim=trim)
        trimmed[word] = LLM(llm.models, replace(llm.plan, parts=parts))
    for one in (llm, *trimmed.values()):
        one.warm_up_for([(prompts, RequestOptions(**request))])
    policies: dict[str, DraftLengthPolicy[Any]] = {f"k={k}": Fixed(k) for k in arguments.lengths}
    policies["own"] = Own((first, second))
    policies["budget"] = RowBudget(batch * (first + second) // 2, max_length=longest)
    policies["auto"] = auto
    sizes = {"": shapes.PACKED} | ({", padded": ()} if arguments.padded else {})
    for pair in arguments.acceptances:
        acceptance.copy_(torch.tensor(pair))
        rates: dict[str, list[float]] = {}
        for repeat in range(arguments.repeats + 1):
            rates.setdefault("none", []).append(rate_of(without, prompts, request, repeat))
            for (word, shapes.PACKED), (one, policy) in product(sizes.items(), policies.items()):
                llm._engines.parts = replace(llm.parts, policy=policy)  # in graphs of all lengths
                rates.setdefault(one + word, []).append(rate_of(llm, prompts, request, repeat))
            for (word, shapes.PACKED), (one, llm_of) in product(sizes.items(), trimmed.items()):
                rates.setdefault(one + word, []).append(rate_of(llm_of, prompts, request, repeat))
            shapes.PACKED = sizes[""]
        yield pair, {one: statistics.median(found[1:]) for one, found in rates.items()}


def two_shares(text: str) -> tuple[float, float]:
    """Two acceptances, as in 0.9,0.4."""
    first, second = map(cli.share, text.split(","))
    return first, second


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--device", type=cli.device, default="cpu")
    pairs = [*PAIRS, *HEADS, *ON_CPU]
    parser.add_argument("--pairs", nargs="+", default=["embedded"], choices=pairs)
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[8])
    parser.add_argument("--acceptances", nargs="+", type=two_shares, default=[(0.9, 0.4)])
    parser.add_argument("--own", nargs=2, type=cli.natural, default=[8, 1])
    parser.add_argument("--lengths", nargs="+", type=cli.drafted, default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--costs", nargs="+", type=cli.share, default=[])
    parser.add_argument("--shares", nargs="+", type=cli.share, default=[])
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--queue", type=cli.positive, default=1)
    parser.add_argument("--repeats", type=cli.positive, default=3)
    parser.add_argument("--new-tokens", type=cli.positive, default=128)
    arguments = parser.parse_args(argv)
    if wrong := [one for one in arguments.pairs if (one in ON_CPU) != (arguments.device == "cpu")]:
        parser.error(f"`{wrong[0]}` does not run on {arguments.device} here: give other `--pairs`.")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Measure all batches; returns the exit status."""
    arguments, found = parse(argv), []
    for name, batch in product(arguments.pairs, arguments.batches):
        for (first, second), rates in measured(name, batch, arguments):
            if not found or arguments.shares:
                print(f"| pair | batch | acceptance | {' | '.join(rates)} |")
                print("|---|--:|--:|" + "--:|" * len(rates))
            digits = 2 if arguments.shares else 0
            words = " | ".join(f"{rate:,.{digits}f}" for rate in rates.values())
            print(f"| {name} | {batch} | {first}, {second} | {words} |", flush=True)
            unit = "step_ms" if arguments.shares else "tokens_per_second"
            found.append(
                {"pair": name, "batch": batch, "acceptances": [first, second], unit: rates}
            )
    gpu = arguments.device == "cuda"
    device = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    about = {"benchmark": "ragged", "commit": commit(), "torch": torch.__version__}
    print(json.dumps(about | {"device": device, "config": config_of(arguments), "found": found}))
    return 0


if __name__ == "__main__":
    cli.run(main)
