"""Problems of the benchmarks, read from their published files."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bass.errors import OptionError, RequestError, unknown_name
from bass.evaluation.record_code import LONGEST_CODE, Parser, bound, check_length, used
from bass.evaluation.sandbox import Program
from bass.evaluation.small_problems import small_problems
from bass.prompts import forms
from bass.prompts.files import locate, read_records
from bass.prompts.published import DATA, of_task

# Characters of a reference summary, some 10,000 words; each takes ROUGE 2 microseconds for every
# sample.
LONGEST_REFERENCE = 2**16
SUMMARIES = (("document", "summary"), ("article", "highlights"), ("turns", "reference"))
# strings at which a function has ended
TOP_LEVEL = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\n@", "\nassert ", '\n"""')


@dataclass(frozen=True)
class Problem:
    """A prompt, and the data that score its completion.

    Exactly one of these is given: `tests` of code (with `before`: code that they need, and
    `opening`: the code before the completion), the exact `answer`, or the `reference` summary.
    `solution`: a correct completion.
    """

    task_id: str
    prompt: str
    stop: tuple[str, ...]
    tests: str | None = None
    names: tuple[str, ...] = ()
    before: str = ""
    opening: str = ""
    answer: str | None = None
    reference: str | None = None
    solution: str = ""

    def program(self, completion: str) -> Program:
        """The completion with its tests."""
        assert self.tests is not None, "this problem is not one of code"
        return Program(self.opening + completion, self.tests, self.names, self.before)


def read_problems(task: str, data: str | Path | None = None) -> list[Problem]:
    """All problems of a file, a file on the hub (see `bass.prompts.files.locate`) or the published
    file in a folder, by default that of `BASS_DATA`; those of a task in `BUILT_IN` have no file.

    Raises `RequestError` or `OptionError`, one sentence each.
    """
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    problems, parser = [], Parser()
    if task in BUILT_IN:
        if data is not None:
            raise OptionError(
                f"The problems of `{task}` are built in, and `--data {data}` names others: leave "
                "one of the two out."
            )
        return [
            TASKS[task](record, number, parser) for number, record in enumerate(BUILT_IN[task](), 1)
        ]
    path = of_task(task, None if data is None else locate(data))
    if path is None:
        raise OptionError(
            f"The task `{task}` needs a file of problems: name it, or the folder of the published "
            f"one, with `--data`, or set {DATA} to that folder."
        )
    for number, record in enumerate(read_records(path), 1):
        try:
            problems.append(TASKS[task](record, number, parser))
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            SyntaxError,
            RecursionError,
            MemoryError,
        ) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            # Python's parser raises both for deep nesting
            if isinstance(error, RecursionError | MemoryError):
                what = "it is nested too deeply"
            raise RequestError(
                f"Record {number} of `{path}` is not a problem of the task `{task}` ({what}): give "
                "a file of that task, or name another task."
            ) from error
    if not problems:
        raise RequestError(f"`{path}` has no problems: give a file with one JSON object per line.")
    twice = [
        name
        for name, count in Counter(problem.task_id for problem in problems).items()
        if count > 1
    ]
    if twice:
        raise RequestError(
            f"`{path}` has more than one problem with the `task_id` `{twice[0]}`: give each its "
            "own."
        )
    return problems


def humaneval(record: dict[str, Any], number: int, parser: Parser) -> Problem:
    """Chen et al.

    (2021): complete a function. Helpers in the prompt belong to the tests, not to the program.
    """
    prompt, entry = _text(record, "prompt"), _text(record, "entry_point")
    solution, tests = _text(record, "canonical_solution"), _text(record, "test")
    before = _stub(prompt, solution, entry, parser)
    # longer ones, as of extended sets, are only run
    if len(tests) <= LONGEST_CODE and "check" not in bound(parser.scope(tests)):
        raise ValueError("its tests do not define `check`")
    return Problem(
        task_id=_text(record, "task_id"),
        prompt=prompt,
        stop=TOP_LEVEL,
        tests=f"{tests}\ncheck({entry})\n",
        names=(entry,),
        before=before,
        opening=prompt,
        solution=solution,
    )


