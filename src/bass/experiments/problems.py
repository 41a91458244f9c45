"""Programming problems: HumanEval and MBPP from the user's files, and small ones that are built in.

The small problems are at the level of the embedded pair, which solves no problem of HumanEval.
"""

import itertools
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, final

from bass.errors import RequestError, unknown_name
from bass.experiments.prompts import SETS, dedented, mbpp_prompt, read_records

SMALL = "small"
NAMES = ("humaneval", "humaneval-plus", "mbpp", "mbpp-sanitized", SMALL)
# strings at which a completion has ended
FUNCTION_ENDS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\n@", "\nassert ", '\n"""')
PROGRAM_ENDS = ("\nassert ", "\nprint", "\nif __name__", '\n"""', "\n#")


@final
@dataclass(frozen=True)
class CodingProblem:
    """A prompt, and the tests that a completion of it passes or not.

    name: unique in its file. stop: strings before which a completion ends. opening: the code before
    the completion. solution: a completion that passes.
    """

    name: str
    prompt: str
    stop: tuple[str, ...]
    tests: str
    opening: str = ""
    solution: str = ""

    def program(self, completion: str) -> str:
        """The completion with its tests: it reaches its end if the completion passes."""
        return f"{self.opening}{completion}\n{self.tests}\n"


def read_problems(given: str | Path, data: str | Path | None = None) -> list[CodingProblem]:
    """The problems of a name in `NAMES`, or of a file with records of HumanEval or MBPP.

    data: the folder of the published files, by default that of the variable `BASS_DATA`.
    Raises `OptionError` for an unknown name, and `RequestError` for a file that cannot be read.
    """
    if str(given) == SMALL:
        return [problem_of(record) for record in small_problems()]
    path = SETS[str(given)].path(data) if str(given) in NAMES else Path(given)
    if not path.exists() and not path.suffix:
        raise unknown_name("problems", str(given), [*NAMES, "the path of a file"])
    problems: dict[str, CodingProblem] = {}
    try:
        for record in read_records(path):
            problem = problem_of(record)
            if problem.name in problems:
                raise ValueError(f"an earlier record has its task_id, `{record['task_id']}`")
            problems[problem.name] = problem
    except (OSError, ImportError, LookupError, AttributeError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise RequestError(
            f"Problem {len(problems) + 1} of `{path}` cannot be read ({reason}): give records of "
            "HumanEval (task_id, prompt, entry_point, test, canonical_solution) or of MBPP "
            "(task_id, text or prompt, code, test_list)."
        ) from error
    return [*problems.values()]


def problem_of(record: Mapping[str, Any]) -> CodingProblem:
    """The problem of a record of HumanEval (Chen et al., 2021) or MBPP (Austin et al., 2021).

    Raises `KeyError` for a missing field.
    """
    if "test_list" not in record:
        prompt, solution = record["prompt"], record["canonical_solution"]
        tests = f"{record['test']}\ncheck({record['entry_point']})"
        return CodingProblem(str(record["task_id"]), prompt, FUNCTION_ENDS, tests, prompt, solution)
    code, tests = dedented(record["code"]), [dedented(one) for one in record["test_list"]]
    text = record["text" if "text" in record else "prompt"]
    used = {*re.findall(r"\w+", "\n".join(tests))}
    imports = re.findall(r"^(?:from .+ )?import .+$", code, re.MULTILINE)  # of the solution
    given = [line for line in imports if used & {*re.findall(r"\w+", line)}]  # such as `math.pi`
    given += [*record.get("test_imports", []), record.get("test_setup_code") or ""]
    tests = "\n".join([*map(dedented, given), *tests])
    name, prompt = f"MBPP/{record['task_id']}", mbpp_prompt(text, record["test_list"])
    return CodingProblem(name, prompt, PROGRAM_ENDS, tests, solution=code)


def small_problems(per_family: int = 2, seed: int = 0) -> Iterator[dict[str, str]]:
    """`per_family` problems of each of 53 families of small functions, in HumanEval's format.

    A problem has one word of each list of its family in place of `$key`, no word twice, and
    expects what the solution returns. The same seed gives the same problems.
    """
    text = (files("bass.experiments") / "small_problems.toml").read_text(encoding="utf-8")
    families = tomllib.loads(text)
    lists = families.pop("words")
    for name, family in families.items():
        texts = [family.pop("prompt"), family.pop("solution"), *family.pop("calls")]
        words = [one if isinstance(one, list) else lists[one] for one in family.values()]
        chosen = [one for one in itertools.product(*words) if len({*one}) == len(one)]
        random.Random(f"{seed} {name}").shuffle(chosen)
        for number, one in enumerate(chosen[:per_family]):
            given = dict(zip(family, one, strict=True))
            prompt, solution, *calls = (Template(text).substitute(given) for text in texts)
            entry = re.findall(r"^(?:def|class) (\w+)", prompt, re.MULTILINE)[-1]
            yield {
                "task_id": f"{name}/{number}",
                "prompt": prompt,
                "entry_point": entry,
                "canonical_solution": solution,
                "test": _test(prompt + solution, entry, calls),
            }


def _test(code: str, entry: str, calls: Iterable[str]) -> str:
    """The test that each call returns what it returns in the code."""
    names: dict[str, Any] = {}
    exec(code, names)  # of this package
    names["candidate"] = names[entry]
    lines = ["def check(candidate):\n"]
    for call in calls:
        expression = call if "candidate" in call else f"candidate{call}"
        lines.append(f"    assert {expression} == {eval(expression, names)!r}\n")
    return "".join(lines)
