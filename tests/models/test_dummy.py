"""`load_format="dummy"`: every family runs from its config.json alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bass
from bass.checkpoints.weights import dummy_index
from bass.cli import main
from bass.errors import CheckpointError
from bass.ops.linear import Linear
from bass.quantization import Int8Weight
from models.cases import FIRST, Case, cases_by_day
from models.reference import causal_logits

CPU = torch.device("cpu")


def folder_of(tmp_path: Path, case: Case, **fields: Any) -> Path:
    """A folder with a config.json alone."""
    tmp_path.mkdir(exist_ok=True)
    config = {"model_type": case.family, **case.arguments, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return folder_of(tmp_path, FIRST["llama"])


@pytest.mark.parametrize("case", cases_by_day(), ids=str)
def test_random_weights_keep_the_scale_of_the_residual_stream(case: Case, tmp_path: Path) -> None:
    """Logits are products of a normalized row and random columns, so their variance is 1, except
    where the last norm is left out: there the stream is a sum of an embedding and six products.
    Cohere and Granite scale them afterwards.
    """
    decoder = dummy_index(folder_of(tmp_path, case)).load(CPU, torch.float32)
    tokens = torch.arange(40)[None] % 97
    logits = causal_logits(decoder, tokens)
    assert logits.isfinite().all()
    given = case.arguments
    default = getattr(decoder.config, "logit_scale", 1.0)
    scale = given.get("logit_scale", default) / given.get("logits_scaling", 1.0)
    assert 0.8 < float(logits.std()) / scale < 1.7


@pytest.mark.parametrize("case", FIRST.values(), ids=str)
def test_every_family_generates_from_its_config_alone(case: Case, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, case)
    llm = bass.load(folder, folder, num_speculative_tokens=3, load_format="dummy")
    assert llm.models.specs[0].dummy
    result = llm.generate([[5, 17, 3], [88]], max_new_tokens=9, temperature=0, ignore_eos=True)
    assert [len(one.token_ids) for one in result.completions] == [9, 9]
    # the same weights for both
    assert result.stats.accepted == result.stats.drafted > 0
    again = bass.load(folder, num_speculative_tokens=0, load_format="dummy")
    plain = again.generate([[5, 17, 3], [88]], max_new_tokens=9, temperature=0, ignore_eos=True)
    assert [c.token_ids for c in plain.completions] == [c.token_ids for c in result.completions]


def test_random_weights_are_quantized_as_stored_ones(llama: Path) -> None:
    whole = dummy_index(llama).load(CPU, torch.float32)
    small = dummy_index(llama).load(CPU, torch.float32, Int8Weight())
    layers = [n for n, m in whole.blocks.named_modules() if type(m) is Linear]
    assert layers
    assert not [m for m in small.blocks.modules() if type(m) is Linear]
    assert sum(p.nbytes for p in small.parameters()) < sum(p.nbytes for p in whole.parameters())


def test_random_weights_without_tokenizers_pair_with_any_vocabulary(tmp_path: Path) -> None:
    case = FIRST["llama"]
    sizes = (folder_of(tmp_path / str(size), case, vocab_size=size) for size in (97, 80, 120))
    target, smaller, larger = sizes
    for draft in (smaller, larger):
        llm = bass.load(target, draft, num_speculative_tokens=2, load_format="dummy")
        assert len(llm.generate([1, 2], max_new_tokens=6, ignore_eos=True).completions) == 1
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        bass.load(target, smaller)


def test_random_weights_are_those_of_the_seed_whatever_was_drawn_before(llama: Path) -> None:
    first = dummy_index(llama).load(CPU, torch.float32)
    state = torch.get_rng_state()
    second = dummy_index(llama).load(CPU, torch.float32)
    assert torch.equal(first.embed, second.embed)
    assert torch.equal(state, torch.get_rng_state())


def test_the_command_says_that_the_text_means_nothing(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", str(llama), "--load-format", "dummy", "--num-speculative-tokens", "0"]
    asked = ["--token-ids", "[1, 2]", "--max-new-tokens", "3"]
    assert main(["generate", *options, *asked]) == 0
    assert "RANDOM WEIGHTS" in capsys.readouterr().err
