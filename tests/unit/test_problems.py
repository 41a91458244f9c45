"""Programming problems: files in published formats, and the built-in ones."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bass.errors import OptionError
from bass.experiments.problems import FUNCTION_ENDS, problem_of, read_problems
from bass.experiments.programs import check_all

DATA = os.environ.get("BASS_DATA")
SIZES = {"humaneval": 164, "mbpp": 974, "mbpp-sanitized": 427}
HUMANEVAL = {
    "task_id": "H/0",
    "prompt": 'def f(x):\n    """Return x."""\n',
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 3\n",
}
MBPP = {
    "task_id": 1,
    "text": "Write f.",
    "code": "import math\nimport os\r\ndef f(x): return x",
    "test_list": ["assert f(math.pi) == math.pi"],
    "test_setup_code": "",
}


def write_records(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_a_function_is_completed_from_its_prompt() -> None:
    problem = problem_of(HUMANEVAL)
    assert (problem.name, problem.prompt) == ("H/0", HUMANEVAL["prompt"])
    assert problem.stop == FUNCTION_ENDS
    good, bad = problem.program(problem.solution), problem.program("    return None\n")
    assert check_all([good, bad], 20.0, True) == [True, False]


def test_a_program_is_written_after_a_docstring_of_text_and_tests() -> None:
    problem = problem_of(MBPP)
    assert problem.name == "MBPP/1"
    assert problem.prompt == '"""\nWrite f.\nassert f(math.pi) == math.pi\n"""\n'
    assert "\nassert " in problem.stop
    programs = [problem.program(text) for text in (problem.solution, "def f(x): return 3", "")]
    assert check_all(programs, 20.0, True) == [True, False, False]
    # the tests import what they use of the solution's imports, and nothing else
    assert "import math" in problem.tests
    assert "import os" not in problem.tests


def test_the_sanitized_set_names_its_fields_otherwise() -> None:
    record = {
        name: value for name, value in MBPP.items() if name not in ("text", "test_setup_code")
    }
    record |= {"prompt": "Write f.", "test_imports": ["from math import tau"]}
    problem = problem_of(record)
    assert problem.prompt == problem_of(MBPP).prompt
    assert "from math import tau" in problem.tests


@pytest.mark.skipif(DATA is None, reason="BASS_DATA names no folder of evaluation data")
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("share", ["some", pytest.param("all", marks=pytest.mark.nightly)])
def test_published_solutions_pass_and_nothing_does_not(name: str, share: str) -> None:
    problems = read_problems(name)
    assert len(problems) == SIZES[name]
    chosen = problems if share == "all" else problems[:: len(problems) // 8]
    assert all(check_all([one.program(one.solution) for one in chosen], 60.0, True))
    assert not any(check_all([one.program("    pass\n") for one in chosen], 60.0, True))


def test_a_name_is_a_file_in_the_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BASS_DATA", raising=False)
    with pytest.raises(OptionError, match="HumanEval"):
        read_problems("humaneval")
    whole = write_records(tmp_path / "a.jsonl", HUMANEVAL).read_bytes()
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(whole))
    found = read_problems("humaneval", tmp_path)
    assert found == read_problems(tmp_path / "a.jsonl") == [problem_of(HUMANEVAL)]
    monkeypatch.setenv("BASS_DATA", str(tmp_path))
    assert read_problems("humaneval") == found


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.nightly)])
def test_small_problems_are_solved_by_their_solutions_alone(step: int) -> None:
    problems = read_problems("small")[::step]
    assert all(check_all([one.program(one.solution) for one in problems], 60.0, True))
    assert not any(check_all([one.program(" pass\n") for one in problems], 60.0, True))
