"""The public kit finds out drafters and verifiers that break a law, names it, and shows a small
case.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from bass.drafters import ModelDrafter
from bass.errors import OptionError
from bass.interfaces import Drafter, DraftMethod, ForwardingRowStore, RowStore, Verifier
from bass.ops.batch_state import last, leading
from bass.ops.noise import exponential_race
from bass.ops.sampling import draw
from bass.ops.verification import accept_probs, emit, next_probs, target_after
from bass.records import Draft, Verdict
from bass.testing import ExactnessError, check_drafter, check_verifier
from bass.testing import laws_of_drafters as drafters
from bass.testing import laws_of_verifiers as verifiers
from bass.testing.enumeration import exact_match_cuts, rejection_cuts
from bass.verifiers.rejection import Rejection

pytestmark = pytest.mark.usefixtures("unchecked")
MOST = 16  # tokens of a vocabulary of the kit, at most


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
        (AnotherDistribution, drafters.LAW, "temperature"),
        pytest.param(Unwarped, drafters.LAW, "temperature", marks=pytest.mark.nightly),
        pytest.param(
            LateLie, drafters.LAW, "temperature=1.0, top_p=1.0", marks=pytest.mark.nightly
        ),
        pytest.param(LongRowsLie, drafters.LAW, "of 40 tokens", marks=pytest.mark.nightly),
        pytest.param(OneUniform, drafters.LAW, "temperature", marks=pytest.mark.nightly),
        pytest.param(Untruncated, drafters.LAW, "top_p=0.8", marks=pytest.mark.nightly),
        pytest.param(SharedNoise, drafters.LAW, "temperature", marks=pytest.mark.nightly),
        pytest.param(Retracting, drafters.LAW, "temperature", marks=pytest.mark.nightly),
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
        pytest.param(Copying, drafters.MATES, "prompt", marks=pytest.mark.nightly),
        (Pooled, drafters.MATES, "prompt"),
        pytest.param(BatchWideAndBroken, drafters.LAW, "temperature", marks=pytest.mark.nightly),
        (BatchWideAndForgetful, drafters.AGAIN, "prompt"),
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


class Boundary(Verifier):
    """The residual at a row's own length too, where nothing was refused."""

    lossless = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        k = draft.tokens.shape[1]
        if not k:
            return emit(draft, torch.zeros_like(draft.lengths), target_probs[:, 0], noise)
        accepted = leading(noise.accept[:, :k] < accept_probs(draft, target_probs), draft.lengths)
        longer = replace(draft, lengths=torch.where(draft.lengths > 0, k, 0))
        return emit(draft, accepted, next_probs(longer, target_probs, accepted), noise)


@dataclass(frozen=True)
class Spoiled(Verifier):
    """Correct: rejection, to be spoilt."""

    lossless = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return Rejection()(draft, target_probs, noise)


class BonusOfTheDraft(Spoiled):
    """After a row's whole draft, the next token comes from the distribution of its last one."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return emit(
            draft,
            verdict.accepted,
            target_after(target_probs, (verdict.accepted - 1).clamp(min=0)),
            noise,
        )


class DraftsUniform(Spoiled):
    """Replaces a refused token with the uniform that drew it."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            draft, target_probs, replace(noise, uniforms=noise.uniforms[..., [0, 1, 0, 3]])
        )


class SeesBeyond(Spoiled):
    """Weighs all places of a window, with zero those beyond a row's own: right, unless they hold
    what is not finite.
    """

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        places = torch.arange(target_probs.shape[1])
        own = (places <= draft.lengths[:, None])[..., None]
        return super().__call__(
            draft,
            target_probs + (1e-30 * (1 - own * 1.0) * target_probs).sum(1, keepdim=True),
            noise,
        )


class LateBias(Spoiled):
    """Accepts too much from the fourth drafted token on."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        late = torch.arange(noise.uniforms.shape[1]) >= 3
        uniforms = torch.where(
            late[:, None] & (torch.arange(4) == 1), noise.uniforms / 2, noise.uniforms
        )
        return super().__call__(draft, target_probs, replace(noise, uniforms=uniforms))


class FarBias(Spoiled):
    """Accepts too much where a row is long."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        far = (noise.first > 20)[:, None, None] & (torch.arange(4) == 1)
        return super().__call__(
            draft,
            target_probs,
            replace(noise, uniforms=torch.where(far, noise.uniforms * 0.3, noise.uniforms)),
        )


class Random(Spoiled):
    """Draws noise of its own."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            draft, target_probs, replace(noise, uniforms=torch.rand_like(noise.uniforms))
        )


class Crowded(Spoiled):
    """Replaces a rejected token with one of the eight most probable ones of the residual."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        residual = (
            next_probs(draft, target_probs, verdict.accepted)
            if draft.tokens.shape[1]
            else target_probs[:, 0]
        )
        least = residual.topk(min(8, residual.shape[1]), -1).values[:, -1:]
        return emit(draft, verdict.accepted, torch.where(residual < least, 0, residual), noise)


