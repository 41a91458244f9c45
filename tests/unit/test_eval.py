"""`bass eval`: problems from files, samples and scores in a folder that survives any interruption,
and sentences for bad input.
"""

import contextlib
import gzip
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
from bass.errors import BassError, RequestError, RunFolderError
from bass.evaluation import sources
from bass.evaluation.evaluate import with_shots
from bass.evaluation.harness import generated, generation_options, log_likelihood
from bass.evaluation.record_code import Parser
from bass.evaluation.sandbox import Sandbox, judge
from bass.evaluation.tasks import humaneval, mbpp, read_problems
from bass.runs.evaluation_folder import Sample, opened
from unit.checkpoints import Pair, Said

DATA = os.environ.get("BASS_DATA")
# one problem in so many, in every run
EVERY = {"HumanEval.jsonl.gz": 20, "mbpp.jsonl": 100, "sanitized-mbpp.json": 50}
SIZES = {"HumanEval.jsonl.gz": 164, "mbpp.jsonl": 974, "sanitized-mbpp.json": 427}
HUMANEVAL = {
    "task_id": "H/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x\n",
}
HUMANEVAL["test"] = "def check(candidate):\n    assert candidate(3) == 3\n"
MBPP = {
    "task_id": 1,
    "text": "Write f.",
    "code": "import math\ndef f(x): return x",
    "test_list": ["assert f(math.pi) == math.pi"],
}
GSM8K = {"question": "How many?", "answer": "2+2\n#### 1,004"}
SUMMARY = {"document": "A long story.", "summary": "A story."}
RECORDS = {"humaneval": HUMANEVAL, "mbpp": MBPP, "gsm8k": GSM8K, "summaries": SUMMARY}
BassCommand = Callable[..., Said]


