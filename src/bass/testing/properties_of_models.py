"""The properties of every KV cache with a backend that reads it, and of every model family."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

from bass.api.plan import backend_for
from bass.api.resolve import make
from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.engine.scorer import CachedAttend
from bass.errors import PairingError
from bass.interfaces import AttentionBackend, KVCache
from bass.models.decoder import CausalDecoder
from bass.records import (
    AttentionRule,
    CacheBudget,
    DecoderShape,
    Projection,
    RowAssignment,
    Window,
)
from bass.testing import engine
from bass.testing.checking import Checker, shown
from bass.testing.doubles import ByRow
from bass.testing.engine import Setup
from bass.testing.inputs import Draw
from bass.testing.small_models import (
    DecoderPair,
    SmallLlama,
    dense_attention,
    poisoned,
    scaled_noise,
    whole_logits,
)

DENSE = (
    "a query attends to positions 0 to its own of its own row, as dense attention in float64 does "
    "(within 1e-4)."
)
FINITE = "the output is finite, that of a query at position -1 too."
ABOVE = "what lies at higher positions changes no bit of the output."
RULES = (
    AttentionRule(0.7),
    AttentionRule(0.7, window=3),
    AttentionRule(0.4, 2, 1.5),
    AttentionRule(1.0, softcap=2.0),
)
Queries = Float[Tensor, "batch length heads dim"]
Keys = Float[Tensor, "batch length kv_heads dim"]  # and values
PROMPTS = (3, 21, 37)  # tokens: those of the engine, shared among its rows
# of keys, queries to each, their size
HEADS = ((1, 1, 4), (2, 1, 8), (2, 2, 8), (1, 4, 16), (2, 3, 4))

WHOLE = (
    "a pass in windows over ragged rows, with a cache, gives the logits of one long pass of each "
    "row without one (within 1e-3): a query knows its position and the tokens up to it."
)
ALONE = "a row's logits are the same alone and in a batch (within 1e-3)."
CLOSE, LONGEST = 1e-3, 24  # of the largest logit; tokens of a row


def check_pair(cache: Any, backend: Any, examples: int = 40, seed: int = 0) -> None:
    """Test that a KV cache, an attention backend, or both keep their contract.

    `cache` and `backend`: what `bass.load(cache=..., attention=...)` takes. Their view types must
    agree. Attention over ragged rows in poisoned storage is finite and equals dense attention in
    float64, with grouped heads, windows, soft caps and sinks; values at higher positions change no
    bit. Greedy decoding of a tiny Llama with a draft model equals the recomputed reference, for
    ragged requests that share prompts and that follow others in a row. The engine has the first
    rows of a larger cache. No test is statistical. It runs on a CPU, or on the GPU if the backend
    does not support a CPU.

    Raises `ExactnessError`; `PairingError` for different view types; `OptionError` for objects that
    are no cache or backend.
    """
    layout = make("cache", cache)
    made = backend_for(backend, layout, engine.CPU)
    device = engine.CPU
    try:
        made.check(device)
    except PairingError:
        if not torch.cuda.is_available():
            raise
        device = torch.device("cuda")
    checker = Checker(f"{layout.__name__} with {type(made).__name__}", examples, seed)
    checker.for_all(passes(), lambda case: attends(checker, layout, made, case, device))
    pairing = FirstRows(layout), lambda: made
    setup = Setup(SmallLlama(), device, pairing, ByRow(3))
    engine.require_greedy(checker, setup, examples // 6, sizes=PROMPTS)


@final
@dataclass(frozen=True)
class FirstRows:
    """Allocates one row more than requested, and gives the first ones, as to a smaller engine."""

    layout: Any

    def allocate(self, shape: DecoderShape, budget: CacheBudget, *place: Any) -> Any:
        limits, shared, groups = budget.limits, budget.shared, budget.groups
        more = CacheBudget(
            budget.batch + 1,
            np.append(limits, limits.max()),
            np.append(shared, 0),
            np.append(groups, groups.max() + 1),
        )
        return self.layout.allocate(shape, more, *place).rows(0, budget.batch)


@dataclass(frozen=True)
class AttentionCase:
    """Rows with past tokens, and a window with new tokens of each row; both numbers vary by row."""

    heads: tuple  # of keys, queries to each, their size
    past: tuple
    used: tuple
    beyond: tuple  # positions beyond
    window: int
    rule: AttentionRule
    other: AttentionRule  # of another layer
    first_rows: bool  # of a larger cache
    has_sinks: bool
    seed: int

    @property
    def ends(self) -> Int[np.ndarray, " batch"]:
        """The positions of each row that are in use."""
        return np.array(self.past) + self.used

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

    def sinks(self) -> Float[Tensor, " heads"] | None:
        """A score of each query head, drawn by the seed."""
        random = torch.Generator().manual_seed(self.seed)
        size = self.heads[0] * self.heads[1]
        return torch.randn(size, generator=random, dtype=torch.float64) if self.has_sinks else None


@st.composite
def passes(draw: Draw) -> AttentionCase:
    """One to three rows."""
    batch, window = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def rows(low: int, high: int) -> tuple:
        return tuple(draw(st.lists(st.integers(low, high), min_size=batch, max_size=batch)))

    rule, heads = st.sampled_from(RULES), draw(st.sampled_from(HEADS))
    past, used = rows(0, draw(st.sampled_from((20, 70)))), rows(0, window)
    beyond = rows(0, draw(st.sampled_from((0, 3))))
    rules, flags = (draw(rule), draw(rule)), (draw(st.booleans()), draw(st.booleans()))
    return AttentionCase(
        heads, past, used, beyond, window, *rules, *flags, draw(st.integers(0, 99))
    )


def attends(
    checker: Checker,
    layout: Any,
    backend: AttentionBackend[Any, Any],
    case: AttentionCase,
    device: torch.device,
) -> None:
    """Check the properties `FINITE`, `DENSE` and `ABOVE`."""
    out, other = (attended(layout, backend, case, device, above) for above in (1e4, -3e3))
    checker.require(FINITE, bool(out.isfinite().all()), "finite values", out)
    for row, used in enumerate(case.used):
        if not used:
            continue
        got = out[row, :used].double().cpu()
        q, k, v = (values[row : row + 1, : case.ends[row]] for values in case.values())
        expected = dense_attention(q[:, case.past[row] :], k, v, case.rule, case.sinks())[0]
        near = got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
        text = f"row {row}, its first query and head: {shown(expected[0, 0, :4])}"
        checker.require(DENSE, near, text, got[0, 0, :4])
        same = torch.equal(out[row, :used], other[row, :used])
        text = f"the same bits in row {row} with -3000 as with 10000 above"
        checker.require(ABOVE, same, text, "other bits")


def attended(
    layout: Any,
    backend: AttentionBackend[Any, Any],
    case: AttentionCase,
    device: torch.device,
    above: float,
) -> Float[Tensor, "batch window heads dim"]:
    """The second layer's output for the window after the past, in a cache whose positions all held
    `above` before, with poison in all other storage.
    """
    batch, rules, sinks = len(case.past), (case.other, case.rule), case.sinks()
    capacities = np.maximum(case.ends + case.beyond, 1)
    span = int(capacities.max())
    kv_heads, groups, dim = case.heads
    shape = DecoderShape(5, kv_heads * groups, kv_heads, dim, 64, rules)
    layout = FirstRows(layout) if case.first_rows else layout
    cache = poisoned(layout.allocate(shape, CacheBudget.of(capacities), device, torch.float32))
    if case.seed % 2 and type(cache).selected is not KVCache.selected:
        cache.reserve(RowAssignment.of(capacities[::-1]))
        cache = cache.selected(torch.arange(batch, device=device).flip(0))
    else:
        cache.reserve(RowAssignment.of(capacities))

    def placed(first: Any, counts: Any, width: int) -> Tensor:
        w = np.arange(width)
        rows = np.where(w < np.array(counts)[:, None], np.array(first)[:, None] + w, -1)
        return torch.as_tensor(rows, device=device)

    def attend(first: tuple, counts: tuple, width: int) -> Tensor:
        positions = placed(first, counts, width)
        run = CachedAttend(cache, backend, backend.plan(positions, span), positions, rules)
        qkv = (
            torch.stack([values[b, start : start + width] for b, start in enumerate(first)])
            for values in case.values()
        )
        projection = Projection.of(*(values.to(device, torch.float32) for values in qkv))
        run(0, projection)  # another layer, which may have another rule
        return run(1, replace(projection, sinks=None if sinks is None else sinks.to(keys)))

    everywhere = placed((0,) * batch, capacities, int(capacities.max()))
    keys = torch.full((*everywhere.shape, kv_heads, dim), above, device=device)
    for layer in range(2):
        cache.write(layer, keys, -keys, everywhere)
    if max(case.past):
        attend((0,) * batch, case.past, max(case.past))
    return attend(case.past, case.used, case.window)


def check_family(
    family: type[CausalDecoder], config: Any, examples: int = 20, seed: int = 0
) -> None:
    """Test that a model family keeps the contract of a decoder, without a twin in `transformers`.

    `family`: a subclass of `CausalDecoder`. `config`: of its `config_type`, best a small one. With
    random weights in float32 on a CPU, drawn ragged rows are fed in windows, with
    columns of position -1 that hold other tokens, into a cache of poisoned storage. The logits of
    each row equal those of one long pass of that row without a cache, and of the row alone in
    windows, within 0.001 of the largest logit. It does not test that the weights of a checkpoint
    are read into the right parameters, or that a norm is the one of the paper.

    Raises `ExactnessError`.
    """
    checker, random = Checker(family.__name__, examples, seed), torch.Generator().manual_seed(seed)
    decoder = family(config, torch.device("cpu"), torch.float32).requires_grad_(False)  # pyright: ignore[reportArgumentType, reportCallIssue]
    for parameter in decoder.parameters():
        parameter.copy_(scaled_noise(parameter, random) + (parameter.ndim == 1))
    rows = st.builds(
        WindowedRows,
        st.lists(st.integers(1, min(decoder.shape.max_positions, LONGEST)), min_size=1, max_size=3),
        st.lists(st.integers(1, 5), min_size=1, max_size=4),
        st.integers(0, 99),
    )
    checker.for_all(rows, lambda case: passes_in_windows(checker, decoder, case))


@dataclass(frozen=True)
class WindowedRows:
    """Rows of different lengths, fed in windows of these widths. `seed`: of tokens, and of the
    windows that a row skips, where its positions are -1.
    """

    lengths: list
    widths: list
    seed: int


def passes_in_windows(checker: Checker, decoder: CausalDecoder, case: WindowedRows) -> None:
    """Check the properties `WHOLE` and `ALONE`."""
    random, size = np.random.default_rng(case.seed), decoder.shape.vocab_size
    rows = [random.integers(0, size, length) for length in case.lengths]
    together = in_windows(decoder, case, rows)
    for row, tokens in enumerate(rows):
        whole = whole_logits(decoder, tokens[None])[0]
        [alone] = in_windows(decoder, case, [tokens])
        near = CLOSE * max(float(np.abs(whole).max()), 1.0)
        for property, expected in ((WHOLE, whole), (ALONE, alone)):
            apart = np.abs(together[row] - expected).max(1)
            at = int(apart.argmax())
            text = f"row {row}, position {at}: {shown(expected[at, :4])}"
            checker.require(property, bool(apart[at] <= near), text, together[row][at, :4])


def in_windows(
    decoder: CausalDecoder, case: WindowedRows, rows: list[np.ndarray]
) -> list[np.ndarray]:
    """The logits of every position of these rows, fed in windows with a cache."""
    budget, random = CacheBudget.of(np.array([*map(len, rows)])), np.random.default_rng(case.seed)
    size = decoder.shape.vocab_size
    pair = DecoderPair(size, {"target": decoder})
    scorer = pair.scorer("target", (PaddedCache, SDPA), budget, engine.CPU)
    logits, fed = [np.zeros((len(row), size)) for row in rows], [0] * len(rows)
    widths = itertools.cycle(case.widths)
    while fed != [*map(len, rows)]:
        ids = random.integers(0, size, (len(rows), next(widths)))
        positions = np.full_like(ids, -1)  # there, ids are other tokens
        for b, row in enumerate(rows):
            most = random.choice([0, ids.shape[1]])
            at = np.arange(fed[b], min(fed[b] + most, len(row)))
            positions[b, : len(at)], ids[b, : len(at)] = at, row[at]
            fed[b] += len(at)
        span = max(int(positions.max()) + 1, 1)
        scored = scorer(Window(torch.tensor(ids), torch.tensor(positions), span))
        for b, at in enumerate(positions):
            logits[b][at[at >= 0]] = scored.logits[b].double().numpy()[at >= 0]
    return logits
