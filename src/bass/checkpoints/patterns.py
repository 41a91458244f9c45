"""Regular expressions of a checkpoint's files, matched with names of modules within limits."""

import json
from collections.abc import Sequence

from bass.checkpoints import match_process
from bass.processes import answered


class PatternError(Exception):
    """The words say what is wrong with a pattern, to follow it in a sentence."""

    def __init__(self, pattern: str, words: str) -> None:
        super().__init__(words)
        self.pattern = f"`{pattern!r:.100}`"


def matched(patterns: Sequence[str], names: Sequence[str], whole: bool = False) -> list[list[int]]:
    """The indices of the names that each pattern matches from their beginning, or as a `whole`.

    Raises `PatternError` for what is no regular expression of Python, and where matching takes more
    time or memory than `match_process` grants.
    """
    request = {"patterns": patterns, "names": names, "whole": whole}
    ended = answered(match_process.__file__, json.dumps(request))
    if ended is None or ended.returncode:
        seconds, memory = match_process.SECONDS, match_process.MEMORY >> 30
        words = f"takes more than {seconds} seconds or {memory} GiB to match"
        if len(patterns) > 1:
            words += " together with the others"
        raise PatternError(max(patterns, key=len), words)
    reply = json.loads(ended.stdout)
    if "invalid" in reply:
        raise PatternError(patterns[int(reply["invalid"])], "is no regular expression of Python")
    return reply["matched"]
