"""The prompts of `bass generate`."""

import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from bass.api.requests import Prompt
from bass.errors import OptionError, RequestError
from bass.files import read_text

EXAMPLE = '''class Account:
    """A bank account with an owner and a balance."""

    def __init__(self, owner, balance=0):
'''
LARGEST_PROMPT = 1 << 28  # bytes of a file
# a class ends before the next top-level line
EXAMPLE_STOPS = ("\nclass ", "\ndef ", "\n@", "\nif ", "\n#")


def read_prompts(config: Namespace) -> list[Prompt]:
    """The prompts of the options, which must have exactly one source of them."""
    sources = {
        "a prompt": config.prompt,
        "`--file`": config.file is not None,
        "`--token_ids`": config.token_ids is not None,
        "`--example`": config.example,
    }
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise RequestError(f"Prompts come from {' and '.join(given)}: give one of them.")
    if config.chat and config.token_ids is not None:
        raise RequestError(
            "`--chat` needs texts, and `--token_ids` are not texts: give one of the two."
        )
    if config.system is not None and not config.chat:
        raise OptionError("`--system` is part of a conversation: give `--chat` with it.")
    if config.prompt:
        return list(config.prompt)
    if config.file is not None:
        return [_read(config.file)]
    if config.token_ids is not None:
        return [config.token_ids]
    if config.example:
        return [EXAMPLE]
    if sys.stdin is None or sys.stdin.isatty():
        raise RequestError(
            "There is no prompt: give one in quotes, `--file`, standard input, or `--example`."
        )
    try:
        return [sys.stdin.read()]
    except UnicodeDecodeError as error:
        raise RequestError(
            f"Standard input is not UTF-8 text ({error.reason} at byte {error.start}): convert it."
        ) from error


def conversation(prompt: Prompt, system: str | None) -> list[dict[str, Any]]:
    """The prompt as a user message, after the system message."""
    return [
        {"role": role, "content": text}
        for role, text in (("system", system), ("user", prompt))
        if text is not None
    ]


def _read(name: str) -> str:
    try:
        return read_text(Path(name), LARGEST_PROMPT)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"`{name}` is not UTF-8 text ({error.reason} at byte {error.start}): convert it, or "
            "give another file."
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(
            f"`{name}` cannot be read ({reason}): give a readable text file."
        ) from error
