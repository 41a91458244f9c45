"""What the files of heads of EAGLE say, what they leave open, and which are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bass.checkpoints.heads import read_head
from bass.checkpoints.shards import TensorFiles
from bass.cli.info import in_words
from bass.drafters import Block, Eagle, EagleHead
from bass.engine.assembly import own_draw
from bass.errors import CheckpointError, PairingError
from bass.interfaces import DrafterContext, LayerCache, Warp
from support.block_heads import published as block_head
from support.heads import (
    Published,
    by_deepspec,
    by_nvidia,
    by_speculators,
    eagle,
    loaded,
    named,
    nested,
)
from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint
from unit.test_bad_input import refuses

Command = Callable[..., Said]
HEAD = eagle(30, 16)
FINAL_STATE = eagle(30, 16, states=1, hidden=0, lacks=("fc.weight",))
IDS = "eagle_aux_hidden_state_layer_ids"


def module(head: Published) -> EagleHead:
    found = loaded(head, torch.device("cpu"), torch.float32)
    assert isinstance(found, EagleHead)
    return found


# The head, for a target of 36 layers; the producer that is seen, the states that are read, and the
# rules that stay open.
READ: dict[str, tuple[Published, str, tuple[int, ...], list[str]]] = {
    "no ids": (HEAD, "", (2, 18, 33), []),
    "ids of nobody": (HEAD.but(**{IDS: [3, 9, 20]}), "", (3, 9, 20), ["ids output"]),
    "the default, as inputs": (HEAD.but(**{IDS: [2, 18, 33]}), "", (2, 18, 33), []),
    "the default of SpecForge": (nested(HEAD, **{IDS: [1, 17, 32]}), "SpecForge", (2, 18, 33), []),
    "gpt-oss": (nested(HEAD, **{IDS: [1, 17, 33]}), "SpecForge", (2, 18, 34), ["ids input"]),
    "NVIDIA, the last state": (by_nvidia(HEAD, [24, 30, 36]), "NVIDIA", (24, 30, 36), []),
    "speculators": (by_speculators(HEAD), "speculators", (2, 18, 33), []),
    "speculators, ids": (
        by_speculators(HEAD, **{IDS: [1, 17, 33]}), "speculators", (1, 17, 33), [],
    ),
    "DeepSpec": (by_deepspec(eagle(30, 16, states=4)), "DeepSpec", (0, 1, 2, 3), []),
    "the final state": (by_nvidia(FINAL_STATE, None), "NVIDIA", (-1,), []),
    "norm_output": (
        by_speculators(eagle(30, 16, norm_output=True)), "speculators", (2, 18, 33), [],
    ),
    "norm_output of EAGLE-3.1": (
        eagle(30, 16, fc_norm=True, norm_output=True), "", (2, 18, 33), [],
    ),
    "norm_output of two meanings": (
        eagle(30, 16, norm_output=True), "", (2, 18, 33), ["norm_output false"],
    ),
}  # fmt: skip


def test_the_rules_of_a_block_are_open_if_its_files_lack_them() -> None:
    forms = "z-lab", "DeepSpec, DSpark", "speculators", "z-lab, windows"
    blocks = [block_head(form, 50, 16) for form in forms]
    blocks.append(blocks[-1].but(is_causal=False))
    heads = [loaded(block, torch.device("cpu"), torch.float32) for block in blocks]
    found = [[rule.options for rule in head.open_rules(2)] for head in heads]
    anchor, causal = ("sample_from_anchor true", "causal false")
    expected = [[], [], [anchor], [causal], []]
    assert found == [[f"--drafter block --drafter.{x}" for x in rules] for rules in expected]


def test_a_threshold_needs_a_confidence_head() -> None:
    with_one, without_one = (
        loaded(block_head(form, 50, 16), torch.device("cpu"), torch.float32)
        for form in ("DeepSpec, DSpark", "z-lab")
    )
    assert Block(confidence=0.5).with_head(with_one, 2).features
    with pytest.raises(PairingError, match=r"confidence=0.5.* no effect: the head has no"):
        Block(confidence=0.5).with_head(without_one, 2)


@pytest.mark.parametrize("case", READ)
def test_producer_states_and_open_rules(case: str) -> None:
    head, producer, states, rules = READ[case]
    found = module(head)
    assert (found.config.producer, Eagle().with_head(found, 36).features) == (producer, states)
    options = [f"--drafter eagle --drafter.{rule}" for rule in rules]
    assert [rule.options for rule in found.open_rules(36)] == options
    for rule in found.open_rules(36):
        changed = rule.other.with_head(found, 36)
        assert changed != Eagle().with_head(found, 36)
    own = tuple(range(len(states)))
    assert Eagle(features=own).with_head(found, 36).features == own


def test_the_option_decides_what_ids_mean() -> None:
    found = module(HEAD.but(**{IDS: [1, 9, 20]}))
    assert Eagle().with_head(found, 36).features == (2, 10, 21)
    assert Eagle(ids="input").with_head(found, 36).features == (1, 9, 20)
    assert Eagle(ids="output").with_head(found, 36).features == (2, 10, 21)
    assert Eagle(ids="output").with_head(module(HEAD), 36).features == (2, 18, 33)  # no ids


def without(head: Published, *names: str) -> Published:
    return replace(head, tensors={n: x for n, x in head.tensors.items() if n not in names})


def with_tensors(head: Published, **tensors: Any) -> Published:
    named_ = {name.replace("__", "."): x for name, x in tensors.items()}
    return replace(head, tensors=head.tensors | named_)


REDUCED, TWO_LAYERS = eagle(30, 16, draft_vocab=20), eagle(30, 16, layers=2)
BAD: dict[str, tuple[Published, str]] = {
    "no table of ids": (without(REDUCED, "d2t"), r"1 missing \(d2t\)"),
    "ids beyond the vocabulary": (
        with_tensors(REDUCED, d2t=REDUCED.tensors["d2t"] + 20), "`d2t` leads to .* of 30",
    ),
    "no matrix of a reduced vocabulary": (without(REDUCED, "lm_head.weight"), r"\(lm_head"),
    "no embedding of its own size": (without(HEAD, "embed_tokens.weight"), r"\(embed_tokens"),
    "two norms for one": (
        with_tensors(TWO_LAYERS, layers__1__hidden_norm__weight=torch.ones(24)),
        r"two tensors for one .*layers.1.hidden_norm.weight",
    ),
    "P-EAGLE without a mask token": (
        with_tensors(HEAD, mask_hidden=torch.ones(1, 1, 48)), "none of mask_token_id, pard_token",
    ),
    "P-EAGLE without a mask": (
        HEAD.but(architectures=["PEagleLlamaForCausalLM"], pard_token=1), r"missing \(mask_hidden",
    ),
    "DeepSeek": (HEAD.but(architectures=["Eagle3DeepseekV2ForCausalLM"]), "kind .`deepseek`"),
    "Gemma in speculators": (by_speculators(HEAD, "gemma3_text"), "kind .`gemma`"),
    "EAGLE-4": (HEAD.but(architectures=["LlamaForCausalLMEagle4"]), "kind .`eagle4`"),
    "partial rotary": (HEAD.but(partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
    "partial rotary in rope": (
        HEAD.but(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
        "partial_rotary_factor=0.5",
    ),
    "caps": (HEAD.but(attn_logit_softcapping=50.0), "attn_logit_softcapping=50.0"),
    "a window of some layers": (HEAD.but(use_sliding_window=True), "use_sliding_window"),
    "a norm without tensor": (HEAD.but(norm_before_fc=True), r"missing \(input_norm.weight\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_other_files_are_refused(case: str) -> None:
    head, says = BAD[case]
    with pytest.raises(CheckpointError, match=says):
        module(head)


def test_the_number_of_states_is_that_of_fc() -> None:
    for head, method, says in (
        (eagle(30, 16, states=5), Eagle(), r"reads 5 states .* are 3 \(2, 18, 33\): give as many"),
        (HEAD.but(**{IDS: [4, 7]}), Eagle(), r"reads 3 states of the target, .* 2 \(4, 7\)"),
        (HEAD, Eagle(features=(1,)), "there are 1"),
    ):
        with pytest.raises(PairingError, match=says):
            method.with_head(module(head), 36)


def test_norm_output_as_an_option_leaves_the_head_as_it_is() -> None:
    head = module(HEAD)
    context = Mock(spec=DrafterContext, head=lambda: head, cache=lambda *_: Mock(spec=LayerCache))
    context.configure_mock(warp=Mock(spec=Warp), draw=own_draw, stop_rule=None, batch=2)
    context.state = lambda *size, dtype=torch.float32: torch.zeros(2, *size, dtype=dtype)
    context.embed = head.embed
    for value, found in {None: False, False: False, True: True}.items():
        drafter: Any = Eagle(norm_output=value).build(context)
        assert drafter.head.config.norm_output is found
        assert drafter.head.embed is head.embed
    assert head.config.norm_output is False


def test_harmless_fields_are_ignored(tmp_path: Path) -> None:
    fields = {"pretraining_tp": 1, "use_cache": True, "sliding_window": 4096, "ttt_length": 7,
              "use_sliding_window": False, "max_window_layers": 28, "embed_requires_grad": False,
              "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}  # fmt: skip
    same = read_head(HEAD.but(**fields).write(tmp_path / "same"))
    plain = read_head(HEAD.write(tmp_path / "plain"))
    assert same is not None
    assert plain is not None
    assert same.decoder.config == plain.decoder.config
    dummy = read_head(
        by_speculators(HEAD, "qwen3").write(tmp_path / "dummy"),
        TensorFiles(tmp_path / "dummy", (), {}),
    )
    assert dummy is not None
    assert dummy.decoder.config.qk_norm


def test_a_head_has_the_angles_of_more_positions_than_it_was_trained_with(tmp_path: Path) -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0}
    index = read_head(HEAD.but(rope_scaling=scaled).write(tmp_path))
    assert index is not None
    trained, more = (index.load(torch.device("cpu"), torch.float32, n) for n in (0, 4096))
    for own, further in zip(trained.rotary.tables, more.rotary.tables, strict=True):
        assert (len(own), len(further)) == (2048, 4096)
        assert torch.equal(own, further[:2048])


# bass info


def test_info_tells_whether_a_head_belongs_to_a_target(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    target = str(write_checkpoint(tmp_path / "target", tokenizer, 32, 3, size, 256))
    head = named(eagle(size, 32, states=2).but(**{IDS: [1, 0]}), "^", "model.")
    words = ("info", str(head.write(tmp_path / "head")), "--target", target)
    said = bass_command(*words, "--json").lines[0]
    assert said["compatible"]
    assert (
        said["checkpoints"][1].items()
        >= {
            "family": "a head of EAGLE-3",
            "producer": "SpecForge",
            "states of the target": "2, 1, outputs of layers 1, 0",
            "vocabulary": f"{size:,} of {size:,} tokens",
            "parameters": f"{sum(x.numel() for x in head.tensors.values()):,}",
        }.items()
    )
    open_rule = "do not say whether its ids of states are inputs or outputs of layers (outputs"
    assert open_rule in said["about"]
    about = bass_command(*words, "--measure", "--json").lines[0]["about"]
    assert "It emits 1." in about
    assert "with `--drafter eagle --drafter.ids input`." in about
    reversed_ = bass_command("info", target, "--draft", words[1])
    assert open_rule.partition("(")[0] in " ".join(reversed_.out.split())
    other = bass_command("info", words[1], "--target", str(pair.draft), "--json").lines[0]
    assert (other["compatible"], "hidden size of 32" in other["about"]) == (False, True)
    refuses(bass_command(*words, "--draft", words[1]), "leave out `--draft`")
    by_option = ("--drafter", "eagle", "--drafter.ids", "input", "--drafter.norm_output", "false")
    run = ("generate", "--target", target, "--draft", words[1], *by_option, "--max_new_tokens", "8")
    assert bass_command(*run, "x").status == 0
    refuses(bass_command(*run, "--drafter.ids", "both", "x"), "drafter.ids='both'")
    refuses(
        bass_command("info", target, "--draft", target, "--measure"), "`--measure` is for heads"
    )


def test_another_rule_is_named_if_it_accepts_much_more() -> None:
    assert in_words(2.0, {}) == "It emits 2.00 tokens per target call."
    found = in_words(2.0, {"--drafter.ids input": 2.1, "--drafter.norm_output false": 3.0})
    assert "2.10 with `--drafter.ids input`, 3.00 with" in found
    assert found.endswith("give `--drafter.norm_output false`.")
    assert "probably" not in in_words(2.0, {"--drafter.ids input": 2.1})


def test_tables_of_token_ids_that_differ_are_warned_of(tmp_path: Path) -> None:
    head = eagle(30, 16, draft_vocab=20)
    moved = head.tensors["t2d"].roll(1)
    index = read_head(replace(head, tensors=head.tensors | {"t2d": moved}).write(tmp_path))
    assert index is not None
    with pytest.warns(UserWarning, match="`d2t` and `t2d` of .* name different token ids"):
        index.load(torch.device("cpu"), torch.float32)
