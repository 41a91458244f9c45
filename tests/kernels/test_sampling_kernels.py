"""Tier 3: warps by kernels equal their twins in torch."""

import warnings
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bass.kernels.triton import sampling as kernels
from bass.ops import dispatch
from bass.records import History
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from support.matrix import night

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OPTIONS = {
    "plain": Sampling(),
    "greedy": Sampling(0.0, 3, 0.5),
    "hot": Sampling(1.7),
    "top-k": Sampling(1.0, 7),
    "one token": Sampling(0.9, 1),
    "more than there are": Sampling(1.0, 10_000),
    "top-p": Sampling(0.8, 0, 0.9),
    "least top-p": Sampling(1.0, 0, 1e-6),
    "min-p": Sampling(1.0, 0, 1.0, 0.05),
    "top-k and min-p": Sampling(1.3, 20, 1.0, 0.1),
    "all": Sampling(1.5, 9, 0.7, 0.02),
}
# with odd logits: each option alone or with others in every run, all of them every night
A_THIRD = [
    name
    if name in ("plain", "greedy", "least top-p", "all")
    else pytest.param(name, marks=pytest.mark.nightly)
    for name in OPTIONS
]


@pytest.fixture(autouse=True)
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU too, the functions that choose between kernels and torch are the twins here."""
    monkeypatch.setattr(dispatch, "use_kernels", lambda x: False)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows_of_logits(vocab: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Drawn ones; many ties, both zeros among them; tokens that are forbidden; a nearly sure one;
    all alike. [5, 1, vocab]
    """
    drawn = 3 * torch.randn(5, vocab, generator=generator(vocab), dtype=torch.float64)
    drawn[1] = (drawn[1] / 3).round() * torch.tensor([1.0, -1.0]).repeat(vocab)[:vocab]
    drawn[2, torch.randperm(vocab, generator=generator(1))[: vocab - 2]] = -torch.inf
    drawn[3, vocab // 2] = 30
    drawn[4] = -2.5
    return drawn[:, None].to(device, dtype)


def without_tokens(options: Sampling, logits: torch.Tensor) -> History:
    none = torch.zeros(len(logits), 0, dtype=torch.int64, device=logits.device)
    ahead = none.new_zeros(len(logits), logits.shape[1] - 1)
    zero = none.sum(1)
    packed = torch.tensor([options] * len(logits), dtype=torch.float64, device=logits.device)
    return History(none, zero, ahead, zero, none, packed)


def twin(options: Sampling, logits: torch.Tensor) -> torch.Tensor:
    return RowSampling()(logits, without_tokens(options, logits))


def kernel(options: Sampling, logits: torch.Tensor) -> torch.Tensor:
    return by_kernel(logits, without_tokens(options, logits))


def by_kernel(logits: torch.Tensor, history: History) -> torch.Tensor:
    h = history
    state = h.tokens, h.lens, h.prompt_lens, h.end_tokens, h.drafted
    return kernels.warp(logits, h.sampling, *state)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("cut")
def test_a_warp_equals_its_twin(options: str, device: torch.device) -> None:
    """The same tokens are kept, whatever the type, the ties, and where the chunks end."""
    for dtype, vocab in zip(DTYPES, (70, 3, 33), strict=True):
        logits = rows_of_logits(vocab, dtype, device)
        found, expected = kernel(OPTIONS[options], logits), twin(OPTIONS[options], logits)
        assert found.dtype == torch.float32
        assert torch.equal(found > 0, expected > 0)
        torch.testing.assert_close(found, expected, rtol=5e-6, atol=1e-7)


@pytest.mark.parametrize("options", ["plain", "all"])
def test_a_warp_of_700_tokens_equals_its_twin(options: str, device: torch.device) -> None:
    """With the constants that are in use."""
    for dtype in DTYPES[::2]:
        logits = rows_of_logits(700, dtype, device)[:2]
        torch.testing.assert_close(
            kernel(OPTIONS[options], logits), twin(OPTIONS[options], logits), rtol=5e-6, atol=1e-7
        )


@settings(max_examples=8)
@given(data=st.data())
def test_a_warp_equals_its_twin_for_any_logits_and_options(
    data: st.DataObject, device: torch.device
) -> None:
    """Logits in eighths, so that rounding neither makes nor breaks a tie; a cut that it could move
    is not judged.
    """
    vocab = data.draw(st.sampled_from((3, 17, 40)))
    values = data.draw(st.lists(st.integers(-80, 80), min_size=vocab, max_size=vocab))
    temperature, top_k = (
        data.draw(st.sampled_from((0.0, 0.5, 1.0))),
        data.draw(st.sampled_from((0, 1, 5))),
    )
    options = Sampling(
        temperature,
        top_k,
        data.draw(st.sampled_from((1.0, 0.3, 0.9))),
        data.draw(st.sampled_from((0.0, 0.03))),
    )
    logits = (torch.tensor(values, dtype=torch.float32)[None, None] / 8).to(
        device, data.draw(st.sampled_from(DTYPES[:2]))
    )
    nearby = [
        twin(
            options._replace(top_p=min(1.0, options.top_p * shift), min_p=options.min_p * shift),
            logits,
        )
        for shift in (1 - 1e-5, 1 + 1e-5)
    ]
    if options.top_p == 1 or torch.equal(*nearby):
        torch.testing.assert_close(
            kernel(options, logits), twin(options, logits), rtol=5e-6, atol=1e-7
        )


@pytest.mark.parametrize("options", A_THIRD)
@pytest.mark.usefixtures("cut")
def test_a_warp_of_logits_that_are_not_finite_is_not_finite(
    options: str, device: torch.device
) -> None:
    """Wherever it stands, whichever its sign; other rows stay as they are."""
    for dtype in DTYPES if options in ("plain", "greedy") else DTYPES[:1]:
        logits = rows_of_logits(66, dtype, device)
        sound = logits[3].clone()
        logits[0, 0, 1], logits[1, 0, 65], logits[2] = torch.nan, torch.inf, -torch.inf
        logits[4, 0, 40] = -torch.tensor(torch.nan)
        # the interpreter's
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            found = kernel(OPTIONS[options], logits)
        for probs in (found, twin(OPTIONS[options], logits)):
            assert (~probs.sum(-1).isfinite()).flatten().tolist() == [True, True, True, False, True]
        assert torch.equal(found[3:4], kernel(OPTIONS[options], sound[None]))


@pytest.mark.parametrize("options", A_THIRD)
@pytest.mark.usefixtures("cut")
def test_a_warp_of_logits_as_large_as_their_type_allows_equals_its_twin(
    options: str, device: torch.device
) -> None:
    """Some are -inf."""
    most = torch.finfo(torch.float32).max
    logits = rows_of_logits(66, torch.float32, device)
    logits[0, 0, 1], logits[1, 0, 65], logits[2, 0, ::2] = most, -most, -torch.inf
    logits[3, 0] = -most
    logits[4, 0, :2], logits[4, 0, 2:] = most, -most
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        found = kernel(OPTIONS[options], logits)
    expected = twin(OPTIONS[options], logits)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=5e-6, atol=1e-7)


