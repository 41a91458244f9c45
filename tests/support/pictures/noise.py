"""The picture of noise: all uniforms of one row in two steps of a run of the embedded pair, and
which of them decided a token.
"""

from collections.abc import Iterator
from typing import Any

import bass
from bass.api.options import RequestOptions
from bass.ops.noise import step_noise
from bass.policies import Fixed
from support.pictures.svg import ASSETS, KINDS, MARGIN, box, document, text, visible

FILE = ASSETS / "noise.svg"
PROMPT, SEED, K, STEPS = "def area(r):\n    return", 24, 3, 2
STREAMS = ("draft", "accept", "residual")
COLUMN, LEFT, ROW = 100, 92, 25  # pixels
RULES = (
    "rect.used { fill: var(--correction-soft); stroke: var(--correction); stroke-width: 1.5; }",
    "text.unused { fill: var(--faint); } text.slot { font-size: 11px; fill: var(--faint); }",
    "rect.rejected { stroke-dasharray: 4 2; }",
)


def measured() -> dict[str, Any]:
    """For each step: the uniforms [slots, streams] to three digits, drafted texts, what was
    accepted, and the emitted texts.
    """
    llm = bass.load(policy=Fixed(K), device="cpu", dtype="float32", max_batch_size=1)
    options = RequestOptions(max_new_tokens=16, temperature=0.8, seed=SEED)
    run = llm.start(PROMPT, options).run
    rows, tokenizer = run.sequences, llm.models.tokenizer
    assert tokenizer is not None
    emitted = [emission.tokens for emission in run][:STEPS]
    key, steps = int(rows.keys[0]), []
    for number, (record, tokens) in enumerate(zip(run.trace.steps[:STEPS], emitted, strict=True)):
        assert record.draft_tokens is not None
        rows.steps.fill_(number)
        uniforms = step_noise(rows.keys, rows.steps, rows.lens, K).uniforms[0, :, :3]
        steps.append(
            {
                "uniforms": [[round(u, 3) for u in slot] for slot in uniforms.tolist()],
                "drafted": [tokenizer.raw([int(t)]) for t in record.draft_tokens[0]],
                "accepted": int(record.accepted[0]),
                "emitted": [tokenizer.raw([t]) for t in tokens],
            }
        )
    return {"key": f"{key:016x}", "steps": steps}


def used(accepted: int, slot: int, stream: int) -> bool:
    """Whether a uniform decided something: the draft, an acceptance that was reached, or the
    target's own token.
    """
    if stream == 0:
        return slot < K
    return slot == accepted if stream == 2 else slot <= accepted and slot < K


def drawn(data: Any) -> str:
    """The uniforms as SVG."""
    body: list[str] = [
        box(MARGIN, 28, 22, "used"),
        text(MARGIN + 28, 28, "decides something", "legend"),
        text(MARGIN + 204, 28, "0.123", "unused"),
        text(MARGIN + 248, 28, "is not used", "legend"),
    ]
    y, said = 62, []
    for number, step in enumerate(data["steps"]):
        accepted, count = step["accepted"], len(step["drafted"])
        body.append(text(MARGIN, y, f"step {number}: {count} drafted, {accepted} accepted", "step"))
        y += 21
        for i, stream in enumerate(STREAMS):
            body.append(text(MARGIN + LEFT + i * COLUMN, y, stream, "note"))
        y += 4
        for slot, uniforms in enumerate(step["uniforms"]):
            y += ROW
            body.append(text(MARGIN, y, f"slot {slot}", "legend"))
            for stream, value in enumerate(uniforms):
                body += _number(MARGIN + LEFT + stream * COLUMN, y, value, accepted, slot, stream)
        y += 28
        body += _tokens(step, y)
        y += 38
        said.append(f"step {number}: {count} drafted, {accepted} accepted")
    return document(
        "The uniforms of a row in two steps",
        f"Key {data['key']}. {'; '.join(said)}. Each uniform is used once, or not at all.",
        data,
        y - 16,
        body,
        RULES,
        (*(n for kind in KINDS for n in (kind, f"{kind}-soft")),),
    )


def _number(
    x: float, y: float, value: float, accepted: int, slot: int, stream: int
) -> Iterator[str]:
    decides = used(accepted, slot, stream)
    if decides:
        yield box(x - 6, y, 48, "used")
    yield text(x, y, f"{value:.3f}", "used" if decides else "unused", 5)


def _tokens(step: Any, y: float) -> Iterator[str]:
    """The drafted tokens with their outcome, then the target's own."""
    accepted, drafted = step["accepted"], step["drafted"]
    yield text(MARGIN, y, "tokens", "legend")
    own = "bonus" if accepted == len(drafted) else "correction"
    kinds = ["accepted"] * accepted + ["rejected"] * (len(drafted) - accepted) + [own]
    x = MARGIN + LEFT - 6
    for kind, token in zip(kinds, [*drafted, step["emitted"][-1]], strict=True):
        shown = visible(token)
        width = len(shown) * 7.2 + 10
        yield box(x, y, width, kind)
        yield text(x + 5, y, shown, kind, len(shown))
        x += width + 4
