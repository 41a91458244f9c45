"""Strategies with parameters, from the command line to the run: help, and warnings."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bass.api.resolve import make
from bass.drafters import Ensemble, Ngram
from unit.checkpoints import Pair, Said
from unit.distributions import Offer
from unit.test_cli_terminal import on_a_terminal

Command = Callable[..., Said]
HERE = __name__


def test_every_kind_reaches_the_run(bass_command: Command, pair: Pair) -> None:
    options = [
        "--policy",
        "lagged",
        "--policy.policy",
        "fixed",
        "--policy.policy.k",
        "3",
        "--drafter",
        "ensemble",
    ]
    options += [
        "--drafter.methods.0.longest",
        "2",
        "--stop_rule",
        "confidence",
        "--stop_rule.threshold",
        "0.3",
    ]
    options += ["--verifier", "block", "--cache", "split", "--attention", "per-row"]
    options += ["--device", "cpu"]
    said = bass_command("generate", *pair.options, "def f(", *options)
    assert said.status == 0, said.err
    caption = " ".join(said.err.split())
    words = [
        "Lagged(policy=Fixed(k=3), steps=1)",
        "Ensemble(methods=(Ngram(longest=2, shortest=1), ModelDraft()))",
        "Confidence(threshold=0.3)",
    ]
    assert ", ".join([*words, "Block, SplitCache, PerRow, cpu"]) in caption


def test_auto_may_be_said(bass_command: Command, pair: Pair) -> None:
    said = bass_command("generate", *pair.options, "def f(", "--attention", "auto")
    assert (said.status, said.out) == (0, bass_command("generate", *pair.options, "def f(").out)


def test_a_strategy_of_an_installed_package_has_its_parameters_too(
    bass_command: Command, pair: Pair, offer: Offer
) -> None:
    offer("bass.policies", half="offered:Half")
    said = bass_command(
        "generate",
        *pair.options,
        "def f(",
        "--policy",
        "half",
        "--policy.top",
        "6",
        "--json",
        "--ignore_eos",
    )
    assert len(said.lines[-1]["acceptance_by_position"]) == 3


def test_help_shows_the_parameters_of_what_was_named(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--policy",
        "lagged",
        "--policy.policy",
        "clamped",
        "--drafter",
        "ensemble",
        "--stop_rule",
        "confidence",
        "--attention",
        "sdpa",
    ]
    with pytest.raises(SystemExit) as ended:
        bass_command("generate", *options, "--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for title in (
        "policy lagged",
        "policy.policy clamped",
        "policy.policy.policy bass",
        "drafter ensemble",
        "drafter.methods.0 ngram",
        "stop_rule confidence",
    ):
        assert f"\n{title}:\n" in shown
    for option in (
        "policy.steps",
        "policy.policy",
        "policy.policy.hi",
        "policy.policy.policy",
        "policy.policy.policy.start",
        "stop-rule.threshold",
        "drafter.methods",
    ):
        assert len(re.findall(rf"^  --{re.escape(option)} ", shown, re.MULTILINE)) == 1, option
    assert 'default: ["ngram", "model"]' in " ".join(shown.split())
    assert "configuration file" not in shown.split("strategies (", 1)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--verifier", "typical", "--verifier.epsilon", "0.5"],
            ["`Typical(epsilon=0.5, delta=0.3)`", "follows neither model's distribution"],
        ),
        (
            ["--verifier", "synthetic", "--verifier.rates", "[0.9, 0.5]"],
            ["`Synthetic(rates=(0.9, 0.5))`", "THE TEXT MEANS NOTHING"],
        ),
        (
            ["--verifier", f"{HERE}:Hopeful"],
            ["`Hopeful`", "the text does not follow the target's distribution"],
        ),
    ],
)
def test_what_is_not_lossless_says_so(
    bass_command: Command, pair: Pair, options: list[str], words: list[str]
) -> None:
    said = bass_command("generate", *pair.options, "def f(", *options)
    assert said.status == 0, said.err
    warning = said.err.splitlines()[-1]
    assert warning.startswith("WARNING: NOT LOSSLESS: ")
    assert all(word in warning for word in words)
    assert re.search(r"lossless +│ +NO ", said.err)
    as_lines = bass_command("generate", *pair.options, "def f(", "--json", *options)
    assert as_lines.err == f"{warning}\n"
    assert as_lines.lines[-1]["lossless"] is False


def test_a_batch_wide_drafter_is_said_to_be_one(bass_command: Command, pair: Pair) -> None:
    options = ["--target", str(pair.target), "--max_new_tokens", "4", "--drafter", f"{HERE}:Pooled"]
    said = bass_command("generate", *options, "def f(")
    assert said.status == 0, said.err
    warning = (
        "WARNING: BATCH-WIDE: by `Pooled(longest=3, shortest=1)`, tokens of a row depend on its "
        "batch."
    )
    assert said.err.splitlines()[-1] == warning
    as_lines = bass_command("generate", *options, "def f(", "--json")
    assert as_lines.err == f"{warning}\n"
    assert (as_lines.lines[-1]["lossless"], as_lines.lines[-1]["batch_invariant"]) == (True, False)
    assert not Ensemble((Ngram(), Pooled())).batch_invariant
    assert Ensemble((Ngram(),)).batch_invariant


@pytest.mark.nightly
def test_on_a_terminal_the_warning_is_red(pair: Pair) -> None:
    status, screen = on_a_terminal("generate", *pair.options, "def f(", "--verifier", "synthetic")
    assert status == 0
    assert re.search(r"\x1b\[1;31mNO\x1b", screen)
    assert re.search(r"\x1b\[1;31mWARNING: NOT LOSSLESS: by `Synthetic\(rates=0\.8\)`", screen)


def test_what_is_lossless_has_no_warning(bass_command: Command, pair: Pair) -> None:
    said = bass_command("generate", *pair.options, "def f(")
    assert "WARNING" not in said.err
    assert re.search(r"lossless +│ +yes ", said.err)


class Pooled(make("drafter", "ngram").__class__):
    """Only says that it learns from all rows."""

    batch_invariant = False


class Hopeful(make("verifier", "rejection").__class__):
    lossless = False


def test_a_policy_in_a_file_of_ones_own_may_wrap(
    bass_command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrapping.py").write_text(
        "from bass.policies import Clamped\n\nclass Mine(Clamped):\n    pass\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    options = [
        "--policy",
        "wrapping:Mine",
        "--policy.policy",
        "fixed",
        "--policy.policy.k",
        "9",
        "--policy.hi",
        "2",
    ]
    said = bass_command("generate", *pair.options, "def f(", "--json", "--ignore_eos", *options)
    assert len(said.lines[-1]["acceptance_by_position"]) == 2
