"""The kernels of a step on a CPU compute what its torch operations do."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.kernels import values
from bass.ops import batch_state, sampling, verification
from bass.records import Draft, History, Noise, Sequences, Verdict
from bass.sampling_params import Sampling
from support.cpu import UNSUPPORTED, cpu, cpu_kernels

if UNSUPPORTED is not None:
    pytest.skip("the kernels for CPUs do not run here", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("threads")

seeds, rows, lengths = st.integers(0, 99), st.integers(1, 4), st.integers(0, 4)
vocabs = st.sampled_from([1, 3, 40, 700])


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """The result by torch, and that by the kernels."""
    expected = compute()
    with cpu_kernels():
        return expected, compute()


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributions(seed: int, *shape: int) -> torch.Tensor:
    """Some tokens have probability 0."""
    logits = 2 * torch.randn(*shape, generator=random(seed))
    return (logits.softmax(-1) * (logits > -2)).clamp(min=1e-9 * (logits == logits.amax(-1, True)))


def drafted(seed: int, batch: int, k: int, vocab: int, with_probs: bool = True) -> Draft:
    tokens = torch.randint(0, vocab, (batch, k), generator=random(seed))
    own = torch.randint(0, k + 1, (batch,), generator=random(seed + 1))
    return Draft(tokens, distributions(seed + 2, batch, k, vocab) if with_probs else None, own)


def noise(seed: int, batch: int, slots: int) -> Noise:
    uniforms = torch.rand(batch, slots, 4, generator=random(seed), dtype=torch.float64)
    return Noise(torch.arange(batch), torch.arange(batch), uniforms)


options = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0, 1, 5, 1000]),
    st.sampled_from([0.05, 0.7, 1.0]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([1.0, 1.0, 1.5]),
).map(lambda row: Sampling(*row))


@given(seeds, st.lists(options, min_size=1, max_size=3), st.integers(1, 3), vocabs)
def test_a_warp(seed: int, given_: list[Sampling], window: int, vocab: int) -> None:
    batch = len(given_)
    logits = 3 * torch.randn(batch, window, vocab, generator=random(seed))
    logits[0, 0, 0] = -math.inf if vocab > 1 else 0.0
    if seed % 4 == 0:
        logits[-1, -1, -1] = (math.nan, math.inf)[seed // 4 % 2]
    packed = torch.tensor(given_, dtype=torch.float64)
    tokens, lens = torch.zeros(batch, 4, dtype=torch.int64), torch.ones(batch, dtype=torch.int64)
    history = History(tokens, lens, tokens[:, : window - 1], lens, tokens[:, :0], packed)
    expected, found = both(lambda: sampling.warp(logits, history))
    assert torch.allclose(found, expected, atol=1e-6, rtol=1e-5, equal_nan=True)
    assert torch.equal(found == 0, expected == 0)
    with cpu_kernels():  # no row depends on the others
        alone = History(tokens[:1], lens[:1], tokens[:1, : window - 1], lens[:1], tokens[:1, :0],
                        packed[:1])  # fmt: skip
        if given_[0].repetition_penalty == 1 and packed[:, 4].eq(1).all():
            assert torch.equal(sampling.warp(logits[:1], alone), found[:1]) or found.isnan().any()


@given(seeds, rows, vocabs)
def test_the_exponential_of_a_softmax(seed: int, batch: int, vocab: int) -> None:
    logits = 30 * torch.randn(batch, 2, vocab, generator=random(seed))
    found = cpu().step.warp(logits, torch.tensor([Sampling()] * batch, dtype=torch.float64))
    assert torch.allclose(found, logits.softmax(-1), atol=1e-36, rtol=1e-5)


@given(seeds, rows, vocabs)
def test_a_draw_has_the_bits_of_torch(seed: int, batch: int, vocab: int) -> None:
    probs, uniforms = distributions(seed, batch, vocab), noise(seed, batch, 3).uniforms
    if seed % 5 == 0:
        probs[0] = math.nan
    expected, found = both(lambda: sampling.draw(probs, uniforms[:, 1, 2]))
    assert torch.equal(found, expected)


@given(seeds, rows, lengths, vocabs, st.booleans())
def test_a_verdict_has_the_bits_of_torch(
    seed: int, batch: int, k: int, vocab: int, with_probs: bool
) -> None:
    draft = drafted(seed, batch, k, vocab, with_probs)
    target = distributions(seed + 9, batch, k + 1, vocab)
    if draft.probs is not None and seed % 3 == 0 and k:
        target[:, :k] = draft.probs  # every residual is 0
    expected, found = both(lambda: verification.rejection(draft, target, noise(seed, batch, k + 1)))
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.tokens, expected.tokens)


@given(seeds, rows, lengths, st.sampled_from([0.0, -1.0, 0.5, math.nan, math.inf]))
def test_flags_of_distributions(seed: int, batch: int, k: int, wrong: float) -> None:
    probs = torch.rand(batch, k, 9, generator=random(seed)).softmax(-1)
    counted = torch.randint(0, k + 1, (batch,), generator=random(seed))
    if k:
        probs[-1, k - 1, seed % 9] = wrong
        probs[0, 0, 3] -= 0.5 if seed % 2 else 0.0
    expected = [0] * batch
    for b in range(batch):
        for one in probs[b, : counted[b]]:
            if not one.sum().isfinite():
                expected[b] |= values.NOT_FINITE
            elif one.min() < 0:
                expected[b] |= values.NEGATIVE
            elif (one.sum() - 1).abs() > values.TOLERANCE:
                expected[b] |= values.NOT_ONE
    assert batch_state.distribution_flags(probs, counted).tolist() == expected


@given(seeds, rows, lengths, st.integers(1, 3))
def test_what_a_step_does_to_its_rows(seed: int, batch: int, k: int, ends: int) -> None:
    vocab, draft = 6, drafted(seed, batch, k, 6, seed % 2 == 0)
    accepted = torch.randint(0, k + 1, (batch,), generator=random(seed))
    emitted = torch.randint(-1, vocab + 1, (batch, k + 1), generator=random(seed + 1))
    logits = 3 * torch.randn(batch, k + 1, vocab, generator=random(seed + 5))
    probs = logits.softmax(-1)
    probs[-1, k, 0] += (0, math.nan, 0.5, -2)[seed % 4]

    def unpacked(report: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_numpy(part) for part in batch_state.unpack_tokens(report.numpy())]

    def stepped() -> list[torch.Tensor]:
        made = Sequences.empty(batch, 12, list(range(ends)), torch.device("cpu"), 3)
        made.tokens.copy_(torch.arange(13))
        made.lens.copy_(torch.randint(0, 7, (batch,), generator=random(seed + 2)))
        made.limits.copy_(made.lens + torch.randint(1, 6, (batch,), generator=random(seed + 3)))
        made.active.copy_(torch.rand(batch, generator=random(seed + 4)) < 0.7)
        window = batch_state.window(made, draft)
        report, counts = batch_state.commit_and_report(
            made, draft, accepted, Verdict(emitted, accepted), logits, probs, seed % 3 == 0
        )
        numbers, (tokens, logprobs, drafts, floats) = report[:, :6], unpacked(report)
        assert (logprobs.isnan() == ((emitted < 0) | (emitted >= vocab))).all()
        rest = [numbers, tokens, logprobs.nan_to_num(), drafts, floats.nan_to_num()]
        return [*window, counts, *rest, *vars(made).values()]

    for one, other in zip(*both(stepped), strict=True):
        used = slice(12) if one.shape[-1:] == (13,) else slice(None)  # not the spare slot
        assert torch.allclose(one[..., used], other[..., used], atol=1e-5)