def written(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


@pytest.mark.skipif(DATA is None, reason="BASS_DATA names no folder of evaluation data")
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("share", ["some", pytest.param("all", marks=pytest.mark.nightly)])
def test_reference_solutions_pass(name: str, share: str) -> None:
    problems = read_problems("humaneval" if "Human" in name else "mbpp", Path(str(DATA)) / name)
    assert len(problems) == SIZES[name]
    chosen = problems if share == "all" else problems[:: EVERY[name]]
    outcomes = Sandbox().check_all(p.program(p.solution) for p in chosen)
    assert [(p.task_id, o) for p, o in zip(chosen, outcomes, strict=True) if not o.passed] == []


@pytest.mark.skipif(DATA is None, reason="BASS_DATA names no folder of evaluation data")
def test_questions_and_summaries_are_read() -> None:
    questions = read_problems("gsm8k", Path(str(DATA)) / "gsm8k_test.jsonl")
    assert (
        len(questions),
        questions[0].answer,
        len(read_problems("summaries", Path(str(DATA)) / "eagle_sum_question.jsonl")),
    ) == (
        1319,
        "18",
        80,
    )


def test_each_form_of_file_is_read_alike(tmp_path: Path) -> None:
    plain = Path(written(tmp_path / "a.jsonl", MBPP))
    (tmp_path / "a.json").write_text(json.dumps([MBPP]))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    first, *others = [
        read_problems("mbpp", str(tmp_path / name)) for name in ("a.jsonl", "a.json", "a.jsonl.gz")
    ]
    assert others == [first, first]
    assert first[0].names == ("f",)
    assert Sandbox().check(first[0].program(MBPP["code"])).passed


def test_a_file_on_the_hub_is_fetched_by_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    asked = []

    def download(repository: str, path: str, **options: Any) -> str:
        asked.append((repository, path, options))
        return written(tmp_path / "b.jsonl", GSM8K)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert read_problems("gsm8k", "org/name@main:test/b.jsonl")[0].answer == "1004"
    assert asked == [("org/name", "test/b.jsonl", {"repo_type": "dataset", "revision": "main"})]
    monkeypatch.setattr(
        hub, "hf_hub_download", lambda *a, **k: (_ for _ in ()).throw(OSError("no network"))
    )
    with pytest.raises(RequestError, match=r"could not be fetched from the hub \(no network\)"):
        sources.locate("org/name:b.jsonl")


@pytest.mark.parametrize("task", RECORDS)
@pytest.mark.parametrize(
    "damage",
    ["{", "[1]", "{}", "null", '{"task_id": 1, "test_list": [1], "code": "(", "text": ""}', ""],
)
def test_a_file_of_something_else_is_refused_in_one_sentence(
    task: str, damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(damage)
    with pytest.raises(RequestError, match=r"bad\.jsonl"):
        read_problems(task, path)


def test_shots_stand_solved_before_every_other_problem(tmp_path: Path) -> None:
    problems = read_problems(
        "gsm8k", written(tmp_path / "g.jsonl", GSM8K, {**GSM8K, "question": "Who?"})
    )
    left = with_shots(problems, 1)
    assert [p.prompt for p in left] == [
        "Question: How many?\nAnswer: 2+2\n#### 1,004\n\nQuestion: Who?\nAnswer:"
    ]


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


BINDINGS = {
    "a function": "def f(x): return x",
    "a coroutine": "async def f(x): return x",
    "a class": "class f: pass",
    "a lambda": "f = lambda x: x",
    "another name": "def g(x): return x\nf = g",
    "an annotated value": "f: object = lambda x: x",
    "a part of a tuple": "g, (*f,) = 1, [2]",
    "a branch": "try:\n    import numpy\nexcept ImportError:\n    def f(x): return x",
    "a loop": "for g, f in [(1, len)]: pass",
    "a context": "import contextlib\nwith contextlib.nullcontext(len) as f: pass",
    "an expression": "g = [(f := len) for _ in range(1)]",
    "a pattern": "match {'a': len}:\n    case {'a': f}: pass",
    "a function that says `global`": "def g():\n    global f\n    f = len\ng()",
    "a method and a function": "class g:\n    def f(self): pass\ndef f(x): return x",
    "an import and a function": "from math import gcd as f\ndef f(x): return x",
}


@pytest.mark.parametrize("how", BINDINGS)
def test_a_name_is_the_program_s_however_its_code_binds_it(how: str) -> None:
    record = MBPP | {"code": BINDINGS[how], "test_list": ["assert f(1) == 1"]}
    assert mbpp(record, 1, Parser()).names == ("f",)


@pytest.mark.parametrize(
    "test",
    [
        "assert f.g(1) == 1",
        "assert f()(1).f.x == 1",
        "y = [f for x in [1]]",
        "assert all(map(lambda x: f(x), [1]))",
        "def check():\n    return f(1)\nassert check()",
        "x = f(1)\nassert x == 1",
    ],
)
def test_a_name_that_the_tests_use_is_found_wherever_they_do(test: str) -> None:
    code = "x = y = check = 5\ndef f(x): return x\ndef unused(): pass"
    assert mbpp(MBPP | {"code": code, "test_list": [test]}, 1, Parser()).names == ("f",)


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("def g(x): return x", "assert f(1) == 1"),
        ("class g:\n    def f(self): return 1", "assert f(1) == 1"),
        ("def g(x):\n    f = x\n    return f", "assert f(1) == 1"),
        ("g = [f for f in range(3)]", "assert f(1) == 1"),
        ("def f(x): return x", "assert g.f(1) == 1"),
        ("def f(x): return x", "def f(x): return x\nassert f(1) == 1"),
        ("def f(x): return x", "assert (lambda f: f)(1) == 1"),
        ("from math import gcd as f", "assert f(1, 2) == 1"),
    ],
)
def test_tests_of_nothing_that_the_code_binds_are_refused(code: str, test: str) -> None:
    with pytest.raises(ValueError, match="its tests use nothing that its code defines"):
        mbpp(MBPP | {"code": code, "test_list": [test]}, 1, Parser())


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


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--task", "chess"], "Unknown task `chess`"),
        (["--data", "nowhere.jsonl"], "`nowhere.jsonl` cannot be read"),
        (["--methods", "[fast]"], "Unknown method `fast`"),
        (["--k", "[3]"], "pass@3 needs"),
        (["--budgets", "[0]"], "more than 0 seconds"),
        (["--budgets", "[2,-1]"], "more than 0 seconds"),
        (["--budgets", "[.inf]"], "more than 0 seconds"),
        (["--shots", "3"], "`shots=3` must leave"),
        (["--limit", "0"], "`limit=0` must be"),
        (["--max_new_tokens", "100000"], "prompts have more than"),
        (["--max_new_tokens", "100000", "--skip_long"], "None of the prompts fits"),
        (["--program_seconds", "0"], "must be more than 0"),
        (["--program_seconds", "3000000"], "at most 1,000,000"),
        (["--program_seconds", "1e300"], "at most 1,000,000"),
        (["--program_memory", "100000000000000"], "at most 1,073,741,824 MiB"),
        (["--chess", "1"], "chess"),
    ],
)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    more: list[str], says: str, pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    said = bass_command(*arguments(pair, tmp_path), *more)
    assert (said.status, said.out) == (2, "")
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_empty_prompt_is_refused_before_any_sample(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = arguments(pair, tmp_path, "humaneval", 1)
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(HUMANEVAL | {"prompt": ""}) + "\n")
    said = bass_command(*asked)
    assert (said.status, "`H/0`" in said.err, (tmp_path / "out").exists()) == (2, True, False)


