"""Which modules a part of a quantization_config describes: names, patterns and classes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

from bass.checkpoints.quantized import match_process
from bass.errors import CheckpointError

Group = TypeVar("Group")
# wall time for a process that gets no processor time; processor time has its own limit
WAITING_SECONDS = 60
CLASS, PATTERN = "Linear", "re:"


def by_target(
    groups: Sequence[tuple[Sequence[str], Group]], modules: Sequence[str]
) -> dict[str, Group]:
    """The group of each module that one describes, as `compressed-tensors` chooses it: a target is
    a module's name, a pattern `re:...`, or a class, and the first kind decides that matches.

    Among targets of one kind the first decides.
    """
    first: dict[str, Group] = {}
    for targets, group in groups:
        for target in targets:
            first.setdefault(target, group)
    patterns = {t.removeprefix(PATTERN): g for t, g in first.items() if t.startswith(PATTERN)}
    found = dict.fromkeys(modules, first[CLASS]) if CLASS in first else {}
    found |= by_pattern(patterns, modules)
    return found | {module: first[module] for module in modules if module in first}


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
    """By `match_process`: the indices of the modules that each pattern matches."""
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "utf8", match_process.__file__],
            input=json.dumps({"patterns": patterns, "names": modules}),
            capture_output=True,
            encoding="utf-8",
            env={n: os.environ[n] for n in ("LD_LIBRARY_PATH",) if n in os.environ},
            timeout=WAITING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        ended = None
    if ended is None or ended.returncode:
        raise CheckpointError(
            "Its quantization_config has patterns of modules that take more than "
            f"{match_process.SECONDS} seconds or {match_process.MEMORY >> 30} GiB to match, such "
            f"as `{max(patterns, key=len)!r:.100}`: correct it, or use the original checkpoint."
        )
    reply = json.loads(ended.stdout)
    if "invalid" in reply:
        raise CheckpointError(
            f"Its quantization_config has the pattern `{patterns[reply['invalid']]!r:.100}`, which "
            "is no regular expression of Python: correct it, or download it again."
        )
    return reply["matched"]
