"""Whatever the axes are called: a report compares what decodes the same, and names what does
not.
"""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bass.interfaces import Verifier
from bass.ops.verification import emit, target_after
from bass.report import page as pages
from bass.report.cells import read_cells
from bass.report.page import comparison, page
from bass.report.plots import plots
from bass.report.summary import winners
from bass.runs.run_folder import RunFolder
from support.run_folders import write_run_of
from unit.checkpoints import Said

Command = Callable[..., Said]
MINE = f"{__name__}:AcceptsAll"
TYPICAL = {"class_path": "typical", "init_args": {"epsilon": 0.01}}
PLAIN = {"policy": "fixed", "policy.k": 0}
DRAFTED = {"policy": "fixed", "policy.k": 4}


class AcceptsAll(Verifier):
    """Not lossless, and of the user's own."""

    lossless: ClassVar[bool] = False
    caveat: ClassVar[str] = "everything\n is accepted"

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Any:
        return emit(draft, draft.lengths.clone(), target_after(target_probs, draft.lengths), noise)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "plots", lambda cells, first: [])


LOSSY: dict[str, tuple[dict[str, Any], list[str]]] = {
    "values of an axis": (
        {"axes": {"verifier": ["rejection", TYPICAL, "bass.verifiers.typical:Typical", MINE]}},
        ["typical(epsilon=0.01)", "Typical", "AcceptsAll"]),
    "labels": ({"axes": {"way": {"a": {"verifier": TYPICAL}, "b": {"verifier": MINE},
        "c": {"verifier": "block"}}}}, ["a", "b"]),
    "the base run": ({"base": {"verifier": MINE}, "axes": {"policy": ["bass"]}}, ["this setting"]),
    "a parameter of the base run": (
        {"base": {"verifier": "typical"}, "axes": {"verifier.epsilon": [0.1, 0.2]}},
        ["verifier.epsilon=0.1", "verifier.epsilon=0.2"]),
    "a point": ({"axes": {"verifier": ["block"]}, "points": [{"verifier": TYPICAL}]},
        ["typical(epsilon=0.01)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSY)
def test_every_verifier_that_is_not_lossless_is_named(tmp_path: Path, case: str) -> None:
    config, names = LOSSY[case]
    run = write_run_of(tmp_path / "run", {"base": {"batch": 2}} | config, 2)
    html, _, said = page(run)
    told = [sentence for sentence in said if sentence.startswith("Not lossless: ")]
    assert {name for name in names if any(name in one for one in told)} == {*names}
    assert not any("rejection" in one or "block" in one for one in told)
    assert all(" ".join(one.split()) in " ".join(unescape(html).split()) for one in told)
    caveat = "everything is accepted"
    assert any(caveat in one for one in told) == ("AcceptsAll" in json.dumps(config))
    assert comparison(run, run)[1][0].startswith("A: Not lossless: ")
    # and where it is the fastest of its place, its name says so again
    for winner in winners(read_cells(run)).values():
        assert winner.best.entry.lossless != winner.best.choice.endswith(" (not lossless)")


def test_the_command_names_what_is_not_lossless(bass_command: Command, tmp_path: Path) -> None:
    base = {"batch": 1, "max_new_tokens": 2, "num_prompts": 1, "repeats": 1, "warm_up": False}
    axes = {"verifier": ["rejection", MINE]}
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"base": base, "axes": axes}), encoding="utf-8")
    said = bass_command("ablate", str(config), "--output", str(tmp_path / "run"))
    assert said.status == 0, said.err
    assert "Not lossless: AcceptsAll (everything is accepted)." in " ".join(said.err.split())
    assert [cell.lossless for cell in RunFolder(tmp_path / "run").cells] == [True, False]


