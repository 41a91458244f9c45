"""Pass@First, Pass@All and pass@k: hand counts, properties, and one evaluation of a tiny pair."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.analysis.frames import read_lines
from bass.api.options import LoadOptions
from bass.errors import OptionError, RunFolderError
from bass.experiments import programs
from bass.experiments.pass_at_k import EvalOptions, Evaluation, evaluate, pass_at_k
from bass.experiments.problems import read_problems
from unit.checkpoints import Pair, Said
from unit.test_problems import HUMANEVAL, write_records

BassCommand = Callable[..., Said]


def sample(
    passed: bool, logprob: float = 0.0, seconds: float = 1.0, finish: str = "eos",
    prefill: float = 0.5,
) -> dict[str, Any]:  # fmt: skip
    """What the lines of two samples differ in."""
    return {"passed": passed, "logprobs": [logprob], "token_ids": [1], "seconds": seconds,
            "finish_reason": finish, "prefill_seconds": prefill}  # fmt: skip


SAMPLE = {"turn": 0, "category": "", "seed": 0, "prompt_index": 0, "text": "", "prompt_tokens": 3}
STEP = {"step": 0, "k": 0, "requests": [0], "drafted": [0],
        "accepted": [0], "emitted": [1], "seconds": 0.1, "host_seconds": 0.0, "at": 0.6, "bytes": 0,
        "flops": 0, "draft_tokens": None, "draft_probs": None}  # fmt: skip


def written(
    folder: Path, methods: dict[str, list[list[dict[str, Any]]]], budgets: tuple[float, ...] = ()
) -> Evaluation:
    """An evaluation with these samples by method and problem."""
    lines, steps = [], []
    for method, problems in methods.items():
        for i, group in enumerate(problems):
            place = {"repeat": 0, "call": i, "method": method, "problem": f"p{i}"}
            steps.append(place | STEP)
            numbers = ({"request": j, "sample_index": j, "prompt": i} for j in range(len(group)))
            lines += [place | SAMPLE | n | one for n, one in zip(numbers, group, strict=True)]
    write_records(folder / "requests.jsonl", *lines)
    write_records(folder / "steps.jsonl", *steps)
    (folder / "manifest.json").write_text("{}")
    return Evaluation(folder, budgets)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_in_which_one_passes(
    samples: int, data: st.DataObject
) -> None:
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    choices = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize("k", [0, 4])
def test_pass_at_k_needs_k_samples(k: int) -> None:
    with pytest.raises(OptionError, match=rf"pass@{k} of 3 samples"):
        pass_at_k(3, 1, k)


HAND = [
    [sample(True, -2.0), sample(False, -1.0)],  # the more probable one fails
    [sample(True, -1.0), sample(False, -2.0)],
    [sample(True, -1.0, seconds=9.0), sample(False, -3.0)],  # the one that passes comes too late
    [sample(True, -1.0, finish="time"), sample(False, -3.0)],  # it has not come to its end
    [sample(True, seconds=9.0), sample(True, seconds=9.0)],  # nothing is finished in time
    [sample(True), sample(False)],  # of equally probable ones the first counts
]


def test_first_is_the_most_probable_finished_sample_and_all_is_any(tmp_path: Path) -> None:
    found = written(tmp_path, {"batched": HAND})
    within = found.within("batched", 2.0)
    assert within["pass_first"].tolist() == [False, True, False, False, False, True]
    assert within["pass_all"].tolist() == [True, True, False, False, False, True]
    assert within["finished"].tolist() == [2, 2, 1, 1, 0, 2]
    [row] = found.curve([2.0]).to_dict(orient="records")
    assert (row["method"], row["seconds"]) == ("batched", 2.0)
    assert (row["pass_first"], row["pass_all"], row["finished"]) == (2 / 6, 3 / 6, 8 / 12)
    assert row["pass_first_low"] < 2 / 6 < row["pass_first_high"]
    [scores] = found.scores().to_dict(orient="records")
    assert (scores["pass_first"], scores["pass_all"]) == (4 / 6, 5 / 6)
    assert scores["pass@1"] == pytest.approx((0.5 * 5 + 1) / 6)
    assert scores["pass@2"] == 1.0
    assert "pass@4" not in scores


def test_latency_is_that_of_the_first_the_last_and_all_sequences(tmp_path: Path) -> None:
    groups = [[sample(True, seconds=1.0), sample(True, seconds=3.0)]] * 2
    [scores] = written(tmp_path, {"plain": groups}).scores().to_dict(orient="records")
    assert (scores["first"], scores["last"], scores["all"]) == (1.0, 3.0, 2.0)
    assert scores["tau"] == 1.0


def test_a_budget_counts_from_the_start_or_from_the_end_of_the_first_prefill(
    tmp_path: Path,
) -> None:
    """A sample that waits for a row waits on both clocks."""
    groups = [[sample(False, -5.0, 1.0, prefill=0.5), sample(True, -1.0, 1.0, prefill=2.0)]]
    found = written(tmp_path, {"single": groups})
    for clock, ends in {"ended": (1.5, 3.0), "decoded": (1.0, 2.5)}.items():
        for seconds, finished in ((ends[0] - 0.1, 0), (ends[0], 1), (ends[1], 2)):
            [row] = found.within("single", seconds, clock).to_dict(orient="records")
            assert row["finished"] == finished
            assert row["pass_first"] == row["pass_all"] == (finished == 2)


SAMPLES = st.builds(sample, st.booleans(), st.floats(-3, 0), st.floats(0.1, 9))


@given(st.lists(st.lists(SAMPLES, min_size=2, max_size=2), min_size=1, max_size=5))
def test_with_more_time_more_is_finished_and_all_is_never_below_first(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[dict[str, Any]]]
) -> None:
    found = written(tmp_path_factory.mktemp("run"), {"batched": groups})
    curve = found.curve()
    assert curve["seconds"].tolist() == found.budgets
    assert len(curve) <= 10
    for name in ("seconds", "pass_all", "finished"):
        assert curve[name].is_monotonic_increasing
    assert (curve["pass_first"] <= curve["pass_all"]).all()
    assert curve["finished"].iloc[-1] == 1.0
    for name in ("pass_first", "pass_all"):
        assert (curve[f"{name}_low"].between(0, curve[name])).all()
        assert (curve[f"{name}_high"].between(curve[name], 1)).all()
    scores = found.scores().iloc[0]
    assert scores["pass@1"] <= scores["pass@2"] == pytest.approx(scores["pass_all"])


def test_methods_are_compared_on_the_problems_that_all_have(tmp_path: Path) -> None:
    methods = {"batched": HAND[:3], "plain": HAND[:2]}
    found = written(tmp_path, methods, (3.0, 0.5, 3.0))
    assert found.problems == ["p0", "p1"]
    assert set(found.steps["problem"]) == {"p0", "p1"}
    assert (found.budgets, found.methods) == ([0.5, 3.0], ["batched", "plain"])
    assert found.pass_at(1).to_dict() == {name: {"p0": 0.5, "p1": 0.5} for name in methods}


def test_tables_have_the_scores_and_a_row_for_each_budget(tmp_path: Path) -> None:
    text = written(tmp_path, {"batched": HAND, "plain": HAND}, (0.5, 2.0)).to_text()
    scores, curve = (part.splitlines() for part in text.split("\n\n"))
    assert scores[0] == "| method | batched | plain |"
    assert [line.split(" | ")[0] for line in scores[2:5]] == [
        "| Pass@First, %", "| Pass@All, %", "| finished samples, %"
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in curve]
    assert [row[:2] for row in rows[2:]] == [
        [method, seconds] for seconds in ("0.500", "2.00") for method in ("batched", "plain")
    ]
    assert rows[-1][3] == "50.0 (18.8 to 81.2)"  # Wilson (1927), 3 of 6


# One evaluation of a tiny pair


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft)


def options_of(folder: Path, **others: Any) -> EvalOptions:
    """Problems of which every completion passes, none, and those that end a text."""
    prompts = {"a": "x = 0\n", "b": "y = 0\n", "c": 'z = """\n'}
    tests = {"a": "True", "b": "False", "c": "True"}
    records = [
        HUMANEVAL | {"task_id": name, "prompt": f"def f(): return {tests[name]}\n{prompts[name]}#",
                     "test": "def check(f):\n    assert f()", "entry_point": "f"}
        for name in prompts
    ]  # fmt: skip
    path = write_records(folder / "problems.jsonl", *records)
    given = {"max_new_tokens": 6, "temperature": 1.0, "num_return_sequences": 2}
    return EvalOptions(**given | {"problems": str(path), "allow_code_execution": True} | others)


