"""MTP layers in the folder of their target, and alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bass
from bass.checkpoints.heads import kind_of_head
from bass.checkpoints.weights import save_decoder
from bass.drafters import Ensemble, Mtp, MtpHead, Ngram
from bass.errors import CheckpointError, OptionError
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.models import FAMILIES
from support.heads import Published, loaded, published
from support.mtp import PRODUCERS

VOCAB, WIDTH = 40, 32
PROMPTS = [[5, 17, 3], [8], [9, 9, 2, 31, 20, 7, 33, 12, 1]]


@dataclass(frozen=True)
class Own(DraftMethod):
    """A method of a user's, with the layer in the target's folder."""

    needs_draft = True
    draft_in_target = True
    target_features = (-1,)

    def build(self, context: DrafterContext) -> Drafter:
        return Mtp().build(context)


# the others: `mtp`
DRAFTERS: dict[str, DraftMethod] = {"deepseek": Ensemble((Ngram(longest=9), Mtp())), "qwen": Own()}


def target_of(head: Published, folder: Path) -> Path:
    """A folder of a random target of the layer's family."""
    raw = head.raw.get("transformer_layer_config", head.raw)
    family = FAMILIES[raw["model_type"]]
    decoder: Any = family(family.config_type.from_json(raw))  # pyright: ignore[reportCallIssue]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(0, 0.4, generator=generator).add_(parameter.ndim == 1)
    save_decoder(decoder, folder, torch.float32)
    return folder


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_layer_is_read_from_its_target_s_folder_or_alone(producer: str, tmp_path: Path) -> None:
    """Its parameters are those of a folder of its own, and the greedy output is the target's."""
    head = published(f"mtp of {producer}", VOCAB, WIDTH)
    target, own = target_of(head, tmp_path / "target"), head.write(tmp_path / "head")
    options: dict[str, Any] = {"device": "cpu", "num_speculative_tokens": 3}
    if producer == "speculators":  # its config.json says what it is
        llm = bass.load(target, draft=own, **options)
    else:
        file, plain = target / "model.safetensors", load_file(target / "model.safetensors")
        save_file(plain | head.tensors, file, metadata={"format": "pt"})
        llm = bass.load(target, drafter=DRAFTERS.get(producer, "mtp"), **options)
    assert llm.models.head is not None
    expected = dict(loaded(head, torch.device("cpu"), torch.float32).named_parameters())
    found = dict(llm.models.head.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    result, plain = (
        one.generate(PROMPTS, max_new_tokens=16, temperature=0, ignore_eos=True)
        for one in (llm, bass.load(target, device="cpu", num_speculative_tokens=0))
    )
    assert [c.token_ids for c in result.completions] == [c.token_ids for c in plain.completions]
    assert result.stats.drafted > 0


@pytest.mark.parametrize("producer", ["mimo", "qwen"])
def test_a_folder_with_nothing_but_a_layer_is_a_head(producer: str, tmp_path: Path) -> None:
    """The names of a layer in a whole model make it no head."""
    head = published(f"mtp of {producer}", VOCAB, WIDTH)
    target, own = target_of(head, tmp_path / "target"), head.write(tmp_path / "head")
    llm = bass.load(target, draft=own, device="cpu", num_speculative_tokens=3)
    assert isinstance(llm.models.head, MtpHead)
    assert llm.generate(PROMPTS, max_new_tokens=8, ignore_eos=True).stats.drafted > 0
    names = {*load_file(target / "model.safetensors"), *head.tensors}
    assert kind_of_head(head.raw, names) is None


def test_a_target_without_the_layer_is_named(tmp_path: Path) -> None:
    head = published("mtp of mimo", VOCAB, WIDTH)
    target = target_of(head, tmp_path)
    with pytest.raises(CheckpointError, match="holds no tensors of an MTP layer"):
        bass.load(target, drafter="mtp", device="cpu")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="families with rotary positions"):
        bass.load(target, drafter="mtp", device="cpu")


def test_random_weights_make_a_layer_of_any_family(tmp_path: Path) -> None:
    """For benchmarks of a shape; here of a user's family."""
    target = target_of(published("mtp of qwen", VOCAB, WIDTH), tmp_path)
    config = target / "config.json"
    raw = json.loads(config.read_text())
    base: Any = FAMILIES[raw["model_type"]]
    own_config = type("OwnConfig", (base.config_type,), {"model_type": "own"})
    family: Any = type("OwnFamily", (base,), {"config_type": own_config})
    config.write_text(json.dumps(raw | {"model_type": "own"}))
    given: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "policy": "fixed"}
    llm = bass.load(target, drafter="mtp", family=family, **given)
    assert llm.generate(PROMPTS, max_new_tokens=4, ignore_eos=True).stats.drafted > 0


@pytest.mark.parametrize("option", ["draft_quantization", "draft_lora"])
def test_an_option_that_a_head_does_not_use_is_an_error(option: str, tmp_path: Path) -> None:
    """Of a layer in the target's folder, and of a head in its own."""
    target = target_of(published("mtp of mimo", VOCAB, WIDTH), tmp_path / "target")
    head = published("eagle3", VOCAB, WIDTH).write(tmp_path / "head")
    given: Any = {option: {"draft_quantization": "int8", "draft_lora": tmp_path}[option]}
    for drafting in ({"drafter": "mtp"}, {"draft": head}):
        with pytest.raises(OptionError, match=f"`{option}.* would not be used: a head is"):
            bass.load(target, **drafting, **given, device="cpu")
    both = bass.load(target, head, quantization="int8", device="cpu")  # the target's alone
    assert both.models.head is not None
