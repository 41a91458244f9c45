"""`bass report` of an evaluation: the time-budget curve is that of the samples, and what is called
a difference is one.
"""

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.analysis.evaluated import Evaluated, both, read_evaluation
from bass.analysis.intervals import mean_difference, mean_score
from bass.analysis.scores import CLOCKS, point
from bass.errors import BassError, RequestError, RunFolderError
from bass.report import evaluation
from bass.report.curves import curves, times
from bass.report.evaluation import page, sentences
from bass.report.page import MOST_BYTES
from support.evaluation_folders import change_manifest, write_evaluation
from support.run_folders import write_run
from unit.checkpoints import Said
from unit.test_report import Text

Command = Callable[..., Said]
ERROR = 0.05


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    return read_evaluation(write_evaluation(tmp_path_factory.mktemp("evaluations") / "one"))


def test_the_curves_are_those_of_the_scores_by_both_clocks(evaluated: Evaluated) -> None:
    drawn = curves(evaluated)
    assert [plot.name for plot in drawn] == ["budget-prefill", "budget-start"]
    for clock, plot in zip(CLOCKS, drawn, strict=True):
        at = times(evaluated, clock)
        assert len(at) > 20
        for ax, which in zip(plot.figure.axes, ("first", "all"), strict=True):
            assert [str(line.get_label()) for line in ax.lines] == ["batched", "plain", "single"]
            for line, groups in zip(ax.lines, evaluated.methods.values(), strict=True):
                expected = [
                    100 * getattr(point(groups, float(budget), clock), which) for budget in at
                ]
                assert np.asarray(line.get_xdata()).tolist() == at.tolist()
                assert line.get_ydata() == pytest.approx(expected)
            assert len(ax.collections) == 3  # a band for each
    first, second = (np.asarray(plot.figure.axes[1].lines[0].get_xdata()) for plot in drawn)
    assert second[1:] == pytest.approx(first[1:] + 0.1)  # the samples' prefill


def test_the_page_stands_alone_and_has_scores_tables_and_curves(evaluated: Evaluated) -> None:
    html, drawn, told = page(evaluated)
    text = Text(html)
    assert len(html.encode()) < MOST_BYTES
    assert all(link.startswith("#") for link in text.links)
    assert len(text.ids) == len(set(text.ids))
    for words in ("Time-budget curve, from the end of the prefill",
        "Time-budget curve, from the start of the request", "pass@4",
                  "Pass@First", "Within a budget, from the start of the request",
                  "40 problems, 4 samples of each", *told):  # fmt: skip
        assert words in text.words
    assert [plot.file("png")[1:4] for plot in drawn] == [b"PNG", b"PNG"]


