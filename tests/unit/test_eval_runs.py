"""Folders of evaluations: their samples and scores, and what goes on after an interruption."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.api.llm import load
from bass.errors import RequestError, RunFolderError
from bass.evaluation.sandbox import judge
from bass.evaluation.tasks import read_problems
from bass.runs.evaluation_folder import Sample, opened
from unit.checkpoints import Pair, Said
from unit.test_eval import RECORDS, written

BassCommand = Callable[..., Said]


def arguments(pair: Pair, tmp_path: Path, task: str = "gsm8k", count: int = 3) -> list[str]:
    records = [
        {**RECORDS[task], "task_id": i} if task == "mbpp" else RECORDS[task] for i in range(count)
    ]
    data = written(tmp_path / f"{task}.jsonl", *records)
    models = ["--target", str(pair.target), "--draft", str(pair.draft)]
    return [
        "eval",
        "--task",
        task,
        "--data",
        data,
        *models,
        "-n",
        "2",
        "--max_new_tokens",
        "6",
        "--output",
        str(tmp_path / "out"),
    ]


@pytest.mark.parametrize("task", ["mbpp", "gsm8k", "summaries"])
def test_an_evaluation_tells_first_and_all_by_method_and_budget(
    task: str, pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    if task == "summaries":
        pytest.importorskip("rouge_score", reason="the extra `eval` is not installed")
    asked = [
        *arguments(pair, tmp_path, task, 2),
        "--methods",
        "[batched,plain,single]",
        "--budgets",
        "[0.001,100]",
        "--temperature",
        "0.5",
    ]
    said = bass_command(*asked, "--json")
    assert said.status == 0, said.err
    summary = json.loads(said.out)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["methods"]) == ["batched", "plain", "single"]
    for figures in summary["methods"].values():
        assert [(p["clock"], p["budget"]) for p in figures["curve"]] == [
            (c, b) for c in ("prefill", "start") for b in (0.001, 100.0)
        ]
        assert [p["finished"] for p in figures["curve"]] == [0.0, 1.0, 0.0, 1.0]
    again = bass_command(*asked)  # from the folder: nothing is drawn again
    assert again.status == 0
    assert "by time limit in seconds from the start" in again.out


def test_problems_of_one_prompt_get_the_samples_that_it_gets_in_one_call(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    said = bass_command(*arguments(pair, tmp_path, count=2), "--temperature", "1")
    assert said.status == 0, said.err
    lines = (tmp_path / "out" / "batched" / "samples.jsonl").read_text().splitlines()
    samples = [Sample.from_json(line, "") for line in lines if '"end"' not in line]
    assert [s.sample for s in samples] == [0, 1, 0, 1]
    [problem, _] = read_problems("gsm8k", tmp_path / "gsm8k.jsonl")
    result = load(pair.target, pair.draft).generate(
        [problem.prompt] * 2, 2, max_new_tokens=6, temperature=1.0, stop=problem.stop
    )
    assert [s.tokens for s in samples] == [c.token_ids for c in result.completions]
    assert samples[0].tokens != samples[2].tokens


def test_a_folder_is_gone_on_with_after_any_interruption_and_the_samples_are_the_same(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = arguments(pair, tmp_path)
    assert bass_command(*asked).status == 0
    file = tmp_path / "out" / "batched" / "samples.jsonl"
    whole = file.read_bytes()

    def drawn(data: bytes) -> list[Any]:
        return [
            (line["task_id"], line.get("sample"), line.get("tokens"))
            for line in map(json.loads, data.splitlines())
        ]

    for cut in (len(whole) - 1, len(whole) // 2, 10, 0):
        file.write_bytes(whole[:cut])
        (tmp_path / "out" / "summary.json").unlink()
        said = bass_command(*asked)
        assert said.status == 0, said.err
        assert drawn(file.read_bytes()) == drawn(whole)
        assert (tmp_path / "out" / "summary.json").exists()


def test_a_full_disk_is_named_with_what_is_kept(
    pair: Pair, tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked = arguments(pair, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("bass.runs.evaluation_folder.append", full)
        said = bass_command(*asked)
    assert said.status == 2
    assert "out` cannot be written (No space left on device): free disk space, and" in said.err
    assert bass_command(*asked).status == 0


def test_scores_that_were_cut_off_or_are_of_another_text_are_made_again(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = [*arguments(pair, tmp_path), "--json"]
    first = json.loads(bass_command(*asked).out)
    file = tmp_path / "out" / "batched" / "scores.jsonl"
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b""):
        file.write_bytes(damaged)
        (tmp_path / "out" / "summary.json").unlink()
        assert json.loads(bass_command(*asked).out) == first
        assert file.read_bytes() == whole
    assert first["methods"]["batched"]["mean"] == 0.0
    file.write_bytes(whole.replace(b'"value": 0.0', b'"value": 1.0'))
    assert json.loads(bass_command(*asked).out)["methods"]["batched"]["mean"] == 1.0
    samples = tmp_path / "out" / "batched" / "samples.jsonl"
    samples.write_bytes(samples.read_bytes().replace(b'"text": "', b'"text": "another'))
    assert json.loads(bass_command(*asked).out) == first


def test_an_evaluation_whose_checker_stops_starting_keeps_its_scores_and_goes_on(
    pair: Pair, tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*arguments(pair, tmp_path, "mbpp", 2), "--workers", "1"]
    runs = tmp_path / "runs"
    runs.write_text("0")
    checker = tmp_path / "checker.py"
    checker.write_text(
        f"import pathlib, runpy\nruns = pathlib.Path({str(runs)!r})\ncount = int(runs.read_text()) "
        "+ 1\nruns.write_text(str(count))\n"
        f"if count > 4: raise SystemExit('no room')\nrunpy.run_path({str(judge.CHECKER)!r}, "
        "run_name='__main__')\n"
    )
    with monkeypatch.context() as broken:
        broken.setattr(judge, "CHECKER", checker)
        said = bass_command(*asked)
    assert (said.status, said.out) == (2, "")
    assert "does not start (no room)" in said.err.splitlines()[-1]
    kept = (tmp_path / "out" / "batched" / "scores.jsonl").read_bytes()
    assert kept.count(b"\n") == 3  # the first check of four is of what confines programs
    samples = (tmp_path / "out" / "batched" / "samples.jsonl").read_bytes()
    assert bass_command(*asked).status == 0
    assert (tmp_path / "out" / "batched" / "scores.jsonl").read_bytes().startswith(kept)
    assert (tmp_path / "out" / "batched" / "samples.jsonl").read_bytes() == samples


def test_a_problem_that_lost_a_sample_is_sampled_again(tmp_path: Path) -> None:
    with opened(tmp_path / "out", {}, {}) as folder:
        folder.add_samples(
            "batched", "a", [Sample("a", i, "t", [1], -1.0, "eos", 1.0, 2.0) for i in range(2)]
        )
        folder.add_samples("batched", "b", [Sample("b", 0, "t", [1], -1.0, "eos", 1.0, 2.0)])
        file = tmp_path / "out" / "batched" / "samples.jsonl"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
        assert list(folder.samples("batched")) == ["b"]


def test_budgets_are_told_in_order_and_once(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    said = bass_command(*arguments(pair, tmp_path), "--budgets", "[2,0.5,2]", "--json")
    curve = json.loads(said.out)["methods"]["batched"]["curve"]
    assert [p["budget"] for p in curve] == [0.5, 2.0, 0.5, 2.0]


@pytest.mark.nightly
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_evaluation_that_is_ended_from_outside_loses_at_most_one_problem(
    sent: signal.Signals, pair: Pair, tmp_path: Path
) -> None:
    asked = [sys.executable, "-m", "bass", *arguments(pair, tmp_path, count=1500)]
    file = tmp_path / "out" / "batched" / "samples.jsonl"
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (file.exists() and file.stat().st_size > 2000):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    # again after a while, as one would: Python drops an interruption that falls into an object's
    # end
    while process.poll() is None:
        process.send_signal(sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    _, err = process.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command continues" in " ".join(err.split())
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    with opened(tmp_path / "out", manifest["config"], {}) as folder:
        done = folder.samples("batched")
    assert 0 < len(done) < 1500
    assert all(len(group) == 2 for group in done.values())


def test_a_folder_of_other_settings_or_in_use_is_refused(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = arguments(pair, tmp_path)
    assert bass_command(*asked).status == 0
    said = bass_command(*asked, "--seed", "5")
    assert (said.status, "name another folder" in said.err) == (2, True)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    with (
        opened(tmp_path / "out", manifest["config"], {}),
        pytest.raises(RunFolderError, match=f"being written by process {os.getpid()} on"),
        opened(tmp_path / "out", manifest["config"], {}),
    ):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with (
        pytest.raises(RequestError, match="holds files that are not of an evaluation"),
        opened(tmp_path / "other", {}, {}),
    ):
        pass


def test_samples_of_another_class_or_checkpoint_are_refused(
    pair: Pair, tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = tmp_path / "eval_policy.py"
    policy.write_text(
        "from bass.policies import BatchAdaptive\nclass Mine(BatchAdaptive): pass\n",
        encoding="utf-8",
    )
    draft = tmp_path / "draft"
    shutil.copytree(pair.draft, draft)
    asked = [*arguments(Pair(pair.target, draft), tmp_path), "--policy", "eval_policy:Mine"]
    assert bass_command(*asked).status == 0
    assert bass_command(*asked).status == 0
    for path, words in (
        (policy, "the module eval_policy has changed"),
        (draft / "config.json", f"the draft {draft} has changed"),
    ):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        said = bass_command(*asked)
        assert (said.status, words in said.err) == (2, True), said.err
        path.write_bytes(before)
    sys.modules.pop("eval_policy")


def test_what_another_program_did_to_a_line_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "out", {}, {}) as folder:
        folder.add_samples("batched", "a", [Sample("a", 0, "t", [1], -1.0, "eos", 1.0, 2.0)])
        file = tmp_path / "out" / "batched" / "samples.jsonl"
        file.write_bytes(b"nonsense\n" + file.read_bytes())
        with pytest.raises(RequestError, match="Line 1 of"):
            folder.samples("batched")
        file.write_text('{"task_id": "a", "sample": 0}\n')
        with pytest.raises(RequestError, match="Line 1 of"):
            folder.samples("batched")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(RequestError, match="format version 2"), opened(tmp_path / "out", {}, {}):
        pass
