"""pass@k of evaluations for the rows of a table: `bass eval` scores texts, an ablation does not."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from bass.analysis.evaluated import Evaluated, read_evaluation
from bass.analysis.scores import mean_pass_at_k
from bass.api.kinds import KINDS
from bass.api.options import SamplingOptions
from bass.api.resolve import make
from bass.errors import BassError, OptionError
from bass.provenance.described import described
from bass.report.cells import Cell
from bass.report.table_rows import weight_bytes
from bass.runs.evaluation_folder import SUMMARY
from bass.runs.own_files import inside
from bass.runs.words import called, in_words, listed

# Options that change no distribution of a token, or only where a text ends: texts are scored as the
# evaluation ends them.
_OTHER = {
    "seed", "progress", "stop", "stop_token_ids", "ignore_eos", "max_new_tokens", "min_new_tokens",
}  # fmt: skip
_SHARED = [f.name for f in fields(SamplingOptions) if f.name not in _OTHER]
# of cells that draft, and what a lossy verifier's texts also depend on
_OF_DRAFTS = ("draft", "draft_lora", "draft_quantization")
_OF_LOSSY = ("verifier", "policy", "drafter", "stop_rule")
_BYTES = {"torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}


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
        options = one.manifests[0]["config"].get("options") or {}
        most = options.get("max_new_tokens")
        ends = "" if most is None else f" of at most {most} new tokens"
        ends += ", end tokens ignored" if options.get("ignore_eos") else ""
        return (
            f"pass@k of {self.label}: pass@{self.k} of {one.task}, {one.count} problems with "
            f"{one.samples} samples each{ends}, by `bass eval` in {one.name}."
        )

    def value(self, cell: Cell) -> float | None:
        """The share for a cell; None if it is another method's, or decodes otherwise.

        Lossless decoding at any batch has the same distribution, so the batch may be another.
        """
        if not self.names(cell) or self.method(cell) not in self.evaluated.methods:
            return None
        if any(True for _ in self.differences(cell)):
            return None
        return mean_pass_at_k(self.evaluated.methods[self.method(cell)], self.k)

    def names(self, cell: Cell) -> bool:
        """Whether the cell has the label."""
        values = cell.entry.settings.values()
        return self.label in {str(form) for value in values for form in (value, called(value))}

    def method(self, cell: Cell) -> str:
        """The method of the evaluation that decodes as the cell does."""
        return "batched" if cell.speculative else "plain"

    def differences(self, cell: Cell) -> Iterator[tuple[str, Any, Any]]:
        """The options that its texts depend on and in which the cell differs: each with the value
        of the evaluation and of the cell.
        """
        manifest = self.evaluated.manifests[0]
        config, own = manifest["config"], cell.settings
        options: Mapping[str, Any] = config.get("options") or {}
        for name in _SHARED:
            if name in options and options[name] != own.get(name):
                yield name, options[name], own.get(name)
        names = ["target", "lora", "family", "quantization"]
        if cell.speculative:
            lossy = not (manifest.get("lossless") and cell.entry.lossless)
            names += [*_OF_DRAFTS, *(_OF_LOSSY if lossy else ())]
        for name in names:
            theirs, spec = config.get(name), own.get(name)
            if name == "draft_quantization" and spec is None and theirs is not None:
                spec = own.get("quantization")  # its default
            if _value(name, theirs) != _value(name, spec):
                yield name, called(theirs), called(spec)
        theirs, dtype = str(config.get("dtype")), str(cell.entry.target.get("dtype"))
        if theirs in _BYTES and not _same_dtype(theirs, dtype, cell):
            yield "dtype", theirs.removeprefix("torch."), dtype


def _same_dtype(theirs: str, own: str, cell: Cell) -> bool:
    """Whether a cell has that dtype; of `auto`, whether its weights have as many bytes."""
    if own != "auto":
        return theirs == f"torch.{own}"
    size = weight_bytes(cell)
    return size is None or cell.settings.get("quantization") is not None or size == _BYTES[theirs]


def _value(name: str, spec: Any) -> Any:
    """A value of an option, in the one form in which it is compared: a strategy with all its
    parameters, a path as it is resolved.
    """
    kind = "quantization" if name == "draft_quantization" else name
    if not spec:
        return None
    if kind not in KINDS:
        return str(Path(spec).resolve() if Path(spec).exists() else spec)
    try:
        return described(make(kind, spec), spec)
    except BassError:  # a class that is not here
        return spec


def read_evaluations(given: Iterable[str]) -> list[PassAtK]:
    """From texts METHOD=FOLDER. Raises `OptionError`, and `RequestError` for a damaged folder."""
    found = []
    for text in given:
        label, folder = _split(text)
        one = PassAtK(label, read_evaluation(folder))
        if one.evaluated.kind == "rouge2":
            raise OptionError(
                f"`--evaluation {text}` scores summaries, which do not pass or fail: leave it out."
            )
        if not inside(folder, SUMMARY).exists():
            raise OptionError(
                f"`--evaluation {text}` is not finished ({one.evaluated.count} of "
                f"{one.evaluated.problems} problems have scores of all methods): run the same "
                "`bass eval` again, which continues, or leave it out."
            )
        found.append(one)
    return found


def _split(text: str) -> tuple[str, Path]:
    """The label and the folder; both may have a `=` in them."""
    parts = text.split("=")
    for i in range(1, len(parts)):
        label, folder = "=".join(parts[:i]), Path("=".join(parts[i:]))
        if label and str(folder) != "." and folder.is_dir():
            return label, folder
    raise OptionError(
        f"`--evaluation {text}` must be METHOD=FOLDER: a value on an axis of the run, and a folder "
        "that `bass eval` wrote."
    )


def check_labels(evaluations: Sequence[PassAtK], cells: Sequence[Cell]) -> None:
    """Raise `OptionError` for an evaluation that no cell of the run matches, and for a cell that
    several match.
    """
    for cell in cells:
        of = [one.evaluated.name for one in evaluations if one.value(cell) is not None]
        if len(of) > 1:
            raise OptionError(
                f"The evaluations {listed(of)} are all of `{cell.entry.id}`, and a row has one "
                "pass@k: give one of them, and write another table for the other."
            )
    for one in evaluations:
        if any(one.value(cell) is not None for cell in cells):
            continue
        named = [cell for cell in cells if one.names(cell)]
        if not named:
            values = {str(called(v)) for cell in cells for v in cell.entry.settings.values()}
            raise OptionError(
                f"The evaluation of `{one.label}` matches no finished cell, since none has this "
                f"value on an axis: give one of {', '.join(sorted(values)) or '(no axes)'}."
            )
        nearest = min(named, key=lambda cell: len([*one.differences(cell)]))
        unlike = [
            f"`{name}` ({in_words(theirs)} in the evaluation, {in_words(own)} in "
            f"`{nearest.entry.id}`)"
            for name, theirs, own in one.differences(nearest)
        ]
        if not unlike:
            raise OptionError(
                f"The evaluation of `{one.label}` lacks the method `{one.method(nearest)}`, which "
                f"decodes as `{nearest.entry.id}` does: evaluate with `--methods "
                f"[{one.method(nearest)}]`."
            )
        raise OptionError(
            f"The evaluation of `{one.label}` matches no finished cell, since they differ in "
            f"{listed(unlike)}: evaluate with the options of the cell."
        )
