"""`bass list`: ours and those of installed packages, the broken ones too."""

import json
import re
from collections.abc import Callable

import pytest

from bass.api.kinds import KINDS
from bass.api.resolve import REQUIRED, parameters
from bass.cli.strategies import EXPLAINED
from bass.verifiers import VERIFIERS
from unit.checkpoints import Said
from unit.distributions import Offer
from unit.test_cli_terminal import on_a_terminal

Command = Callable[..., Said]


def line(said: Said, name: str) -> str:
    """The line about a name."""
    found = [text for text in said.out.splitlines() if text.split()[:1] == [name]]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_has_a_line_with_parameters_paper_and_purpose(
    bass_command: Command, kind: str
) -> None:
    said = bass_command("list", kind)
    assert said.status == 0
    assert said.out.startswith(f"{kind}: {EXPLAINED[kind]}\n")
    for name, cls in KINDS[kind].registry.items():
        told = line(said, name)
        assert " ".join((cls.__doc__ or "").partition("\n\n")[0].split()) in told
        assert cls.paper in told
        if kind != "cache":
            assert all(
                p in told if d is REQUIRED else f"{p}={d!r}" in told
                for p, d in ((name, one.default) for name, one in parameters(cls).items())
            )


def test_every_policy_verifier_and_drafter_of_a_paper_names_it(bass_command: Command) -> None:
    for kind in ("policy", "verifier", "stop_rule"):
        assert [name for name, cls in KINDS[kind].registry.items() if not cls.paper] == []
    assert "Qian et al., 2024" in line(bass_command("list", "policy"), "bass")


def test_verifiers_say_whether_they_are_lossless(bass_command: Command) -> None:
    said = bass_command("list", "verifier")
    for name, cls in VERIFIERS.items():
        assert ("  NOT LOSSLESS  " in line(said, name)) == (not cls.lossless)
        assert ("  lossless  " in line(said, name)) == cls.lossless
    assert bass_command("list").out.count("lossless by their contract") == 1


def test_without_a_kind_all_are_shown_without_boxes_or_control_codes(bass_command: Command) -> None:
    said = bass_command("list")
    assert [
        text.partition(":")[0] for text in said.out.splitlines() if re.match(r"\w+: ", text)
    ] == [*EXPLAINED]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2500-\u257f…]", said.out)
    assert all(text == text.rstrip() for text in said.out.splitlines())
    assert line(said, "llama").endswith("(Touvron et al., 2023).")


def test_json_has_a_line_for_each_name(bass_command: Command) -> None:
    lines = bass_command("list", "--json").lines
    assert {(entry["kind"], entry["name"]) for entry in lines} >= {
        (kind, name) for kind in KINDS for name in KINDS[kind].registry
    }
    by_name = {(entry["kind"], entry["name"]): entry for entry in lines}
    fixed, synthetic = by_name["policy", "fixed"], by_name["verifier", "synthetic"]
    assert fixed["parameters"] == [{"name": "k", "default": 4}]
    assert (fixed["path"], fixed["paper"]) == (
        "bass.policies.fixed:Fixed",
        "Leviathan et al., 2023",
    )
    assert (fixed["lossless"], synthetic["lossless"]) == (None, False)
    assert by_name["drafter", "replay"]["parameters"] == [{"name": "scripts"}]
    assert bass_command("list", "policy", "--json").lines == [
        entry for entry in lines if entry["kind"] == "policy"
    ]


@pytest.mark.nightly
def test_on_a_terminal_it_is_a_table_that_fits(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = offer("bass.verifiers", broken="nowhere:Never")
    monkeypatch.setenv("PYTHONPATH", str(site))
    status, screen = on_a_terminal("list", "verifier")
    assert status == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert all(len(row) <= 80 for row in text.splitlines())
    for word in (
        "rejection",
        "Leviathan et al., 2023",
        "NOT LOSSLESS",
        "epsilon=0.09",
        "broken",
        "fake-strategies 1.2",
        "ModuleNotFoundError",
    ):
        assert word in " ".join(text.split())
    assert re.search(r"\x1b\[1;31mNOT LOSSLESS", screen)


def test_offers_of_installed_packages_are_listed_with_their_package(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", half="offered:Half")
    told = line(bass_command("list", "policy"), "half")
    for word in (
        "top=4, max_length=8",
        "Nobody et al., 2020",
        "from fake-strategies 1.2",
        "Half of `top` tokens.",
    ):
        assert word in told
    entry = bass_command("list", "policy", "--json").lines[-1]
    assert (entry["name"], entry["origin"], entry["problem"]) == ("half", "fake-strategies 1.2", "")


def test_a_class_without_a_word_of_its_own_is_not_described_by_its_protocol(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", mute="offered:Outer.Mute")
    entry = bass_command("list", "policy", "--json").lines[-1]
    assert (entry["name"], entry["problem"], entry["about"]) == ("mute", "", "")


def test_a_broken_offer_is_one_line_and_the_list_goes_on(
    bass_command: Command, offer: Offer
) -> None:
    offer(
        "bass.policies",
        aa="nowhere:Half",
        bb="fails_on_import:Half",
        cc="exits_on_import:Half",
        dd="offered:NoStrategy",
        half="offered:Half",
    )
    said = bass_command("list")
    assert (said.status, said.err) == (0, "")
    for name, words in {
        "aa": "No module named 'nowhere'",
        "bb": "not today",
        "cc": "SystemExit",
        "dd": "is no policy",
    }.items():
        assert words in line(said, name)
        assert "from fake-strategies 1.2" in line(said, name)
    assert "Half of `top` tokens." in line(said, "half")
    assert "family: " in said.out


def test_of_one_name_twice_ours_and_then_the_first_is_meant_and_the_list_says_so(
    bass_command: Command, offer: Offer
) -> None:
    offer("bass.policies", half="offered:Outer.Deep", distribution="second")
    offer("bass.policies", half="offered:Half", fixed="offered:Half", distribution="first")
    listed = [
        entry
        for entry in bass_command("list", "policy", "--json").lines
        if entry["name"] in ("half", "fixed")
    ]
    problems = {(entry["name"], entry["origin"]): entry["problem"] for entry in listed}
    assert problems == {
        ("fixed", ""): "",
        (
            "fixed",
            "first 1.2",
        ): "the name belongs to bass itself: write `offered:Half` for this one",
        ("half", "first 1.2"): "",
        (
            "half",
            "second 1.2",
        ): "the name belongs to first 1.2: write `offered:Outer.Deep` for this one",
    }


def test_a_default_that_json_has_no_word_for_is_written_as_python_writes_it(
    bass_command: Command,
) -> None:
    entry = next(e for e in bass_command("list", "policy", "--json").lines if e["name"] == "lagged")
    assert entry["parameters"][0] == {
        "name": "policy",
        "default": "BatchAdaptive(start=7, increment=2, modulus=10, max_length=32)",
    }
    json.dumps(entry)
