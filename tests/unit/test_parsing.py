"""The words of a command line, one by one."""

from typing import Any, Literal, TypeVar

import pytest

from bass.api.values import WrongKindError, fits, in_words, typed
from bass.cli.parsing import MANY, MAYBE, ONE, Option, Parser, taken
from bass.errors import OptionError
from bass.problems import Problems


def parser(*more: Option) -> Parser:
    made = Parser("try", "words")
    made.add(
        Option("number", int, "a number", 3, short="-n"),
        Option("share", float | None, "of all"),
        Option("ids", list[int], "of tokens", []),
        Option("stop", repeated=True),
        Option("loud", bool, "or not"),
        Option("max_new_tokens", int, "at most"),
        *more,
    )
    return made


PARSED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "nothing": ([], {"number": 3, "share": None, "ids": [], "stop": [], "loud": False}),
    "a value of its own word": (["--number", "4"], {"number": 4}),
    "a value after =": (["--number=4"], {"number": 4}),
    "short": (["-n", "4"], {"number": 4}),
    "short, in one word": (["-n4"], {"number": 4}),
    "a negative number": (["--number", "-4", "--share", "-1e-3"], {"number": -4, "share": -1e-3}),
    "null": (["--share", "null"], {"share": None}),
    "a list": (["--ids", "[1, 2]"], {"ids": [1, 2]}),
    "repeated": (["--stop", "a", "--stop", "- b"], {"stop": ["a", "- b"]}),
    "a flag": (["--loud"], {"loud": True}),
    "the last of two": (["--number", "1", "--number", "2"], {"number": 2}),
    "prompts": (
        ["a", "--loud", "b c", "- d", "--", "--number"],
        {"prompt": ["a", "b c", "- d", "--number"]},
    ),
}


@pytest.mark.parametrize("case", PARSED)
def test_words_become_values(case: str) -> None:
    argv, wanted = PARSED[case]
    found = vars(parser(Option("prompt", place=MANY)).parse(argv))
    assert {name: found[name] for name in wanted} == wanted
    assert vars(parser().parse([], defaults=False)) == {}


WRONG: dict[str, tuple[list[str], str]] = {
    "unknown": (["--nmber", "3"], "Unknown option `--nmber`. Did you mean `--number`?"),
    "of another library": (["--max_tokens=3"], "give `--max-new-tokens` (at most)"),
    "unknown and short": (["-x"], "Unknown option `-x`"),
    "no integer": (["--number", "x"], "`--number x` is of the wrong type: give an integer;"),
    "a truth value": (["-n", "true"], "`-n true` is of the wrong type: give an integer"),
    "not finite": (["--share=nan"], "give a number or null"),
    "no list": (["--ids", "[1"], "give a list of integers"),
    "a flag with a value": (["--loud=1"], "`--loud` takes no value"),
    "no value": (["--number"], "`--number` lacks its value"),
    "an option for a value": (["--number", "--loud"], "`--number` lacks its value"),
    "too many words": (["a", "b", "c"], "Unexpected argument `c`: quote text that has spaces, and"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_sentence_that_names_the_help(case: str) -> None:
    argv, words = WRONG[case]
    with pytest.raises(OptionError) as error:
        parser(Option("one", place=ONE), Option("two", place=MAYBE)).parse(argv)
    assert words in str(error.value)
    assert str(error.value).endswith(("lists the options.", "(at most)."))


def test_a_missing_word_is_named() -> None:
    with pytest.raises(OptionError, match="`bass try` needs a value for `one`"):
        parser(Option("one", place=ONE)).parse([])


def test_a_file_gives_values_and_every_problem_is_noted() -> None:
    problems = Problems()
    said = {"number": 4, "stop": "a", "loud": True, "share": None, "ids": "x", "config": "y"}
    found = parser().read(said, "file.yaml", problems)
    assert vars(found) == {"number": 4, "stop": ["a"], "loud": True, "share": None}
    assert [text.split("`")[3] for text in problems.sentences] == ["--ids x", "config"]


def test_options_are_taken_out_with_their_values() -> None:
    argv = ["a", "--x=1", "--y", "2", "--x.z", "-3", "--", "--x", "4"]
    found = taken(argv, lambda key: key.partition(".")[0] == "x", lambda key: "give one")
    assert found == ([("x", "1"), ("x.z", "-3")], ["a", "--y", "2", "--", "--x", "4"])
    with pytest.raises(OptionError, match="`--x` lacks its value: give one"):
        taken(["--x", "--y"], lambda key: key == "x", lambda key: "give one")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "an integer or null"),
        (Literal["auto"] | bool, "'auto' or true or false"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (str | list[str | list[int]], "a text or a list of values"),
        (tuple[float, ...], "a list of numbers"),
        (Problems, "an object of Problems"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert in_words(hint) == words


def test_what_fits_is_not_converted_and_what_is_typed_is() -> None:
    assert fits(3, float)
    assert not fits(True, int)
    assert not fits("3", int | None)
    assert fits("auto", Literal["auto"] | bool)
    assert not fits("autos", Literal["auto"] | bool)
    assert not fits(1, Literal["auto"] | bool)
    assert typed("3", int) == 3
    assert typed([1, 2], tuple[int, ...]) == (1, 2)
    assert typed("7", str) == "7"
    assert typed([3], TypeVar("T")) == [3]
    with pytest.raises(WrongKindError, match="an integer"):
        typed("1" * 5000, int)
    with pytest.raises(WrongKindError, match="a number"):
        typed("10" * 500, float)