WORKS: dict[str, dict[str, Any]] = {  # labels that set the work and the way together
    "temperature": {"plain": PLAIN | {"temperature": 1.5}, "mine": DRAFTED | {"temperature": 0.1}},
    "tokens": {"plain": PLAIN, "mine": DRAFTED | {"max_new_tokens": 4}},
    "prompts": {"plain": PLAIN | {"prompts": ["a" * 400]},
        "mine": DRAFTED | {"prompts": ["a" * 399 + "b"]}},
    "seed": {"plain": PLAIN, "mine": DRAFTED | {"seed": 7}},
    "stop": {"plain": PLAIN, "mine": DRAFTED | {"stop": ["\n"]}},
    "warm-up": {"plain": PLAIN, "mine": DRAFTED | {"warm_up": False}},
}  # fmt: skip


def test_a_label_of_the_work_that_another_axis_overrides_makes_no_rivals(tmp_path: Path) -> None:
    """A point may say again what a label of another axis sets; the other cells then have a label
    that is not what they decode.
    """
    config = {
        "base": {"batch": 2, "temperature": 0.2},
        "axes": {"method": WORKS["temperature"]},
        "points": [{"method": "mine", "temperature": 0.3}],
    }
    found = winners(read_cells(write_run_of(tmp_path / "run", config)))
    assert sorted(one.best.settings["temperature"] for one in found.values()) == [0.1, 0.3, 1.5]


@pytest.mark.parametrize("case", WORKS)
def test_cells_of_other_work_are_no_rivals_whatever_sets_it(tmp_path: Path, case: str) -> None:
    run = write_run_of(tmp_path / "run", {"base": {"batch": 2}, "axes": {"method": WORKS[case]}})
    html, _, said = page(run)
    assert said[0] == "No two settings have the same place."
    assert not re.search(r"times as fast|Speed-up", " ".join(said) + html)


def test_where_labels_set_the_work_too_those_of_one_work_are_rivals(tmp_path: Path) -> None:
    methods = {
        f"{name}-{t}": way | {"temperature": t}
        for name, way in {"plain": PLAIN, "mine": DRAFTED}.items()
        for t in (0.2, 1.0)
    }
    run = write_run_of(tmp_path / "run", {"base": {"batch": 2}, "axes": {"method": methods}})
    found = winners(read_cells(run))
    assert [*found] == ["batch 2, temperature=0.2", "batch 2, temperature=1.0"]
    for place, winner in found.items():
        assert {cell.choice[-3:] for cell in (winner.best, *winner.others)} == {place[-3:]}
        assert len(winner.others) == 1


def test_plain_decoding_of_another_target_is_a_rival_and_no_measure(tmp_path: Path) -> None:
    """Cells whose target is quantized otherwise are compared, but not called so many times as fast
    as autoregressive decoding.
    """
    methods = {"plain": PLAIN, "mine": DRAFTED | {"quantization": "int8-weight"}}
    run = write_run_of(tmp_path / "run", {"base": {"batch": 2}, "axes": {"method": methods}})
    html, _, said = page(run)
    [winner] = winners(read_cells(run)).values()
    assert (len(winner.others), winner.plain) == (1, None)
    assert "autoregressive decoding" not in " ".join(said)
    assert "speed-up" not in html


