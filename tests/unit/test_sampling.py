"""The warps are Hugging Face's, and the draw is the inverse of the distribution function."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from bass.ops.sampling import draw
from bass.records import History
from bass.sampling_params import Sampling
from support.doubles import warped
from support.oracle import HuggingFace

OPTIONS = st.tuples(
    st.sampled_from((0.0, 0.2, 0.8, 1.0, 1.7)),
    st.sampled_from((-1, 0, 1, 2, 5, 100)),
    st.sampled_from((1.0, 0.95, 0.8, 0.5, 0.01)),
    st.sampled_from((0.0, 0.02, 0.1, 0.6)),
    st.sampled_from((1.0, 1.3, 0.7)),
).map(lambda row: Sampling(*row))


def history(rows: list[list[int]], drafted: int = 0) -> History:
    """Rows of equal or different lengths, their last `drafted` tokens as drafted ones; the free
    places hold token 0.
    """
    longest = max(len(row) for row in rows)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    lens = torch.tensor([len(row) - drafted for row in rows])
    ahead = torch.tensor([row[len(row) - drafted :] for row in rows], dtype=torch.int64).reshape(
        len(rows), drafted
    )
    known, none = tokens * (torch.arange(longest) < lens[:, None]), tokens[:, :0]
    return History(known, lens, ahead, lens, none, none.double())


def apart(values: np.ndarray, gap: float) -> bool:
    """No two values are nearer than a factor of 1 + `gap`: else rounding, not meaning, decides."""
    return bool((np.diff(np.log(np.sort(values))) > gap).all())


@given(options=OPTIONS, data=st.data())
def test_sampling_equals_the_processors_of_transformers(
    options: Sampling, data: st.DataObject
) -> None:
    vocab = data.draw(st.sampled_from((2, 3, 8, 40)))
    logits = (
        np.array(
            data.draw(st.lists(st.integers(-60, 60), min_size=vocab, max_size=vocab, unique=True))
        )
        / 16
    )
    row = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6))
    assume(decidable(options, logits[None], [row]))
    check(options, logits[None], [row])


@pytest.mark.parametrize("vocab", [31, 33, 512, 700])
@pytest.mark.parametrize(
    "options",
    [Sampling(1.0, top_p=p) for p in (0.3, 0.9, 0.999)] + [Sampling(0.5, 50, 0.9, 0.01, 1.2)],
    ids=repr,
)
def test_sampling_equals_transformers_in_wide_vocabularies_too(
    vocab: int, options: Sampling
) -> None:
    """Rows that are nearly flat and rows that are nearly sure in one batch."""
    random = np.random.default_rng(vocab)
    logits = random.normal(size=(6, vocab)) * np.array([[0.01], [0.5], [1], [2], [5], [20]])
    rows = random.integers(0, vocab, (6, 9)).tolist()
    assert decidable(options, logits, rows)
    check(options, logits, rows)


def check(options: Sampling, logits: np.ndarray, rows: list[list[int]]) -> None:
    got = warped(options, torch.tensor(logits)[:, None], history(rows))[:, 0].numpy()
    np.testing.assert_allclose(
        got, HuggingFace(options).probs(np.array(rows), logits), rtol=1e-9, atol=1e-12
    )


def decidable(options: Sampling, logits: np.ndarray, rows: list[list[int]]) -> bool:
    """No tie, and no cut that rounding alone could move."""
    before = HuggingFace(
        Sampling(options.temperature, options.top_k, 1.0, 0.0, options.repetition_penalty)
    ).probs(np.array(rows), logits)
    falling = -np.sort(-before, axis=1)
    top_p = options.top_p == 1 or (np.abs(falling.cumsum(1) - options.top_p) > 1e-12).all()
    min_p = (
        options.min_p == 0
        or (np.abs(before - options.min_p * before.max(1, keepdims=True)) > 1e-12).all()
    )
    return bool(top_p and min_p) and all(apart(row[row > 0], 1e-10) for row in before)


@given(options=OPTIONS, data=st.data())
def test_a_warped_distribution_sums_to_one_and_keeps_the_mode(
    options: Sampling, data: st.DataObject
) -> None:
    vocab = data.draw(st.integers(2, 50))
    logits = torch.tensor(
        data.draw(st.lists(st.floats(-30, 30, width=32), min_size=vocab, max_size=vocab))
    )
    plain = Sampling(options.temperature, options.top_k, options.top_p, options.min_p)
    probs = warped(plain, logits[None, None], history([[0]]))[0, 0]
    assert abs(float(probs.sum()) - 1) < 1e-5
    assert probs[logits.argmax()] == probs.max() > 0
    assert (probs >= 0).all()


@pytest.mark.parametrize("temperature", [1e-6, 0.2, 0.8, 1.0, 1.7])
def test_logits_may_be_as_large_as_their_type_allows(temperature: float) -> None:
    """A quotient that overflows would be infinite, and their distribution NaN."""
    most = float(np.finfo(np.float32).max)
    rows = [[most, most, -most, 0.0], [1.5, 1.0, -most, -np.inf], [-most, -most, -most, -np.inf]]
    logits = torch.tensor(rows, dtype=torch.float32)[:, None]
    expected = (logits.double() / temperature).softmax(-1)
    found = warped(Sampling(temperature), logits, history([[0]] * 3))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-12)


@given(data=st.data(), penalty=st.sampled_from((1.3, 0.7, 2.0)))
def test_a_penalty_in_a_window_counts_the_committed_and_the_earlier_drafted_tokens(
    data: st.DataObject, penalty: float
) -> None:
    """Logit w of a window follows the first w drafted tokens; rows have their own lengths; free
    places count for nothing.
    """
    vocab, k = 6, data.draw(st.integers(0, 4))
    rows = data.draw(
        st.lists(
            st.lists(st.integers(0, vocab - 1), min_size=k + 1, max_size=k + 5),
            min_size=1,
            max_size=3,
        )
    )
    logits = np.random.default_rng(k).normal(size=(len(rows), k + 1, vocab))
    warp = Sampling(1.0, repetition_penalty=penalty)
    window = warped(warp, torch.tensor(logits), history(rows, k)).numpy()
    for b, row in enumerate(rows):
        for w in range(k + 1):
            prefix = np.array([row[: len(row) - k + w]])
            np.testing.assert_allclose(
                window[b, w], HuggingFace(warp).probs(prefix, logits[b, w][None])[0], atol=1e-12
            )


def test_the_penalty_while_drafting_counts_all_tokens_drafted_so_far() -> None:
    """One logit after n drafted tokens: it follows every one of them."""
    warp, row, logits = (
        Sampling(1.0, repetition_penalty=1.5),
        [0, 1, 2, 3],
        np.array([[0.5, -0.5, 1.0, 0.2, 0.9]]),
    )
    got = warped(warp, torch.tensor(logits)[:, None], history([row], drafted=3))[0, 0].numpy()
    np.testing.assert_allclose(got, HuggingFace(warp).probs(np.array([row]), logits)[0], atol=1e-12)


@given(data=st.data())
def test_penalties_on_generated_tokens_count_neither_the_prompt_nor_what_follows(
    data: st.DataObject,
) -> None:
    """In a window: of the committed and the earlier drafted tokens; and an end token has no
    probability before `min_new_tokens`.
    """
    vocab, k = 6, data.draw(st.integers(0, 4))
    row = st.lists(st.integers(0, vocab - 1), min_size=k + 1, max_size=k + 6)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    prompts = [data.draw(st.integers(1, len(row) - k)) for row in rows]
    penalty, ends = st.sampled_from((-2.0, -0.3, 0.0, 0.7, 2.0)), ((1, 3), (2, -1), (-1, -1))
    warp = Sampling(
        data.draw(st.sampled_from((0.7, 1.0))),
        repetition_penalty=data.draw(st.sampled_from((1.0, 1.3))),
        presence_penalty=data.draw(penalty),
        frequency_penalty=data.draw(penalty),
        min_new_tokens=data.draw(st.integers(0, 5)),
    )
    before = replace(
        history(rows, k),
        prompt_lens=torch.tensor(prompts),
        end_tokens=torch.tensor(ends[: len(rows)]),
    )
    logits = np.random.default_rng(k).normal(size=(len(rows), k + 1, vocab))
    window = warped(warp, torch.tensor(logits), before).numpy()
    for b, row in enumerate(rows):
        oracle = HuggingFace(warp, prompts[b], tuple(end for end in ends[b] if end >= 0))
        for w in range(k + 1):
            prefix = np.array([row[: len(row) - k + w]])
            expected = oracle.probs(prefix, logits[b, w][None])[0]
            np.testing.assert_allclose(window[b, w], expected, atol=1e-12)


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    word=st.integers(0, 2**32 - 1),
)
def test_a_draw_is_the_first_token_whose_running_sum_exceeds_the_uniform(
    weights: list[int], word: int
) -> None:
    uniform = (word + 0.5) / 2**32
    token = int(
        draw(
            torch.tensor([weights], dtype=torch.float64),
            torch.tensor([uniform], dtype=torch.float64),
        )[0]
    )
    running = np.cumsum(weights)
    assert weights[token] > 0
    assert running[token] > uniform * running[-1] >= running[token] - weights[token]


@given(weights=st.lists(st.integers(0, 3), min_size=2, max_size=6).filter(any), data=st.data())
def test_a_draw_at_the_edge_of_a_cell_belongs_to_the_cell_above(
    weights: list[int], data: st.DataObject
) -> None:
    running = np.cumsum(weights)
    edge = data.draw(st.sampled_from([int(r) for r in running if r < running[-1]] or [0]))
    uniform = torch.tensor([edge / running[-1]], dtype=torch.float64)
    assume(float(uniform) * running[-1] == edge)
    token = int(draw(torch.tensor([weights], dtype=torch.float64), uniform)[0])
    assert weights[token] > 0
    assert running[token] - weights[token] == edge


@pytest.mark.parametrize("word", [0, 2**32 - 1])
@pytest.mark.parametrize("probs", [[0.0, 1.0, 0.0], [0.0, 0.3, 0.0, 0.7, 0.0], [1e-30, 0.0, 1.0]])
def test_the_outermost_uniforms_never_draw_a_token_of_probability_zero(
    probs: list[float], word: int
) -> None:
    uniform = torch.tensor([(word + 0.5) / 2**32], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert probs[int(draw(torch.tensor([probs], dtype=dtype), uniform)[0])] > 0
