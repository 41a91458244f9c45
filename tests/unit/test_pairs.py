"""A target and a draft whose vocabularies are padded to different sizes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.checkpoints import shards, weights
from bass.checkpoints.weights import load_decoder, narrow
from bass.errors import PairingError
from bass.text import Tokenizer
from support.matrix import night
from unit.checkpoints import Pair, byte_tokenizer, pad

PROMPTS = ["def double(", "for item in", "x"]
PADDINGS = [(0, 7), (7, 0), (3, 64), (64, 3)]  # of target and draft
LOUD = 50.0  # an embedding of padding that would win many a greedy choice if it were left in


def wide(pair: Pair, tmp_path: Path, target: int, draft: int, fill: float = 0.0) -> Pair:
    """The pair with paddings of so many ids."""
    own = pair.copy(tmp_path)
    size = byte_tokenizer().get_vocab_size()
    for folder, more in ((own.target, target), (own.draft, draft)):
        if more:
            pad(folder, size + more, fill)
    return own


@pytest.mark.parametrize("k", [night(1), 4])
@pytest.mark.parametrize(("target", "draft"), PADDINGS)
def test_greedy_decoding_with_another_padding_equals_plain_decoding(
    pair: Pair, tmp_path: Path, target: int, draft: int, k: int
) -> None:
    own = wide(pair, tmp_path, target, draft)
    options = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
    plain = bass.load(own.target, num_speculative_tokens=0).generate(PROMPTS, **options)
    result = bass.load(own.target, own.draft, num_speculative_tokens=k).generate(PROMPTS, **options)
    assert [c.token_ids for c in result.completions] == [c.token_ids for c in plain.completions]
    assert result.stats.drafted > 0


def test_a_quantized_draft_of_another_padding_drafts_as_one_of_the_same(
    pair: Pair, tmp_path: Path
) -> None:
    """The target in 8 bits drafts for itself."""
    own, longer = pair.target, wide(pair, tmp_path, 7, 0).target
    options = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
    found = [
        bass.load(*two, draft_quantization="int8").generate(PROMPTS, **options)
        for two in ((own, own), (own, longer), (longer, own))
    ]
    assert found[0].stats.accepted > 0
    for one in found[1:]:
        assert [c.token_ids for c in one.completions] == [c.token_ids for c in found[0].completions]
        assert one.stats.accepted == found[0].stats.accepted


@pytest.mark.parametrize("k", [night(0), 3])
@pytest.mark.parametrize(("target", "draft"), PADDINGS)
def test_the_vocabulary_is_the_targets_with_its_padding_with_a_draft_and_without(
    pair: Pair, tmp_path: Path, target: int, draft: int, k: int
) -> None:
    """Padding that the target likes is drawn and taken; what the draft alone has is neither."""
    own = wide(pair, tmp_path, target, draft, LOUD)
    size = byte_tokenizer().get_vocab_size() + target
    llm = bass.load(own.target, own.draft, num_speculative_tokens=k)
    assert llm.models.target.shape.vocab_size == size
    options = {"temperature": 1.5, "top_p": 1.0, "ignore_eos": True}
    result = llm.generate(PROMPTS, num_return_sequences=8, max_new_tokens=24, **options)
    largest = max(token for c in result.completions for token in c.token_ids)
    assert largest < size
    assert (largest >= size - target) == (target > 0)
    known = byte_tokenizer().get_vocab_size() + min(draft, target)
    for step in result.trace:
        counts = np.arange(step.draft_tokens.shape[1]) < step.drafted[:, None]
        assert (step.draft_tokens[counts] < known).all()
    llm.generate([[size - 1]], max_new_tokens=3, **options)
    with pytest.raises(bass.BassError, match=f"0 to {size - 1}"):
        llm.generate([[size]], max_new_tokens=1)


@pytest.mark.parametrize(("target", "draft"), PADDINGS)
def test_one_seed_gives_the_same_samples_with_a_draft_and_without_at_every_padding(
    pair: Pair, tmp_path: Path, target: int, draft: int
) -> None:
    """With the coupled verifier, whose noise belongs to positions; prompts hold padding too."""
    own = wide(pair, tmp_path, target, draft, LOUD)
    size = byte_tokenizer().get_vocab_size() + target
    options = {"max_new_tokens": 24, "temperature": 1.0, "top_p": 1.0, "ignore_eos": True}
    prompts = [[5, size - 1, 7], [size - 1], [9, 8, 7, 6]]
    samples = [
        bass.load(own.target, own.draft, num_speculative_tokens=k, verifier="coupled").generate(
            prompts, **options
        )
        for k in (0, 3)
    ]
    plain, speculative = ([c.token_ids for c in result.completions] for result in samples)
    assert plain == speculative


def test_a_narrowed_draft_is_the_target_given_that_its_token_is_one(
    pair: Pair, tmp_path: Path
) -> None:
    own, size = wide(pair, tmp_path, 9, 0, 0.1), byte_tokenizer().get_vocab_size()
    whole = load_decoder(own.target, torch.device("cpu"), torch.float32)
    cut = narrow(load_decoder(own.target, torch.device("cpu"), torch.float32), size)
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    kept = whole.unembed(hidden).softmax(-1)[:, :size]
    torch.testing.assert_close(cut.unembed(hidden).softmax(-1), kept / kept.sum(-1, keepdim=True))


@pytest.mark.parametrize("without", ["both", "target", "draft"])
def test_without_both_tokenizers_the_sizes_must_be_equal(
    pair: Pair, tmp_path: Path, without: str
) -> None:
    own = wide(pair, tmp_path, 7, 0)
    for name, folder in (("target", own.target), ("draft", own.draft)):
        if without in (name, "both"):
            (folder / "tokenizer.json").unlink()
    with pytest.raises(PairingError, match="vocabularies of"):
        bass.load(own.target, own.draft)


def test_config_headers_and_tokenizer_are_read_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, str]] = []

    def counted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def reading(path: Path, *more: Any) -> Any:
            read.append((what, str(path)))
            return function(path, *more)

        return reading

    monkeypatch.setattr(weights, "read_config", counted("config", weights.read_config))
    monkeypatch.setattr(shards, "read_header", counted("header", shards.read_header))
    monkeypatch.setattr(Tokenizer, "read", counted("tokenizer", Tokenizer.read))
    bass.load(pair.target, pair.draft)
    assert len(read) == len({*read}) == 6
