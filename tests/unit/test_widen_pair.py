"""The widened pair computes what the narrow one does."""

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from bass import pair as embedded
from bass.checkpoints.weights import load_decoder
from bass.models.llama import Llama, LlamaConfig
from bass.testing.small_models import dense_logits
from unit.checkpoints import byte_tokenizer, write_checkpoint
from unit.test_package import ROOT, TRAINED

trained = pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
VOCAB = 320  # ids of the random checkpoints
EXCLUDED = -100.0  # exp of it is 0 in float32


def scripts(name: str) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples/widen_pair"))
        yield importlib.import_module(name)


@pytest.fixture(scope="module")
def widen() -> Iterator[ModuleType]:
    yield from scripts("widen")


def model(folder: Path) -> Llama:
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    assert isinstance(decoder, Llama)
    return decoder


def source(folder: Path) -> Path:
    """A random checkpoint with the files that are copied: 2 heads of 16 over 1 key head."""
    tokenizer = byte_tokenizer(VOCAB)
    write_checkpoint(folder, tokenizer, 32, 2, tokenizer.get_vocab_size())
    for name in ("tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def shape(**changes: object) -> LlamaConfig:
    """A wide shape for `source`."""
    wide = LlamaConfig(400, 48, 80, 5, 4, 4, 32, 128)
    return dataclasses.replace(wide, **changes)  # pyright: ignore[reportArgumentType]


def check_same(narrow: Path, wide: Path, length: int = 24, tolerance: float = 1e-4) -> None:
    """Logits are equal but for one constant for all ids, which changes no probability, and ids
    beyond the narrow vocabulary have none.
    """
    one, other = model(narrow), model(wide)
    vocab = one.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab, (2, length))
    expected, found = dense_logits(one, tokens), dense_logits(other, tokens)
    largest = np.abs(expected).max()
    shift = (found[..., :vocab] - expected).mean(-1, keepdims=True)
    assert np.abs(found[..., :vocab] - expected - shift).max() <= tolerance * largest
    if not other.config.tie_word_embeddings:
        assert np.abs(shift).max() <= tolerance * largest
    beyond = found[..., vocab:] - found[..., :vocab].max(-1, keepdims=True)
    assert (beyond < EXCLUDED).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "num_attention_heads": 2},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16},
        {"head_dim": 64, "num_hidden_layers": 2},
        {"vocab_size": VOCAB},
        {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64},
        {"hidden_size": 33},
    ],
)
def test_a_widened_model_has_the_same_distribution(
    widen: ModuleType, tmp_path: Path, changes: dict[str, object]
) -> None:
    narrow = source(tmp_path / "narrow")
    changes = {
        key: model(narrow).config.vocab_size if value == VOCAB else value
        for key, value in changes.items()
    }
    wide = widen.write(narrow, shape(**changes), tmp_path / "wide", torch.float32)
    config = model(wide).config
    wanted = dataclasses.asdict(shape(**changes))
    assert {k: getattr(config, k) for k in wanted if k != "rms_norm_eps"} == {
        k: v for k, v in wanted.items() if k != "rms_norm_eps"
    }
    check_same(narrow, wide)


@trained
@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_small_widened_pair_is_the_embedded_pair(
    widen: ModuleType, tmp_path: Path, role: str
) -> None:
    narrow = embedded.TARGET.parent / role
    wide = widen.PAIRS["small"][role == "draft"]
    check_same(narrow, widen.write(narrow, wide, tmp_path / role, torch.float32), 8)
