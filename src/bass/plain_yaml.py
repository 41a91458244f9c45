"""YAML with checks: no duplicate keys, 1e-3 is a number, no recursion, limits on size and depth."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, final

import yaml

LARGEST_YAML = 1 << 17  # bytes of a file; PyYAML reads 100 kB per second
MOST_LEVELS = 50
# anchors, aliases and merges counted as often as they are used, a long text as several values
MOST_VALUES = 100_000
LONG_TEXT = 100  # characters that count as an additional value
LONGEST_NUMBER = 100  # characters; Python prints integers of 4300 digits, and those of base 60 take
# the square of their length


@final
class PlainYamlError(yaml.YAMLError):
    """A text that is not YAML, or YAML that is not supported here."""


class _Loader(yaml.SafeLoader):
    merged = 0  # values of merged mappings, counted at each merge

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > MOST_VALUES:
            raise _too_many()

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > LONGEST_NUMBER:
            raise PlainYamlError(
                f"it has a number of {len(node.value)} characters, and {LONGEST_NUMBER} are the "
                "most"
            )
        whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(
            key.value
            for key, _ in node.value
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge"
        )
        twice = [key for key, count in counts.items() if count > 1]
        if twice:
            raise PlainYamlError(
                f"`{twice[0]}` occurs twice in the mapping that begins in line "
                f"{node.start_mark.line + 1}"
            )
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)
# PyYAML reads 1e-3 and 1.0e3 as texts, according to YAML 1.1.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(text: str) -> Any:
    """The value of a YAML text. Raises a `yaml.YAMLError`."""
    if len(text) > LARGEST_YAML:
        raise PlainYamlError(f"it has more than {LARGEST_YAML:,} characters")
    try:
        data = yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError as error:
        raise PlainYamlError(f"it is nested deeper than {MOST_LEVELS} levels") from error
    # an impossible date, or a number with too many digits
    except (ValueError, OverflowError) as error:
        raise PlainYamlError(str(error)) from error
    if _size(data, {}, 0) > MOST_VALUES:
        raise _too_many()
    return data


def _too_many() -> PlainYamlError:
    return PlainYamlError(f"it holds more than {MOST_VALUES:,} values")


def _size(value: Any, known: dict[int, int], level: int) -> int:
    """The number of values; an object that occurs again counts again, from the cache `known`."""
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise PlainYamlError(f"{value!r:.60} holds a lone surrogate")
    if isinstance(value, str):
        return 1 + len(value) // LONG_TEXT
    if not isinstance(value, Mapping | list):
        return 1
    if level > MOST_LEVELS:
        raise PlainYamlError(f"it is nested deeper than {MOST_LEVELS} levels")
    if id(value) not in known:
        inside = [*value, *value.values()] if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_size(one, known, level + 1) for one in inside)
    return known[id(value)]
