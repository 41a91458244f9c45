"""YAML without its traps: no key twice, 1e-3 a number, nothing within itself, nothing so deep or
large that reading it fails.
"""

import re
from collections.abc import Mapping
from typing import Any, final

import yaml

LARGEST_YAML = 1 << 20  # bytes of a file; PyYAML reads 100 kB per second
MOST_LEVELS = 50
MOST_VALUES = 1_000_000  # anchors and aliases counted as often as they are used


@final
class PlainYamlError(yaml.YAMLError):
    """What is YAML, or nearly, and not read here."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        said = [
            key.value
            for key, _ in node.value
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge"
        ]
        twice = [key for key in said if said.count(key) > 1]
        if twice:
            raise PlainYamlError(
                f"`{twice[0]}` is said twice in the mapping that begins in line "
                f"{node.start_mark.line + 1}"
            )
        return super().construct_mapping(node, deep)


# PyYAML reads 1e-3 and 1.0e3 as texts, as YAML 1.1 wants it.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(text: str) -> Any:
    """What a text of YAML says. Raises a `yaml.YAMLError`."""
    try:
        said = yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError as error:
        raise PlainYamlError(f"it is nested deeper than {MOST_LEVELS} levels") from error
    # a date without such a day, a number of too many digits
    except (ValueError, OverflowError) as error:
        raise PlainYamlError(str(error)) from error
    if _size(said, {}, 0) > MOST_VALUES:
        raise PlainYamlError(f"it holds more than {MOST_VALUES} values")
    return said


def _size(value: Any, known: dict[int, int], level: int) -> int:
    """How many values there are, of which those that were counted before are not looked at
    again.
    """
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise PlainYamlError(f"{value!r:.60} holds half a character")
    if not isinstance(value, Mapping | list):
        return 1
    if level > MOST_LEVELS:
        raise PlainYamlError(f"it is nested deeper than {MOST_LEVELS} levels")
    if id(value) not in known:
        inside = [*value, *value.values()] if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_size(one, known, level + 1) for one in inside)
    return known[id(value)]