def test_a_plot_has_plain_decoding_beside_what_decodes_the_same_only(tmp_path: Path) -> None:
    methods = {
        "plain": PLAIN | {"temperature": 1.5},
        "alike": DRAFTED | {"temperature": 1.5},
        "other": DRAFTED | {"temperature": 0.1},
        "int8": DRAFTED | {"temperature": 1.5, "quantization": "int8-weight"},
    }
    config = {"base": {"batch": 2}, "axes": {"method": methods}}
    grey: dict[str, set[str]] = {}
    for plot in plots(read_cells(write_run_of(tmp_path / "run", config, 2))):
        for axes in plot.figure.axes:
            if any(
                str(line.get_label()).startswith(("plain", "autoregressive")) for line in axes.lines
            ):
                grey.setdefault(plot.name, set()).add(axes.get_title())
    assert grey == {name: {"alike"} for name in ("latency", "mbu", "budget", "budget-tokens")}


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {  # of the base, and what is said of it
    "temperature": ({"temperature": 1.5}, "`temperature` (0.2 and 1.5)"),
    "tokens": ({"max_new_tokens": 60}, "`max_new_tokens` (128 and 60)"),
    "prompts": ({"prompts": ["x = "]}, '`prompts` (python and [x = ])'),
    "limits": ({"ttft_limit": 0.5}, "`ttft_limit` (null and 0.5)"),
    "verifier": ({"verifier": "typical"}, "`verifier` (rejection and typical)"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_runs_of_other_work_are_told_apart_and_none_is_better(tmp_path: Path, case: str) -> None:
    other, words = DIFFERENT[case]
    axes = {"policy.k": [0, 4]}
    base = {"batch": 2, "policy": "fixed"}
    a, b = (
        write_run_of(tmp_path / name, {"base": base | more, "axes": axes}, slower=slower)
        for name, more, slower in (("a", {}, 1.0), ("b", other, 3.0))
    )
    html, said = comparison(a, b)
    assert words in said[0]
    assert "without a verdict" in said[1]
    assert not re.search(r"is (better|worse)|(better|worse) in \d", " ".join(said))
    assert not re.search(r"B is (better|worse)|class=\"best\"", html)
    assert "different work in 2" in " ".join(said)


ALIKE: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 3}, "`seed` (0 and 3)"),
    "repeats": ({"repeats": 2}, "`repeats` (3 and 2)"),
    "cache": ({"cache": "padded"}, "`cache` (auto and padded)"),
}


@pytest.mark.parametrize("case", ALIKE)
def test_runs_that_decode_the_same_otherwise_are_compared_and_it_is_said_how(
    tmp_path: Path, case: str
) -> None:
    other, words = ALIKE[case]
    base = {"batch": 2, "policy": "fixed", "policy.k": 4}
    a, b = (
        write_run_of(tmp_path / name, {"base": base | more, "axes": {"batch": [2]}})
        for name, more in (("a", {}), ("b", other))
    )
    _, said = comparison(a, b)
    assert words in said[0]
    assert "within the noise in 1" in " ".join(said)


def test_a_label_that_means_another_thing_in_the_other_run_is_told(tmp_path: Path) -> None:
    a, b = (
        write_run_of(
            tmp_path / name,
            {"base": {"batch": 2}, "axes": {"way": {"mine": DRAFTED | {"policy.k": k}}}},
        )
        for name, k in (("a", 4), ("b", 5))
    )
    assert "`policy` (fixed(k=4) and fixed(k=5))" in comparison(a, b)[1][0]


def test_another_machine_or_another_target_of_one_name_is_told(tmp_path: Path) -> None:
    a, b = (
        write_run_of(tmp_path / name, {"base": {"batch": 2, "policy": "fixed"}})
        for name in ("a", "b")
    )
    path = b.path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"device": "a GPU"}), encoding="utf-8")
    said = comparison(a, RunFolder(b.path))[1]
    assert re.search(r"the device was .* and is a GPU", said[0])
    assert "within the noise in 1" in " ".join(said)
    [name] = [name for name in manifest["inputs"] if name.startswith("target ")]
    path.write_text(json.dumps(manifest | {"inputs": manifest["inputs"] | {name: "other"}}))
    said = comparison(a, RunFolder(b.path))[1]
    assert re.search("the target has changed", said[0])
    assert "different work in 1" in " ".join(said)


@pytest.mark.parametrize("config", [{"axes": 3}, {"axes": {"method": {"a": 3}}}, {"base": [1]}])
def test_a_manifest_whose_config_is_no_config_is_reported(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    axes = {"method": {"a": PLAIN, "b": DRAFTED}}
    run = write_run_of(tmp_path / "run", {"base": {"batch": 2}, "axes": axes}, 2)
    path = run.path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": config}))
    assert "b" in page(RunFolder(run.path))[2][0]
