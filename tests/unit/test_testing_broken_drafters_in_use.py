"""The public kit finds out drafters that are right in a plain run, and wrong with a stop rule, with
another verifier, or with sampling options of rows.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from bass.drafters import ModelDrafter
from bass.engine.drafter_context import SharedDraw
from bass.interfaces import Drafter, ForwardingRowStore, RowStore
from bass.ops import batch_state
from bass.records import Draft, Window
from bass.testing import check_drafter
from bass.testing import laws_of_drafters as drafters
from support.matrix import night
from unit.test_testing_broken_drafters import Model, laws_broken

pytestmark = pytest.mark.usefixtures("unchecked")


class Looped(Model):
    """Correct: a draft loop of its own, which obeys stop rules, to be spoilt."""

    @property
    def obeys_stop_rules(self) -> bool:
        return True

    def build(self, context: Any) -> Drafter:
        return Loop(context.draft(), context, self)

    def warped(self, context: Any, logits: Any, history: Any) -> Any:
        """The distribution of the next token."""
        return context.warp(logits, history)

    def ends(self, fires: Any, own: Any, token: Any) -> Any:
        """How many tokens fewer than one a row keeps where its draft ends, and 1 elsewhere."""
        return torch.where(fires, 0, 1)

    def reported(self, context: Any, probs: Any, logits: Any, history: Any) -> Any:
        return probs


@dataclass(frozen=True)
class Loop(ForwardingRowStore, Drafter):
    scorer: Any
    context: Any
    by: Looped

    @property
    def store(self) -> RowStore:
        return self.scorer

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens, positions = batch_state.last(sequences, 2)
        later = batch_state.draft_positions(sequences.lens, lengths, k)
        drafted, all_probs, all_logits = sequences.tokens[:, :0], [], []
        for i in range(k):
            logits = self.scorer(Window(tokens, positions, span)).logits[:, -1:]
            probs = self.by.warped(self.context, logits, sequences.history(drafted))
            token = self.context.draw(probs[:, 0], noise, i)
            if self.context.stop_rule is not None:
                own = logits[:, 0].softmax(-1)
                more = self.by.ends(self.context.stop_rule(own, i), own, token)
                lengths = torch.where(more < 1, lengths.clamp(max=i + 1 + more), lengths)
            drafted = torch.cat((drafted, token[:, None]), 1)
            all_probs.append(probs)
            all_logits.append(logits)
            tokens, positions = token[:, None], later[:, i : i + 1]
        probs, logits = torch.cat(all_probs, 1), torch.cat(all_logits, 1)
        return Draft(
            drafted,
            self.by.reported(self.context, probs, logits, sequences.history(drafted)),
            lengths.clamp(min=0),
        )


class RetractsAtTheRule(Looped):
    """Takes back the token at which the rule fires, if that is improbable."""

    def ends(self, fires: Any, own: Any, token: Any) -> Any:
        improbable = own.gather(1, token[:, None])[:, 0] < 0.3
        return torch.where(fires, -improbable.long(), 1)


class StopsTogether(Looped):
    """Ends every row's draft where the rule fires in one."""

    def ends(self, fires: Any, own: Any, token: Any) -> Any:
        return super().ends(fires.any().expand_as(fires), own, token)


class ByPosition(Model):
    """Draws with noise of positions: the next step uses that of rejected tokens again."""

    def build(self, context: Any) -> Drafter:
        return ModelDrafter(context.draft(), context.warp, SharedDraw())


class LateReport(Looped):
    """Reports by one call of the warp, whose last distribution follows the last drafted token."""

    def reported(self, context: Any, probs: Any, logits: Any, history: Any) -> Any:
        return context.warp(logits, history)


class LatePenalties(LateReport):
    """The same, but for the distributions that exclude the token that was drawn."""

    def reported(self, context: Any, probs: Any, logits: Any, history: Any) -> Any:
        late = super().reported(context, probs, logits, history)
        own = late.gather(2, history.drafted[..., None])
        return torch.where(own > 0, late, probs)


class RawReport(Looped):
    """Reports the distribution before temperature, top-k, top-p and min-p."""

    def reported(self, context: Any, probs: Any, logits: Any, history: Any) -> Any:
        return logits.softmax(-1)


class OptionsOfRowZero(Looped):
    """Draws by the options of the first row, and reports so."""

    def warped(self, context: Any, logits: Any, history: Any) -> Any:
        first = history.sampling[:1].expand_as(history.sampling)
        return super().warped(context, logits, replace(history, sampling=first))


class EndsEarly(Looped):
    """Reports a draft's distributions without `min_new_tokens`."""

    def reported(self, context: Any, probs: Any, logits: Any, history: Any) -> Any:
        sampling = history.sampling.clone()
        sampling[:, -1] = 0
        before = [replace(history, sampling=sampling, drafted=d) for d in prefixes(history.drafted)]
        return torch.cat([context.warp(logits[:, [i]], h) for i, h in enumerate(before)], 1)


def prefixes(drafted: Any) -> list[Any]:
    """The drafted tokens before each."""
    return [drafted[:, :i] for i in range(drafted.shape[1])]


class Contrasts(Model):
    """Subtracts the mean logit, which is -inf where the draft model knows fewer tokens."""

    def build(self, context: Any) -> Drafter:
        def warp(logits: Any, history: Any) -> Any:
            return context.warp(logits - logits.mean(-1, keepdim=True), history)

        return ModelDrafter(context.draft(), warp, context.draw)


@pytest.mark.parametrize(
    ("drafter", "law", "shown"),
    [
        night(RetractsAtTheRule, drafters.LAW_WITH_A_RULE, "3 tokens"),
        night(StopsTogether, drafters.MATES_WITH_A_RULE, "prompt"),
        night(ByPosition, drafters.LAW_BY_BLOCK, "3 tokens"),
        (LateReport, drafters.PROBS, "prompt"),
        night(LatePenalties, drafters.LAW_OF_OPTIONS, "rows of 5 sampling options"),
        night(RawReport, drafters.LAW, "top_p=0.8"),
        night(OptionsOfRowZero, drafters.MATES, "prompt"),
        night(EndsEarly, drafters.LAW_OF_OPTIONS, "rows of 5 sampling options"),
        night(Contrasts, drafters.PROBS, "24 tokens"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_drafter_that_is_right_in_a_plain_run_is_found_out_in_use(
    drafter: type, law: str, shown: str
) -> None:
    broken = laws_broken(check_drafter, drafter, examples=20)
    assert broken.law == law
    assert shown in broken.case


@pytest.mark.nightly
def test_the_loop_that_these_drafters_spoil_is_correct() -> None:
    check_drafter(Looped, examples=4)