def test_the_fastest_method_wins_within_a_budget_and_none_does_without(
    evaluated: Evaluated,
) -> None:
    told = sentences(evaluated)
    middle = evaluated.budgets[(len(evaluated.budgets) - 1) // 2]
    assert f"{middle:.3g} s is the middle one of {len(evaluated.budgets)} budgets" in told[-1]
    assert told[0].startswith(f"Within {middle:.3g} s from the end of the prefill, ")
    two = {method: evaluated.methods[method] for method in ("plain", "batched")}
    early = sentences(replace(evaluated, methods=two, budgets=[1.2]))
    for sentence, name in zip(early[:2], ("Pass@First", "Pass@All"), strict=True):
        assert sentence.startswith(
            f"Within 1.2 s from the end of the prefill, batched has the highest {name}: "
        )
    assert told[-2].startswith("Without a time limit")
    assert told[-2].endswith("the differences are within the noise.")


def test_few_budgets_are_all_told_and_summaries_have_names_of_their_own(tmp_path: Path) -> None:
    told = sentences(
        read_evaluation(
            write_evaluation(tmp_path / "few", budgets=(0.5, 2.0), methods=("batched",))
        )
    )
    assert [sentence.split(":")[0] for sentence in told[:2]] == [
        "batched within 0.5 s",
        "batched within 2 s",
    ]
    html = page(
        read_evaluation(
            write_evaluation(tmp_path / "texts", task="summaries", methods=("batched",))
        )
    )[0]
    assert "First (ROUGE-2)" in html
    assert "pass@1<" not in html


def test_pass_at_k_is_told_for_what_was_asked(tmp_path: Path) -> None:
    asked = [
        read_evaluation(write_evaluation(tmp_path / str(k), budgets=(1.0,), ks=(1, k)))
        for k in (3, 4)
    ]
    heads = [
        [head["text"] for head in evaluation.whole(one)["heads"]] for one in (*asked, both(*asked))
    ]
    assert [[text for text in found if text.startswith("pass@")] for found in heads] == [
        ["pass@1", "pass@3"],
        ["pass@1", "pass@4"],
        ["pass@1", "pass@3", "pass@4"],
    ]


def test_methods_that_are_level_are_called_so_and_any_two_may_differ(evaluated: Evaluated) -> None:
    same = replace(
        evaluated,
        methods={"batched": evaluated.methods["batched"], "plain": evaluated.methods["batched"]},
        budgets=[9.0],
    )
    assert (
        "noise: batched and plain have the same, their difference is 0.0 points ("
        in sentences(same)[0]
    )
    score = {"half": 0.5, "less": 0.42, "more": 0.58}  # neither is far from the first of them
    groups = {
        name: [[replace(s, value=v) for s in group] for group in evaluated.methods["batched"]]
        for name, v in score.items()
    }
    assert sentences(replace(evaluated, methods=groups))[-2].endswith(
        "there are differences beyond the noise."
    )


def test_a_line_at_nothing_is_not_hidden_by_the_axis(evaluated: Evaluated) -> None:
    for plot in curves(evaluated):
        low, high = plot.figure.axes[0].get_ylim()
        assert low < 0 < high


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_an_interval_holds_its_mean_and_stays_within_what_a_score_can_be(
    values: list[float],
) -> None:
    mean = mean_score(np.array(values))
    assert 0 <= mean.low <= mean.value + 1e-12
    assert mean.value - 1e-12 <= mean.high <= 1


@pytest.mark.parametrize("count", [1, 2, 10, 164])
def test_where_all_problems_score_alike_the_bound_is_clopper_and_pearsons(count: int) -> None:
    none, every = mean_score(np.zeros(count)), mean_score(np.ones(count))
    assert (none.value, none.low, none.high) == (0, 0, pytest.approx(1 - 0.025 ** (1 / count)))
    assert (every.low, every.high) == (pytest.approx(0.025 ** (1 / count)), 1)


@pytest.mark.parametrize("problems", [5, 35, 164])
@pytest.mark.parametrize("differing", [0.05, 0.3, 0.8])
def test_two_equal_methods_are_told_apart_no_more_often_than_is_claimed(
    problems: int, differing: float
) -> None:
    """1,500 draws: a true rate of 5 % passes 7 % with probability below 4e-4, and the seed is
    fixed.
    """
    rng = np.random.default_rng(0)
    draws = rng.choice(
        [-1.0, 0.0, 1.0], (1500, problems), p=[differing / 2, 1 - differing, differing / 2]
    )
    alarms = np.mean([mean_difference(np.zeros(problems), draw).beyond_noise for draw in draws])
    assert alarms <= ERROR + 0.02


def test_few_differences_that_are_alike_are_no_certainty_and_many_are() -> None:
    def alike(count: int) -> bool:
        return mean_difference(
            np.zeros(35), np.array([1.0] * count + [0.0] * (35 - count))
        ).beyond_noise

    assert [alike(count) for count in (0, 1, 3, 12)] == [False, False, False, True]
    assert not mean_difference(np.zeros(2), np.ones(2)).beyond_noise
    assert mean_difference(np.zeros(2), np.ones(2)).value == 1.0


def test_an_evaluation_under_way_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    part = read_evaluation(write_evaluation(tmp_path / "part", unscored=10, lossless=False))
    assert part.count == 30
    assert part.notes[0].startswith("The evaluation is not finished: 30 of 40 problems")
    assert part.notes[-1].startswith("The verifier is not lossless")
    assert all(note in Text(page(part)[0]).words for note in part.notes)
    begun = write_evaluation(tmp_path / "begun")
    (begun / "single" / "scores.jsonl").unlink()
    assert "Not scored yet, and left out: single." in read_evaluation(begun).notes
    shutil.rmtree(begun / "single")
    (begun / "summary.json").write_text("{")
    with pytest.raises(RequestError, match=r"summary\.json` is damaged"):
        read_evaluation(begun)
    for method in ("batched", "plain"):
        (begun / method / "scores.jsonl").write_text("")
    with pytest.raises(RequestError, match="nothing to report"):
        read_evaluation(begun)


def test_in_what_two_evaluations_differ_is_said_first(evaluated: Evaluated, tmp_path: Path) -> None:
    other = write_evaluation(tmp_path / "other", device="a GPU", inputs={"module mine": "x"})
    manifest = json.loads((other / "manifest.json").read_text(encoding="utf-8"))
    manifest["config"] |= {"target": "models/large", "options": {"temperature": 0.8}}
    change_manifest(other, manifest)
    [note] = both(evaluated, read_evaluation(other)).notes
    assert note == (
        "The evaluations differ in target (null and models/large), temperature (0.2 and 0.8), "
        "device (cpu and a GPU) and module mine (null and x), that of A first."
    )
    assert not both(evaluated, evaluated).notes


def test_two_evaluations_are_compared_method_by_method(
    tmp_path: Path, evaluated: Evaluated
) -> None:
    slow = read_evaluation(write_evaluation(tmp_path / "slow", slower=2.0))
    told = sentences(both(evaluated, slow))
    assert sum("from A to B" in sentence for sentence in told) == 3
    assert any("B is worse" in sentence for sentence in told)
    assert not any("B is better" in sentence for sentence in told)
    assert any("B is better" in sentence for sentence in sentences(both(slow, evaluated)))
    assert not any("B is" in sentence for sentence in sentences(both(evaluated, evaluated)))
    fewer = both(evaluated, read_evaluation(write_evaluation(tmp_path / "part", unscored=5)))
    assert (fewer.count, "35 problems that both have scored" in fewer.notes[-1]) == (35, True)
    with pytest.raises(RunFolderError, match="not of the same problems"):
        both(evaluated, read_evaluation(write_evaluation(tmp_path / "other", problems=12)))


def test_the_command_makes_pages_and_plots_of_evaluations_and_refuses_to_mix(
    tmp_path: Path, bass_command: Command
) -> None:
    one, two = (
        str(write_evaluation(tmp_path / name, problems=5, samples=2)) for name in ("one", "two")
    )
    said = bass_command("report", one, two, "--plots", str(tmp_path / "plots"))
    assert (said.status, said.err) == (0, "")
    assert "from A to B" in said.out
    assert (tmp_path / "two" / "comparison.html").exists()
    assert len(list((tmp_path / "plots").iterdir())) == 4
    said = bass_command(
        "report", one, str(write_run(tmp_path / "run", batches=(1,), repeats=1).path)
    )
    assert (said.status, said.out, "cannot be compared" in said.err, said.err.count("\n")) == (
        2,
        "",
        True,
        1,
    )
    manifest = tmp_path / "one" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 9}))
    said = bass_command("report", one)
    assert (said.status, "format version 9" in said.err, said.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("kind", ["run", "evaluation"])
def test_without_matplotlib_one_sentence_says_what_to_install(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bass_command: Command
) -> None:
    folder = str(
        write_evaluation(tmp_path / "e")
        if kind == "evaluation"
        else write_run(tmp_path / "r", batches=(1,), repeats=1).path
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = bass_command("report", folder)
    assert (said.status, said.out) == (2, "")
    assert said.err == (
        "bass: A report needs matplotlib, which is not installed: "
        "`pip install 'bass-decoding[report]'`.\n"
    )


def test_no_damage_to_any_file_is_more_than_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "curves", lambda evaluated: [])
    folder = write_evaluation(
        tmp_path / "one", problems=3, samples=2, methods=("batched", "plain"), budgets=(1.0, 2.0)
    )
    said: list[str] = []
    for file in sorted(path for path in folder.rglob("*.json*")):
        whole = file.read_bytes()
        cuts = [whole[: len(whole) * i // 4] for i in range(4)] + [whole[:-1]]
        for damaged in (
            *cuts,
            b"null",
            b"[]",
            b"5",
            b"\xff",
            b"[" * 99999,
            whole.replace(b"0.", b"1e999"),
            whole.replace(b'"', b"", 3),
        ):
            file.write_bytes(damaged)
            try:
                page(read_evaluation(folder))
            except BassError as error:
                said.append(str(error))
        file.write_bytes(whole)
    assert len(said) > 20
    assert "\n" not in "".join(said)
    assert math.isfinite(read_evaluation(folder).budgets[-1])
