"""`bass ablate`: runs the cells of a config into a folder, and shows the progress."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, final

import yaml
from jsonargparse import Namespace
from rich.cells import cell_len, set_cell_size
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bass.analysis.against_plain import impossible, not_of_drafts
from bass.analysis.noise import remarks
from bass.api.elsewhere import named_elsewhere
from bass.api.options import help_of
from bass.cli.ablate_table import results
from bass.cli.display import printable
from bass.cli.generate import INTERRUPTED
from bass.cli.output import check_output
from bass.cli.parsing import ONE, Option, Parser, taken
from bass.cli.table import write_table
from bass.cli.terminal import Screen, console, say
from bass.errors import BassError, OptionError, flag
from bass.experiments.cells import Task
from bass.experiments.checkpoints import check_checkpoints
from bass.experiments.config import examined
from bass.experiments.config_files import read_config, shipped, with_overrides
from bass.experiments.estimate import estimate, weight
from bass.experiments.executors import Executor, Local, Ray, Watch
from bass.experiments.runner import Ablation
from bass.interrupt import displayed, interruptible
from bass.plain_yaml import PlainYamlError, read_yaml
from bass.problems import Problems
from bass.report.claims import claims
from bass.report.table_formats import format_of
from bass.runs.records import Summary
from bass.runs.run_folder import RunFolder
from bass.runs.settings import SETTINGS, Settings

FAILED = 2
REDRAW_SECONDS = 0.5
WIDTH = 120  # columns of a table that is written to a file
_OPTIONS = (
    Option("config", help=f"a YAML file, or one of {', '.join(shipped())}", place=ONE),
    Option(
        "output",
        help="the run folder; by default runs/NAME, after the config's name",
        metavar="FOLDER",
    ),
    Option(
        "table",
        help="also write the table of the run there: FILE.md, FILE.tex or FILE.csv",
        metavar="FILE",
    ),
    Option("quick", bool, "apply the config's `quick` part: minutes, not hours"),
    Option("dry_run", bool, "list the cells, time a few tokens, and run nothing"),
    Option("print_config", bool, "print the complete config, and run nothing"),
    Option("retry_failed", bool, "run failed cells again"),
    Option(
        "redo_changed",
        bool,
        "discard results made with classes, checkpoints or software that changed, and redo them",
    ),
    Option(
        "executor",
        Literal["local", "ray"],
        "where cells run: here, or on a Ray cluster",
        default="local",
    ),
    Option("address", help="address of the Ray cluster; default: this machine's processors"),
    Option("cpus_per_cell", float, "CPUs of the Ray cluster for each cell", 1.0),
    Option("gpus_per_cell", float, "GPUs of the Ray cluster for each cell", 0.0),
)
_SETTINGS = (
    "settings of the base run (short for --base.NAME; parameters of a strategy as "
    "--NAME.PARAMETER; --axes.NAME [A, B] is an axis)"
)


def run(parser: Parser, argv: list[str]) -> int:
    """Run the config, or show what would run. Nothing is written before the config is checked."""
    parser.add(*_OPTIONS)
    parser.show(
        _SETTINGS, [Option(f.name, Any, f.metadata["help"], f.default) for f in SETTINGS.values()]
    )
    overrides, argv = take_overrides(parser, argv)
    config = parser.parse(argv)
    page = _table_file(config.table)
    problems = Problems()
    made, _ = examined(
        with_overrides(read_config(config.config), config.quick, overrides, problems), problems
    )
    if config.print_config:
        problems.raise_any(f"The config `{made.name}`")
        say(
            yaml.safe_dump(made.config, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
        )
        return 0
    executor = _executor(config)
    made = check_checkpoints(made, problems)
    folder = Path(config.output or f"runs/{made.name}{'-quick' if config.quick else ''}")
    ablation = Ablation(made, folder, config.retry_failed, config.redo_changed)
    below = console(stderr=True)
    if config.dry_run:
        return dry_run(ablation, console())
    began = time.perf_counter()
    try:
        with interruptible() as check, displayed(Shown(below, ablation, check)) as watch:
            summaries = ablation.run(executor, watch)
    except KeyboardInterrupt:
        below.print(
            f"Interrupted. Finished results are in `{folder}`; the same command continues, and "
            f"`bass table {folder}` shows the cells that are done.",
            markup=False,
            soft_wrap=True,
        )
        return INTERRUPTED
    status = print_outcome(ablation, summaries, time.perf_counter() - began)
    if page is not None and any(one.state == "done" for one in summaries.values()):
        write_table(RunFolder(folder), *page)
    return status


def _table_file(name: str | None) -> tuple[Path, str] | None:
    """The file of the table and its format, checked before the run."""
    if name is None:
        return None
    kind = format_of(None, Path(name))
    check_output(Path(name), "--table")
    return Path(name), kind


def print_outcome(ablation: Ablation, summaries: Mapping[str, Summary], seconds: float) -> int:
    """Print the table of the cells, remarks on them, and the errors of failed ones.

    Returns the command's exit status.
    """
    output, below = console(), console(stderr=True)
    if not output.is_terminal:
        output.width = max(output.width, WIDTH)
    output.print(results(ablation.plan, summaries))
    doubts = [
        f"{cell}: {doubt}."
        for cell, summary in summaries.items()
        if (doubt := impossible(summary) or not_of_drafts(summary))
    ]
    folder = RunFolder(ablation.folder)
    for remark in [*doubts, *remarks(folder), *claims(folder.manifest)]:
        below.print(remark, style="yellow", markup=False, soft_wrap=True)
    wrong = [summary for summary in summaries.values() if summary.state == "failed"]
    for summary in wrong:
        below.print(
            f"{summary.cell} FAILED: {summary.error}",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )
    after = f"; {len(wrong)} failed (`--retry-failed` runs them again)" if wrong else ""
    line = (
        f"{len(summaries)} cells in `{ablation.folder}`, {_time(seconds)}{after}. "
        f"Next: bass report {ablation.folder}"
    )
    below.print(line, markup=False, soft_wrap=True)
    return FAILED if wrong else 0


def take_overrides(parser: Parser, argv: Sequence[str]) -> tuple[list[tuple[str, Any]], list[str]]:
    """The overrides of the config (`--axes.batch [1,2]`, `--base.policy fixed` or its short form
    `--policy fixed`), and the other arguments.
    """

    def wanted(key: str) -> bool:
        head, dot, _ = key.partition(".")
        return head in SETTINGS or (head in ("base", "axes") and dot == ".")

    found, rest = taken(argv, wanted, lambda key: "`bass ablate --help` lists the options")
    overrides: list[tuple[str, Any]] = []
    for key, value in found:
        head, _, name = key.partition(".")
        if head == "base" and name.partition(".")[0] not in SETTINGS:
            raise named_elsewhere(name, help_of(Settings), "setting") or parser.unknown(flag(key))
        try:
            overrides.append((f"base.{key}" if head in SETTINGS else key, read_yaml(value)))
        except yaml.YAMLError as error:
            reason = (
                error
                if isinstance(error, PlainYamlError)
                else "its brackets, quotes or colons do not match"
            )
            raise OptionError(
                f"`{flag(key)} {value:.60}` is not YAML ({reason}): write a list as [1, 2], and "
                "quote a text that has colons."
            ) from error
    return overrides, rest


def dry_run(ablation: Ablation, console: Screen) -> int:
    """Print all cells and the estimated time of the pending ones; returns the exit status."""
    pending = ablation.pending
    waiting = {task.id for task in pending}
    rows = [["cell", *ablation.plan.axes, "calls", "sequences", ""]]
    for task in ablation.tasks:
        calls, sequences = task.settings.size
        labels = [printable(str(label)).replace("\n", " ") for label in task.labels.values()]
        rows.append(
            [
                task.id,
                *labels,
                str(calls),
                str(sequences),
                "" if task.id in waiting else "done",
            ]
        )
    console.print(_aligned(rows), markup=False, soft_wrap=True)
    status = 0
    try:
        seconds = _time(estimate(pending))
    except BassError as error:  # as a cell would fail
        seconds, status = f"unknown: {error}", FAILED
    line = (
        f"{len(pending)} of {len(ablation.tasks)} cells to run into `{ablation.folder}`. One "
        f"after the other, about: {seconds}"
    )
    for remark in (*ablation.plan.remarks, line):
        console.print(remark, markup=False, soft_wrap=True)
    return status


@final
class Shown(Watch, AbstractContextManager["Shown"]):
    """Two bars on a terminal: all cells, with the time that remains, and the cell that runs.

    Elsewhere a line for each cell.
    """

    def __init__(self, console: Screen, ablation: Ablation, check: Callable[[], None]) -> None:
        self._check = check  # raises for a lost interruption
        self._console, self._tasks = console, {task.id: task for task in ablation.tasks}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=console, refresh_per_second=2, speed_estimate_period=3600
        )
        pending = {task.id for task in ablation.pending}
        self._weights = {task.id: weight(task) for task in ablation.tasks if task.id in pending}
        self._shares: dict[str, float] = {}
        self._done = 0
        self._all = self._progress.add_task("cells", total=sum(self._weights.values()))
        self._one = self._progress.add_task("", total=1.0)
        self._drawn = 0.0

    def __enter__(self) -> "Shown":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def at(self, task: Task, share: float) -> None:
        self._check()
        now = time.perf_counter()
        self._shares[task.id] = share
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._progress.update(self._one, completed=share, description=task.id)
            self._advance()

    def ended(self, task: Task, summary: Summary) -> None:
        self._done += 1
        self._shares[task.id] = 1.0
        self._advance()
        if task.id in self._weights:
            state = summary.state if summary.error is None else f"FAILED: {summary.error}"
            line = f"[{self._done}/{len(self._tasks)}] {task.id}: {state}, {_time(summary.seconds)}"
            self._console.print(
                line,
                markup=False,
                soft_wrap=True,
                style=None if summary.error is None else "bold red",
            )

    def _advance(self) -> None:
        done = sum(self._shares.get(name, 0.0) * weight for name, weight in self._weights.items())
        self._progress.update(
            self._all, completed=done, description=f"{self._done} of {len(self._tasks)} cells"
        )


def _executor(config: Namespace) -> Executor:
    if config.executor == "ray":
        return Ray(config.address, config.cpus_per_cell, config.gpus_per_cell)
    for name, default in (("address", None), ("cpus_per_cell", 1), ("gpus_per_cell", 0)):
        if config[name] != default:
            raise OptionError(
                f"`{flag(name)}` needs a Ray cluster: give `--executor ray` too, or leave it out."
            )
    return Local()


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; for thousands of rows far cheaper than a `Table`."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min {rest} s"
        if minutes
        else f"{seconds:.1f} s"
    )
