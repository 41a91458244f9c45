"""One speculative step on the device, from lengths to verdict: static shapes, no host read."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.drafters.validity import check_answer, in_int64, invalid_draft
from bass.engine.cost import Pass, PassLog
from bass.engine.prefill import (
    Part,
    Prompts,
    empty_segments,
    feed_parts,
    feeds_drafter,
    feeds_target,
)
from bass.engine.shapes import StepShape, StepShapes
from bass.engine.trimming import Trimming
from bass.errors import StrategyError
from bass.interfaces import Drafter, Scorer, Verifier, Warp
from bass.interfaces.answers import check_probs, check_tensor
from bass.ops.batch_state import (
    ReportedTokens,
    clipped,
    commit_and_report,
    unpack_numbers,
    unpack_tokens,
    valid_part,
    window,
)
from bass.ops.noise import step_noise
from bass.records import Draft, Noise, Observation, Sequences, Verdict, Window, copied


@dataclass
class StepReport:
    """The report of a step on the host.

    Its numbers, one per sequence, are Python's: the device waits for what the host does with them,
    and for few numbers Python is faster than NumPy. The rest is unpacked when it is first read.
    Like other records that the device waits for, it is not frozen: that takes twice as long.
    """

    lens: list[int]  # after the step
    active: list[int]  # after the step, 0 or 1
    drafted: list[int]  # without those that a trim took back
    verdict_accepted: list[int]  # `Verdict.accepted`: drafted tokens that the verifier accepts
    accepted: list[int]  # those that were committed: an end token or the limit may cut the verdict
    emitted: list[int]
    # 0 for valid draft and target distributions, else bits of `bass.kernels.values`
    flags: list[int]
    packed: Int[np.ndarray, "batch report"]  # of `pack_report`; it does not change any more
    passes: tuple[Pass, ...]  # of the drafter
    trimmed: list[int] | None = None  # drafted tokens that a trim took back, or `TOO_MANY`

    @classmethod
    def of(
        cls, packed: np.ndarray, passes: tuple[Pass, ...], has_trimmed: bool = False
    ) -> "StepReport":
        """has_trimmed: the last column is that of the trimmed tokens."""
        trimmed = packed[:, -1].tolist() if has_trimmed else None
        packed = packed[:, :-1] if has_trimmed else packed
        lens, active, drafted, judged, emitted, flags = unpack_numbers(packed)
        accepted = [*map(min, judged, emitted)]
        return cls(lens, active, drafted, judged, accepted, emitted, flags, packed, passes, trimmed)

    @cached_property
    def text(self) -> ReportedTokens:
        return unpack_tokens(self.packed)


@runtime_checkable
class Step(Protocol):
    """Advances a batch by one step.

    overlaps: the host may work, and even launch the next step, between `launch` and the report.
    shapes: all that there are, each to be prepared in advance.
    """

    target: Scorer
    drafter: Drafter
    verifier: Verifier
    warp: Warp
    vocab_size: int  # the target's
    log: PassLog
    draft_context: int = sys.maxsize  # no token is drafted for a position from here on
    trimming: Trimming | None = None
    overlaps: ClassVar[bool]
    shapes: StepShapes = StepShapes()

    def prefill(self, sequences: Sequences, parts: list[Part]) -> None:
        """Feed parts of prompts to their rows of the target, and its states to the drafter."""
        feed_parts(feeds_target(self.target, self.drafter), sequences, parts)

    def catch_up(
        self, sequences: Sequences, parts: list[Part], drafter: int = 0
    ) -> tuple[Pass, ...]:
        """Feed a drafter what it lacks of prompts and later tokens; returns the passes.

        drafter: its index in `Drafter.choices`.
        """
        feed = feeds_drafter(self.drafter.choices[drafter])
        feed_parts(feed, sequences, parts, catches_up=True)
        return self.log.take()

    def prepare_windows(self) -> None:
        """Do the work that the first prefill and catch-up of each shape would wait for."""

    def prepare(self, sequences: Sequences, shape: StepShape) -> None:
        """Do the work that the first step of this shape would wait for, without changing a row."""

    def prepared(self, shape: StepShape) -> bool:
        """Whether `prepare` has nothing left to do for this shape."""
        return True

    @abstractmethod
    def launch(
        self,
        sequences: Sequences,
        lengths: list[int],
        shape: StepShape,
        parts: Sequence[Part] = (),
    ) -> Callable[[], StepReport]:
        """Advance every active row by one step, drafting `lengths[b] <= shape.k` tokens, and feed
        parts of prompts, which fit in `shape.segments`, to other rows of the target.

        The returned callable waits for the report.
        """
        ...


def prompts_for(sequences: Sequences, shape: StepShape) -> Prompts | None:
    """Segments without a token, as many as a step of this shape feeds."""
    if not shape.segments:
        return None
    with torch.inference_mode(False):  # writable inside and outside of it
        return empty_segments(shape.segments, sequences.capacity, sequences.lens.device)


@final
@dataclass(frozen=True)
class SpeculativeStep(Step):
    """Draft, score, verify, commit."""

    overlaps: ClassVar[bool] = False
    target: Scorer
    drafter: Drafter
    verifier: Verifier
    warp: Warp
    vocab_size: int
    log: PassLog = field(default_factory=PassLog)
    draft_context: int = sys.maxsize
    # the strategies whose answers have been checked: types and shapes are, once for each run
    checked: set[str] = field(default_factory=set)
    trimming: Trimming | None = None
    shapes: StepShapes = field(default_factory=StepShapes)

    def launch(
        self,
        sequences: Sequences,
        lengths: list[int],
        shape: StepShape,
        parts: Sequence[Part] = (),
    ) -> Callable[[], StepReport]:
        prompts, requested = prompts_for(sequences, shape), torch.as_tensor(lengths)
        if prompts is not None:
            prompts.hold(parts)
        packed, passes = self.on_device(
            sequences, requested.to(sequences.lens.device), shape, prompts
        )
        trims = self.trimming is not None
        # sync: the only one of a step
        return lambda: StepReport.of(packed.cpu().numpy(), passes, trims)

    def on_device(
        self,
        sequences: Sequences,
        lengths: Int[Tensor, " batch"],
        shape: StepShape,
        prompts: Prompts | None = None,
    ) -> tuple[Int[Tensor, "batch report"], tuple[Pass, ...]]:
        """Run the capturable part; returns a packed `StepReport` for one copy to the host, and the
        drafter's passes. With a trim, the report has one more column: the trimmed tokens.

        prompts: of `shape.segments`, fed by the target's pass.
        """
        self.log.take()  # drops the passes of prefills and others outside of steps
        k, span, packed, chosen, _ = shape
        noise = step_noise(sequences.keys, sequences.steps, sequences.lens, k)
        draft, flags = self.drafted(sequences, lengths, k, noise, span, chosen)
        trimmed = None
        if self.trimming is not None:
            draft, trimmed = self.trimming(sequences, draft, chosen, packed, self.is_first)
        fed = Window(*window(sequences, draft), span, most=packed)
        scored = self.target(fed if prompts is None else replace(fed, prompts=prompts.window))
        report, emitted, verdict = self.judged(sequences, draft, flags, scored.logits, noise)
        if self.trimming is not None and trimmed is not None:
            self.trimming.learn(draft, verdict)
            report = torch.cat((report, trimmed[:, None]), 1)
        if self.drafter.observes:
            # the committed part of the window; nothing of an idle row
            index = torch.arange(fed.positions.shape[1], device=emitted.device)
            committed = torch.where(index < emitted[:, None], fed.positions, -1)
            accepted = torch.minimum(verdict.accepted, emitted)
            seen = replace(fed, positions=committed)
            self.drafter.observe(Observation(seen, verdict.tokens, scored.features, accepted))
        passes = self.log.take()
        if self.drafter.observes and prompts is not None:
            self.drafter.observe(Observation(*prompts, scored.of_prompts))
            self.log.take()
        return report, passes

    def drafted(
        self,
        sequences: Sequences,
        lengths: Int[Tensor, " batch"],
        k: int,
        noise: Noise,
        span: int,
        chosen: int = 0,
    ) -> tuple[Draft, Int[Tensor, " batch"]]:
        """The draft of the chosen drafter to verify: up to `lengths[b] <= k` tokens for row b, none
        for an idle row.

        Also returns a flag for each row, 0 for a valid draft: see
        `bass.ops.batch_state.valid_part`. Raises `StrategyError` for an answer of another type or
        shape, and on a CPU for any invalid draft.
        """
        # a step that is launched ahead may include rows that have ended since
        lengths = clipped(lengths, sequences.lens, sequences.limits, sequences.active)
        if not k:
            empty = Draft(lengths.new_zeros(len(lengths), 0), None, torch.zeros_like(lengths))
            return empty, torch.zeros_like(lengths)
        drafter = self.drafter.choices[chosen]
        writes = drafter.writes_inputs
        requested, given = copied((lengths, noise)) if writes else (lengths, noise)
        answer = drafter.propose(sequences, requested, k, given, span)
        if self.is_first(f"drafter {chosen}"):
            check_answer(drafter, answer, lengths, k, self.vocab_size)
        proposed = in_int64(drafter, answer, lengths)
        draft, flags = valid_part(lengths, proposed, self.vocab_size)
        if flags.device.type == "cpu" and (found := max(flags.tolist())):
            raise invalid_draft(drafter, found)
        return draft, flags

    def judged(
        self,
        sequences: Sequences,
        draft: Draft,
        flags: Int[Tensor, " batch"],
        logits: Float[Tensor, "batch window vocab"],
        noise: Noise,
    ) -> tuple[Int[Tensor, "batch report"], Int[Tensor, " batch"], Verdict]:
        """Verify and commit; returns the packed report, the numbers of emitted tokens, and the
        verdict.

        flags: those of `drafted`; the returned report adds the flags of the target's distributions
        that decide the emitted tokens.
        """
        warped = self.warp(logits, sequences.history(draft.tokens))
        probs = check_probs(self.warp, warped, logits) if self.is_first("warp") else warped
        given = copied((draft, noise)) if self.verifier.writes_inputs else (draft, noise)
        answer = self.verifier(given[0], probs, given[1])
        if self.is_first("verifier"):
            check_verdict(self.verifier, answer, logits)
        verdict = Verdict(answer.tokens.to(torch.int64), answer.accepted.to(torch.int64))
        jointly = self.verifier.judges_jointly
        report, emitted = commit_and_report(
            sequences, draft, flags, verdict, logits, probs, jointly
        )
        return report, emitted, verdict

    def is_first(self, strategy: str) -> bool:
        """Whether a strategy has not been called before."""
        first = strategy not in self.checked
        self.checked.add(strategy)
        return first


def check_verdict(verifier: Verifier, verdict: object, logits: Tensor) -> None:
    """Raise `StrategyError` for an answer that is no verdict on the window of these logits.

    Only shapes and types are checked.
    """
    name, window = type(verifier).__name__, logits.shape[:2]
    if not isinstance(verdict, Verdict):
        raise StrategyError(
            f"`{name}` returned {type(verdict).__name__}: return a `bass.records.Verdict`."
        )
    answers = {"tokens": (verdict.tokens, window), "accepted": (verdict.accepted, window[:1])}
    for part, (value, shape) in answers.items():
        check_tensor(
            value, f"`{part}` of the verdict of `{name}`", "integers", shape, logits.device
        )
