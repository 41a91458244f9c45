"""`bass eval`: problems from files, and which names a program and its tests bind."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bass.errors import RequestError
from bass.evaluation.evaluate import with_shots
from bass.evaluation.record_code import Parser
from bass.evaluation.sandbox import Sandbox
from bass.evaluation.tasks import mbpp, read_problems
from bass.prompts import files as sources

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
