"""`bass list`: ours and those of installed packages, the broken ones too; and `bass info`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import bass
from bass.api.kinds import KINDS
from bass.api.resolve import REQUIRED, parameters
from bass.checkpoints.weights import save_decoder
from bass.cli.list_ import ABOUT
from unit.checkpoints import Pair, Said
from unit.distributions import Offer

Command = Callable[..., Said]


def line(said: Said, name: str) -> str:
    """The line about a name."""
    found = [text for text in said.out.splitlines() if text.split()[:1] == [name]]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_has_a_line_with_its_purpose(bass_command: Command, kind: str) -> None:
    said = bass_command("list", kind)
    assert said.status == 0
    assert said.out.startswith(f"{kind}: {ABOUT[kind]}\n")
    for name, found in KINDS[kind].registry.items():
        first = " ".join((found.__doc__ or "").partition("\n\n")[0].split()).partition(". ")[0]
        assert first in line(said, name)


def test_all_kinds_and_families_are_listed(bass_command: Command) -> None:
    said = bass_command("list")
    heads = [text.partition(":")[0] for text in said.out.splitlines() if text[0] != " "]
    assert heads == [*ABOUT]
    assert "Touvron et al., 2023" in line(said, "llama")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2500-\u257f]| $", said.out, re.MULTILINE)


def test_a_strategy_by_name_has_its_parameters_and_documentation(bass_command: Command) -> None:
    said = bass_command("list", "goodput")
    assert said.out.startswith("policy goodput (bass.policies.goodput:Goodput, Liu et al., 2024")
    for name, one in parameters(KINDS["policy"].registry["goodput"]).items():
        assert f"  --policy.{name} {one.default!r}\n" in said.out
    assert "Every sum decays by" in said.out
    assert one.default is not REQUIRED
    both = bass_command("list", "split").out  # a cache and an attention backend
    assert both.startswith("cache split (")
    assert "\nattention split (" in both
    said = bass_command("list", "polcy")
    assert (said.status, said.out) == (2, "")
    assert "Unknown strategy `polcy`. Did you mean `policy`" in said.err


def test_json_has_a_line_for_each_name(bass_command: Command) -> None:
    lines = bass_command("list", "--json").lines
    by_name = {(entry["kind"], entry["name"]): entry for entry in lines}
    assert {*by_name} >= {(kind, name) for kind in KINDS for name in KINDS[kind].registry}
    fixed, synthetic = by_name["policy", "fixed"], by_name["verifier", "synthetic"]
    assert fixed["parameters"] == [{"name": "k", "default": 4}]
    assert (fixed["path"], fixed["paper"][:16]) == ("bass.policies.fixed:Fixed", "Leviathan et al.")
    assert (fixed["lossless"], synthetic["lossless"]) == (None, False)
    assert by_name["drafter", "replay"]["parameters"] == [{"name": "scripts"}]
    assert by_name["policy", "lagged"]["parameters"][0]["default"].startswith("BatchAdaptive(")
    only = bass_command("list", "policy", "--json").lines
    assert only == [entry for entry in lines if entry["kind"] == "policy"]


def test_strategies_of_installed_packages_are_listed_with_their_package(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", half="offered:Half", mute="offered:Outer.Mute")
    assert "Half of `top` tokens" in line(bass_command("list", "policy"), "half")
    assert "from fake-strategies 1.2" in line(bass_command("list", "policy"), "half")
    entries = {entry["name"]: entry for entry in bass_command("list", "policy", "--json").lines}
    assert (entries["half"]["origin"], entries["half"]["problem"]) == ("fake-strategies 1.2", "")
    assert entries["half"]["parameters"][0] == {"name": "top", "default": 4}
    assert entries["mute"]["doc"] == ""  # that of its base class is none of its own


def test_a_broken_package_has_a_line_and_the_list_goes_on(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", aa="nowhere:Half", bb="fails_on_import:Half", cc="offered:NoStrategy")
    said = bass_command("list")
    assert (said.status, said.err) == (0, "")
    words = {"aa": "No module named 'nowhere'", "bb": "not today", "cc": "is no policy"}
    for name, text in words.items():
        assert text in line(said, name)
        assert "from fake-strategies 1.2" in line(said, name)
    assert "family: " in said.out


# bass info


def test_info_describes_a_checkpoint_and_its_draft(bass_command: Command, pair: Pair) -> None:
    words = ("info", str(pair.target), "--draft", str(pair.draft))
    said = bass_command(*words)
    assert said.status == 0
    assert f"`{pair.draft}` can draft for `{pair.target}`." in said.out
    found = bass_command(*words, "--json").lines[0]
    target, draft = found["checkpoints"]
    assert found["compatible"] is True
    count = sum(p.numel() for p in bass.load(pair.target, pair.draft).models.target.parameters())
    size = (pair.target / "model.safetensors").stat().st_size
    expected = {
        "checkpoint": str(pair.target),
        "family": "llama",
        "parameters": f"{count:,}",
        "layers": "2",
        "heads": "2 query, 1 key-value, of 16 dimensions",
        "context": "64 tokens",
        "chat template": "none",
        "end of sequence": "0",
        "dtype": "float32",
        "files": f"{size:,} bytes in 1 file",
        "KV bytes per token": "256",  # k and v, 2 layers, 1 head, 16 dimensions, 4 bytes
    }
    assert target.items() >= expected.items()
    assert target["weights"].startswith(f"{4 * count / 2**20:.2f} MiB in float32, ")
    assert "int8" in target["weights"]
    assert (draft["layers"], draft["checkpoint"]) == ("1", str(pair.draft))
    for value in target.values():
        assert str(value)[:20] in said.out


def test_info_says_that_a_draft_does_not_fit(
    bass_command: Command, pair: Pair, silent_pair: Pair
) -> None:
    words = ("info", str(pair.target), "--draft", str(silent_pair.draft))
    said = bass_command(*words)
    assert said.status == 1
    assert f"`{silent_pair.draft}` cannot draft for `{pair.target}`. " in said.out
    found = bass_command(*words, "--json").lines[0]
    assert (found["compatible"], "cannot draft" in found["about"]) == (False, True)


def test_info_names_the_experts_of_a_mixture(bass_command: Command, tmp_path: Path) -> None:
    import torch

    from bass.models.qwen3_moe import Qwen3Moe, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=16, mlp_only_layers=(1,),
    )  # fmt: skip
    save_decoder(Qwen3Moe(config), tmp_path, torch.float32)
    [found] = bass_command("info", str(tmp_path), "--json").lines[0]["checkpoints"]
    assert found["experts"] == "8 of 128 for each token, in 2 layers"
