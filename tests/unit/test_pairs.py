"""A target and a draft whose vocabularies are padded to different sizes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.api import loading
from bass.checkpoints import heads, shards, weights
from bass.checkpoints.folder import read_config
from bass.checkpoints.weights import load_decoder, narrow
from bass.engine.scorer import ModelScorer
from bass.errors import PairingError
from bass.records import Window
from bass.text import Tokenizer
from support.matrix import night
from unit.checkpoints import CONTEXT, Pair, byte_tokenizer, pad

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


def both(
    own: Pair, prompts: list[Any], temperature: float, **loading: Any
) -> tuple[list[list[int]], bass.Result]:
    """The tokens of autoregressive decoding, and the result with the draft, by one noise."""
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature, "top_p": 1.0}
    plain, found = (
        bass.load(
            own.target, own.draft, num_speculative_tokens=k, verifier="coupled", **loading
        ).generate(prompts, ignore_eos=True, **options)
        for k in (0, 3)
    )
    return [c.token_ids for c in plain.completions], found


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
    plain, found = both(own, [[5, size - 1, 7], [size - 1], [9, 8, 7, 6]], 1.0)
    assert [c.token_ids for c in found.completions] == plain
    assert found.stats.drafted > 0


def test_a_narrowed_draft_is_the_target_given_that_its_token_is_one(
    pair: Pair, tmp_path: Path
) -> None:
    own, size = wide(pair, tmp_path, 9, 0, 0.1), byte_tokenizer().get_vocab_size()
    whole = load_decoder(own.target, torch.device("cpu"), torch.float32)
    cut = narrow(load_decoder(own.target, torch.device("cpu"), torch.float32), size)
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    kept = whole.unembed(hidden).softmax(-1)[:, :size]
    torch.testing.assert_close(cut.unembed(hidden).softmax(-1), kept / kept.sum(-1, keepdim=True))


@pytest.mark.parametrize("longer", ["target", "draft"])
def test_added_tokens_of_one_tokenizer_are_only_a_warning_and_never_drafted(
    pair: Pair, tmp_path: Path, longer: str
) -> None:
    """The embeddings of the added tokens are such that a model emits them often."""
    own, tokenizer, size = pair.copy(tmp_path), byte_tokenizer(), byte_tokenizer().get_vocab_size()
    tokenizer.add_special_tokens(["<tool>", "</tool>", "<think>"])
    tokenizer.save(str(getattr(own, longer) / "tokenizer.json"))
    pad(getattr(own, longer), size + 3, LOUD)
    with pytest.warns(UserWarning, match=r"added tokens: token '<tool>' is .*missing in the"):
        plain, found = both(own, [*PROMPTS, [7, size + 2 if longer == "target" else 3]], 1.5)
    assert [c.token_ids for c in found.completions] == plain
    assert any(max(ids) >= size for ids in plain) == (longer == "target")
    assert all((step.draft_tokens < size).all() for step in found.trace)


@pytest.mark.parametrize(("drafter", "kept"), [("model", 0), ("ensemble", 0), ("model", 1)])
@pytest.mark.parametrize("context", [night(3), 17, night(33)])
def test_a_draft_of_a_shorter_context_drafts_up_to_its_end_and_the_target_goes_on(
    pair: Pair, tmp_path: Path, request: Any, context: int, drafter: str, kept: int
) -> None:
    """The target drafts for itself in few rows, so that new requests begin while others have gone
    beyond; nothing beyond is fed to it. kept: engines are, as with graphs.
    """
    monkeypatch = request.getfixturevalue("monkeypatch")
    if kept:
        request.getfixturevalue("captures")
    own, attend = pair.copy(tmp_path), ModelScorer._attend
    config = json.loads((own.target / "config.json").read_text(encoding="utf-8"))
    shutil.copytree(own.target, own.draft, dirs_exist_ok=True)
    shorter = json.dumps(config | {"max_position_embeddings": context})
    (own.draft / "config.json").write_text(shorter, encoding="utf-8")

    def checked(self: ModelScorer, window: Window) -> Any:
        assert window.positions.max() < self.decoder.shape.max_positions
        return attend(self, window)

    monkeypatch.setattr(ModelScorer, "_attend", checked)
    prompts = [[5, 6, 7], [*range(9, 25)], [*range(40, 80)], [8], [7, 7]]
    plain, found = both(own, prompts, 1.0, max_batch_size=2, drafter=drafter)
    assert [c.token_ids for c in found.completions] == plain
    lens, last = np.array([len(prompt) for prompt in prompts]), 0
    for step in found.trace:
        active = step.requests >= 0
        last = max([last, *(lens[step.requests] + step.drafted)[active & (step.drafted > 0)]])
        lens[step.requests[active]] += step.emitted[active]
    assert (last, lens.max()) == (context, CONTEXT)


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

    for module in (loading, weights, heads):  # where it is imported
        monkeypatch.setattr(module, "read_config", counted("config", read_config))
    monkeypatch.setattr(shards, "read_header", counted("header", shards.read_header))
    monkeypatch.setattr(Tokenizer, "read", counted("tokenizer", Tokenizer.read))
    bass.load(pair.target, pair.draft)
    assert len(read) == len({*read}) == 6
