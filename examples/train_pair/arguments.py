"""Options of the stages: bad ones, missing files and full disks are one sentence."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from bass.errors import BassError


def run(main: Callable[[], None]) -> None:
    """Run a stage; an error that `bass` or the system explains ends it with a sentence."""
    try:
        main()
    except BassError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"Cannot read or write ({error}): name another folder, or run the stage before.")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder; raises `OSError` without its file."""
    with (folder / "tokenizer.json").open(encoding="utf-8") as file:
        return Tokenizer.from_str(file.read())


def integer(least: int) -> Callable[[str], int]:
    """The type of an option: an integer of at least this."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"`{text}` must be an integer of {least} or more.")
        return value

    return parsed


positive = integer(1)


def share(text: str) -> float:
    """The type of an option: a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"`{text}` must be a number from 0 to 1.")
    return value


def device(text: str) -> str:
    """The type of an option: `cpu`, or `cuda` where there is a GPU; `auto` is what there is."""
    import torch  # not for the stages without a model

    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if text != "cpu" and not (text == "cuda" and torch.cuda.is_available()):
        raise argparse.ArgumentTypeError(f"there is no device `{text}` here: give `cpu`.")
    return text
