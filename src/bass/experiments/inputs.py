"""The inputs that the results of a run folder depend on, so that results of other inputs are never
mixed with them.

The manifest has them as `inputs`: fingerprints, by name, of the source of bass, of user code, of
checkpoints, and of prompts outside the config, with the names that each cell depends on; and as
`notes`: sentences on changes that do not invalidate results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from bass.experiments.cells import Task
from bass.provenance.fingerprints import hash_of_text
from bass.provenance.made_with import SOURCE, Readers, fingerprints, source_of_bass
from bass.runs.prompts import BUILT_IN
from bass.runs.settings import KIND, Settings


@final
@dataclass(frozen=True)
class Inputs:
    """Fingerprints by name.

    `cells`: the names of the inputs of each cell, by its id.
    """

    cells: dict[str, dict[str, str]]

    @classmethod
    def of(cls, tasks: Sequence[Task], config: Mapping[str, object]) -> "Inputs":
        """Those of these cells, as they are now.

        `config`: of the plan, which holds the prompts of its base run.
        """
        base = config.get("base")
        prompts = base.get("prompts") if isinstance(base, Mapping) else None
        read, ours = Readers(), {SOURCE: source_of_bass()}
        known: dict[tuple[str, ...], str] = {}

        def hashed(settings: Settings) -> str:
            """The hash of the prompts; thousands of cells may share them."""
            if settings.source not in known:
                known[settings.source] = hash_of_text(repr(settings.read_prompts()))
            return known[settings.source]

        return cls({task.id: ours | _of_cell(task, prompts, read, hashed) for task in tasks})

    @property
    def all(self) -> dict[str, str]:
        """For the manifest."""
        return {name: value for own in self.cells.values() for name, value in own.items()}


def _of_cell(
    task: Task, prompts: object, read: Readers, hashed: Callable[[Settings], str]
) -> dict[str, str]:
    load_plan, settings = task.load_plan, task.settings
    specs = [getattr(settings, name) for name in KIND]
    found = fingerprints(load_plan.strategies, specs, load_plan.folders, read)
    by_name = isinstance(settings.prompts, str) and settings.prompts not in BUILT_IN
    if by_name or settings.prompts != prompts:  # else the config holds them
        found[f"prompts {task.id}"] = hashed(settings)
    return found
