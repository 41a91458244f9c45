"""Input of an evaluation that is refused, and how its harness scores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.api.llm import load
from bass.errors import BassError, RequestError
from bass.evaluation.harness import generated, generation_options, log_likelihood
from bass.evaluation.record_code import LONGEST_CODE, Parser
from bass.evaluation.sandbox import Sandbox
from bass.evaluation.tasks import humaneval, read_problems
from bass.prompts.published import DATA
from unit.checkpoints import Pair, Said
from unit.test_eval import HUMANEVAL, RECORDS, written
from unit.test_eval_runs import arguments

BassCommand = Callable[..., Said]


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


def test_all_that_is_wrong_is_told_a_line_each(
    tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA, raising=False)
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
    missing: str,
    pair: Pair,
    tmp_path: Path,
    bass_command: BassCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DATA, raising=False)
    asked = arguments(pair, tmp_path)
    at = asked.index(missing)
    said = bass_command(*asked[:at], *asked[at + 2 :])
    assert (said.status, f"`{missing}` is missing" in said.err) == (2, True)


def test_the_folder_of_published_files_is_that_of_the_environment(
    pair: Pair, tmp_path: Path, bass_command: BassCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `bass ablate`; `--data` comes first."""
    own = ["eval", "--task", "gsm8k", *pair.options, "--max-new-tokens", "2"]
    monkeypatch.setenv(DATA, str(tmp_path))
    said = bass_command(*own, "--output", str(tmp_path / "a"))
    assert (said.status, "has no such file: add it" in said.err) == (2, True)
    line = json.dumps({"question": "Two?", "answer": "#### 2"})
    (tmp_path / "gsm8k_test.jsonl").write_text(line + "\n", encoding="utf-8")
    said = bass_command(*own, "--output", str(tmp_path / "a"))
    assert said.status == 0, said.err
    (tmp_path / "two.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    said = bass_command(
        *own, "--data", str(tmp_path / "two.jsonl"), "--output", str(tmp_path / "b")
    )
    assert "gsm8k: 2 problems" in said.out


@pytest.mark.parametrize(
    "record",
    [
        {"document": "One two. Three.", "summary": "Two words."},
        {"article": "One two. Three.", "highlights": "Two\nwords.", "id": "42"},
        {"turns": ["One two. Three."], "reference": ["Two words."]},
    ],
)
def test_summaries_have_each_published_pair_of_fields(
    record: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    [problem] = read_problems("summaries", tmp_path / "s.jsonl")
    assert (problem.prompt, problem.solution) == (
        "Document: One two. Three.\nSummary:",
        " Two words.",
    )
    record.pop(next(iter(record)))
    (tmp_path / "s.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(RequestError, match="none of the pairs `document` and `summary`, `article`"):
        read_problems("summaries", tmp_path / "s.jsonl")


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


@pytest.mark.parametrize(
    ("task", "changed", "says"),
    [
        ("humaneval", {"test": "def check(c):\n    assert c(3) == 3\0"}, "null bytes"),
        ("humaneval", {"test": "def check(c):\nassert c(3) == 3"}, "expected an indented block"),
        ("humaneval", {"test": "def test(c):\n    pass"}, "its tests do not define `check`"),
        ("humaneval", {"entry_point": "g"}, "neither its prompt nor its solution defines `g`"),
        (
            "humaneval",
            {"entry_point": "f);import os;print(1"},
            "defines `f\\);import os;print\\(1`",
        ),
        ("humaneval", {"entry_point": ""}, "neither its prompt nor its solution defines ``"),
        ("mbpp", {"test_imports": ["import math", "import"]}, "invalid syntax|Expected one or"),
        ("mbpp", {"test_imports": ["import math\0"]}, "null bytes"),
        ("summaries", {"summary": "Story."}, "its summary has fewer than two words"),
        ("summaries", {"summary": "一个 故事。"}, "its summary has fewer than two words"),
    ],
)
def test_a_record_that_no_sample_can_solve_is_refused(
    task: str, changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "records.jsonl", RECORDS[task] | changed)
    with pytest.raises(RequestError, match=rf"Record 1 of .* the task `{task}` \(.*{says}.*: give"):
        read_problems(task, path)


@pytest.mark.parametrize(
    ("prompt", "solution"),
    [
        ("def g(x): return x\ndef f(x):\n", "    return g(x)\n"),
        ('"""Write f."""\n', "def f(x): return x\n"),
        ("if True:\n", "    pass\ndef f(x): return x\n"),
        ("f = lambda x: (\n", "x)\n"),
    ],
)
def test_an_entry_point_may_be_of_the_prompt_or_of_the_solution(prompt: str, solution: str) -> None:
    record = RECORDS["humaneval"] | {"prompt": prompt, "canonical_solution": solution}
    assert humaneval(record, 1, Parser()).names == ("f",)


def test_tests_that_are_too_long_to_be_parsed_are_only_run() -> None:
    record = RECORDS["humaneval"] | {"test": f"{HUMANEVAL['test']}#{'x' * LONGEST_CODE}"}
    assert Sandbox().check(humaneval(record, 1, Parser()).program("    return x\n")).passed
