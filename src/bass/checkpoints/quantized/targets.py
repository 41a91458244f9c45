"""Which modules a part of a quantization_config describes: names, patterns and classes."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bass.checkpoints.patterns import PatternError, matched
from bass.errors import CheckpointError

Group = TypeVar("Group")
CLASS, PATTERN = "Linear", "re:"


def by_target(
    groups: Sequence[tuple[Sequence[str], Group]], modules: Sequence[str]
) -> dict[str, Group]:
    """The group of each module that one describes, as `compressed-tensors` chooses it: a target is
    a module's name, a pattern `re:...`, or a class, and the first kind decides that matches.

    Among patterns the first in alphabetical order decides, among groups of one target the last.
    """
    last = {target: group for targets, group in groups for target in targets}
    patterns = {t.removeprefix(PATTERN): last[t] for t in sorted(last) if t.startswith(PATTERN)}
    found = dict.fromkeys(modules, last[CLASS]) if CLASS in last else {}
    found |= by_pattern(patterns, modules)
    return found | {module: last[module] for module in modules if module in last}


def by_pattern(patterns: Mapping[str, Group], modules: Sequence[str]) -> dict[str, Group]:
    """The group of the first pattern that matches a module from the beginning of its name, for each
    module that one matches. Raises `CheckpointError`.
    """
    if not patterns or not modules:
        return {}
    found: dict[str, Group] = {}
    for indices, group in zip(_matched([*patterns], modules), patterns.values(), strict=True):
        for index in indices:
            found.setdefault(modules[index], group)
    return found


def _matched(patterns: Sequence[str], modules: Sequence[str]) -> list[list[int]]:
    """The indices of the modules that each pattern matches."""
    try:
        return matched(patterns, modules)
    except PatternError as error:
        raise CheckpointError(
            f"Its quantization_config has the pattern {error.pattern}, which {error}: correct it, "
            "or use the original checkpoint."
        ) from None