@pytest.mark.usefixtures("cut")
def test_a_row_is_warped_alike_in_every_batch_and_window(device: torch.device) -> None:
    logits = rows_of_logits(131, torch.bfloat16, device)[:2]
    for name in ("plain", "top-p"):
        whole = kernel(OPTIONS[name], logits)
        assert torch.equal(kernel(OPTIONS[name], logits.view(1, 2, 131)), whole.view(1, 2, 131))
        apart = torch.stack((logits[:1], logits[:1] + 1), 2)[:, :, 0]
        assert torch.equal(kernel(OPTIONS[name], apart), whole[:1])  # alone, with a gap after it


# penalties, and end tokens that come too early, next to rows without
PENALTIES = (
    Sampling(1.0, repetition_penalty=1.3),
    Sampling(0.7, 5, 0.9, frequency_penalty=0.6, presence_penalty=-0.3),
    Sampling(1.3, 0, 0.8),
    Sampling(0.0, repetition_penalty=0.6, frequency_penalty=-1.7),
    Sampling(1.0, 3, 1.0, 0.1, min_new_tokens=5),
    Sampling(0.9, 0, 1.0, 0.0, 1.1, 0.2, 0.3, 3),
    Sampling(),
    Sampling(0.0),
)


def histories(vocab: int, columns: int, device: torch.device) -> History:
    """Rows of different lengths and prompts, each of which repeats tokens, one row for each of
    `PENALTIES`.
    """
    count, random = len(PENALTIES), np.random.default_rng(vocab + columns)
    lens = random.integers(1, 40, count)
    arrays = (
        random.integers(0, min(vocab, 12), (count, 40)),
        lens,
        random.integers(0, min(vocab, 12), (count, columns)),
        np.minimum(random.integers(1, 40, count), lens),
        np.where(random.random((count, 3)) < 0.3, -1, random.integers(0, vocab, (count, 3))),
    )
    packed = torch.tensor(PENALTIES, dtype=torch.float64, device=device)
    return History(*(torch.as_tensor(array, device=device) for array in arrays), packed)


@pytest.mark.parametrize(("window", "columns"), [(2, 3), night(1, 0), night(4, 3)])
@pytest.mark.usefixtures("cut")
def test_rows_with_options_of_their_own_equal_their_twin(
    window: int, columns: int, device: torch.device
) -> None:
    """And each row is what it is alone, whatever the options of others, bit by bit; in the torch
    version on a CPU, since sums of torch on a GPU depend on the number of rows.
    """
    # what the interpreter stores in bfloat16 is cut off, not rounded
    dtypes = DTYPES if device.type == "cuda" else DTYPES[1:]
    for dtype, vocab in zip(dtypes, (70, 33, 131), strict=False):
        history = histories(vocab, columns, device)
        shape = len(PENALTIES), window, vocab
        logits = 2 * torch.randn(shape, generator=generator(vocab), dtype=torch.float64)
        logits[:, 0, 7] = -torch.inf
        logits = logits.to(device, dtype)
        found, expected = by_kernel(logits, history), RowSampling()(logits, history)
        assert torch.equal(found > 0, expected > 0)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
        for row in range(len(PENALTIES)):
            own = slice(row, row + 1)
            alone = History(*(getattr(history, f.name)[own] for f in fields(History)))
            assert torch.equal(by_kernel(logits[own], alone), found[own])
            if device.type == "cpu":
                assert torch.equal(RowSampling()(logits[own], alone), expected[own])


def test_a_long_row_is_counted_whole(device: torch.device) -> None:
    """With the constants that are in use: more tokens than one block, more of the vocabulary than
    one program.
    """
    vocab = 9000
    tokens = torch.randint(vocab, (1, 3000), generator=generator(1)).to(device)
    lens = torch.tensor([2900], device=device)
    logits = torch.randn(1, 1, vocab, generator=generator(2)).to(device)
    options = Sampling(1.0, 0, 1.0, 0.0, 1.4, 0.5, 0.25)
    packed = torch.tensor([options], dtype=torch.float64, device=device)
    history = History(tokens, lens, tokens[:, :0], lens - 1500, tokens[:, :0], packed)
    found, expected = by_kernel(logits, history), RowSampling()(logits, history)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
