"""Checks the checkpoints of a plan against its cells, from headers only."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from bass.api.checks import check_context, check_stops, stop_token_ids
from bass.api.loading import Checkpoint, ModelSpec, check_family, check_pair
from bass.api.plan import CHECKPOINTS, LoadPlan
from bass.checkpoints.hub import HUB_ID
from bass.drafters.validity import layers_of
from bass.engine.drafter_context import check_features
from bass.errors import BassError
from bass.experiments.config import Plan
from bass.experiments.prompting import TooLongError, answer_tokens, lengths, plain_turns
from bass.models.first_layers import FirstLayers
from bass.problems import Problems
from bass.runs.settings import Settings

# if the value of one of these was replaced by its default, the intended pair is unknown
_OF_PAIR = {*CHECKPOINTS, "policy", "drafter"}
_OF_LENGTH = {"target", "draft", "prompts", "num_prompts", "max_new_tokens"}


def check_checkpoints(plan: Plan, problems: Problems | None = None) -> Plan:
    """Raise an `OptionError` for a plan with checkpoints that are missing or damaged, do not match,
    or are too small for a cell. Returns the plan without the prompts that `skip_long` leaves out.

    Reports all problems, including earlier ones; with earlier problems, it does not access the hub.
    """
    problems = problems or Problems()
    checks = _Checks(problems, offline=bool(problems.sentences))
    for cell in plan.cells:
        checks.check(cell.settings, plan.load_plans.of(cell.settings), problems.replaced)
    for one in plan.repaired:
        checks.check(
            one.settings, plan.load_plans.of(one.settings), problems.replaced | one.replaced
        )
    problems.raise_any(f"The config `{plan.name}`")
    cells = [replace(cell, settings=checks.without_long(cell.settings)) for cell in plan.cells]
    return replace(plan, cells=cells, remarks=[*checks.remarks])


@final
@dataclass
class _Checks:
    """Checks cells. Thousands may share checkpoints and prompts, so each result is cached."""

    problems: Problems
    offline: bool
    # by folder or hub id, adapter and family
    _checkpoints: dict[tuple[object, ...], Checkpoint | None] = field(default_factory=dict)
    _vocabularies: dict[tuple[ModelSpec, ModelSpec | None], int | None] = field(
        default_factory=dict
    )
    # by checkpoint, context and prompts: the length of each, see `lengths`
    _lengths: dict[tuple[object, ...], list[int | BassError]] = field(default_factory=dict)
    # by prompts and new tokens, for cells that leave out long prompts: which of them are too long
    # for some of the cells, with the smallest context; and the others, as a config has them
    _long: dict[tuple[object, ...], tuple[set[int], int]] = field(default_factory=dict)
    _kept: dict[tuple[object, ...], list[Any]] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    _checked: set[tuple[object, ...]] = field(default_factory=set)

    def check(self, settings: Settings, load_plan: LoadPlan, replaced: Collection[str]) -> None:
        """Record the problems of a cell.

        Settings that were replaced by their defaults are not checked.
        """
        method = load_plan.parts.drafter
        key = (
            load_plan.target,
            load_plan.draft,
            method.needs_draft,
            repr(method.target_layers),
            repr(method.target_features),
            frozenset(replaced),
        )
        key = (*key, *settings.source, settings.skip_long, settings.max_new_tokens)
        key = (*key, repr(settings.stop_token_ids), bool(settings.stops))
        if key in self._checked:
            return
        self._checked.add(key)
        if "family" in replaced:
            return
        target = self._checkpoint(load_plan.target)
        draft = None if load_plan.draft is None else self._checkpoint(load_plan.draft)
        if (
            target is None
            or (load_plan.draft is not None and draft is None)
            or not _OF_PAIR.isdisjoint(replaced)
        ):
            return
        if load_plan.draft is None and method.needs_draft:
            self.problems.add(
                f"The target `{load_plan.target.checkpoint}` needs a draft: give `--draft`, or a "
                "drafter that needs no draft model."
            )
            return
        with self.problems.noted():
            check_features(method, target.index.decoder.shape.layers)
        with self.problems.noted():
            if first := layers_of(method):
                FirstLayers.check(target.index.decoder, first)
        with self.problems.noted():
            check_family(load_plan.target.family, target, *([] if draft is None else [draft]))
        vocabulary = self._vocabulary(load_plan, target, draft)
        with self.problems.noted():
            check_stops(settings.stops, target.tokenizer is not None)
        with self.problems.noted():
            stop_token_ids(settings.stop_token_ids, vocabulary)
        if vocabulary is not None and _OF_LENGTH.isdisjoint(replaced):
            self._check_prompts(settings, vocabulary, target, draft)

    def _checkpoint(self, spec: ModelSpec) -> Checkpoint | None:
        key = (spec.checkpoint, spec.lora, spec.family)
        if key not in self._checkpoints:
            self._checkpoints[key] = None
            names = [name for name in (spec.checkpoint, spec.lora) if name is not None]
            if not self.offline or not any(_on_hub(name) for name in names):
                with self.problems.noted():
                    self._checkpoints[key] = Checkpoint.of(spec)
        return self._checkpoints[key]

    def _vocabulary(
        self, load_plan: LoadPlan, target: Checkpoint, draft: Checkpoint | None
    ) -> int | None:
        """Its size; None if the two do not form a pair."""
        if draft is None:
            return target.index.decoder.shape.vocab_size
        key = (load_plan.target, load_plan.draft)
        if key not in self._vocabularies:
            self._vocabularies[key] = None
            with self.problems.noted():
                check_pair(target, draft)
                self._vocabularies[key] = target.index.decoder.shape.vocab_size
        return self._vocabularies[key]

    def _check_prompts(
        self, settings: Settings, vocabulary: int, target: Checkpoint, draft: Checkpoint | None
    ) -> None:
        positions = min(
            checkpoint.index.decoder.shape.max_positions
            for checkpoint in (target, draft)
            if checkpoint is not None
        )
        entries, tokenizer = settings.read_prompts(), target.tokenizer
        if settings.num_prompts is not None and len(entries) < settings.num_prompts:
            self.remarks[
                f"`num_prompts` is {settings.num_prompts}, and there are {len(entries)}: all run."
            ] = None
        key = (str(target.index.folder), positions, *settings.source)
        if key not in self._lengths:
            self._lengths[key] = []
            with self.problems.noted():
                self._lengths[key] = lengths(tokenizer, vocabulary, entries, positions)
            if wrong := next((one for one in self._lengths[key] if _is_wrong(one)), None):
                self.problems.add(str(wrong))
            if plain_turns(entries, tokenizer):
                self.remarks[
                    f"The conversations are plain text with `User:` and `Assistant:`, since "
                    f"`{target.index.folder}` has no chat template."
                ] = None
        room = positions - settings.max_new_tokens
        needed = [
            (positions if isinstance(length, BassError) else length)
            + answer_tokens(entry, settings.max_new_tokens)
            for length, entry in zip(self._lengths[key], entries, strict=False)
        ]
        wrong = [_is_wrong(length) for length in self._lengths[key]]
        long = [i for i, length in enumerate(needed) if length > room and not wrong[i]]
        if not long:
            return
        if not settings.skip_long:
            self._refuse_long(settings, needed, long, self._lengths[key], positions)
        elif len(long) == len(entries):
            self.problems.add(
                f"None of the {len(entries)} prompts fits the context of {positions} tokens next "
                f"to {settings.max_new_tokens} new ones: lower `max_new_tokens`."
            )
        else:
            own = (*settings.source, settings.max_new_tokens)
            out, least = self._long.get(own, (set(), positions))
            self._long[own] = out | {*long}, min(least, positions)

    def _refuse_long(
        self,
        settings: Settings,
        needed: Sequence[int],
        long: Sequence[int],
        found: Sequence[int | BassError],
        positions: int,
    ) -> None:
        """Record that prompts are too long, with the longest."""
        most = max(long, key=lambda i: (isinstance(found[i], BassError), needed[i]))
        count = (
            f" {len(long)} of {len(needed)} prompts do not fit: `skip_long: true` leaves them out."
            if len(needed) > 1
            else ""
        )
        if isinstance(error := found[most], BassError):
            self.problems.add(f"{error}{count}")
            return
        try:
            check_context(most, needed[most], settings.max_new_tokens, positions)
        except BassError as error:
            self.problems.add(f"{error}{count}")

    def without_long(self, settings: Settings) -> Settings:
        """The settings without the prompts that are left out, the same for all cells of these
        prompts and new tokens.
        """
        key = (*settings.source, settings.max_new_tokens)
        if not settings.skip_long or key not in self._long:
            return settings
        if key not in self._kept:
            entries, (out, positions) = settings.read_prompts(), self._long[key]
            self._kept[key] = [one.data() for i, one in enumerate(entries) if i not in out]
            by = Counter(entries[i].category for i in out)
            named = ", ".join(f"{count} of {name}" for name, count in by.items() if name)
            self.remarks[
                f"{len(out)} of {len(entries)} prompts are left out{named and f' ({named})'}, "
                f"since with {settings.max_new_tokens} new tokens they do not fit the context of "
                f"{positions}."
            ] = None
        return replace(settings, prompts=self._kept[key])


def _is_wrong(length: int | BassError) -> bool:
    """Whether a prompt has an error other than its length."""
    return isinstance(length, BassError) and not isinstance(length, TooLongError)


def _on_hub(name: str) -> bool:
    return not Path(name).exists() and HUB_ID.fullmatch(name) is not None
