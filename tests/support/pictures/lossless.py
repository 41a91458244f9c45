"""The picture of losslessness: the distribution of the first emitted token, by enumeration, for
rejection sampling and for three mistakes.

Every drafted token is accepted or rejected by the library's `accept_probs`, and its correction
comes from `next_probs`, both in float64; the sum over drafted tokens is the distribution.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bass.ops.verification import accept_probs, next_probs
from bass.records import Draft
from support.pictures.svg import ASSETS, MARGIN, WIDTH, document, line, text

FILE = ASSETS / "lossless.svg"
TARGET, DRAFT = (0.5, 0.3, 0.2), (0.2, 0.6, 0.2)
TOKENS = "abc"
BAR, SCALE = 9, 400  # pixels: the height of a bar, of a probability of 1
RULES = (
    "rect.target { fill: var(--faint); } rect.lossless { fill: var(--accepted); }",
    "rect.biased { fill: var(--rejected); } line.base { stroke: var(--line); }",
    "text.small { font-size: 11px; }",
)
NAMES = ("accepted", "rejected")


def first_token(
    drawn_from: Tensor, reported: Tensor, from_target: bool = False, dropped: tuple[int, ...] = ()
) -> Tensor:
    """The distribution of the first emitted token.

    drawn_from: the distribution of the drafted token; reported: the one that the verifier gets.
    from_target: the correction comes from the target instead of the residual. dropped: drafted
    tokens that are taken back, so that the row drafts nothing.
    """
    target = torch.tensor(TARGET, dtype=torch.float64)
    law = torch.zeros_like(target)
    for token, probability in enumerate(drawn_from):
        if token in dropped:
            law += probability * target
            continue
        draft = Draft(torch.tensor([[token]]), reported[None, None], torch.tensor([1]))
        window = target.expand(1, 2, -1)
        accepted = accept_probs(draft, window)[0, 0]
        correction = target if from_target else next_probs(draft, window, torch.tensor([0]))[0]
        law[token] += probability * accepted
        law += probability * (1 - accepted) * correction / correction.sum()
    return law


def measured() -> dict[str, list[float]]:
    """The distributions, to six digits, which rounding does not change."""
    draft = torch.tensor(DRAFT, dtype=torch.float64)
    sharp = draft**2 / (draft**2).sum()  # temperature 0.5
    laws = {
        "rejection sampling": first_token(draft, draft),
        "an unlikely drafted token is taken back": first_token(draft, draft, dropped=(0, 2)),
        "the correction comes from the target": first_token(draft, draft, from_target=True),
        "drawn at temperature 0.5, reported at 1": first_token(sharp, draft),
    }
    return {name: [round(float(p), 6) for p in law] for name, law in laws.items()}


def drawn(data: Any) -> str:
    """Bars of the target's and of the output's probabilities as SVG."""
    body, y = [*_legend()], 64
    said = []
    for name, law in data.items():
        off = sum(abs(p - t) for p, t in zip(law, TARGET, strict=True)) / 2
        kind = "biased" if off > 1e-9 else "lossless"
        body.append(text(MARGIN, y, name, "step"))
        body.append(text(MARGIN, y + 16, f"total variation from the target: {off:.3f}", "note"))
        for i, (token, p) in enumerate(zip(TOKENS, law, strict=True)):
            top = y + 26 + i * 26
            body.append(text(MARGIN, top + 14, token, "legend"))
            body += _bar(top, TARGET[i], "target")
            body += _bar(top + BAR + 1, p, kind)
            body.append(
                text(MARGIN + 26 + max(p, TARGET[i]) * SCALE + 8, top + 14, f"{p:.3f}", "small")
            )
        body.append(line(MARGIN + 20, y + 22, MARGIN + 20, y + 26 + 3 * 26 - 4, "base"))
        y += 130
        said.append(f"{name}: {', '.join(f'{p:.3f}' for p in law)}")
    return document(
        "The distribution of the output, enumerated",
        f"Target: {', '.join(map(str, TARGET))}. {'. '.join(said)}.",
        data,
        y - 14,
        body,
        RULES,
        NAMES,
    )


def _legend() -> Iterator[str]:
    for i, (kind, said) in enumerate(
        (("target", "target"), ("lossless", "output, equal"), ("biased", "output, biased"))
    ):
        x = MARGIN + i * 130
        yield f'<rect class="{kind}" x="{x}" y="18" width="22" height="{BAR}"/>'
        yield text(x + 28, 27, said, "legend")


def _bar(y: float, p: float, kind: str) -> Iterator[str]:
    assert p * SCALE < WIDTH - 2 * MARGIN - 60
    yield (
        f'<rect class="{kind}" x="{MARGIN + 21}" y="{y}" width="{p * SCALE:.1f}" height="{BAR}"/>'
    )
