"""What a report must not say: that a setting leads, loses, or is better, where its values do not
show it.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bass.analysis.against_plain import impossible, not_of_drafts
from bass.analysis.independent import independent
from bass.analysis.metrics import METRICS, measure
from bass.analysis.repeats import Repeat
from bass.engine.cost import NO_WORK
from bass.errors import RunFolderError
from bass.report.compared import compared
from bass.report.page import figures
from bass.report.paired import Pair
from bass.report.summary import sentences, winners
from bass.runs.records import RequestLine, StepLine, Summary
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Call
from support.run_folders import write_run
from unit.test_report_summary import measured

# milliseconds per token by repeat; one repeat of the third was disturbed
DISTURBED = {
    "best": [2.83, 3.31, 3.00],
    "second": [3.63, 3.94, 3.91],
    "third": [2.64, 2.77, 13.83],
}


def test_a_lead_over_the_second_is_none_where_a_third_may_be_faster() -> None:
    found = winners([measured(name, 2, times, True) for name, times in DISTURBED.items()])
    [winner] = found.values()
    assert (winner.best.label, [cell.label for cell in winner.level]) == ("best", ["third"])
    assert not winner.clear
    said = sentences(found)
    assert said[0] == (
        "At batch 2 the lead of the fastest setting is within the noise: take more repeats before "
        "you rely on it."
    )
    assert re.search(r" as second, .* as third, which is within the noise\.$", said[1])
    assert not any(row["best"] for row in figures([winner.best, *winner.others], found)["rows"])


def test_many_settings_that_may_be_as_fast_are_counted() -> None:
    times = {f"s{i}": [1.0 + i / 100, 1.3, 0.9] for i in range(8)}
    found = winners([measured(name, 2, values, True) for name, values in times.items()])
    assert sentences(found)[1].endswith("with a lead within the noise over 4 more.")


@pytest.mark.parametrize(("plain", "verb"), [([1.0, 1.01, 1.02], "is"),
    ([1.0, 1.4, 1.3], "is shown to be")])  # fmt: skip
def test_drafts_are_called_slower_only_where_plain_decoding_has_a_sure_lead(
    plain: list[float], verb: str
) -> None:
    cells = [
        measured("plain", 2, plain, False),
        measured("lookup", 2, [1.5, 1.49, 1.52], True),
        measured("bass", 2, [1.25, 1.26, 1.24], True),
    ]
    said = sentences(winners(cells))
    assert f"At batch 2 no drafting setting {verb} faster than autoregressive decoding." in said
    assert sum("no drafting setting" in one for one in said) == 1


def generation(emitted: list[list[int]], seed: int) -> Repeat:
    """One request for each list: the tokens of its calls, each with a draft of 3."""
    calls = max(map(len, emitted))
    steps = [
        StepLine(
            [r if i < len(own) else -1 for r, own in enumerate(emitted)], 3, 8, 1,
            [3 if i < len(own) else 0 for own in emitted],
            [own[i] - 1 if i < len(own) else 0 for own in emitted],
            [own[i] if i < len(own) else 0 for own in emitted],
            0.1, 0.0, 0.1 * (i + 1), 0, NO_WORK,
        ).record()
        for i in range(calls)
    ]  # fmt: skip
    lines = [
        RequestLine(
            r,
            0,
            4,
            [1] * sum(own),
            None,
            [-1.0] * sum(own),
            "length",
            0.0,
            0.1 * len(own),
            None,
            seed,
        )
        for r, own in enumerate(emitted)
    ]
    return Repeat(steps, lines)


def test_the_independent_values_are_repeats_of_times_and_prompts_of_the_rest() -> None:
    """Two prompts, the first of them twice, four samples each, in three greedy repeats."""
    of_prompts = [[[4, 4]] * 4, [[2, 2]] * 4, [[4, 4]] * 4]
    calls, made = [], []
    for seed in range(3):
        for first, (number, emitted) in enumerate(zip((0, 1, 0), of_prompts, strict=True)):
            calls.append(Call(len(calls), [], 4, seed, 4 * (first > 1), [number]))
            made.append(generation(emitted, seed))
    found = independent(calls, made)
    assert [one["tau"] for one in found.prompts] == [4.0, 2.0]
    assert [one["tau_of_requests"] for one in found.prompts] == [4.0, 2.0]
    assert len(found.repeats) == 3
    assert found.metrics["tau"] == 3.0
    assert not {"all", "seconds", "mbu"} & {*found.prompts[0]}
    assert {"all", "seconds", "tau"} <= {*found.repeats[0]}


def test_a_generation_of_several_prompts_has_values_of_each_only_for_means_over_requests() -> None:
    emitted = [[4, 4], [2, 2], [1, 1, 1], [3, 3, 3]]  # two samples of each of two prompts
    calls = [Call(i, [], 2, i, 0, [0, 1]) for i in range(3)]
    found = independent(calls, [generation(emitted, i) for i in range(3)])
    assert [one["tau_of_requests"] for one in found.prompts] == [3.0, 2.0]
    assert all("tau" not in one for one in found.prompts)
    assert found.metrics["tau"] == pytest.approx(24 / 10)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_turn_that_one_conversation_has_is_no_value_of_the_cell(repeats: int) -> None:
    """Two conversations in one call, the second of which has another turn: what a generation of
    both has is pooled with that turn, however few tokens the turn has.
    """
    both, later = [[4, 4, 4], [4, 4, 4]], [[1, 1]]
    calls, made = [], []
    for seed in range(repeats):
        calls += [Call(2 * seed, [], 1, seed, 0, [0, 1]), Call(2 * seed + 1, [], 1, seed, 0, [1])]
        made += [generation(both, seed), generation(later, seed)]
    found = independent(calls, made)
    whole = [step for one in made[:2] for step in one.steps]
    together = measure(Repeat(whole, [line for one in made[:2] for line in one.requests]))
    for name in ("tau", "acceptance_rate", "wasted_per_token", "share_without_draft", "all"):
        assert found.metrics[name] == pytest.approx(together[name]), name
    assert found.metrics["tau"] == pytest.approx(26 / 8)
    assert [one.get("tau") for one in found.prompts] == [None, None]
    assert [one["tau_of_requests"] for one in found.prompts] == pytest.approx([4.0, 2.5])


def test_generations_of_unequal_size_count_by_their_requests_and_seconds() -> None:
    """Three sequences of 0.025 s per token and one of 0.1: the mean over sequences, and all tokens
    over the whole time.
    """
    calls = [Call(0, [], 1, 0, 0, [0, 1, 2]), Call(1, [], 1, 0, 0, [0])]
    made = [generation([[4, 4]] * 3, 0), generation([[1, 1, 1]], 0)]
    found = independent(calls, made).metrics
    assert found["all"] == pytest.approx((3 * 0.025 + 0.1) / 4)
    assert found["tokens_per_second"] == pytest.approx((24 + 3) / (0.2 + 0.3))
    assert found["decode_tokens_per_second"] == pytest.approx((24 + 3) / (0.2 + 0.3))
    assert found["seconds"] == pytest.approx(0.25)


def test_a_speed_up_of_several_generations_is_the_ratio_of_their_means() -> None:
    """One generation is 4 times as fast as its autoregressive decoding, one as fast: the mean of
    the two ratios would be 2.5.
    """
    emitted = [[[4, 4]], [[1] * 8]]
    drafting = [generation(own, 0) for own in emitted]
    plain = [
        dataclasses.replace(one, steps=[dataclasses.replace(s, drafted=0 * s.drafted) for s in own])
        for one in (generation([[1] * 8], 0),)
        for own in (one.steps,)
    ]
    made = [dataclasses.replace(one, plain=plain[0]) for one in drafting]
    found = independent([Call(i, [], 1, 0, 0, [i]) for i in range(2)], made).metrics
    own = (0.025 + 0.1) / 2
    assert found["all"] == pytest.approx(own)
    for name in ("speedup_all", "speedup_first", "speedup_last", "speedup_tokens_per_second"):
        assert found[name] == pytest.approx(0.1 / own), name


def greedy(label: str, prompts: list[list[int]], repeats: int) -> Any:
    """A cell of greedy decoding, whose repeats are copies."""
    calls, made = [], []
    for seed in range(repeats):
        for number, own in enumerate(prompts):
            calls.append(Call(len(calls), [], 4, seed, 0, [number]))
            made.append(generation([own] * 4, seed))
    found = independent(calls, made)
    cell = measured(label, 4, [1.0] * repeats, True)
    summary = Summary(
        label, {}, "done", None, found.metrics, found.repeats, 1.0, None, found.prompts
    )
    return dataclasses.replace(cell, summary=summary)


@pytest.mark.parametrize("repeats", [1, 6, 40])
def test_copies_of_greedy_decoding_make_nothing_beyond_noise(repeats: int) -> None:
    a = greedy("a", [[4, 4, 3], [3, 3]], repeats)
    b = greedy("b", [[3, 2, 3, 3], [3, 3]], repeats)
    for other, interval in ((b, "-6.28"), (greedy("c", [[3, 4, 3], [3, 2]], repeats), "-1.48")):
        [lines] = compared([Pair(a, other, True)], [*METRICS]).values()
        verdicts = {
            line.metric.name: line.verdict for line in lines if line.metric.over != "repeats"
        }
        assert {"tau", "tau_of_requests", "acceptance_rate", "accepted_per_call"} <= {*verdicts}
        assert not {"B is worse", "B is better"} & {*verdicts.values()}
        assert next(line for line in lines if line.metric.name == "tau").within.startswith(interval)


@pytest.mark.parametrize(("prompts", "verdict"), [(2, "too few values"), (6, "B is worse")])
def test_equal_differences_of_all_prompts_have_no_interval_of_width_zero(
    prompts: int, verdict: str
) -> None:
    a, b = (greedy(name, [[n, n]] * prompts, 3) for name, n in (("a", 4), ("b", 3)))
    [lines] = compared([Pair(a, b, True)], ["tau", "drafted"]).values()
    assert (lines[0].within, lines[0].verdict) == (f"{prompts} prompts, no spread", verdict)
    assert lines[0].cells[3] == "-1.00"
    assert (lines[1].within, lines[1].verdict) == (f"{prompts} prompts, no spread",
        "within the noise")  # fmt: skip
    shown = figures([a], {})
    row = dict(
        zip([head["text"] for head in shown["heads"]], shown["rows"][0]["cells"], strict=True)
    )
    assert row["tau"]["small"] == "no spread"
    assert (row["repeats"], row["prompts"]) == (3, prompts)


def cell_of(speedups: list[float], limit: float, unlike: list[str] | None = None) -> Summary:
    repeats = [{"speedup_tokens_per_second": value, "speedup_limit": limit} for value in speedups]
    return Summary("x", {}, "done", None, {}, repeats, 1.0, unlike=unlike)


@pytest.mark.parametrize("speedups", [[1.09], [1.12, 1.02, 1.13], [1.08, 1.085]])
def test_a_speed_up_near_its_limit_is_not_called_impossible(speedups: list[float]) -> None:
    assert impossible(cell_of(speedups, 1.08)) is None
    assert impossible(cell_of([value + 1 for value in [1.1, 1.12]], 1.08)) is not None


def test_where_steps_are_unlike_the_difference_is_named_instead() -> None:
    summary = cell_of([1.66, 1.64, 1.67], 1.21, ["attention", "cuda_graphs"])
    assert impossible(summary) is None
    assert not_of_drafts(summary) == (
        "a speed-up of 1.66 (`speedup_tokens_per_second`) is not that of drafts alone, since a "
        "step emitted 1.21 times as many tokens as a step of autoregressive decoding, which has "
        "another attention and use of CUDA graphs: add a cell of autoregressive decoding with the "
        "same"
    )
    assert not_of_drafts(dataclasses.replace(summary, unlike=[])) is None


def without_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("name", ["steps.jsonl", "requests.jsonl"])
@pytest.mark.parametrize("damage", [Path.unlink, without_last_line])
def test_a_finished_cell_without_its_lines_is_one_sentence(
    tmp_path: Path, name: str, damage: Any
) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=2)
    entry = run.cells[1]
    damage(run.cell_folder(entry.id) / name)
    with pytest.raises(RunFolderError, match=rf"{name} has \d+ lines, and had \d+ when its cell"):
        run.read(entry)


def test_a_summary_that_was_copied_from_another_cell_is_one_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=2)
    one, other = (run.cell_folder(cell.id) / RunFolder.SUMMARY for cell in run.cells[:2])
    other.write_bytes(one.read_bytes())
    assert json.loads(other.read_text())["cell"] == run.cells[0].id
    with pytest.raises(RunFolderError, match="holds results of another run or cell"):
        run.read(run.cells[1])
    assert np.isfinite(run.read(run.cells[0])[1].steps[0].at)
