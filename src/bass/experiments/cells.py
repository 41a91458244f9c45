"""Runs one cell of an ablation into its folder, turn by turn, given its settings and the folder's
content.
"""

import functools
import itertools
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from bass.analysis.independent import independent
from bass.analysis.repeats import repeats_of
from bass.api.generation import Generation
from bass.api.llm import LLM
from bass.api.plan import LoadPlan
from bass.api.warm_up import first_step
from bass.engine.cost import measure_peaks
from bass.errors import BassError, RunFolderError, is_out_of_memory
from bass.experiments.parts import parts_in_ms
from bass.experiments.prompting import Prompter
from bass.experiments.served import ServedCells
from bass.experiments.writing import UnwritableError, locked, writing
from bass.files import append, write_atomically
from bass.provenance.environment import device_name
from bass.runs.conditions import CONDITIONS, ConditionLine, read_conditions
from bass.runs.drafts import DRAFTS, WATCHED_REPEAT, WATCHED_STEPS, DraftLine
from bass.runs.lines import jsonl, read_lines
from bass.runs.machine import Conditions
from bass.runs.made_with import MadeWith
from bass.runs.own_files import ReplacedError, check_lock, check_room_for
from bass.runs.peaks import peaks_of_run
from bass.runs.records import EndLine, Facts, RequestLine, StepLine, Summary
from bass.runs.run_folder import CellLines, RunFolder
from bass.runs.settings import Call, Settings
from bass.runs.strict import Json
from bass.runs.unchanged import Unchanged

TRACEBACK = "error.txt"  # of a failed cell, next to its summary


@final
@dataclass(frozen=True)
class Task:
    """A cell and its run folder.

    labels: its value on each axis. made_with: content of its folder's file `made_with.json`.
    inputs: its recorded fingerprints, by name. lock: the process that the run folder's lock names.
    """

    id: str
    labels: dict[str, Any]
    settings: Settings
    run: str
    made_with: MadeWith | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    lock: str | None = None

    @property
    def folder(self) -> Path:
        """The cell's own folder."""
        return RunFolder(Path(self.run)).cell_folder(self.id)

    @functools.cached_property
    def load_plan(self) -> LoadPlan:
        """The models and strategies of its settings."""
        return self.settings.load_plan()

    def check_lock(self) -> None:
        """Raise `ReplacedError` if the run folder is no longer the one that this run has locked."""
        if self.lock is not None:
            check_lock(Path(self.run), self.lock)

    @property
    def turns(self) -> list[list[Call]]:
        """Its calls, grouped by seed: cells that are compared take turns."""
        return [
            list(calls)
            for _, calls in itertools.groupby(self.settings.calls, key=lambda call: call.seed)
        ]


def run_turn(
    task: Task,
    turn: int,
    served: ServedCells,
    say: Callable[[float], None] = lambda share: None,
    keep: bool = False,
) -> Summary | None:
    """Make the missing calls of one of `task.turns`; `say` gets the completed share of the cell.

    keep: whether its LLM is kept for the next one. Where memory does not suffice next to the LLMs
    of other cells, they are dropped, and the turn goes on.

    Returns the summary, which the cell gets when all turns have ended or one fails; None before
    that. Raises `UnwritableError` if the folder cannot be written, and `RunFolderError` if its
    content is damaged; existing content is kept.
    """
    task.check_lock()
    with writing(task.folder):
        task.folder.mkdir(parents=True, exist_ok=True)
    with locked(task.folder):
        run = RunFolder(Path(task.run))
        if (summary := run.summary(task.id)) is not None:
            return summary
        began, lines = time.perf_counter(), resumed(run, task.id)
        left = [call for call in task.turns[turn] if call.number not in lines.repeats]
        last = len(lines.repeats) + len(left) == len(task.settings.calls)
        if not left and not last:
            return None
        if task.made_with is not None and not lines.repeats:
            with writing(task.folder):
                path = task.folder / RunFolder.MADE_WITH
                write_atomically(path, task.made_with.to_json() + "\n")
        earlier = sum(one.seconds for one in repeats_of(lines))
        try:
            facts = _generate(task, served, lines, left, last, say, keep)
            if facts is None:
                return None
            summary = _done(task, run, facts, earlier + time.perf_counter() - began)
        except (ReplacedError, UnwritableError, KeyboardInterrupt):
            raise
        # of a user's class, GeneratorExit too, or out of memory: the other cells still run
        except BaseException as error:
            if not (is_out_of_memory(error) and served.drop()):
                return _failed_with(task, error, earlier + time.perf_counter() - began)
        else:
            finish(task, summary)
            return summary
    return run_turn(task, turn, served, say, keep)  # with the memory of the others


