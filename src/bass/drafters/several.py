"""Several draft methods, all of which hold their rows and observe each step; of a `choice` the
draft-length policy chooses the one that drafts in a step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, final

from jaxtyping import Int
from torch import Tensor

from bass.drafters.model import ModelDraft
from bass.drafters.ngram import Ngram
from bass.drafters.validity import built
from bass.errors import OptionError
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.records import (
    Draft,
    Features,
    Noise,
    Observation,
    RowAssignment,
    Sequences,
    Window,
    copied,
)

# by attribute of a `DraftMethod`: that of several, from those of each
OF_ALL: dict[str, Callable[[Iterable[Any]], Any]] = {
    "batch_invariant": all,
    "needs_draft": any,
    "draft_in_target": any,
    "obeys_stop_rules": any,
    "target_layers": max,
    "target_features": lambda states: tuple(sorted({*chain.from_iterable(states)})),
}


@dataclass(frozen=True)
class Several(DraftMethod):
    """A method that is made of `methods`."""

    methods: Sequence[DraftMethod] = (Ngram(), ModelDraft())

    def __post_init__(self) -> None:
        if not self.methods:
            name = type(self).__name__
            raise OptionError(f"`{name}(methods=...)` is empty: give one drafter or more.")
        object.__setattr__(self, "methods", tuple(self.methods))
        for name, of_all in OF_ALL.items():
            object.__setattr__(self, name, of_all(getattr(one, name) for one in self.methods))

    def with_head(self, head: Any, layers: int) -> DraftMethod:
        return replace(self, methods=[one.with_head(head, layers) for one in self.methods])

    def drafters(
        self, context: DrafterContext
    ) -> tuple[tuple[Drafter, ...], tuple[tuple[int, ...], ...]]:
        """The drafters, and the indices of each one's features among those of all."""
        index = self.target_features.index
        return (
            tuple(built(method, context) for method in self.methods),
            tuple(tuple(map(index, method.target_features)) for method in self.methods),
        )


def is_ours(method: DraftMethod) -> bool:
    """Whether no user's class drafts. Ours do not write to what they have passed on."""
    parts = method.methods if isinstance(method, Several) else ()
    return type(method).__module__.startswith("bass.drafters.") and all(map(is_ours, parts))


class SeveralDrafters(Drafter):
    """Forwards all but `propose` to each of the drafters.

    reads: indices of each one's features among those that are observed.
    """

    drafters: tuple[Drafter, ...]
    reads: tuple[tuple[int, ...], ...]

    @property
    def label(self) -> str:
        return " or ".join(drafter.label for drafter in self.drafters)

    @property
    def writes_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(drafter.writes_inputs for drafter in self.drafters)

    def reserve(self, assignment: RowAssignment) -> None:
        for drafter in self.drafters:
            drafter.reserve(copied(assignment) if drafter.writes_inputs else assignment)

    @property
    def fills(self) -> bool:
        return any(drafter.fills for drafter in self.drafters)

    def fill(self, window: Window) -> Features:
        for drafter in self.drafters:
            drafter.fill(window)
        return ()

    @property
    def observes(self) -> bool:
        return any(drafter.observes for drafter in self.drafters)

    def observe(self, seen: Observation) -> None:
        for drafter, reads in zip(self.drafters, self.reads, strict=True):
            if drafter.observes:
                own = tuple(seen.features[i] for i in reads)
                drafter.observe(replace(seen, features=own))

    def copy_rows(self, assignment: RowAssignment) -> None:
        for drafter in self.drafters:
            drafter.copy_rows(copied(assignment) if drafter.writes_inputs else assignment)


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
