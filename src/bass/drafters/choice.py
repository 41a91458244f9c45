"""Several draft methods: the draft-length policy chooses the one that drafts in a step."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Int
from torch import Tensor

from bass.drafters.several import Several, SeveralDrafters
from bass.interfaces import Drafter, DrafterContext
from bass.records import Draft, Noise, Sequences


@final
@dataclass(frozen=True)
class Choice(Several):
    """Drafts with the one of `methods` that the policy chooses for each step, as `auto` and `exp3`
    do; other policies use the first.
    """

    paper: ClassVar[str] = "Hou et al., 2025 (BanditSpec)"

    def build(self, context: DrafterContext) -> Drafter:
        return ChoiceDrafter(*self.drafters(context))


@final
@dataclass(frozen=True)
class ChoiceDrafter(SeveralDrafters):
    """Has its drafters as parts, which the engine calls and feeds one by one."""

    drafters: tuple[Drafter, ...]
    reads: tuple[tuple[int, ...], ...]

    @property
    def choices(self) -> tuple[Drafter, ...]:
        return self.drafters

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        """The draft of the first part, in another drafter, such as an `ensemble`."""
        return self.drafters[0].propose(sequences, lengths, k, noise, span)
