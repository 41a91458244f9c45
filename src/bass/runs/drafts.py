"""The drafted tokens: optional files of a run folder, for rejected tokens in the pictures of its
report.

FOLDER/texts.json               the text of every token id, a JSON list of strings; without it
                                tokens are shown by their ids
FOLDER/cells/ID/drafts.jsonl    one `DraftLine` for each of the steps that were watched; without it
                                rejected tokens are blanks
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from bass.checkpoints.hub import resolve
from bass.engine.requests import StepRecord
from bass.errors import BassError, RunFolderError
from bass.files import write_atomically
from bass.plain_json import parse_json
from bass.runs.lines import read_lines
from bass.runs.own_files import content
from bass.runs.strict import Json
from bass.text import Tokenizer

DRAFTS, TEXTS = "drafts.jsonl", "texts.json"
# the repeat and the number of steps that are recorded: half a megabyte at batch 32 with 8 tokens
WATCHED_REPEAT, WATCHED_STEPS = 0, 256
_DIGITS = 4  # of a recorded probability


@final
@dataclass(frozen=True)
class DraftLine(Json):
    """The drafts of one step, one list per row of the batch, empty for a row without a draft."""

    repeat: int
    step: int  # which step of the repeat, from 0
    tokens: list[list[int]]
    # of each token, in the distribution it was drawn from; None for a deterministic drafter
    probs: list[list[float]] | None

    @classmethod
    def of(cls, record: StepRecord, repeat: int, step: int) -> "DraftLine":
        """The line of a step of a trace, with probabilities of four digits.

        The step must have recorded its draft.
        """
        assert record.draft_tokens is not None
        assert record.draft_probs is not None
        known = np.arange(record.draft_tokens.shape[1]) < record.drafted[:, None]
        tokens = [
            row[: int(count)].tolist()
            for row, count in zip(record.draft_tokens, record.drafted, strict=True)
        ]
        if not np.isfinite(record.draft_probs[known]).all() or not known.any():
            return cls(repeat, step, tokens, None)
        probs = [
            [float(f"{p:.{_DIGITS}g}") for p in row[: len(own)]]
            for row, own in zip(record.draft_probs, tokens, strict=True)
        ]
        return cls(repeat, step, tokens, probs)


def read_drafts(folder: Path, repeat: int) -> tuple[dict[int, DraftLine], str | None]:
    """The drafts of a repeat by step, and a sentence about an incomplete last line.

    If a repeat was started twice, the later one counts.
    """
    lines = read_lines(folder / DRAFTS, DraftLine.from_json)
    return {line.step: line for line in lines.values if line.repeat == repeat}, lines.dropped


def common_tokenizer(targets: Iterable[str]) -> Tokenizer | None:
    """The tokenizer of all these checkpoints.

    None if they differ, or one has none or cannot be read.
    """
    try:
        found = [Tokenizer.read(resolve(target)) for target in dict.fromkeys(targets)]
    except BassError:  # reported by the cells of that checkpoint
        return None
    if (
        not found
        or found[0] is None
        or any(one is None or one.vocabulary != found[0].vocabulary for one in found)
    ):
        return None
    return found[0]


def write_texts(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the text of every token id of the tokenizer, for the report."""
    names = {index: name for name, index in tokenizer.vocabulary.items()}
    texts = [
        token_text(tokenizer, index, names.get(index, ""))
        for index in range(max(names, default=-1) + 1)
    ]
    write_atomically(folder / TEXTS, json.dumps(texts))


def token_text(tokenizer: Tokenizer, index: int, name: str) -> str:
    """The text that a token adds, decoded after itself, since some tokenizers drop a leading space.

    A special token has no text and is shown by its name.
    """
    alone = tokenizer.raw([index])
    return name if index in tokenizer.silent else tokenizer.raw([index, index]).removeprefix(alone)


def read_texts(folder: Path) -> list[str]:
    """The text of every token id; empty if the run did not write them."""
    path = folder / TEXTS
    if not path.exists():
        return []
    try:
        texts = parse_json(content(path))
    except ValueError as error:
        raise RunFolderError(
            f"{path} is damaged ({error}): delete it, and tokens are shown by their ids."
        ) from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RunFolderError(
            f"{path} must hold a list of strings, one for each token id: delete it, and tokens are "
            "shown by their ids."
        )
    return texts
