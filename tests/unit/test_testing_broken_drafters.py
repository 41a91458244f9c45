"""The public kit finds out drafters that break a law, names it, and shows a small case."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from bass.drafters import ModelDrafter
from bass.interfaces import Drafter, DraftMethod, ForwardingRowStore, RowStore
from bass.ops.batch_state import last
from bass.records import Draft
from bass.testing import ExactnessError, check_drafter
from bass.testing import laws_of_drafters as drafters
from support.matrix import night

pytestmark = pytest.mark.usefixtures("unchecked")
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


class AnotherDistribution(Model):
    """Reports a flatter distribution than the one that it drew from."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        flat = draft.probs.sqrt()
        return replace(draft, probs=flat / flat.sum(2, keepdim=True))


class Unwarped(Model):
    """Draws at another temperature than it reports."""

    def build(self, context: Any) -> Drafter:
        def sharper(probs: Any, noise: Any, i: int) -> Any:
            return context.draw(probs.square() / probs.square().sum(1, keepdim=True), noise, i)

        return ModelDrafter(context.draft(), context.warp, sharper)


class TopFive(Model):
    """Draws from its five most probable tokens, and reports the distribution of all."""

    def build(self, context: Any) -> Drafter:
        def cut(probs: Any, noise: Any, i: int) -> Any:
            least = probs.topk(min(5, probs.shape[1]), 1).values[:, -1:]
            kept = torch.where(probs >= least, probs, 0)
            return context.draw(kept / kept.sum(1, keepdim=True), noise, i)

        return ModelDrafter(context.draft(), context.warp, cut)


class Coarse(Model):
    """Reports probabilities in steps of about 1/32, and none below."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        coarse = (draft.probs * 32).round().clamp(min=1)
        return replace(draft, probs=coarse / coarse.sum(2, keepdim=True))


class LateLie(Model):
    """Reports a flatter distribution from the third token on."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        flat = (draft.probs + 1 / draft.probs.shape[2]) / 2
        return replace(
            draft,
            probs=torch.where(torch.arange(draft.probs.shape[1])[:, None] < 2, draft.probs, flat),
        )


class LongRowsLie(Model):
    """Reports a flatter distribution for rows of more than 32 tokens."""

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Draft:
        assert draft.probs is not None
        flat = (draft.probs + 1 / draft.probs.shape[2]) / 2
        return replace(
            draft, probs=torch.where((sequences.lens > 32)[:, None, None], flat, draft.probs)
        )


class OneUniform(Model):
    """Draws all tokens of a draft with the same number."""

    def before(self, noise: Any) -> Any:
        return replace(noise, uniforms=noise.uniforms[:, :1].expand_as(noise.uniforms))


class Untruncated(Model):
    """Reports a flatter distribution where the one that it drew from has zeros."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        flat = (draft.probs + 1 / draft.probs.shape[2]) / 2
        return replace(
            draft, probs=torch.where((draft.probs == 0).any(2, keepdim=True), flat, draft.probs)
        )


class SharedNoise(Model):
    """Draws with the uniforms that decide whether a token is accepted."""

    def before(self, noise: Any) -> Any:
        return replace(noise, uniforms=noise.uniforms[..., [1, 1, 2, 3]])


class Retracting(Model):
    """Takes back a token that turned out improbable."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        own = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
        return replace(draft, lengths=torch.minimum(draft.lengths, (own > 0.3).cumprod(1).sum(1)))


class AtLeastOne(Model):
    """Drafts for rows of length 0."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, lengths=draft.lengths.clamp(min=1))


class Beyond(Model):
    """Tokens that are none."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, tokens=draft.tokens + 100)


class Unnormalised(Model):
    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, probs=draft.probs / 2)


class NotFinite(Model):
    """As of a draft model that overflows: NaN for every distribution of some token."""

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Draft:
        return replace(
            draft, probs=torch.where((draft.tokens == 1)[..., None], torch.nan, draft.probs)
        )


class Infinite(Model):
    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, probs=draft.probs / 0)


class Negative(Model):
    """Of sum 1 all the same."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        probs = draft.probs.clone()
        probs[..., 0] += 2 * probs[..., 1]
        probs[..., 1] *= -1
        return replace(draft, probs=probs)


class Rounded(Model):
    """Sums to 1.002, as of a softmax in half precision."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, probs=draft.probs * 1.002)


class BelowZero(Model):
    """A token that is none."""

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Draft:
        return replace(draft, tokens=torch.where(draft.tokens == 1, -1, draft.tokens))


class NoDraft(Model):
    """A tuple."""

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Any:
        return draft.tokens, draft.probs, draft.lengths