def _failed_with(task: Task, error: BaseException, seconds: float) -> Summary:
    """The summary of a cell that failed with an error, written with its traceback."""
    one = isinstance(error, BassError)
    text = str(error) if one else "".join(traceback.format_exception_only(error))
    summary = failed(task, text, seconds)
    with writing(task.folder):
        write_atomically(
            task.folder / TRACEBACK,
            traceback.format_exc().encode(errors="backslashreplace").decode(),
        )
    finish(task, summary)
    return summary


def _done(task: Task, run: RunFolder, facts: Facts, seconds: float) -> Summary:
    """The summary of a cell whose calls have all ended."""
    lines = run.lines(task.id)
    calls = [task.settings.calls[number] for number in lines.repeats]
    found = independent(calls, repeats_of(lines, facts, task.settings.limits))
    return Summary(
        task.id, task.labels, "done", None, found.metrics, found.repeats, seconds, facts,
        found.prompts, run.line_counts(task.id),
    )  # fmt: skip


def failed(task: Task, error: str, seconds: float) -> Summary:
    """The summary of a cell that failed."""
    # an HTML page cannot hold a lone surrogate
    text = " ".join(error.split()).encode(errors="backslashreplace").decode()
    return Summary(task.id, task.labels, "failed", text, {}, [], seconds)


def finish(task: Task, summary: Summary) -> None:
    """Write the summary, after all other files are on disk."""
    with writing(task.folder):
        _sync(task.folder)
        write_atomically(task.folder / RunFolder.SUMMARY, summary.to_json(indent=1) + "\n")


def _sync(folder: Path) -> None:
    """Write the lines to disk."""
    for name in (RunFolder.STEPS, RunFolder.REQUESTS, DRAFTS, CONDITIONS):
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())


def share_done(task: Task) -> float:
    """The share of repeats that its folder has completely."""
    ends = read_lines(task.folder / RunFolder.REQUESTS, lambda text, where: '"end": true' in text)
    return sum(ends.values) / len(task.settings.calls)


def has_results(task: Task) -> bool:
    """Whether the cell's folder has results of a complete repeat or of the whole cell."""
    return share_done(task) > 0 or (
        (summary := RunFolder(Path(task.run)).summary(task.id)) is not None
        and summary.state == "done"
    )


def discard(task: Task) -> None:
    """Remove all results of the cell."""
    with writing(task.folder), locked(task.folder):
        for name in (
            RunFolder.SUMMARY,
            RunFolder.REQUESTS,
            RunFolder.AGAINST_PLAIN,
            RunFolder.STEPS,
            RunFolder.MADE_WITH,
            DRAFTS,
            CONDITIONS,
            TRACEBACK,
        ):
            (task.folder / name).unlink(missing_ok=True)


def resumed(run: RunFolder, cell: str) -> CellLines:
    """The lines of the complete repeats; those of an incomplete one are removed from the files."""
    lines, folder = run.lines(cell), run.cell_folder(cell)
    ends = [EndLine(repeat) for repeat in lines.repeats]
    requests = [
        one for end in ends for one in (*(r for r in lines.requests if r.repeat == end.repeat), end)
    ]
    drafts = [
        line
        for line in read_lines(folder / DRAFTS, DraftLine.from_json).values
        if line.repeat in lines.repeats
    ]
    conditions = [line for line in read_conditions(folder) if line.repeat in lines.repeats]
    for name, kept in (
        (run.STEPS, lines.steps),
        (run.REQUESTS, requests),
        (DRAFTS, drafts),
        (CONDITIONS, conditions),
    ):
        text = "".join(f"{one.to_json()}\n" for one in kept)
        path = folder / name
        if path.exists() and path.read_bytes() != text.encode():
            with writing(folder):
                write_atomically(path, text)
    return lines


def _generate(
    task: Task,
    served: ServedCells,
    lines: CellLines,
    left: list[Call],
    last: bool,
    say: Callable[[float], None],
    keep: bool,
) -> Facts | None:
    """Make these calls. After the last ones of the cell, measure the facts that its lines lack.

    A call is recorded only if the inputs of the cell are as recorded after it.
    """
    with served.turn(task.folder, task.load_plan, keep and not last) as (llm, others):
        check = functools.partial(check_inputs, Unchanged(task.inputs), served)
        return _called(task, llm, others, check, lines, left, last, say)