@pytest.fixture(scope="module")
def run(llm: bass.LLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalOptions, Path]:
    """The options and the folder of a finished evaluation, not to be changed."""
    folder = tmp_path_factory.mktemp("run")
    options = options_of(folder, methods=["batched", "plain", "single"])
    evaluate(llm, options, folder / "out")
    return options, folder / "out"


def test_an_evaluation_has_every_sample_with_its_score(
    run: tuple[EvalOptions, Path], llm: bass.LLM
) -> None:
    options, folder = run
    found = Evaluation(folder)
    assert found.methods == ["batched", "plain", "single"]
    assert found.problems == ["a", "b", "c"]
    groups = found.requests.groupby(["method", "problem"])
    assert groups["sample_index"].apply(list).map(lambda one: one == [0, 1]).all()
    for problem in read_problems(options.problems):
        own = found.requests[found.requests["problem"] == problem.name]
        expected = programs.check_all([problem.program(one) for one in own["text"]], 20.0, True)
        assert own["passed"].tolist() == expected
        result = llm.generate(
            problem.prompt, 2, max_new_tokens=6, temperature=1.0, stop=problem.stop
        )
        drawn = own[own["method"] == "batched"]["token_ids"].tolist()
        assert drawn == [one.token_ids for one in result.completions]
    assert not found.requests.loc[found.requests["problem"] == "b", "passed"].any()
    assert (found.requests["ended"] >= found.requests["decoded"]).all()
    summary = json.loads((folder / "summary.json").read_text())
    pd.testing.assert_frame_equal(pd.DataFrame(summary["curve"]), found.curve(), check_dtype=False)
    assert [row["method"] for row in summary["scores"]] == found.methods
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["lossless"], manifest["config"]["temperature"]) == (True, 1.0)
    assert (manifest["config"]["methods"], manifest["config"]["limit"]) == (found.methods, None)


