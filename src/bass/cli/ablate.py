"""`bass ablate`: runs the cells of a config into a folder, and shows the progress."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from bass.cli.options import Parser, console
from bass.errors import counted
from bass.experiments.settings import CONFIGS, SETTINGS, Settings
from bass.option import help_of, option
from bass.progress import progress_bar

if TYPE_CHECKING:  # loads torch
    from bass.experiments.cell import Cell

FAILED, INTERRUPTED = 2, 130
EXAMPLES = (
    "bass ablate comparison --quick",
    "bass ablate lengths.yaml --base.temperature 0.8 --axes.batch '[1, 8]' --dry-run",
    "bass ablate policies --executor ray --gpus-per-cell 1",
)
_NAMES = textwrap.fill(", ".join(CONFIGS), 80, break_on_hyphens=False)
ABOUT = f"""Run the cells of a grid into a folder, or those that the folder lacks.
`--base.NAME` or `--NAME` sets a setting of all cells, and `--axes.NAME` an axis (null removes it).
Configs of the package: {_NAMES}."""


@final
@dataclass(frozen=True)
class AblateOptions:
    """The options of `bass ablate`, without settings of the config."""

    output: str | None = option(None, "the run folder; by default runs/NAME")
    quick: bool = option(False, "apply the config's `quick` part: minutes, not hours")
    dry_run: bool = option(False, "list the cells with their states, and run nothing")
    retry_failed: bool = option(False, "run failed cells again")
    executor: Literal["local", "ray"] = option("local", "local, or ray: on a Ray cluster")
    address: str | None = option(None, "address of the Ray cluster; by default one of its own")
    cpus_per_cell: float = option(1.0, "CPUs of the Ray cluster for each cell")
    gpus_per_cell: float = option(0.0, "GPUs of the Ray cluster for each cell")


def run(argv: Sequence[str]) -> int:
    """Run the config, or list its cells. Nothing is written before the config is checked."""
    made = Parser("ablate CONFIG", ABOUT, EXAMPLES, AblateOptions, skip=["config"])
    made.add_argument("grid", type=str, metavar="CONFIG", help="YAML file, or one of the package")
    # an option that overrides the config, as `policy.k` and `base.policy.k` do
    made.own = lambda key: key.partition(".")[0] in (*SETTINGS, "base", "axes")
    made.helps = help_of(Settings)
    found, words = made.split(argv)
    whole = ("base.", "axes.")
    overrides = {k if k.startswith(whole) else f"base.{k}": v for k, v in found.items()}
    options = made.read(words)

    from bass.analysis.tables import to_text
    from bass.experiments import runner
    from bass.experiments.executors import Ray, local
    from bass.experiments.grid import plan, read_config

    grid = plan(read_config(options.grid, overrides, options.quick))
    folder = Path(options.output or f"runs/{grid.name}{'-quick' if options.quick else ''}")
    states, retry = runner.preview(grid, folder), options.retry_failed
    left = [one for one in states if one[1] != "finished" and (retry or one[1] != "failed")]
    show, say = console().print, console(stderr=True).print
    to_run = f"{len(left)} of {counted(len(states), 'cell')} to run into `{folder}`."
    if options.dry_run:
        width = max(len(cell.id) for cell, _ in states)
        lines = [f"{cell.id:{width}}  {state}" for cell, state in states]
        show("\n".join([*lines, *grid.remarks, to_run]))
        return 0
    say("\n".join([*(f"{c.id} is {state}" for c, state in left if "changed" in state), to_run]))
    ray = Ray(options.address, options.cpus_per_cell, options.gpus_per_cell)
    try:
        with progress_bar() as bar:
            watch = _Bar(bar, [cell for cell, _ in left])
            executor = ray if options.executor == "ray" else local
            found = runner.run(grid, folder, executor, watch, retry)
    except KeyboardInterrupt:
        say(f"Interrupted. The same command continues; `bass table {folder}` shows what has ended.")
        return INTERRUPTED
    if found.finished:
        show(to_text(found), end="")
    failed = len(states) - len(found.finished)
    more = f" {counted(failed, 'cell')} failed: `--retry-failed` runs them again." if failed else ""
    say(f"Next: bass report {folder}.{more}")
    return FAILED if failed else 0


class _Bar:
    """A bar of the repeats of all cells, and a line for each cell that has ended."""

    def __init__(self, bar: Any, cells: "Sequence[Cell]") -> None:
        self._bar, self._done, self._left = bar, dict[str, float](), len(cells)
        self._task = bar.add_task("repeats", total=sum(cell.settings.repeats for cell in cells))

    def __call__(self, cell: "Cell", repeats: float, summary: Mapping[str, Any] | None) -> None:
        self._done[cell.id] = repeats
        self._bar.update(self._task, completed=sum(self._done.values()), description=cell.id)
        if summary is None:
            return
        self._left -= 1
        outcome = f"FAILED: {summary['error']}" if summary["error"] else "done"
        line = f"{cell.id}: {outcome}, {summary['seconds']:.1f} s; {self._left} left"
        style = "bold red" if summary["error"] else None
        self._bar.console.print(line, markup=False, soft_wrap=True, style=style)