def test_all_that_is_wrong_is_told_a_line_each(tmp_path: Path, bass_command: BassCommand) -> None:
    (tmp_path / "eval.yaml").write_text(
        "limit: some\npolicy: baas\ntemprature: 1", encoding="utf-8"
    )
    said = bass_command("eval", "--config", str(tmp_path / "eval.yaml"))
    assert said.err.splitlines()[0] == "bass: The command has 3 problems:"
    assert [words in said.err for words in ("`--limit some`", "`baas`", "`--temprature`")] == [
        True
    ] * 3
    said = bass_command("eval", "--shots", "-1", "--workers", "0")
    assert said.err.splitlines()[0] == "bass: The command has 5 problems:"
    wrong = {
        "--data": ("nowhere.jsonl", "`nowhere.jsonl` cannot be read"),
        "--temperature": ("-1", "`temperature=-1.0`"),
        "--top_p": ("7", "`top_p=7.0`"),
        "--max_new_tokens": ("0", "`max_new_tokens=0`"),
        "--num_return_sequences": ("0", "`num_return_sequences=0`"),
        "--program_memory": ("1", "`program_memory=1`"),
        "--program_seconds": ("0", "`program_seconds=0.0`"),
        "--limit": ("0", "`limit=0`"),
    }
    options = [text for name, (value, _) in wrong.items() for text in (name, value)]
    output = tmp_path / "out"
    said = bass_command("eval", "--task", "gsm8k", "--output", str(output), *options)
    assert said.err.splitlines()[0] == f"bass: The command has {len(wrong)} problems:"
    for _, words in wrong.values():
        assert sum(words in line for line in said.err.splitlines()) == 1, (words, said.err)
    assert not output.exists()


@pytest.mark.parametrize("missing", ["--task", "--data", "--output"])
def test_an_option_that_has_to_be_there_is_named(
    missing: str, pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = arguments(pair, tmp_path)
    at = asked.index(missing)
    said = bass_command(*asked[:at], *asked[at + 2 :])
    assert (said.status, f"`{missing}` is missing" in said.err) == (2, True)


def test_log_likelihoods_are_those_that_generation_reports(pair: Pair) -> None:
    llm = load(pair.target, pair.draft)
    completion = llm.generate(
        [1, 2, 3], max_new_tokens=12, temperature=0.0, ignore_eos=True
    ).completions[0]
    total, greedy = log_likelihood(llm, [1, 2, 3], completion.token_ids)
    assert total == pytest.approx(sum(completion.logprobs), rel=1e-4)
    assert greedy
    assert not log_likelihood(llm, [1, 2, 3], [completion.token_ids[0] ^ 1])[1]


def test_options_of_the_harness_are_used_or_refused() -> None:
    asked = {"do_sample": False, "until": ["\n", ""], "max_gen_toks": 8, "temperature": 0.7}
    assert generation_options(asked) | {"top_p": 1.0} == generation_options(asked)
    assert (generation_options(asked)["temperature"], generation_options(asked)["stop"]) == (
        0.0,
        ["\n"],
    )
    assert generation_options(asked | {"do_sample": True})["temperature"] == 0.7
    kept = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "min_new_tokens": 3}
    assert generation_options(asked | kept).items() >= kept.items()
    with pytest.raises(BassError, match="`num_beams` is not supported"):
        generation_options(asked | {"num_beams": 4})


def test_the_harness_gets_each_text_by_its_own_options(pair: Pair) -> None:
    llm = load(pair.target, pair.draft)
    positions = llm.models.target.shape.max_positions
    short, long = ({"until": [], "max_gen_toks": count} for count in (3, 12))
    asked = [([1, 2, 3], short), ([4, 5], long), ([6, 7, 8] * positions, short)]
    texts = generated(llm, asked, 0)
    alone = [generated(llm, [(context[3 - positions :], one)], 0) for context, one in asked]
    assert [[text] for text in texts] == alone
    with pytest.raises(RequestError, match=r"`max_gen_toks=100000` leaves no positions"):
        generated(llm, [([1], {"until": [], "max_gen_toks": 100_000})], 0)


@pytest.mark.parametrize(
    ("prompt", "solution"),
    [
        ('def f(x):\n    """Add 1."""\n', "    return x + 1\n"),
        ('def f(x):\n  """Add 1."""\n', "  return x + 1\n"),
        ('def f(x):\n\t"""Add 1."""\n', "\treturn x + 1\n"),
        ('def f(x):\n    """Add 1."""', "\n    return x + 1\n"),
        ('def f(x):\n    """Add 1', '."""\n    return x + 1\n'),
        ('"""Add 1."""\n', "def f(x):\n    return x + 1\n"),
    ],
)
def test_a_right_solution_passes_however_the_prompt_is_indented_and_ends(
    prompt: str, solution: str
) -> None:
    test = "def check(c):\n    assert c(1) == 2\n"
    record = {"task_id": "t", "prompt": prompt, "entry_point": "f", "test": test}
    problem = humaneval(record | {"canonical_solution": solution}, 1, Parser())
    assert Sandbox().check(problem.program(solution)).reason == "passed"


def test_a_record_that_is_no_python_is_refused() -> None:
    record = {"task_id": "t", "prompt": "def f(:\n", "entry_point": "f", "test": "pass"}
    with pytest.raises(ValueError, match="prompt and solution together are not Python"):
        humaneval(record | {"canonical_solution": "    return 1\n"}, 1, Parser())
