"""pass@k of evaluations for the rows of a table: `bass eval` scores texts, an ablation does not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from bass.analysis.evaluated import Evaluated, read_evaluation
from bass.analysis.scores import mean_pass_at_k
from bass.api.options import SamplingOptions
from bass.errors import OptionError
from bass.report.cells import Cell

# options that change no distribution, or that the text's end alone depends on
_OTHER = {"seed", "stop", "progress"}
_SHARED = [f.name for f in fields(SamplingOptions) if f.name not in _OTHER]


@final
@dataclass(frozen=True)
class PassAtK:
    """The evaluation of the cells with the value `label` on some axis."""

    label: str
    evaluated: Evaluated

    @property
    def k(self) -> int:
        """The largest requested k, else 1."""
        return max(self.evaluated.ks, default=1)

    @property
    def note(self) -> str:
        """Where the figures come from."""
        one = self.evaluated
        return (
            f"pass@k of {self.label}: pass@{self.k} of {one.task}, {one.count} problems with "
            f"{one.samples} samples each, by `bass eval` in {one.name}."
        )

    def value(self, cell: Cell) -> float | None:
        """The share for a cell; None if it is another method's, or decodes otherwise.

        Lossless decoding at any batch has the same distribution, so the batch may be another.
        """
        if self.label not in map(str, cell.entry.settings.values()) or not self._alike(cell):
            return None
        methods = self.evaluated.methods
        name = "batched" if cell.speculative else "plain"
        if name not in methods:
            return None
        return mean_pass_at_k(methods[name], self.k)

    def _alike(self, cell: Cell) -> bool:
        config = self.evaluated.manifests[0]["config"]
        options: Mapping[str, Any] = config.get("options") or {}
        own = cell.settings
        return all(options[name] == own.get(name) for name in _SHARED if name in options) and all(
            _path(config.get(name)) == _path(own.get(name)) for name in ("target", "draft")
        )


def _path(name: Any) -> str | None:
    return None if name is None else str(Path(name).resolve() if Path(name).exists() else name)


def read_evaluations(given: Iterable[str]) -> list[PassAtK]:
    """From texts METHOD=FOLDER. Raises `OptionError`, and `RequestError` for a damaged folder."""
    found = []
    for text in given:
        label, equals, folder = text.partition("=")
        if not (equals and label and Path(folder).is_dir()):
            raise OptionError(
                f"`--evaluation {text}` must be METHOD=FOLDER: a value on an axis of the run, and "
                "a folder that `bass eval` wrote."
            )
        one = PassAtK(label, read_evaluation(Path(folder)))
        if one.evaluated.kind == "rouge2":
            raise OptionError(
                f"`--evaluation {text}` scores summaries, which do not pass or fail: leave it out."
            )
        found.append(one)
    return found


def check_labels(evaluations: Sequence[PassAtK], cells: Sequence[Cell]) -> None:
    """Raise `OptionError` for an evaluation that no cell of the run matches."""
    for one in evaluations:
        if not any(one.value(cell) is not None for cell in cells):
            raise OptionError(
                f"The evaluation of `{one.label}` matches no finished cell: give the value of a "
                "cell on one of the axes, with the same target, draft and sampling options."
            )
