"""What every KV cache keeps to, with a backend that reads it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import Int
from torch import Tensor

from bass.api.kinds import KINDS
from bass.api.plan import backend_for
from bass.api.resolve import make
from bass.drafters import ModelDraft
from bass.engine.scorer import CachedAttend, check_pairing
from bass.errors import PairingError
from bass.interfaces import AttentionBackend
from bass.records import AttentionRule, CacheBudget, DecoderShape, Projection
from bass.testing import runs
from bass.testing.dense import dense_attention
from bass.testing.dictionary import SHAPE, Both
from bass.testing.engine import By, Setup
from bass.testing.laws_of_drafters import Watched
from bass.testing.policies import ByRow
from bass.testing.proof import Proof
from bass.testing.reading import READ
from bass.testing.strategies import Draw
from bass.testing.worlds import poisoned

DICTIONARY = (
    "a cache is a dictionary: a row's position holds what was last written there, through "
    "reserves, copies and new prompts."
)
DENSE = (
    "a query attends to positions 0 to its own of its own row, as dense attention in float64 does "
    "(within 1e-4)."
)
FINITE = "attention gives finite numbers for every query that has a token."
ABOVE = "what lies at higher positions changes no bit of the output."
RULES = (
    AttentionRule(0.7),
    AttentionRule(0.7, window=3),
    AttentionRule(0.4, 2, 1.5),
    AttentionRule(1.0, softcap=2.0),
)
LONG = 17  # positions: more than a block
PROMPTS = (3, 21, 37)  # tokens: those of the engine, shared among its rows
# of keys, queries to each, their size
HEADS = ((1, 1, 4), (2, 1, 8), (2, 2, 8), (1, 4, 16), (2, 3, 4))


def check_pair(cache: Any, backend: Any, examples: int = 40, seed: int = 0) -> None:
    """Prove that a KV cache, an attention backend, or both keep their contract.

    `cache` and `backend`: what `bass.load(cache=..., attention=...)` takes. Their view types must
    agree. The cache agrees with a dictionary under drawn writes, reserves, copies and new prompts
    (a cache with a view type of its own cannot be read, and is judged by its attention alone).
    Attention over ragged rows in poisoned storage is finite and equals dense attention in float64,
    with grouped heads, windows and soft caps; what lies at higher positions changes no bit. Greedy
    decoding of a tiny Llama equals the recomputed truth, and what its draft model reports are
    distributions. Nothing here is statistical. It runs on a CPU, or on the GPU if the backend
    refuses a CPU.

    Raises `ExactnessError`; `PairingError` for two that speak different view types; `OptionError`
    for what is no cache or backend.
    """
    layout = make("cache", cache)
    made = backend_for(backend, layout, torch.device("cpu"))
    check_pairing(layout, type(made), tuple(KINDS["attention"].registry.values()))
    device = device_for(made)
    proof = Proof(f"{layout.__name__} with {type(made).__name__}", examples, seed)
    if layout.view_type in READ:  # pyright: ignore[reportAttributeAccessIssue]
        proof.for_all(
            DICTIONARY, st.tuples(rooms(), st.data()), lambda case: agrees(proof, layout, *case)
        )
    proof.for_all(DENSE, passes(), lambda case: attends(proof, layout, made, case, device))
    # a model that drafts by this pair draws from distributions
    drafts = By(ModelDraft(), watch=lambda drafter, vocab: Watched(drafter, proof, vocab))
    setup = Setup(runs.llama(), device, (layout, lambda: made), ByRow(3), drafts)
    runs.prove_greedy(proof, setup, examples // 6, sizes=PROMPTS)


def device_for(backend: AttentionBackend[Any, Any]) -> torch.device:
    """A CPU, unless the backend refuses it and there is a GPU."""
    try:
        backend.check(torch.device("cpu"))
    except PairingError:
        if not torch.cuda.is_available():
            raise
        return torch.device("cuda")
    return torch.device("cpu")


def rooms() -> st.SearchStrategy[list[int]]:
    """Extents of one to four rows of a few positions, or of two or three rows of several blocks."""
    return st.lists(st.integers(1, 7) | st.integers(1, 40), min_size=1, max_size=4) | st.lists(
        st.integers(LONG, 70), min_size=2, max_size=3
    )


def agrees(proof: Proof, layout: Any, capacities: list, data: Any) -> None:
    """The law `DICTIONARY`, on a CPU."""
    done = [f"room for rows of {capacities} positions"]
    both = Both(
        layout.allocate(SHAPE, CacheBudget.of(np.array(capacities)), runs.CPU, torch.float32),
        np.array(capacities),
    )
    places = np.arange(max(capacities))
    both.write(0, np.where(places < np.array(capacities)[:, None], places, -1).tolist())
    done.append("write at every position")
    if len(capacities) > 1 and min(capacities) >= LONG and data.draw(st.booleans()):
        most = min(capacities) - data.draw(st.integers(0, 2))
        done.append(f"rows follow row 0 with at most {most} positions")
        proof.case = "; ".join(done)
        both.copy_rows(np.zeros(len(capacities), dtype=np.int64), most)
        wrong = both.difference()
        proof.require(DICTIONARY, wrong is None, *(wrong or ("", "")))
    for _ in range(data.draw(st.integers(1, 10))):
        done.append("(the next one raised)")
        proof.case = "; ".join(done)
        done[-1] = both.act(data.draw)
        proof.case = "; ".join(done)
        wrong = both.difference()
        proof.require(DICTIONARY, wrong is None, *(wrong or ("", "")))


@dataclass(frozen=True)
class Pass:
    """A past of its own length for each row, then a window of its own number of tokens, perhaps
    none.
    """

    heads: tuple  # of keys, queries to each, their size
    past: tuple
    used: tuple
    beyond: tuple  # positions beyond
    window: int
    rule: AttentionRule
    other: AttentionRule  # of another layer
    seed: int

    @property
    def ends(self) -> Int[np.ndarray, " batch"]:
        """The positions of each row that are in use."""
        return np.array(self.past) + self.used

    def __str__(self) -> str:
        rows = (
            f"rows with {list(self.past)} past positions and {list(self.used)} new ones in a "
            f"window of {self.window}"
        )
        return (
            f"{rows}; {self.heads[0]} key head(s), {self.heads[1]} queries to each, of size "
            f"{self.heads[2]}; {self.rule}; seed {self.seed}"
        )


@st.composite
def passes(draw: Draw) -> Pass:
    """One to three rows."""
    batch, window = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def rows(low: int, high: int) -> tuple:
        return tuple(draw(st.lists(st.integers(low, high), min_size=batch, max_size=batch)))

    rules = st.sampled_from(RULES)
    heads, past, used, beyond = (
        draw(st.sampled_from(HEADS)),
        rows(0, draw(st.sampled_from((20, 70)))),
        rows(0, window),
        rows(1, 3),
    )
    return Pass(
        heads, past, used, beyond, window, draw(rules), draw(rules), draw(st.integers(0, 99))
    )


def attends(
    proof: Proof, layout: Any, backend: AttentionBackend[Any, Any], case: Pass, device: torch.device
) -> None:
    """The laws `DENSE` and `ABOVE`."""
    kv_heads, groups, dim = case.heads
    batch, length = len(case.past), max(case.past) + case.window
    random = torch.Generator().manual_seed(case.seed)
    q, k, v = (
        torch.randn(batch, length, heads, dim, generator=random, dtype=torch.float64)
        for heads in (kv_heads * groups, kv_heads, kv_heads)
    )
    capacities = case.ends + case.beyond
    span = max(int(case.ends.max()), 1)
    shape = DecoderShape(5, kv_heads * groups, kv_heads, dim, 64, (case.other, case.rule))

    def part(values: Tensor, first: tuple, count: int) -> Tensor:
        return (
            torch.stack([values[b, start : start + count] for b, start in enumerate(first)])
            .float()
            .to(device)
        )

    def output(above: float) -> Tensor:
        cache = poisoned(layout.allocate(shape, CacheBudget.of(capacities), device, torch.float32))

        def attend(first: tuple, counts: tuple, width: int) -> Tensor:
            places = [
                [first[b] + w if w < counts[b] else -1 for w in range(width)] for b in range(batch)
            ]
            positions = torch.tensor(places, device=device)
            run = CachedAttend(
                cache, backend, backend.plan(positions, span), positions, shape.rules
            )
            # another layer, which may have another rule
            run(0, Projection.of(*(part(values, first, width) for values in (q, k, v))))
            return run(1, Projection.of(*(part(values, first, width) for values in (q, k, v))))

        everywhere = torch.arange(int(capacities.max()), device=device).expand(batch, -1)
        everywhere = torch.where(
            everywhere < torch.as_tensor(capacities, device=device)[:, None], everywhere, -1
        )
        for layer in range(2):
            cache.write(
                layer,
                *(
                    torch.full((*everywhere.shape, kv_heads, dim), sign * above, device=device)
                    for sign in (1, -1)
                ),
                everywhere,
            )
        if max(case.past):
            attend((0,) * batch, case.past, max(case.past))
        return attend(case.past, case.used, case.window)

    out = output(1e4)
    for b in range(batch):
        if case.used[b]:
            end = int(case.ends[b])
            mine = slice(b, b + 1), slice(end)
            expected = dense_attention(q[mine], k[mine], v[mine], case.rule)[0, case.past[b] :]
            got = out[b, : case.used[b]].double().cpu()
            bad = int((~got.isfinite()).flatten(1).any(1).int().argmax()) if len(got) else 0
            proof.require(
                FINITE,
                bool(got.isfinite().all()),
                f"finite numbers in row {b}",
                f"{got[bad].flatten().tolist()[:4]} of query {bad}",
            )
            near = got.shape == expected.shape and torch.allclose(
                got, expected, rtol=1e-4, atol=1e-4
            )
            proof.require(
                DENSE,
                near,
                f"row {b}, its first query and head: {expected[0, 0].tolist()[:4]}",
                got[0, 0].tolist()[:4],
            )
    other = output(-3e3)
    for b in range(batch):
        ours, theirs = out[b, : case.used[b]], other[b, : case.used[b]]
        apart = float((ours - theirs).abs().max()) if case.used[b] else 0.0
        proof.require(
            ABOVE,
            torch.equal(ours, theirs),
            f"the same bits in row {b} with -3000 as with 10000 above",
            f"a difference of {apart:.2g}",
        )