def _stub(prompt: str, solution: str, entry: str, parser: Parser) -> str:
    """The prompt as code that runs: its function does nothing, or is the solution if the prompt
    ends within a line or a docstring.

    Raises `ValueError` if neither the prompt nor the solution binds the name `entry`.
    """
    if not prompt.strip():
        return ""  # reported with all other empty prompts
    first = next((line for line in solution.splitlines() if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())] or "    "
    for code in (f"{prompt}{indent}pass\n", f"{prompt}\n{indent}pass\n", prompt + solution):
        with contextlib.suppress(SyntaxError):
            scope = parser.scope(code)
            if entry in bound(scope) or entry in bound(parser.scope(prompt + solution)):
                return code
            raise ValueError(f"neither its prompt nor its solution defines `{entry:.80}`")
    raise ValueError("its prompt and solution together are not Python")


def mbpp(record: dict[str, Any], number: int, parser: Parser) -> Problem:
    """Austin et al.

    (2021), the whole set or the sanitized one: a docstring with the text and its tests, then the
    function.
    """
    code, tests = _text(record, "code"), [_whole(test) for test in record["test_list"]]
    text = _text(record, "text" if "text" in record else "prompt")
    setup = _whole(record.get("test_setup_code") or "")
    imports = [_whole(line) for line in record.get("test_imports", [])]
    names, own = used("\n".join([setup, *tests]), _whole(code), parser)
    parser.tree("\n".join(imports))
    return Problem(
        task_id=f"MBPP/{record['task_id']}",
        prompt=forms.mbpp(text, tests),
        stop=("\nassert ", "\nprint", "\nif __name__", '\n"""', "\n#"),
        tests="\n".join([setup, *tests]),
        names=names,
        before="\n".join([*own, *imports]),
        solution=code,
    )


def gsm8k(record: dict[str, Any], number: int, parser: Parser) -> Problem:
    """Cobbe et al. (2021): a question whose answer is the number after `####`."""
    answer = final_number(_text(record, "answer").rpartition("####")[2])
    if answer is None:
        raise ValueError("its answer has no number after ####")
    prompt = forms.question(_text(record, "question"))
    return Problem(
        f"GSM8K/{number - 1}",
        prompt,
        ("\nQuestion:",),
        answer=answer,
        solution=f" {record['answer']}",
    )


def summaries(record: dict[str, Any], number: int, parser: Parser) -> Problem:
    """A document and its summary:

    XSum (Narayan et al., 2018), CNN/DailyMail (See et al., 2017), or any file with a pair of
    `SUMMARIES`.
    """
    names = next((pair for pair in SUMMARIES if {*pair} <= record.keys()), None)
    if names is None:
        pairs = ", ".join(f"`{document}` and `{summary}`" for document, summary in SUMMARIES)
        raise ValueError(f"it has none of the pairs {pairs}")
    document, summary = (record[name] for name in names)
    document, summary = (one[0] if isinstance(one, list) else one for one in (document, summary))
    if not isinstance(document, str) or not isinstance(summary, str) or not summary.strip():
        raise ValueError("its document and its summary must be texts")
    if len(re.findall("[a-z0-9]+", summary.lower())) < 2:  # the words of rouge-score
        raise ValueError(
            "its summary has fewer than two words of the letters a to z and digits, so ROUGE-2 "
            "is 0 for any sample"
        )
    if len(summary) > LONGEST_REFERENCE:
        raise ValueError(
            f"its summary has {len(summary):,} characters, and {LONGEST_REFERENCE:,} are the most"
        )
    name = record.get("id", record.get("question_id", number - 1))
    return Problem(
        f"summary/{name}",
        forms.document(document),
        ("\n",),
        reference=summary,
        solution=f" {' '.join(summary.split())}",  # a sample ends with its line
    )


TASKS: dict[str, Callable[[dict[str, Any], int, Parser], Problem]] = {
    "humaneval": humaneval,
    "mbpp": mbpp,
    "gsm8k": gsm8k,
    "summaries": summaries,
    "small-problems": humaneval,
}
BUILT_IN = {"small-problems": small_problems}  # their records


def final_number(text: str) -> str | None:
    """The last number of a text without currency signs and thousands separators, as in GSM8K's
    script; None without one.
    """
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    if not found:
        return None
    number = found[-1].replace(",", "")
    whole, _, fraction = number.partition(".")
    return whole if not fraction.strip("0") else f"{whole}.{fraction.rstrip('0')}"


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise ValueError(f"its `{key}` is {type(value).__name__} instead of a text")
    return value


def _whole(code: str) -> str:
    """Code without the carriage returns that some records have."""
    check_length(code)
    return forms.whole(code)
