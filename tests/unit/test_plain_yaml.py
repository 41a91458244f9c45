"""YAML that is small and grows: refused in a sentence, in two seconds of processor time."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from bass.errors import OptionError
from bass.experiments.config import examined
from bass.plain_yaml import LARGEST_YAML, MOST_VALUES, PlainYamlError, read_yaml
from unit.checkpoints import Said

MERGED = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 13)
)
LONG = f"a: &a '{'x' * 20_000}'\nb: [{', '.join(['*a'] * 2_000)}]"
BOMBS = {
    "merges": (MERGED, f"more than {MOST_VALUES:,} values"),
    "merges of many keys": (
        "a: &a {" + ",".join(f"k{i}: 1" for i in range(2000)) + "}\n"
        f"b: {{<<: [{', '.join(['*a'] * 5_000)}]}}",
        f"more than {MOST_VALUES:,} values",
    ),
    "a long text, many times": (LONG, f"more than {MOST_VALUES:,} values"),
    "a long list": ("[" + "1," * 500_000 + "1]", f"has more than {LARGEST_YAML:,} characters"),
    "digits": ("a: " + "9" * 5000, "has a number of 5000 characters"),
    "digits of base 60": ("a: " + ":".join(["1"] * 3000), "has a number of"),
    "a fraction of base 60": ("a: " + ":".join(["1"] * 3000) + ".5", "has a number of"),
    "hexadecimal digits": ("a: 0x" + "f" * 5000, "has a number of"),
    "octal digits": ("a: 0" + "7" * 5000, "has a number of"),
    "binary digits": ("a: 0b" + "1" * 50_000, "has a number of"),
    "digits, said to be a number": ("a: !!int '" + "9" * 5000 + "'", "has a number of"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_yaml_that_grows_is_refused_soon(case: str) -> None:
    text, words = BOMBS[case]
    began = time.process_time()
    with pytest.raises(PlainYamlError, match=re.escape(words)):
        read_yaml(text)
    assert time.process_time() - began < 2


def test_yaml_of_the_largest_size_is_read_soon() -> None:
    text = "".join(f"k{i}: 1\n" for i in range(13_000))
    assert 0.9 * LARGEST_YAML < len(text) <= LARGEST_YAML
    began = time.process_time()
    assert len(read_yaml(text)) == 13_000
    assert time.process_time() - began < 3


def test_a_mapping_may_be_merged_often() -> None:
    text = "a: &a {x: 1, y: 2}\n" + "".join(f"b{i}: {{<<: *a, y: {i}}}\n" for i in range(500))
    assert read_yaml(text)["b499"] == {"x": 1, "y": 499}
    with pytest.raises(yaml.YAMLError):
        read_yaml("a: {<<: 3}")


@pytest.mark.parametrize("option", ["temperature", "seed", "max-new-tokens", "n", "token-ids"])
def test_a_number_of_the_command_line_that_cannot_be_printed_is_refused(
    bass_command: Callable[..., Said], option: str
) -> None:
    number = f"0x{'f' * 5000}"
    given = (
        ["--token-ids", f"[{number}]"] if option == "token-ids" else ["x", f"--{option}={number}"]
    )
    said = bass_command("generate", *given)
    assert said.status == 2
    assert re.fullmatch(r"bass: [^\n]{,400}\.\n", said.err), said.err[-500:]


@pytest.mark.parametrize("of", [[1, 2], {"a": {"seed": 1}, "b": {"seed": 2}}])
def test_a_grid_of_more_cells_than_there_are_atoms_is_refused_soon(of: Any) -> None:
    began = time.process_time()
    axes = {f"policy.k{i}": of for i in range(60)}
    told = examined({"name": "x", "axes": axes})[1].sentences
    assert any(re.search(r"has \d{19} cells, and 10000 are the most", said) for said in told)
    points = [{f"policy.k{i}": 1} for i in range(5_000)]
    for raw in ({"axes": {f"policy.k{i}": of for i in range(5_000)}}, {"points": points}):
        with pytest.raises(OptionError, match="has 5000 axes, and 100 are the most"):
            examined({"name": "x"} | raw)
    assert time.process_time() - began < 2
