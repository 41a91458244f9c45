"""`check_drafter` finds drafters that violate a property, some only with a stop rule, another
verifier, or the sampling options of rows.
"""

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bass.drafters import Block, Eagle, ModelDrafter
from bass.engine.assembly import shared_draw
from bass.errors import PairingError
from bass.interfaces import Drafter, DraftMethod, ForwardingRowStore, RowStore
from bass.ops import batch_state
from bass.records import Draft, Window
from bass.testing import ExactnessError, check_drafter
from bass.testing import properties_of_drafters as drafters
from bass.testing.checking import NO_ERROR
from support.block_heads import published
from support.heads import eagle
from support.matrix import night
from unit.checkpoints import Pair

pytestmark = pytest.mark.usefixtures("unchecked")
IDS = "eagle_aux_hidden_state_layer_ids"
MOST = 32  # tokens of a vocabulary of the kit, at most


@dataclass(frozen=True)
class Model(DraftMethod):
    """Correct: the library's model drafter, to be spoilt by `after`."""

    @property
    def needs_draft(self) -> bool:
        return True

    def build(self, context: Any) -> Drafter:
        return Spoilt(ModelDrafter(context.draft(), context.warp, context.draw), self)

    def before(self, noise: Any) -> Any:
        return noise

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Draft:
        return draft


@dataclass(frozen=True)
class Spoilt(ForwardingRowStore, Drafter):
    inner: Any
    by: Model

    @property
    def store(self) -> RowStore:
        return self.inner

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        return self.by.after(
            self.inner.propose(sequences, lengths, k, self.by.before(noise), span),
            sequences,
            lengths,
        )


def spoilt(name: str, **methods: Any) -> type[Model]:
    """A `Model` with other methods."""
    return type(name, (Model,), methods)


def draws(name: str, change: Any) -> type[Model]:
    """A `Model` that draws from other distributions than it reports."""

    def build(self: Model, context: Any) -> Drafter:
        def draw(probs: Any, noise: Any, i: int) -> Any:
            return context.draw(change(probs), noise, i)

        return ModelDrafter(context.draft(), context.warp, draw)

    return spoilt(name, build=build)


