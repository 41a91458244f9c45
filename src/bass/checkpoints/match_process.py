"""A process that matches patterns with names of modules, within limits of time and memory.
`bass.checkpoints.patterns` runs it.

Patterns come with a checkpoint, and one may take years on a short name. Standard input:
{"patterns", "names", "whole"} as JSON; standard output: {"matched"}, the indices of the names that
each pattern matches, or {"invalid"}, the index of a pattern. It imports nothing of bass.
"""

import json
import re
import resource
import sys

SECONDS, MEMORY = 2, 1 << 30  # of processor time; bytes of address space


def matched(patterns: list[str], names: list[str], whole: bool) -> dict[str, object]:
    """The names that each pattern matches, as a whole or from their beginning, or the pattern that
    is none.
    """
    found: list[list[int]] = []
    for index, pattern in enumerate(patterns):
        try:
            compiled = re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return {"invalid": index}
        matches = compiled.fullmatch if whole else compiled.match
        found.append([i for i, name in enumerate(names) if matches(name)])
    return {"matched": found}


def main() -> None:
    """Serve one request."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    requested = json.load(sys.stdin)
    print(json.dumps(matched(**requested)))


if __name__ == "__main__":
    main()
