"""The properties of every KV cache with a backend that reads it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

from bass.api.kinds import KINDS
from bass.api.plan import backend_for
from bass.api.resolve import make
from bass.drafters import ModelDraft
from bass.engine.scorer import CachedAttend, check_pairing
from bass.errors import PairingError
from bass.interfaces import AttentionBackend, KVCache
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
Queries = Float[Tensor, "batch length heads dim"]
Keys = Float[Tensor, "batch length kv_heads dim"]  # and values
LONG = 17  # positions: more than a block
PROMPTS = (3, 21, 37)  # tokens: those of the engine, shared among its rows
# of keys, queries to each, their size
HEADS = ((1, 1, 4), (2, 1, 8), (2, 2, 8), (1, 4, 16), (2, 3, 4))


def check_pair(cache: Any, backend: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a KV cache, an attention backend, or both keep their contract.

    `cache` and `backend`: what `bass.load(cache=..., attention=...)` takes. Their view types must
    agree. The cache agrees with a dictionary under drawn writes, reserves, copies and new prompts
    (a cache with its own view type cannot be read, and is tested by its attention only).
    Attention over ragged rows in poisoned storage is finite and equals dense attention in float64,
    with grouped heads, windows and soft caps; values at higher positions change no bit. Greedy
    decoding of a tiny Llama equals the recomputed truth, and its draft model reports valid
    distributions. No test is statistical. It runs on a CPU, or on the GPU if the backend does not
    support a CPU.

    Raises `ExactnessError`; `PairingError` for different view types; `OptionError` for objects that
    are no cache or backend.
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
    # a draft model with this cache and backend draws from distributions
    drafts = By(ModelDraft(), watch=lambda drafter, vocab: Watched(drafter, proof, vocab))
    setup = Setup(runs.llama(), device, (layout, lambda: made), ByRow(3), drafts)
    runs.prove_greedy(proof, setup, examples // 6, sizes=PROMPTS)


def device_for(backend: AttentionBackend[Any, Any]) -> torch.device:
    """A CPU, unless the backend does not support it and there is a GPU."""
    try:
        backend.check(torch.device("cpu"))
    except PairingError:
        if not torch.cuda.is_available():
            raise
        return torch.device("cuda")
    return torch.device("cpu")


def rooms() -> st.SearchStrategy[list[int]]:
    """Capacities: one to four rows of a few positions, or two or three rows of several blocks."""
    return st.lists(st.integers(1, 7) | st.integers(1, 40), min_size=1, max_size=4) | st.lists(
        st.integers(LONG, 70), min_size=2, max_size=3
    )


def agrees(proof: Proof, layout: Any, capacities: list, data: Any) -> None:
    """Test the property `DICTIONARY`, on a CPU."""
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
    """Rows with past tokens, and a window with new tokens of each row; both numbers vary by row."""

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

    @property
    def capacities(self) -> Int[np.ndarray, " batch"]:
        """The positions of each row."""
        return self.ends + self.beyond

    @property
    def shape(self) -> DecoderShape:
        """The shape of a decoder of two layers, each with its own rule."""
        kv_heads, groups, dim = self.heads
        return DecoderShape(5, kv_heads * groups, kv_heads, dim, 64, (self.other, self.rule))

    def values(self) -> tuple[Queries, Keys, Keys]:
        """Queries, keys and values of every position, drawn by the seed."""
        kv_heads, groups, dim = self.heads
        batch, length = len(self.past), max(self.past) + self.window
        random = torch.Generator().manual_seed(self.seed)
        q, k, v = (
            torch.randn(batch, length, heads, dim, generator=random, dtype=torch.float64)
            for heads in (kv_heads * groups, kv_heads, kv_heads)
        )
        return q, k, v

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
    """Test the properties `FINITE`, `DENSE` and `ABOVE`."""
    out, other = (attended(layout, backend, case, device, above) for above in (1e4, -3e3))
    for row, used in enumerate(case.used):
        if used:
            require_dense(proof, case, row, out[row, :used].double().cpu())
    for row, used in enumerate(case.used):
        ours, theirs = out[row, :used], other[row, :used]
        apart = float((ours - theirs).abs().max()) if used else 0.0
        proof.require(
            ABOVE,
            torch.equal(ours, theirs),
            f"the same bits in row {row} with -3000 as with 10000 above",
            f"a difference of {apart:.2g}",
        )


def attended(
    layout: Any,
    backend: AttentionBackend[Any, Any],
    case: Pass,
    device: torch.device,
    above: float,
) -> Float[Tensor, "batch window heads dim"]:
    """The second layer's output for the window after the past, in a cache whose positions all held
    `above` before, with poison in all other storage.
    """
    batch, rules, span = len(case.past), case.shape.rules, max(int(case.ends.max()), 1)
    budget = CacheBudget.of(case.capacities)
    cache = poisoned(layout.allocate(case.shape, budget, device, torch.float32))
    fill(cache, case, device, above)
    qkv = case.values()

    def attend(first: tuple, counts: tuple, width: int) -> Tensor:
        places = [
            [first[b] + w if w < counts[b] else -1 for w in range(width)] for b in range(batch)
        ]
        positions = torch.tensor(places, device=device)
        run = CachedAttend(cache, backend, backend.plan(positions, span), positions, rules)
        parts = [
            torch.stack([values[b, start : start + width] for b, start in enumerate(first)])
            for values in qkv
        ]
        q, k, v = (part.float().to(device) for part in parts)
        run(0, Projection.of(q, k, v))  # another layer, which may have another rule
        return run(1, Projection.of(q, k, v))

    if max(case.past):
        attend((0,) * batch, case.past, max(case.past))
    return attend(case.past, case.used, case.window)


def fill(cache: KVCache[Any], case: Pass, device: torch.device, value: float) -> None:
    """Write a value to the keys of all positions of both layers, and its negative to the values."""
    capacities = torch.as_tensor(case.capacities, device=device)[:, None]
    places = torch.arange(int(case.capacities.max()), device=device).expand(len(case.past), -1)
    positions = torch.where(places < capacities, places, -1)
    kv_heads, _, dim = case.heads
    keys = torch.full((*positions.shape, kv_heads, dim), value, device=device)
    for layer in range(2):
        cache.write(layer, keys, -keys, positions)


def require_dense(
    proof: Proof, case: Pass, row: int, got: Float[Tensor, "length heads dim"]
) -> None:
    """Test the properties `FINITE` and `DENSE` for one row's queries."""
    q, k, v = (values[row : row + 1, : case.ends[row]] for values in case.values())
    expected = dense_attention(q[:, case.past[row] :], k, v, case.rule)[0]
    finite = got.isfinite().flatten(1).all(1)
    bad = int((~finite).int().argmax())
    proof.require(
        FINITE,
        bool(finite.all()),
        f"finite numbers in row {row}",
        f"{got[bad].flatten().tolist()[:4]} of query {bad}",
    )
    near = got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
    proof.require(
        DENSE,
        near,
        f"row {row}, its first query and head: {expected[0, 0].tolist()[:4]}",
        got[0, 0].tolist()[:4],
    )