def test_a_wrong_name_is_named_before_bubblewrap(
    bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch, llm: bass.LLM, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "bubblewrap", lambda: None)
    assert "Did you mean `small`" in bass_command("eval", "smal").err
    with pytest.raises(OptionError, match="Did you mean `small`"):
        evaluate(llm, EvalOptions(problems="smal"), tmp_path)


def test_plain_decoding_drafts_nothing_and_single_decodes_one_row(
    run: tuple[EvalOptions, Path],
) -> None:
    steps = Evaluation(run[1]).steps
    drafted = steps["drafted"].map(sum).groupby(steps["method"]).sum()
    rows = steps["requests"].map(len).groupby(steps["method"]).max()
    assert (drafted["plain"], rows["single"], rows["batched"]) == (0, 1, 2)


def tokens(folder: Path) -> set[tuple[Any, ...]]:
    lines = read_lines(folder / "requests.jsonl")
    return {(x["method"], x["problem"], x["sample_index"], *x["token_ids"]) for x in lines}


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_an_evaluation_continues_where_it_was_cut(
    share: float, run: tuple[EvalOptions, Path], llm: bass.LLM, tmp_path: Path
) -> None:
    options, whole = run
    folder = Path(shutil.copytree(whole, tmp_path / "out"))
    (folder / "summary.json").unlink()
    for name in ("requests.jsonl", "steps.jsonl"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(share * len(data))])
    # steps of a problem are written before its requests
    (folder / "steps.jsonl").write_bytes((whole / "steps.jsonl").read_bytes())
    kept = tokens(folder)
    evaluate(llm, options, folder)
    assert kept <= tokens(folder) == tokens(whole)
    assert len(Evaluation(folder).steps) == len(Evaluation(whole).steps)
    assert (folder / "summary.json").exists()


def test_the_command_prints_tables_and_continues(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    options = options_of(tmp_path)
    words = ["eval", options.problems, *pair.options, "-n", "2", "--limit", "2"]
    own = "--methods batched plain --budgets 0.001 100 --allow-code-execution"
    words += own.split()
    folder = tmp_path / "out"
    said = bass_command(*words, "--output", str(folder))
    assert said.status == 0, said.err
    assert said.out == Evaluation(folder, [0.001, 100]).to_text()
    again = bass_command(*words, "--output", str(folder))
    assert (again.status, again.out) == (0, said.out)
    config = json.loads((folder / "manifest.json").read_text())["config"]
    assert config["load"]["target"] == str(pair.target)
    assert {f.name for f in fields(LoadOptions)} | {"files"} == config["load"].keys()
    assert (config["methods"], config["limit"]) == (["batched", "plain"], 2)
    single = [word for word in words if word not in ("batched", "plain")]
    single.insert(single.index("--methods") + 1, "single")
    assert bass_command(*single, "--output", str(folder)).status == 0
    config = json.loads((folder / "manifest.json").read_text())["config"]
    assert config["methods"] == ["batched", "plain", "single"]
    assert options.problems in config["load"]["files"]
    other = bass_command(*words, "--output", str(folder), "--policy", "fixed")
    assert (other.status, "another `load`" in other.err) == (2, True)
    assert bass_command("eval", "small", "--methods", "batch").status == 2
    table = bass_command("table", str(folder))
    assert "`bass report` shows an evaluation too" in table.err
    assert "`nowhere` has no `manifest.json`" in bass_command("report", "nowhere").err
    with pytest.raises(RunFolderError, match="has no scores"):
        Evaluation(tmp_path)