def whole(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def flatter(probs: Tensor) -> Tensor:
    return (probs + 1 / probs.shape[-1]) / 2


def top_five(probs: Tensor) -> Tensor:
    least = probs.topk(min(5, probs.shape[1]), 1).values[:, -1:]
    return whole(torch.where(probs >= least, probs, 0))


def in_long_rows(self: Model, draft: Any, sequences: Any, lengths: Any) -> Draft:
    long = (sequences.lens > 32)[:, None, None]
    return replace(draft, probs=torch.where(long, flatter(draft.probs), draft.probs))


def one_uniform(self: Model, noise: Any) -> Any:
    return replace(noise, uniforms=noise.uniforms[:, :1].expand_as(noise.uniforms))


def of_acceptance(self: Model, noise: Any) -> Any:
    return replace(noise, uniforms=noise.uniforms[..., [1, 1, 2, 3]])


def retracting(self: Model, draft: Any, *_: Any) -> Draft:
    own = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
    return replace(draft, lengths=torch.minimum(draft.lengths, (own > 0.3).cumprod(1).sum(1)))


def impossible(self: Model, draft: Any, *_: Any) -> Draft:
    """Reports that the drawn token could not be drawn."""
    next_token = (draft.tokens + 1) % draft.probs.shape[2]
    return replace(draft, probs=F.one_hot(next_token, draft.probs.shape[2]).float())


def writes_steps(self: Model, draft: Any, sequences: Any, lengths: Any) -> Draft:
    sequences.steps.add_(1)
    return draft


AnotherDistribution = spoilt(
    "AnotherDistribution", after=lambda self, d, *_: replace(d, probs=whole(d.probs.sqrt()))
)
LongRowsLie = spoilt("LongRowsLie", after=in_long_rows)
TopFive = draws("TopFive", top_five)
OneUniform = spoilt("OneUniform", before=one_uniform)
SharedNoise = spoilt("SharedNoise", before=of_acceptance)
Retracting = spoilt("Retracting", after=retracting)
AtLeastOne = spoilt(
    "AtLeastOne", after=lambda self, d, *_: replace(d, lengths=d.lengths.clamp(min=1))
)
Beyond = spoilt("Beyond", after=lambda self, d, *_: replace(d, tokens=d.tokens + 100))
Impossible = spoilt("Impossible", after=impossible)
Eager = spoilt("Eager", after=writes_steps)


class Pooled(Drafter):
    """Lossless: every row drafts what most often followed its last token in all rows of the
    batch.
    """

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens, lens = sequences.tokens, sequences.lens
        pairs = tokens[:, :-1] * MOST + tokens[:, 1:]
        followed = sequences.active[:, None] & (torch.arange(pairs.shape[1]) < lens[:, None] - 1)
        after = torch.bincount(pairs[followed], minlength=MOST * MOST).reshape(MOST, MOST).argmax(1)
        columns = [after[batch_state.last(sequences, 1)[0]]]
        for _ in range(k - 1):
            columns.append(after[columns[-1]])
        return Draft(torch.cat(columns, 1), None, lengths.clone())


class BatchWide(Pooled):
    """The same, and says so."""

    batch_invariant = False


class BatchWideAndForgetful(BatchWide):
    """Drafts less in every run."""

    runs = 0

    def reserve(self, assignment: Any) -> None:
        type(self).runs += 1

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        draft = super().propose(sequences, lengths, k, noise, span)
        return replace(draft, lengths=lengths * (self.runs % 2))


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


class ByPosition(Model):
    """Draws with noise of positions: the next step uses that of rejected tokens again."""

    def build(self, context: Any) -> Drafter:
        return ModelDrafter(context.draft(), context.warp, shared_draw)


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


class OptionsOfRowZero(Looped):
    """Draws by the options of the first row, and reports so."""

    def warped(self, context: Any, logits: Any, history: Any) -> Any:
        first = history.sampling[:1].expand_as(history.sampling)
        return super().warped(context, logits, replace(history, sampling=first))


def violation(check: Any, *arguments: Any, **options: Any) -> ExactnessError:
    with pytest.raises(ExactnessError) as error:
        check(*arguments, **options)
    assert len(str(error.value).splitlines()) == 4
    return error.value


@pytest.mark.parametrize(
    ("drafter", "property", "shown"),
    [
        night(AnotherDistribution, drafters.LAW, "temperature"),
        night(TopFive, drafters.LAW, "24 tokens"),
        night(LongRowsLie, drafters.LAW, "of 40 tokens"),
        night(OneUniform, drafters.LAW, "temperature"),
        night(SharedNoise, drafters.LAW, "temperature"),
        night(Retracting, drafters.LAW, "temperature"),
        (AtLeastOne, drafters.LENGTHS, "prompt"),
        (Beyond, NO_ERROR, "1 row(s), ends of sequence []; prompt"),
        (Impossible, NO_ERROR, "1 row(s), ends of sequence []; prompt"),
        (Eager, drafters.LEAVES, "1 row(s), ends of sequence []; prompt"),
        night(Pooled, drafters.MATES, "prompt"),
        night(BatchWideAndForgetful, drafters.AGAIN, "prompt"),
        night(RetractsAtTheRule, drafters.LAW_WITH_A_RULE, "3 tokens"),
        night(ByPosition, drafters.LAW_BY_BLOCK, "3 tokens"),
        night(LateReport, NO_ERROR, "prompt"),
        night(LatePenalties, drafters.LAW_OF_OPTIONS, "rows of 5 sampling options"),
        night(OptionsOfRowZero, drafters.MATES, "prompt"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_check_names_the_property_that_a_drafter_violates(
    drafter: type, property: str, shown: str
) -> None:
    broken = violation(check_drafter, drafter, examples=20)
    assert broken.property == property
    assert shown in broken.case
    assert broken.case.count("; prompt") <= 6


@pytest.mark.nightly
@pytest.mark.parametrize("drafter", [Model, BatchWide, Looped])
def test_the_drafters_that_these_are_made_from_violate_nothing(drafter: type) -> None:
    check_drafter(drafter, examples=3)


def test_a_drafter_is_checked_on_a_given_pair(pair: Pair) -> None:
    check_drafter(Model, examples=1, target=pair.target, draft=pair.target)
    with pytest.raises(PairingError, match="needs a draft: give `draft`"):
        check_drafter("model", target=pair.target)


@pytest.mark.parametrize("method", [Eagle(), Block(), "model"], ids=str)
def test_a_head_is_checked_on_its_target(
    method: DraftMethod | str, silent_pair: Pair, tmp_path: Path
) -> None:
    """With the states that the head reads; `model` stands for what the folder holds."""
    block = method == Block()
    head = published("z-lab", 50, 32) if block else eagle(50, 32).but(**{IDS: [0, 2, 1]})
    paths: dict[str, Any] = {"target": silent_pair.target, "draft": head.write(tmp_path / "head")}
    check_drafter(method, examples=1, **paths)


@pytest.mark.nightly
@pytest.mark.parametrize("head", ["eagle3", "block"])
def test_the_embedded_heads_keep_the_contract(head: str) -> None:
    pair = files("bass") / "pair"
    check_drafter(head, examples=1, target=f"{pair}/target", draft=f"{pair}/{head}")


@pytest.mark.nightly
def test_a_drafter_that_reports_a_flatter_distribution_is_found_on_a_given_pair(pair: Pair) -> None:
    paths = {"target": pair.target, "draft": pair.target}
    broken = violation(check_drafter, AnotherDistribution, examples=8, **paths)
    assert broken.property == drafters.LAW
