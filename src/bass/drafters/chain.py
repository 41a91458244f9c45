"""What drafters are made of that draft token by token: the loop that draws a draft, and the state
of each row that it begins with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.interfaces import DrafterContext, Draw, StopRule, Warp
from bass.interfaces.answers import check_probs, check_tensor
from bass.ops import batch_state
from bass.records import Draft, Noise, Observation, RowAssignment, Sequences

Fed = tuple[Tensor, Tensor]  # the last drafted token of each row, and its position [batch, 1]


@final
@dataclass(frozen=True)
class Chain:
    """Draws a draft token by token, each from the distribution that the tokens before it give."""

    warp: Warp
    draw: Draw
    stop_rule: StopRule | None = None

    @classmethod
    def of(cls, context: DrafterContext) -> "Chain":
        return cls(context.warp, context.draw, context.stop_rule)

    def drawn(
        self,
        logits_after: Callable[[Fed | None], Float[Tensor, "batch 1 vocab"]],
        sequences: Sequences,
        lengths: Int[Tensor, " batch"],
        k: int,
        noise: Noise,
        behind: int = 0,
    ) -> Draft:
        """A draft of up to k tokens.

        logits_after: of the next token, after the last drafted token; None: after the committed
        ones. Positions are -1 in rows whose draft has ended, else `behind` before the token's own.
        """
        drafted, fed = sequences.tokens.new_empty(len(lengths), k), None
        probs: list[Tensor] = []
        lens = sequences.lens - behind if behind else sequences.lens
        later = batch_state.draft_positions(lens, lengths, k)
        for i in range(k):
            logits = logits_after(fed)
            warped = self.warp(logits, sequences.history(drafted[:, :i]))
            at = check_probs(self.warp, warped, logits)[:, 0]
            probs.append(at)
            drafted[:, i] = self.draw(at, noise, i)
            if self.stop_rule is not None:
                own = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
                ends = self.stop_rule(own, i)
                what = f"The answer of `{type(self.stop_rule).__name__}`"
                check_tensor(ends, what, "truth values", own.shape[:1], own.device)
                lengths = torch.where(ends, lengths.clamp(max=i + 1), lengths)
                later = batch_state.draft_positions(lens, lengths, k)
            if lengths.device.type == "cpu" and int(lengths.max()) <= i + 1:
                break
            fed = drafted[:, i : i + 1], later[:, i : i + 1]
        return Draft(drafted[:, : len(probs)], torch.stack(probs, 1), lengths)


@final
@dataclass(frozen=True)
class LastStates:
    """A value of each row's last committed token but one, and its position; the same at the end of
    its prompt, which later samples of the prompt begin with.
    """

    values: Float[Tensor, "batch width"]  # device
    at: Int[Tensor, " batch"]  # device
    of_prompts: Float[Tensor, "batch width"]
    at_of_prompts: Int[Tensor, " batch"]

    @classmethod
    def of(cls, context: DrafterContext, width: int) -> "LastStates":
        """Of the rows of a run."""
        values, of_prompts = (context.state(width) for _ in range(2))
        at, at_of_prompts = (context.state(dtype=torch.int64) for _ in range(2))
        return cls(values, at, of_prompts, at_of_prompts)

    def observe(self, seen: Observation, values: Float[Tensor, "rows window width"]) -> None:
        """Keep the values of the last committed tokens of a window."""
        rows = seen.window.rows
        last, column = seen.window.positions.max(1)
        own = values[torch.arange(len(values), device=values.device), column]
        if rows is not None:  # of several segments of a row, that of its last token
            best = torch.where(rows[:, None] == rows, last, -2).argmax(1)
            last, own = last[best], own[best]
        index, known = seen.window.index, last >= 0
        kept = [(self.values, self.at)]
        if seen.accepted is None:
            kept.append((self.of_prompts, self.at_of_prompts))
        for of_rows, at in kept:
            of_rows[index] = torch.where(known[:, None], own, of_rows[index])
            at[index] = torch.where(known, last, at[index])

    def copy_rows(self, assignment: RowAssignment) -> None:
        """Begin rows that share a prompt with its state; the source may have gone on since."""
        rows = assignment.followers
        if not len(rows):
            return
        to, came = (
            torch.as_tensor(index, device=self.at.device)
            for index in (rows, assignment.source[rows])
        )
        for values in (self.values, self.of_prompts):
            values[to] = self.of_prompts[came]
        for at in (self.at, self.at_of_prompts):
            at[to] = self.at_of_prompts[came]

    def lengths(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"]
    ) -> Int[Tensor, " batch"]:
        """The lengths, and 0 for rows without a state: a prompt of one token has none at first."""
        return torch.where(self.at == sequences.lens - 2, lengths, 0)
