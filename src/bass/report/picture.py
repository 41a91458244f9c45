"""The picture that explains the method: the batch as rows, step by step, each token with its
outcome.

The page's script paints it from `picture`'s value, which is plain data. A row's step is a string of
letters, one per token:

    A accepted    R rejected    U unused (drafted beyond the end of the row)
    From the target:    C correction, after a rejection    B bonus, after full acceptance
                        P plain, without a draft

`AAARRC`: five were drafted, three accepted, and the target added one. Committed tokens are A, C, B
and P.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bass.errors import RunFolderError
from bass.runs.drafts import DraftLine
from bass.runs.records import RequestLine, StepLine

LETTERS = {
    "A": "accepted",
    "R": "rejected",
    "C": "correction",
    "B": "bonus",
    "P": "plain",
    "U": "unused",
}
MOST_BYTES = 300_000  # of one picture; of a longer run, it shows the first part and a note


def kinds(drafted: int, accepted: int, emitted: int) -> str:
    """The outcomes of a row's tokens in a step.

    `emitted` is `accepted` if the row ended at a drafted token, else one more.
    """
    ended = emitted == accepted
    left = ("U" if ended else "R") * (drafted - accepted)
    return (
        "A" * accepted
        + left
        + ("" if ended else "P" if not drafted else "B" if accepted == drafted else "C")
    )


def picture(
    title: str,
    steps: Sequence[StepLine],
    requests: Sequence[RequestLine],
    drafts: Mapping[int, DraftLine],
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    """One generation of a cell as data for the page: its first steps, as many as fit into
    `most_bytes`.
    """
    painted: list[dict[str, Any]] = []
    known = {line.request: line for line in requests}
    taken: dict[int, int] = {}
    size = 0
    for number, step in enumerate(steps):
        one = _step(step, drafts.get(number))
        size += len(_compact(one)) + 14 * sum(step.emitted)
        if size > most_bytes:
            break
        painted.append(one)
        for index, emitted in zip(step.request_rows, step.emitted, strict=True):
            if index >= 0:
                taken[index] = taken.get(index, 0) + emitted
    # If only a part is shown, requests are cut to the shown steps.
    shown = {
        index: _request(line, count)
        for index, count in sorted(taken.items())
        if (line := known.get(index)) is not None
    }
    shown |= {
        index: {"prompt": 0, "tokens": [], "probs": []} for index in taken if index not in shown
    }
    return {
        "title": title,
        "note": _note(len(painted), len(steps), drafts, taken.keys() - known.keys()),
        "longest": max((max(step["drafted"], default=0) for step in painted), default=0) + 1,
        "steps": painted,
        "requests": shown,
    }


def token_ids(pictures: Sequence[Mapping[str, Any]]) -> set[int]:
    """All tokens that the pictures show."""
    of_requests = {
        token for p in pictures for request in p["requests"].values() for token in request["tokens"]
    }
    return of_requests | {
        token
        for p in pictures
        for step in p["steps"]
        for row in step.get("tokens", [])
        for token in row
    }


def embedded(pictures: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> str:
    """JSON for a script element of a page, escaped so that no token can end the element."""
    used = {token: texts[token] for token in sorted(token_ids(pictures)) if 0 <= token < len(texts)}
    return (
        _compact({"pictures": pictures, "pieces": used})
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _step(step: StepLine, draft: DraftLine | None) -> dict[str, Any]:
    rows = zip(step.request_rows, step.drafted, step.accepted, step.emitted, strict=True)
    painted = {
        "k": step.k,
        "seconds": float(f"{step.seconds:.4g}"),
        "requests": step.request_rows,
        "drafted": step.drafted,
        "accepted": step.accepted,
        "emitted": step.emitted,
        "kinds": [kinds(d, a, e) if whose >= 0 else "" for whose, d, a, e in rows],
    }
    if draft is not None:
        if [len(row) for row in draft.tokens] != step.drafted:
            raise RunFolderError(
                f"The drafts of step {draft.step} have other lengths than the step: delete the "
                "cell's drafts.jsonl."
            )
        painted["tokens"] = draft.tokens
        if draft.probs is not None:
            painted["probs"] = [[float(f"{p:.3g}") for p in row] for row in draft.probs]
    return painted


def _request(line: RequestLine, count: int) -> dict[str, Any]:
    return {
        "prompt": line.prompt_tokens,
        "tokens": line.tokens[:count],
        "probs": [float(f"{math.exp(min(logprob, 0.0)):.3g}") for logprob in line.logprobs[:count]],
    }


def _note(painted: int, steps: int, drafts: Mapping[int, DraftLine], unknown: set[int]) -> str:
    notes = [f"The first {painted} of {steps} steps are shown."] if painted < steps else []
    missing = painted - sum(number < painted for number in drafts)
    if missing == painted:
        notes.append("Which tokens were rejected was not recorded: they are blanks.")
    elif missing:
        notes.append(
            f"Which tokens were rejected was recorded for {painted - missing} steps; in the others "
            "they are blanks."
        )
    if unknown:
        notes.append(f"{len(unknown)} requests did not finish; their tokens are not known.")
    return " ".join(notes)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
