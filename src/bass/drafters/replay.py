"""Drafts from a script: the output is known, or guessed, beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor

from bass.errors import OptionError, check_number
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.records import Draft, Noise, Sequences


@final
@dataclass(frozen=True)
class Replay(DraftMethod):
    """Proposes the next tokens of a script for a row that is a prefix of it, and nothing for any
    other row.

    scripts: whole sequences of token ids, prompts included; of several matches, the first counts.
    For text that is likely to repeat (an edited file, an earlier answer), and for experiments with
    a known acceptance. `build` raises `OptionError` for a token id outside the vocabulary.
    """

    paper: ClassVar[str] = "after Yang et al., 2023 (LLMA)"

    scripts: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        if isinstance(self.scripts, str) or not self.scripts or not all(map(len, self.scripts)):
            raise OptionError(
                "`Replay(scripts=...)` needs one sequence of token ids or more, and none of them "
                "empty."
            )
        object.__setattr__(self, "scripts", tuple(tuple(script) for script in self.scripts))
        for script in self.scripts:
            for token in script:
                check_number("scripts", token, "[0, inf)")

    def build(self, context: DrafterContext) -> Drafter:
        most = max(max(script) for script in self.scripts)
        if most >= context.vocab_size:
            raise OptionError(
                f"A script holds the token id {most}, which is outside the vocabulary: ids go up "
                f"to {context.vocab_size - 1}."
            )
        ends = torch.tensor([len(script) for script in self.scripts])
        tokens = torch.zeros(len(ends), int(ends.max()), dtype=torch.int64)
        for row, script in zip(tokens, self.scripts, strict=True):
            row[: len(script)] = torch.tensor(script)
        return ReplayDrafter(tokens.to(context.device), ends.to(context.device))


@final
@dataclass(frozen=True)
class ReplayDrafter(Drafter):
    """Compares every row with every script, on the device: batch x scripts x span comparisons per
    step.
    """

    scripts: Int[Tensor, "scripts longest"]
    ends: Int[Tensor, " scripts"]

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        lens, longest = sequences.lens, self.scripts.shape[1]
        width = min(span, longest)
        beyond = torch.arange(width, device=lens.device) >= lens[:, None]
        same = (sequences.tokens[:, None, :width] == self.scripts[:, :width]) | beyond[:, None]
        matches = same.all(2) & (lens[:, None] < self.ends)
        first = matches.to(torch.int64).argmax(1)
        positions = (lens[:, None] + torch.arange(k, device=lens.device)).clamp(max=longest - 1)
        left = torch.where(matches.any(1), self.ends[first] - lens, 0)
        return Draft(self.scripts[first].gather(1, positions), None, torch.minimum(lengths, left))
