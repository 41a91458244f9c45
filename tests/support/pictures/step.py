"""The picture of one step: what the host does, what the device does, and the shape of each tensor,
recorded from a step of the embedded pair that runs part by part.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import bass
from bass.api.options import RequestOptions
from bass.engine.step import SpeculativeStep
from bass.ops.batch_state import commit, pack_report, window
from bass.ops.noise import step_noise
from bass.ops.sampling import token_logprobs
from bass.policies import Fixed
from bass.records import Window
from support.pictures.svg import ASSETS, MARGIN, WIDTH, box, document, line, text

FILE = ASSETS / "step.svg"
PROMPTS = ["def area(r):\n    return", "class Stack:", "import", "x = [1,"]
REQUESTED = [4, 4, 2, 0]
RULES = (
    "rect.host { fill: var(--panel); stroke: var(--line); }",
    "rect.part { fill: var(--correction-soft); stroke: var(--correction); stroke-width: 1.5; }",
    "rect.graph { fill: none; stroke: var(--accepted); stroke-width: 2; stroke-dasharray: 6 3; }",
    'text.graph { fill: var(--accepted); font: 600 12px system-ui, "DejaVu Sans", sans-serif; }',
    "text.small { font-size: 11px; }",
    "line.flow { stroke: var(--faint); stroke-width: 1.5; } path { fill: var(--faint); }",
)
NAMES = ("correction", "correction-soft", "accepted")
LANE = 158  # the left edge of the device's lane
PART, EACH = 34, 43  # pixels: the height of a part, and from part to part


def measured() -> dict[str, Any]:
    """The plan of a step, and the shapes of its tensors; the vocabulary's axis is "V"."""
    llm = bass.load(policy=Fixed(4), device="cpu", dtype="float32", max_batch_size=4)
    run = llm.start(PROMPTS, RequestOptions(max_new_tokens=32)).run
    rows, step = run.sequences, run.step
    assert isinstance(step, SpeculativeStep)
    with torch.inference_mode():
        run.schedule.admit()
        plan = run.schedule.plan(REQUESTED)
        lengths = torch.tensor(plan.lengths)
        noise = step_noise(rows.keys, rows.steps, rows.lens, plan.k)
        draft, flags = step.drafted(rows, lengths, plan.k, noise, plan.span)
        fed = Window(*window(rows, draft), plan.span)
        logits = step.target(fed).logits
        probs = step.warp(logits, rows.history(draft.tokens))
        verdict = step.verifier(draft, probs, noise)
        logprobs = token_logprobs(logits, verdict.tokens)
        emitted = commit(rows, verdict, step.vocab_size)
        report = pack_report(rows, draft, flags, verdict, emitted, logprobs)
    assert draft.probs is not None
    tensors = {
        "lengths": lengths,
        "uniforms": noise.uniforms,
        "draft.tokens": draft.tokens,
        "draft.probs": draft.probs,
        "positions": fed.positions,
        "logits": logits,
        "target_probs": probs,
        "accepted": verdict.accepted,
        "verdict.tokens": verdict.tokens,
        "emitted": emitted,
        "report": report,
    }
    return {
        "lengths": plan.lengths,
        "k": plan.k,
        "shapes": {name: _shape(tensor, step.vocab_size) for name, tensor in tensors.items()},
    }


def _shape(tensor: Tensor, vocab: int) -> str:
    return f"[{', '.join('V' if n == vocab else str(n) for n in tensor.shape)}]"


def drawn(data: Any) -> str:
    """The step as SVG."""
    shapes = data["shapes"]
    parts = [
        ("noise", f"uniforms {shapes['uniforms']}"),
        (f"drafter: {data['k']} passes", f"tokens {shapes['draft.tokens']}, "
         f"probs {shapes['draft.probs']}"),
        ("window", f"tokens, positions {shapes['positions']}"),
        ("target: one pass", f"logits {shapes['logits']}"),
        ("warp", f"target_probs {shapes['target_probs']}"),
        ("verifier", f"accepted {shapes['accepted']}, tokens {shapes['verdict.tokens']}"),
        ("commit", f"emitted {shapes['emitted']}"),
        ("report", f"{shapes['report']}, one tensor"),
    ]  # fmt: skip
    top = 122
    bottom = top + len(parts) * EACH
    body = [*_host(data, top, bottom), *_lane(top, bottom)]
    for i, (name, made) in enumerate(parts):
        y = top + 24 + i * EACH
        body.append(box(LANE + 14, y, WIDTH - MARGIN - LANE - 28, "part", PART))
        body.append(text(LANE + 22, y, name, "step"))
        body.append(text(LANE + 22, y + 14, made, "small"))
        if i:
            body += _arrow(LANE + 34, y - 14 - EACH + PART, LANE + 34, y - 14)
    listed = "; ".join(f"{name}: {made}" for name, made in parts)
    return document(
        "One step, on the host and on the device",
        f"On the host the policy and the schedule choose the lengths {data['lengths']}. On the "
        f"device: {listed}. The host reads the report, and the policy learns from it.",
        data,
        bottom + 48,
        body,
        RULES,
        NAMES,
    )


def _lane(top: int, bottom: int) -> Iterator[str]:
    yield text(LANE, 30, "device", "step")
    yield box(LANE, 52, WIDTH - MARGIN - LANE, "host", 46)
    yield text(LANE + 8, 56, "Sequences: the rows' tokens, lens,", "small")
    yield text(LANE + 8, 72, "limits, keys, steps, options", "small")
    yield text(LANE + 8, 108, "caches of target and draft: in place", "note")
    yield box(LANE, top + 6, WIDTH - MARGIN - LANE, "graph", bottom - top + 36)
    yield text(LANE + 14, bottom + 18, "one CUDA graph for each shape", "graph")


def _host(data: Any, top: int, bottom: int) -> Iterator[str]:
    width = LANE - MARGIN - 30
    yield text(MARGIN, 30, "host", "step")
    boxes = (
        (52, "policy", "lengths(state)"),
        (96, "schedule", f"k = {data['k']}, span"),
        (top + 24, "launch", ", ".join(map(str, data["lengths"]))),
        (bottom - EACH + 24, "read", "the one report"),
    )
    for y, name, said in boxes:
        yield box(MARGIN, y, width, "host", PART)
        yield text(MARGIN + 8, y, name, "step")
        yield text(MARGIN + 8, y + 14, said, "small")
    yield from _arrow(MARGIN + 20, 52 - 14 + PART, MARGIN + 20, 96 - 14)
    yield from _arrow(MARGIN + 20, 96 - 14 + PART, MARGIN + 20, top + 24 - 14)
    yield from _arrow(MARGIN + width, top + 27, LANE + 14, top + 27)
    y = bottom - EACH + 27
    yield from _arrow(LANE + 14, y, MARGIN + width, y)
    up = bottom - EACH + 24 - 14 - 50
    yield from _arrow(MARGIN + 20, bottom - EACH + 10, MARGIN + 20, up + PART)
    yield box(MARGIN, up + 14, width, "host", PART)
    yield text(MARGIN + 8, up + 14, "policy", "step")
    yield text(MARGIN + 8, up + 28, "learns from it", "small")


def _arrow(x1: float, y1: float, x2: float, y2: float) -> Iterator[str]:
    yield line(x1, y1, x2, y2, "flow")
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    wings = [(x2 - 6 * dx + side * 3.5 * dy, y2 - 6 * dy + side * 3.5 * dx) for side in (1, -1)]
    points = " L".join(f"{x:.1f} {y:.1f}" for x, y in ((x2, y2), *wings))
    yield f'<path d="M{points} Z"/>'
