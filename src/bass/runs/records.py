"""The lines and files of a run folder, format version 5, and their reader, which reads version 4
too.

    FOLDER/manifest.json    what was requested, on which machine: `Manifest`
    FOLDER/cells/ID/        of each cell:
      steps.jsonl           one `StepLine` per step
      requests.jsonl        one `RequestLine` per finished request, an `EndLine` after each repeat
      made_with.json        before any of its results: `bass.runs.run_folder.MadeWith`
      summary.json          written last: `Summary`; a cell without it is not finished
      against_plain.json    `AgainstPlain`, once the cell and the one of autoregressive decoding are
      done

Reading is strict: a value of the wrong type, a missing or an unknown name is an error with its
place. Only the last line of a jsonl file may be incomplete, since a process can end while it
writes: it is left out and reported in `Lines.dropped`.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, final

import numpy as np

from bass.api.results import Completion
from bass.engine.cost import Work
from bass.engine.requests import StepRecord
from bass.errors import RunFolderError
from bass.prompts.entries import LONGEST_CATEGORY, MOST_TURNS
from bass.runs.facts import Facts
from bass.runs.own_files import check_cell
from bass.runs.strict import Json

FORMAT, READ = 5, (4, 5)  # what is written, and what is read
FINISHES = ("length", "eos", "stop", "budget")
STATES = ("done", "failed")
LONGEST_DRAFT = 2**12  # tokens: tables of metrics have a row for each length
LONGEST = 1e8  # seconds: three years
LARGEST = 1e18  # of the values of metrics

Value = TypeVar("Value")


def check_seconds(*times: float) -> None:
    """Raise `RunFolderError` for a time that is negative or of years."""
    if not all(0 <= time <= LONGEST for time in times):
        wrong = next(time for time in times if not 0 <= time <= LONGEST)
        raise RunFolderError(f"a time of {wrong:.3g} s is not possible")


@final
@dataclass(frozen=True)
class StepLine(Json):
    """One step of one repeat.

    The four lists have one entry per row of the batch; see `bass.engine.requests.StepRecord`.
    """

    request_rows: list[int]  # index of the request of each row, -1 for an idle row
    k: int  # the longest requested draft
    span: int
    positions: int  # of all active rows, committed and drafted
    drafted: list[int]
    accepted: list[int]  # committed draft tokens, without bonus or correction
    emitted: list[int]
    seconds: float  # of the step on the device
    host_seconds: float  # before it
    at: float  # when it ended, since the repeat began, without captures
    repeat: int
    work: Work  # of its forward passes

    def __post_init__(self) -> None:
        if (
            not len(self.request_rows)
            == len(self.drafted)
            == len(self.accepted)
            == len(self.emitted)
        ):
            raise RunFolderError("the lists of a step must have one entry for each row")
        check_seconds(self.seconds, self.host_seconds, self.at)
        if not 0 <= self.k <= LONGEST_DRAFT:
            raise RunFolderError(
                f"a draft of k={self.k} tokens is not possible, at most {LONGEST_DRAFT:,} are"
            )
        if max(self.drafted, default=0) > self.k:
            raise RunFolderError(f"a row drafted {max(self.drafted)} tokens, more than k={self.k}")
        for whose, drafted, accepted, emitted in zip(
            self.request_rows, self.drafted, self.accepted, self.emitted, strict=True
        ):
            if not 0 <= accepted <= drafted:
                raise RunFolderError(f"a row accepted {accepted} of {drafted} drafted tokens")
            if whose >= 0 and emitted not in (accepted, accepted + 1):
                raise RunFolderError(
                    f"a row that accepted {accepted} tokens emitted {emitted}, which must be the "
                    "same number or one more"
                )
            if whose < 0 and (drafted or emitted):
                raise RunFolderError("an idle row has no tokens")

    @classmethod
    def of(cls, step: StepRecord, repeat: int) -> "StepLine":
        """The line of a step of a trace."""
        return cls(
            request_rows=step.requests.tolist(),
            k=int(step.k),
            span=int(step.span),
            positions=int(step.positions),
            drafted=step.drafted.tolist(),
            accepted=step.accepted.tolist(),
            emitted=step.emitted.tolist(),
            seconds=float(step.seconds),
            host_seconds=float(step.host_seconds),
            at=float(step.at),
            repeat=repeat,
            work=step.work,
        )

    def record(self) -> StepRecord:
        """The step as a trace has it: the inverse of `of`."""
        rows, drafted, accepted, emitted = np.array(
            [self.request_rows, self.drafted, self.accepted, self.emitted], dtype=np.int64
        )
        numbers, times = (
            (self.k, self.span, self.positions),
            (self.seconds, self.host_seconds, self.at),
        )
        return StepRecord(*numbers, rows, drafted, accepted, emitted, *times, work=self.work)


@final
@dataclass(frozen=True)
class RequestLine(Json):
    """One finished request of one repeat.

    Times are in seconds. `prefill_seconds`: from the start of the repeat to the end of its prefill,
    with any wait for a row; None if it never had a row. `seconds`: from then to its last token.
    `token_seconds`: from the start of the repeat to the commit of each token; None if not recorded
    (the times of the steps apply then). `prompt`: its number among the different prompts of the
    cell; `turn`: of its conversation, from 0; `category`: of its prompt, empty where it has none.
    A folder of version 4 has none of these three.
    """

    request: int
    repeat: int
    prompt_tokens: int
    tokens: list[int]
    text: str | None
    logprobs: list[float]
    finish: str  # one of FINISHES
    prefill_seconds: float | None
    seconds: float
    token_seconds: list[float] | None
    seed: int
    prompt: int | None = None
    turn: int = 0
    category: str = ""

    def __post_init__(self) -> None:
        if self.finish not in FINISHES:
            raise RunFolderError(
                f"`finish` is {self.finish!r}, and must be one of {', '.join(FINISHES)}"
            )
        if not (0 <= self.turn < MOST_TURNS and (self.prompt or 0) >= 0):
            raise RunFolderError(
                f"turn {self.turn} of prompt {self.prompt} is not possible: both count from 0"
            )
        if len(self.category) > LONGEST_CATEGORY:
            raise RunFolderError(
                f"a `category` has {len(self.category):,} characters, at most {LONGEST_CATEGORY} "
                "are possible"
            )
        if len(self.logprobs) != len(self.tokens):
            raise RunFolderError(
                f"{len(self.logprobs)} log-probabilities for {len(self.tokens)} tokens"
            )
        check_seconds(self.prefill_seconds or 0.0, self.seconds, *(self.token_seconds or ()))
        if self.token_seconds is not None and len(self.token_seconds) != len(self.tokens):
            raise RunFolderError(f"{len(self.token_seconds)} times for {len(self.tokens)} tokens")

    @classmethod
    def of(
        cls,
        completion: Completion,
        request: int,
        repeat: int,
        prompt_tokens: int,
        prefill_seconds: float | None,
        seed: int,
        token_seconds: list[float] | None = None,
        prompt: int | None = None,
        turn: int = 0,
        category: str = "",
    ) -> "RequestLine":
        """The line of a completion. One that ran out of its time budget has the finish `budget`."""
        return cls(
            request=request,
            repeat=repeat,
            prompt_tokens=prompt_tokens,
            tokens=list(completion.token_ids),
            text=completion.text,
            logprobs=list(completion.logprobs),
            finish="budget" if completion.finish_reason == "time" else completion.finish_reason,
            prefill_seconds=prefill_seconds,
            seconds=completion.seconds,
            token_seconds=token_seconds,
            seed=seed,
            prompt=prompt,
            turn=turn,
            category=category,
        )

    @property
    def ended(self) -> float:
        """When its last token was committed, in seconds since the repeat began."""
        return (self.prefill_seconds or 0.0) + self.seconds


@final
@dataclass(frozen=True)
class EndLine(Json):
    """Marks the end of a repeat, after the last of its requests."""

    repeat: int
    end: bool = True

    def __post_init__(self) -> None:
        if not self.end:
            raise RunFolderError("`end` must be true")


@final
@dataclass(frozen=True)
class Summary(Json):
    """The results of a cell. `metrics`: of the cell, by name in `METRICS`; `repeats`, `prompts`:
    the independent values that they are means of, see `bass.analysis.independent`.

    A metric that does not apply to a cell (an acceptance rate without drafts) has no entry. The
    file has none of those that compare with autoregressive decoding, and no `plain` and `unlike`;
    `RunFolder.summary` adds them. lines: how many lines each of its files has.
    """

    cell: str
    settings: dict[str, Any]
    state: str  # one of STATES
    error: str | None
    metrics: dict[str, float]
    repeats: list[dict[str, float]]
    seconds: float
    facts: Facts | None = None
    prompts: list[dict[str, float]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    plain: str | None = None  # as in `AgainstPlain`, like the next one
    unlike: list[str] | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise RunFolderError(
                f"`state` is {self.state!r}, and must be one of {', '.join(STATES)}"
            )
        for values in (self.metrics, *self.repeats, *self.prompts):
            for name, value in values.items():
                if abs(value) > LARGEST:
                    raise RunFolderError(f"`{name}` of {value:.3g} is not possible")
        if (self.error is None) != (self.state == "done"):
            raise RunFolderError("a cell has an error if it failed, and none if it is done")


@final
@dataclass(frozen=True)
class AgainstPlain(Json):
    """The metrics of a cell that compare with autoregressive decoding, as in its `Summary`.

    plain: the cell it is compared with. unlike: the properties of a step, other than the draft, in
    which the two differ: `cache`, `attention`, `cuda_graphs`. made_of: a hash of the two summaries.
    """

    cell: str
    plain: str
    metrics: dict[str, float]
    repeats: list[dict[str, float]]
    prompts: list[dict[str, float]]
    unlike: list[str]
    made_of: str = ""


@final
@dataclass(frozen=True)
class CellEntry(Json):
    """A cell of the plan: one value for each axis.

    own: the settings that are not those of the config's `base`, see `bass.runs.work`.
    target: which target, on which device, with which dtype and quantization, as it is loaded.
    lossless, caveat, batch_invariant: as declared by the verifier and the drafter. inputs: names of
    the manifest's `inputs` that the cell depends on.
    """

    id: str
    settings: dict[str, Any]
    own: dict[str, Any]
    target: dict[str, str]
    lossless: bool
    caveat: str
    batch_invariant: bool
    inputs: list[str]

    def __post_init__(self) -> None:
        check_cell(self.id)


@final
@dataclass(frozen=True)
class Manifest(Json):
    """The description of a run folder.

    `created`: ISO 8601. `inputs`, `notes`: see `bass.experiments.inputs`. `remarks`: sentences on
    the prompts, such as how many are left out.
    """

    bass: str
    commit: str
    created: str
    device: str
    torch: str
    python: str
    platform: str
    config: dict[str, Any]
    axes: list[str]
    cells: list[CellEntry]
    inputs: dict[str, str]
    format: int = FORMAT
    notes: list[str] | None = None
    remarks: list[str] | None = None

    REMEDY: ClassVar[str] = "restore it, or name another folder with `--output`"

    def __post_init__(self) -> None:
        ids = [cell.id for cell in self.cells]
        if len(set(ids)) < len(ids):
            raise RunFolderError("two cells have the same id")
        for cell in self.cells:
            if sorted(cell.settings) != sorted(self.axes):
                raise RunFolderError(
                    f"cell `{cell.id}` must have a value for each of the axes "
                    f"{', '.join(self.axes) or '(none)'}, and no other"
                )
            for name in cell.inputs:
                if name not in self.inputs:
                    raise RunFolderError(f"cell `{cell.id}` has the unknown input {name!r:.100}")

    @functools.cached_property
    def _by_id(self) -> dict[str, CellEntry]:
        return {cell.id: cell for cell in self.cells}

    def inputs_of(self, cell: str) -> dict[str, str]:
        """The fingerprints that a cell depends on, by name."""
        return {name: self.inputs[name] for name in self._by_id[cell].inputs}

    @classmethod
    def check_version(cls, data: dict[str, Any], where: str) -> None:
        if data.get("kind") == "evaluation":
            raise RunFolderError(
                f"{where} is that of an evaluation, which `bass eval` wrote, and not of a run of "
                "`bass ablate`: name another folder."
            )
        if data.get("format") not in READ:
            raise RunFolderError(
                f"{where} has the format version {data.get('format')!r}, and this `bass` reads "
                f"versions {READ[0]} and {FORMAT}: use the `bass` that "
                f"wrote it ({data.get('bass', 'unknown version')}), or run the experiment again."
            )