class AcceptsAll(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return emit(draft, draft.lengths, target_after(target_probs, draft.lengths), noise)


class LeavesLengthsOut(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(
            replace(draft, lengths=torch.full_like(draft.lengths, draft.tokens.shape[1])),
            target_probs,
            noise,
        )


class ByTheMinimum(Spoiled):
    """Every row accepts as many as the worst."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(
            verdict, accepted=verdict.accepted.amin().expand(len(verdict.accepted)).clone()
        )


class OfThePlace(Spoiled):
    """Refuses everything in every other row, and draws from the target there, which is lossless in
    itself.
    """

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        nothing = replace(
            draft, lengths=draft.lengths * (torch.arange(len(draft.lengths)) % 2 == 0)
        )
        return super().__call__(nothing, target_probs, noise)


class Narrow(Spoiled):
    """Without the token after the accepted ones."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(verdict, tokens=verdict.tokens[:, :-1])


class Shifted(Spoiled):
    """Emits the draft one token late."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        return replace(verdict, tokens=verdict.tokens.roll(1, 1))


class InPlace(Spoiled):
    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        target_probs /= 2
        return super().__call__(draft, target_probs, noise)


class Cleans(Spoiled):
    """Replaces what is not finite where it stands."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        return super().__call__(draft, target_probs.nan_to_num_(), noise)


class MarksDraft(Spoiled):
    """Writes zero for what was rejected."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        if draft.probs is not None and draft.tokens.shape[1]:
            rejected = torch.arange(draft.tokens.shape[1]) >= verdict.accepted[:, None]
            draft.probs.masked_fill_(rejected[..., None], 0)
        return verdict


class MovesOn(Spoiled):
    """Counts the positions of the noise on."""

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        verdict = super().__call__(draft, target_probs, noise)
        noise.first.add_(verdict.accepted + 1)
        return verdict


@dataclass(frozen=True)
class StepsRace(Verifier):
    """Coupled by its own account, but its noise begins again in every step."""

    lossless = True
    coupled = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        tokens = exponential_race(
            target_probs, noise.keys, torch.zeros_like(noise.first) + noise.first % 2
        )
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@dataclass(frozen=True)
class OwnNoise(Verifier):
    """Coupled by its own account, and draws with the noise of steps."""

    lossless = True
    coupled = True

    def __call__(self, draft: Any, target_probs: Any, noise: Any) -> Verdict:
        tokens = draw(target_probs, noise.residual[:, : target_probs.shape[1]])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@pytest.mark.parametrize(
    ("verifier", "law"),
    [
        (Boundary, verifiers.BEYOND),
        (SeesBeyond, verifiers.BEYOND),
        pytest.param(BonusOfTheDraft, verifiers.LAW, marks=pytest.mark.nightly),
        pytest.param(DraftsUniform, verifiers.LAW, marks=pytest.mark.nightly),
        (AcceptsAll, verifiers.LAW),
        pytest.param(Crowded, verifiers.LAW, marks=pytest.mark.nightly),
        pytest.param(FarBias, verifiers.LAW, marks=pytest.mark.nightly),
        (Random, verifiers.SAME),
        (LeavesLengthsOut, verifiers.COUNTS),
        (ByTheMinimum, verifiers.MATES),
        pytest.param(OfThePlace, verifiers.MATES, marks=pytest.mark.nightly),
        (Narrow, verifiers.SHAPES),
        (Shifted, verifiers.PREFIX),
        (InPlace, verifiers.LEAVES),
        (Cleans, verifiers.LEAVES),
        (MarksDraft, verifiers.LEAVES),
        (MovesOn, verifiers.LEAVES),
        (OwnNoise, verifiers.SEED),
        pytest.param(StepsRace, verifiers.SEED, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_verifier_that_breaks_a_law_is_told_which_and_where(verifier: type, law: str) -> None:
    broken = laws_broken(check_verifier, verifier, examples=30)
    assert broken.law == law
    assert len(broken.case) < 700


def test_with_its_breakpoints_a_verifier_is_judged_without_chance() -> None:
    check_verifier(Spoiled, rejection_cuts, examples=4)
    broken = laws_broken(check_verifier, AcceptsAll, rejection_cuts, examples=10)
    assert broken.law == verifiers.LAW
    assert "total variation" not in broken.found
    assert (
        laws_broken(check_verifier, Spoiled, exact_match_cuts, examples=10).law == verifiers.BOXES
    )
    with pytest.raises(OptionError, match="leave it out"):
        check_verifier("coupled", rejection_cuts)
    with pytest.raises(OptionError, match="`examples=0` must be an integer of 1 or more"):
        check_verifier(Spoiled, examples=0)


@pytest.mark.nightly
def test_with_its_breakpoints_a_bias_of_late_tokens_is_found() -> None:
    assert laws_broken(check_verifier, LateBias, rejection_cuts, examples=30).law == verifiers.LAW


class Narrow(Drafter):
    """Token 1, in eight bits."""

    def propose(self, sequences: Any, lengths: Any, k: int, noise: Any, span: int) -> Draft:
        tokens = torch.ones(len(lengths), k, dtype=torch.int8, device=lengths.device)
        return Draft(tokens, None, lengths.to(torch.int16))


def test_what_the_broken_ones_were_made_from_breaks_no_law() -> None:
    check_drafter(Narrow, examples=2)
    check_drafter(Model, examples=2)
    check_drafter(BatchWide, examples=2)
    check_verifier(Spoiled, examples=2)