class NoTensor(Model):
    """Lists."""

    def after(self, draft: Draft, sequences: Any, lengths: Any) -> Any:
        return Draft(draft.tokens.tolist(), None, draft.lengths)


class Impossible(Model):
    """Reports that the drawn token could not be drawn."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        probs = torch.zeros_like(draft.probs).scatter(
            2, (draft.tokens[..., None] + 1) % draft.probs.shape[2], 1
        )
        return replace(draft, probs=probs)


class Eager(Model):
    """Commits what it drafts."""

    def after(self, draft: Any, sequences: Any, lengths: Any) -> Draft:
        sequences.steps.add_(1)
        return draft


class Copying(Drafter):
    """Every row drafts what row 0 said last."""

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens = last(sequences, 1)[0][:1].expand(len(lengths), k)
        return Draft(tokens, None, lengths.clone())


class Pooled(Drafter):
    """Lossless: every row drafts what most often followed its last token in all rows of the
    batch.
    """

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens, lens = sequences.tokens, sequences.lens
        pairs = tokens[:, :-1] * MOST + tokens[:, 1:]
        followed = sequences.active[:, None] & (torch.arange(pairs.shape[1]) < lens[:, None] - 1)
        after = torch.bincount(pairs[followed], minlength=MOST * MOST).reshape(MOST, MOST).argmax(1)
        columns = [after[last(sequences, 1)[0]]]
        for _ in range(k - 1):
            columns.append(after[columns[-1]])
        return Draft(torch.cat(columns, 1), None, lengths.clone())


class BatchWide(Pooled):
    """The same, and says so."""

    batch_invariant = False


class BatchWideAndBroken(BatchWide):
    """Reports that its tokens were drawn from a flat distribution."""

    vocab = 0

    def build(self, context: Any) -> Drafter:
        self.vocab = context.vocab_size
        return self

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        draft = super().propose(sequences, lengths, k, noise, span)
        return replace(draft, probs=torch.full((*draft.tokens.shape, self.vocab), 1 / self.vocab))


class BatchWideAndForgetful(BatchWide):
    """Drafts less in every run."""

    runs = 0

    def reserve(self, assignment: Any) -> None:
        type(self).runs += 1

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        draft = super().propose(sequences, lengths, k, noise, span)
        return replace(draft, lengths=lengths * (self.runs % 2))


def laws_broken(check: Any, *arguments: Any, **options: Any) -> ExactnessError:
    with pytest.raises(ExactnessError) as error:
        check(*arguments, **options)
    assert len(str(error.value).splitlines()) == 4
    return error.value


@pytest.mark.parametrize(
    ("drafter", "law", "shown"),
    [
        night(AnotherDistribution, drafters.LAW, "temperature"),
        night(Unwarped, drafters.LAW, "temperature"),
        night(TopFive, drafters.LAW, "24 tokens"),
        night(Coarse, drafters.LAW, "24 tokens"),
        night(LateLie, drafters.LAW, "temperature"),
        night(LongRowsLie, drafters.LAW, "of 40 tokens"),
        night(OneUniform, drafters.LAW, "temperature"),
        night(Untruncated, drafters.LAW, "24 tokens"),
        night(SharedNoise, drafters.LAW, "temperature"),
        night(Retracting, drafters.LAW, "temperature"),
        (AtLeastOne, drafters.LENGTHS, "prompt"),
        (Beyond, drafters.TOKENS, "1 row(s), ends of sequence []; prompt"),
        (Unnormalised, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (NotFinite, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (Infinite, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (Negative, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (Rounded, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (BelowZero, drafters.TOKENS, "1 row(s), ends of sequence []; prompt"),
        (NoDraft, drafters.DRAFT, "1 row(s), ends of sequence []; prompt"),
        (NoTensor, drafters.SHAPES, "1 row(s), ends of sequence []; prompt"),
        (Impossible, drafters.PROBS, "1 row(s), ends of sequence []; prompt"),
        (Eager, drafters.LEAVES, "1 row(s), ends of sequence []; prompt"),
        night(Copying, drafters.MATES, "prompt"),
        night(Pooled, drafters.MATES, "prompt"),
        night(BatchWideAndBroken, drafters.LAW, "temperature"),
        night(BatchWideAndForgetful, drafters.AGAIN, "prompt"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_drafter_that_breaks_a_law_is_told_which_and_where(
    drafter: type, law: str, shown: str
) -> None:
    broken = laws_broken(check_drafter, drafter, examples=20)
    assert broken.law == law
    assert shown in broken.case
    assert broken.case.count("; prompt") <= 6
