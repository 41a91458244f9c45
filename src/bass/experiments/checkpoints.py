"""Checks the checkpoints of a plan against its cells, from headers only."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from bass.api.checks import check_context, check_stops, stop_token_ids
from bass.api.loading import Checkpoint, ModelSpec, check_family, check_pair
from bass.api.plan import CHECKPOINTS, LoadPlan
from bass.api.requests import prompt_ids
from bass.checkpoints.hub import HUB_ID
from bass.drafters.validity import layers_of
from bass.engine.drafter_context import check_features
from bass.errors import BassError
from bass.experiments.config import Plan
from bass.models.first_layers import FirstLayers
from bass.problems import Problems
from bass.runs.settings import Settings

# if the value of one of these was replaced by its default, the intended pair is unknown
_OF_PAIR = {*CHECKPOINTS, "policy", "drafter"}
_OF_LENGTH = {"target", "draft", "prompts", "num_prompts", "max_new_tokens"}


def check_checkpoints(plan: Plan, problems: Problems | None = None) -> None:
    """Raise an `OptionError` for a plan with checkpoints that are missing or damaged, do not match,
    or are too small for a cell.

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
    # by checkpoint, context and prompts: the length of the longest prompt, and its index
    _longest: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
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
        key = (*key, id(settings.prompts), settings.num_prompts, settings.max_new_tokens)
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
        key = (str(target.index.folder), positions, id(settings.prompts), settings.num_prompts)
        if key not in self._longest:
            lengths: list[tuple[int, int]] = []
            wrong: BassError | None = None
            for i, prompt in enumerate(settings.read_prompts()):
                try:
                    ids = prompt_ids(target.tokenizer, vocabulary, positions, prompt, i)
                    lengths.append((len(ids), i))
                except BassError as error:
                    wrong = wrong or error
            if wrong is not None:
                self.problems.add(str(wrong))
            self._longest[key] = max(lengths, default=(0, 0))
        length, i = self._longest[key]
        with self.problems.noted():
            check_context(i, length, settings.max_new_tokens, positions)


def _on_hub(name: str) -> bool:
    return not Path(name).exists() and HUB_ID.fullmatch(name) is not None
