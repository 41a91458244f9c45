"""The kit's own reference of sampling options equals that of `transformers`."""

import numpy as np
import pytest

from bass.sampling_params import Sampling
from bass.testing import engine
from bass.testing.inputs import MIXED
from bass.testing.small_models import SamplingReference, sequence_law
from support.oracle import HuggingFace

OPTIONS = (
    *MIXED,
    Sampling(),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=0.9, top_k=3, top_p=0.7, min_p=0.1, repetition_penalty=0.7),
    Sampling(presence_penalty=-0.9, frequency_penalty=-0.6),
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_reference_of_the_kit_is_that_of_transformers(options: Sampling) -> None:
    model, random = engine.LARGE_TABLE, np.random.default_rng(0)
    for length in (2, 3, 4, 6):
        prefixes = random.integers(0, model.vocab, (64, length))
        prefixes[:, 2:][prefixes[:, 2:] == engine.END] = 0  # else the output has ended
        logits = model.oracle("target", prefixes)
        own = SamplingReference(options, 2, engine.END)(prefixes, logits)
        theirs = HuggingFace(options, 2, (engine.END,)).probs(prefixes, logits)
        np.testing.assert_allclose(own, theirs, atol=1e-9)


def test_an_output_that_ended_is_filled_with_its_last_token() -> None:
    options = Sampling(min_new_tokens=2)
    reference, law = SamplingReference(options, 2, engine.END), np.zeros((3,) * 4)
    tokens, probabilities = sequence_law(engine.NARROW_TABLE, [0, 2], 4, reference)
    law[tuple(tokens.T)] = probabilities
    assert law.sum() == pytest.approx(1)
    assert not law[engine.END].any()
    assert not law[:, engine.END].any()
    assert law[0, 0, engine.END, engine.END] == pytest.approx(law[0, 0, engine.END].sum())
    assert law[0, 0, engine.END].sum() > 0
    assert law[0, 0, 0, engine.END] > 0


def test_the_draft_of_a_small_model_may_know_fewer_tokens_than_the_target() -> None:
    model, prefixes = engine.LARGE_TABLE, np.array([[0, 23], [0, 21], [23, 0]])
    known = model.models["draft"].shape.vocab_size
    assert known < model.vocab
    draft = model.oracle("draft", prefixes)
    assert np.isneginf(draft[:, known:]).all()
    assert np.isfinite(draft[:, :known]).all()
    assert (draft[0] == draft[1]).all()
    assert np.isfinite(model.oracle("target", prefixes)).all()


def test_no_two_logits_of_the_small_models_are_nearly_equal() -> None:
    """A greedy row of `MIXED` would be decided by rounding."""
    greedy = next(options for options in MIXED if options.temperature == 0)
    reference = SamplingReference(greedy, 2)
    rows = [[0, 2, *tail] for tail in np.ndindex(3, 3, 3)]
    logits = engine.NARROW_TABLE.oracle("target", np.array(rows))
    for nudge in (0.999, 1.001):
        np.testing.assert_array_equal(
            reference(np.array(rows), logits * nudge), reference(np.array(rows), logits)
        )
