"""The batch as rows, step by step, each token with its outcome: the data that `report.js` paints.

A row's step is a string of letters, one per token:

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

from bass.analysis.metrics import PER_ROW, Measurement

LETTERS = {
    "A": "accepted",
    "R": "rejected",
    "C": "correction",
    "B": "bonus",
    "P": "plain",
    "U": "unused",
}
MOST = 15_000  # drafted and emitted tokens of one picture, about 300 kB


def kinds(drafted: int, accepted: int, emitted: int) -> str:
    """The outcomes of a row's tokens; `emitted` is `accepted` if it ended at a drafted token."""
    ended = emitted == accepted
    rest = ("U" if ended else "R") * (drafted - accepted)
    added = "" if ended else "P" if not drafted else "B" if accepted == drafted else "C"
    return "A" * accepted + rest + added


def picture(title: str, measurement: Measurement, most_tokens: int = MOST) -> dict[str, Any]:
    """The first call of a cell: its first steps, up to `most_tokens` drafted and emitted ones."""
    first = measurement.where(repeat=measurement.repeats[0], call=0)
    steps = first.steps.sort_values("step")
    sizes = steps["drafted"].map(sum) + steps["emitted"].map(sum) + steps["requests"].map(len)
    shown = steps[sizes.cumsum() <= most_tokens]
    painted = [_step(step) for step in shown.to_dict("records")]
    cut, total = len(painted) < len(steps), len(steps)
    notes = [f"The first {len(painted)} of {total} steps are shown."] if cut else []
    if any(sum(step["drafted"]) and "tokens" not in step for step in painted):
        notes.append("Rejected tokens were not recorded: they are blank.")
    rows = first.rows[first.rows["step"].isin(shown["step"])]
    emitted = rows.groupby("request")["emitted"].sum().to_dict()
    requests = {line["request"]: line for line in first.requests.to_dict("records")}
    return {
        "title": title,
        "note": " ".join(notes),
        "longest": max((max(step["drafted"]) for step in painted), default=0) + 1,
        "steps": painted,
        "requests": {int(i): _request(requests[i], count) for i, count in emitted.items()},
    }


def embedded(pictures: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> str:
    """The pictures and the texts of their tokens, as JSON for a script element of a page."""
    from jinja2.utils import htmlsafe_json_dumps

    rows = [row for p in pictures for step in p["steps"] for row in step.get("tokens", [])]
    rows += [request["tokens"] for p in pictures for request in p["requests"].values()]
    used = sorted({token for row in rows for token in row if token < len(texts)})
    found = {"pictures": pictures, "pieces": {token: texts[token] for token in used}}
    return htmlsafe_json_dumps(found, dumps=json.dumps, separators=(",", ":"))


def _step(step: Mapping[Any, Any]) -> dict[str, Any]:
    rows = {name: [int(value) for value in step[name]] for name in PER_ROW}
    painted: dict[str, Any] = {"k": int(step["k"]), "seconds": _digits(step["seconds"], 4), **rows}
    painted["kinds"] = [
        kinds(drafted, accepted, emitted) if request >= 0 else ""
        for request, drafted, accepted, emitted in zip(*rows.values(), strict=True)
    ]
    for name, key, digits in (("draft_tokens", "tokens", 0), ("draft_probs", "probs", 3)):
        if isinstance(step.get(name), list):
            painted[key] = [
                [_digits(value, digits) if digits else int(value) for value in row[:count]]
                for row, count in zip(step[name], rows["drafted"], strict=True)
            ]
    return painted


def _request(line: Mapping[Any, Any], count: int) -> dict[str, Any]:
    """A request's prompt length, and its first `count` tokens with the target's probabilities."""
    return {
        "prompt": int(line["prompt_tokens"]),
        "tokens": [int(token) for token in line["token_ids"][:count]],
        "probs": [_digits(math.exp(min(value, 0.0)), 3) for value in line["logprobs"][:count]],
    }


def _digits(value: float | None, digits: int) -> float | None:
    """A number for JSON; None for a probability that is none, as of a deterministic draft."""
    return None if value is None or math.isnan(value) else float(f"{value:.{digits}g}")
