"""The load plans of settings, examined once for all cells that share them."""

from dataclasses import dataclass, field
from typing import final

from bass.api.plan import LoadPlan
from bass.errors import BassError
from bass.runs.settings import PLANNED, Settings

# Settings whose defaults may repair an invalid load plan: single ones, then combinations.
_SUSPECTS = (
    *((name,) for name in PLANNED),
    ("drafter", "stop_rule", "draft"),
    ("cache", "attention"),
    ("device", "cuda_graphs"),
)


@final
@dataclass
class LoadPlans:
    """The load plans of settings.

    Settings with the same parts share one. Nothing may run with it, since strategies may have
    state.
    """

    _known: dict[str, LoadPlan] = field(default_factory=dict, repr=False)
    _wrong: dict[str, tuple[list[str], frozenset[str]]] = field(default_factory=dict, repr=False)

    def of(self, settings: Settings) -> LoadPlan:
        """As `Settings.load_plan`. Raises a `BassError` for an invalid plan."""
        key = _key(settings)
        if key not in self._known:
            self._known[key] = settings.load_plan()
        return self._known[key]

    def problems(self, settings: Settings) -> tuple[list[str], frozenset[str]]:
        """All problems of the parts, and the settings that would have to change."""
        key = _key(settings)
        if key in self._known:
            return [], frozenset()
        if key not in self._wrong:
            self._wrong[key] = self._examined(settings)
        return self._wrong[key]

    def _examined(self, settings: Settings) -> tuple[list[str], frozenset[str]]:
        """Find one error after the other: the first defaults that change the error repair it."""
        reported: list[str] = []
        changed: set[str] = set()
        error = self._error(settings)
        while error is not None:
            reported.append(error)
            for names in _SUSPECTS:
                trial = settings.with_defaults(names)
                if trial != settings and (found := self._error(trial)) != error:
                    break
            else:
                return reported, frozenset(PLANNED)
            settings, error = trial, found
            changed |= {*names}
        return reported, frozenset(changed)

    def _error(self, settings: Settings) -> str | None:
        try:
            self.of(settings)
        except BassError as error:
            return str(error)
        return None


def _key(settings: Settings) -> str:
    return repr([getattr(settings, name) for name in PLANNED])