def _called(
    task: Task,
    llm: LLM,
    others: int,
    check: Callable[[], None],
    lines: CellLines,
    left: list[Call],
    last: bool,
    say: Callable[[float], None],
) -> Facts | None:
    """`_generate` with an LLM; `check` raises an error if the cell's inputs have changed."""
    settings, calls = task.settings, task.settings.calls
    check()
    # measured here, so that its allocations do not count as the cell's memory
    measured = measure_peaks(llm.models.device, llm.models.dtype)
    prompter = Prompter(llm, calls)
    prompter.read(lines.requests)
    prompter.prepare(left)
    if settings.warm_up and left:  # in every turn, since other cells ran in between
        _warm_up(llm, prompter, settings, left)
    generation = None
    for call in left:
        conditions = Conditions(llm.models.device, others)
        generation = prompter.start(call, call.options(settings.stream_with))
        tokens = 0
        for event in generation:
            tokens += len(event.token_ids)
            say((call.number + tokens / (call.requests * settings.max_new_tokens)) / len(calls))
        check()
        line = conditions.line(call.number)
        task.check_lock()
        prompter.took(call, [one.text for one in generation.result().completions])
        _record(task.folder, call, generation, line)
        say((call.number + 1) / len(calls))
    if not last:
        return None
    call = (left or calls)[-1]
    options = call.options(settings.stream_with)
    if generation is None:  # the process ended between the last repeat and the summary
        generation = prompter.start(call, options)
        generation.result()
    memory = max((line.peak_memory_bytes or 0 for line in read_conditions(task.folder)), default=0)
    cost, trace = generation.cost, generation.run.trace.steps
    del generation  # frees its memory first
    parts = parts_in_ms(lambda: prompter.start(call, options), trace)
    device = device_name(llm.models.device)
    with writing(Path(task.run)):
        peaks = peaks_of_run(Path(task.run), device, str(llm.models.dtype), measured)
    return Facts.of(cost, peaks, memory or None, parts, device)


def _warm_up(llm: LLM, prompter: Prompter, settings: Settings, left: list[Call]) -> None:
    """Do in advance what the calls would wait for, and take a first step."""
    if llm.graphs:
        llm.warm_up_for(
            [
                (
                    prompter.longest(call, settings.max_new_tokens),
                    call.options(settings.stream_with),
                )
                for call in left
            ]
        )
    first_step(prompter.start(left[0], left[0].options(settings.stream_with)))


def check_inputs(inputs: Unchanged, served: ServedCells) -> None:
    """Raise `RunFolderError` if an input of a cell has changed, and drop the cached models."""
    if changes := inputs.changes():
        served.clear()
        raise RunFolderError(
            f"An input of this cell is not what it was when the run began ({'; '.join(changes)}): "
            "restore it and give `--retry-failed`, or give `--redo-changed`, which discards the "
            "results made with what it was and runs their cells again."
        )


def _record(folder: Path, call: Call, generation: Generation, conditions: ConditionLine) -> None:
    """A call's lines.

    They are written after the call, so that no file is written while its steps are timed.
    """
    run, result = generation.run, generation.result()
    steps = run.trace.steps
    drafts = steps[:WATCHED_STEPS] if call.number == WATCHED_REPEAT else ()
    lines: dict[str, list[Json]] = {
        RunFolder.STEPS: [StepLine.of(step, call.number) for step in steps],
        DRAFTS: [DraftLine.of(step, call.number, i) for i, step in enumerate(drafts)],
        RunFolder.REQUESTS: [
            RequestLine.of(
                completion,
                i,
                call.number,
                len(request.prompt),
                run.trace.prefilled.get(i),
                call.seed,
                prompt=call.prompt_numbers[i // call.samples],
                turn=call.turn,
                category=call.prompts[i // call.samples].category,
            )
            for i, (request, completion) in enumerate(
                zip(run.requests, result.completions, strict=True)
            )
        ],
        CONDITIONS: [conditions],
    }
    texts = {folder / name: jsonl(values) for name, values in lines.items() if values}
    for path, text in texts.items():
        check_room_for(path, text, "give fewer repeats or prompts, or a smaller `max_new_tokens`")
    with writing(folder):
        for path, text in texts.items():
            append(path, text)
        # after a crash the mark of the end must not exist without the lines before it
        _sync(folder)
        append(folder / RunFolder.REQUESTS, jsonl([EndLine(call.number)]))
