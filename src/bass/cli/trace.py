"""`bass trace`: exports the acceptance of a run, and replays it through the simulator with other
policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml
from jsonargparse import Namespace
from rich.markup import escape
from rich.table import Table

from bass.analysis import traces
from bass.analysis.traces import CellTrace, measured_cost
from bass.api.resolve import make
from bass.cli.output import check_folder, check_output, replacing
from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import console, say
from bass.errors import OptionError, check_integer, counted, unknown_name
from bass.plain_yaml import read_yaml
from bass.policies import Oracle
from bass.policies.simulate import LONGEST, CostModel, Simulation, simulate
from bass.runs.run_folder import RunFolder
from bass.runs.words import called

ACTIONS = {
    "export": "write the acceptance of a run's cells to a file",
    "replay": "replay such a file with other policies, without a model",
}
_RATIO = "c="
WIDTH = 120


def run(parser: Parser, argv: list[str]) -> int:
    """Export or replay."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {action:8}{about}" for action, about in ACTIONS.items())
        say(f"usage: {parser.command} ACTION [options]\n\nactions:\n{lines}")
        return 0 if argv else 2
    if name not in ACTIONS:
        raise unknown_name("action of `bass trace`", name, ACTIONS)
    own = Parser(f"trace {name}", ACTIONS[name])
    return (_export if name == "export" else _replay)(own, argv[1:])


def _export(parser: Parser, argv: list[str]) -> int:
    parser.add(
        Option("run", help="folder that `bass ablate` wrote", place=ONE),
        Option("output", help="file of the traces", metavar="FILE.jsonl"),
    )
    config = parser.parse(argv)
    if config.output is None:
        raise OptionError("`bass trace export` needs `--output FILE.jsonl`.")
    output = Path(config.output)
    if output.suffix.lower() != ".jsonl":
        raise OptionError(
            f"`--output {output}` is no name of a file of traces: give one that ends in .jsonl."
        )
    check_output(output, "--output")
    check_folder(Path(config.run))
    if output.resolve().is_relative_to(Path(config.run).resolve()):
        raise OptionError(
            f"`--output {output}` is in the run folder, whose files it could replace: name one "
            "outside of it."
        )
    with replacing(output):
        found = traces.export(RunFolder(Path(config.run)), output)
    for one in found:
        calls = sum(map(len, one.accepted))
        say(
            f"{one.cell}: {counted(calls, 'call')} at batch {one.batch}, of which "
            f"{100 * one.censored:.0f} % might have accepted more than they drafted"
        )
    say(f"{output}: written", stderr=True)
    return 0


def _replay(parser: Parser, argv: list[str]) -> int:
    parser.add(
        Option("file", help="file that `bass trace export` wrote", place=ONE),
        Option(
            "policies",
            list[str],
            "names of policies, package.module:Class, or {class_path: ..., init_args: {...}}",
            default=["bass"],
            words=True,
        ),
        Option("cell", help="replay only this cell; default: each in turn"),
        Option(
            "cost",
            help="the time of a step: `measured` (a line through the recorded steps of the cell, "
            "or of all cells of its batch if it drafts one length), `h200` (7.7B and 310M), or "
            "`c=0.1`, the time of a draft pass over the target's",
            default="measured",
        ),
        Option("batch", int, "rows of the simulated batch; default: as recorded"),
        Option("seed", int, "of what completes censored calls, and of the noise of times", 0),
    )
    config = parser.parse(argv)
    check_integer("seed", config.seed, 0)
    if config.batch is not None:
        check_integer("batch", config.batch, 1)
    policies = [(_named(text), text) for text in config.policies]
    for _, text in policies:
        _made(text)
    every = traces.read(Path(config.file))
    found = _chosen(every, config.cell)
    output = console()
    if not output.is_terminal:
        output.width = max(output.width, WIDTH)
    costs = _costs(config, found, every)
    for one, cost in costs:
        batch = config.batch or one.batch
        rows = replayed(one, policies, cost, batch, config.seed)
        output.print(_shown(one, rows, batch, config.cost))
    worst = max(one.censored for one, _ in costs)
    output.print(
        f"Up to {100 * worst:.0f} % of the calls of a cell are censored: what they would have "
        "accepted beyond their draft is drawn from its acceptance by position.",
        markup=False,
        soft_wrap=True,
    )
    return 0


@final
@dataclass(frozen=True)
class Replayed:
    """A row of the table."""

    policy: str
    ms_per_token: float
    speedup: float
    tau: float
    drafted: float
    regret: float

    @classmethod
    def of(cls, policy: str, run: Simulation) -> "Replayed":
        """The figures of a simulation."""
        plain = float(run.fixed(0)[0])
        return cls(
            policy,
            run.ms_per_token,
            plain / run.ms_per_token,
            run.tau,
            run.mean_length,
            run.regret(LONGEST),
        )


def replayed(
    trace: CellTrace,
    policies: Sequence[tuple[str, str]],
    cost: CostModel,
    batch: int,
    seed: int,
) -> list[Replayed]:
    """Each policy on the same calls, after the best fixed length in hindsight and the oracle."""
    acceptance = trace.acceptance
    steps = acceptance.steps(batch)
    given: dict[str, Any] = {"batch": batch, "cost": cost, "steps": steps, "seed": seed}
    plain = simulate(
        make("policy", {"class_path": "fixed", "init_args": {"k": 0}}), acceptance, **given
    )
    best = int(plain.fixed(LONGEST).argmin())
    fixed = make("policy", {"class_path": "fixed", "init_args": {"k": best}})
    oracle = Oracle(plain.would, LONGEST)
    rows = [
        Replayed.of("no drafts", plain),
        Replayed.of(f"best fixed length, k={best}", simulate(fixed, acceptance, **given)),
        Replayed.of("oracle", simulate(oracle, acceptance, **given)),
    ]
    for name, text in policies:
        rows.append(Replayed.of(name, simulate(_made(text), acceptance, **given)))
    return rows


def _shown(trace: CellTrace, rows: Sequence[Replayed], batch: int, cost: str) -> Table:
    table = Table(
        "policy",
        title=escape(f"{trace.cell}: {batch} rows, time of a step: {cost}"),
        title_justify="left",
    )
    for head in ("ms per token", "speed-up", "tau", "drafted per call", "regret, %"):
        table.add_column(head, justify="right")
    for row in rows:
        figures = (row.ms_per_token, row.speedup, row.tau, row.drafted, 100 * row.regret)
        table.add_row(escape(row.policy), *(f"{round(figure, 6) + 0.0:.3g}" for figure in figures))
    return table


def _chosen(found: list[CellTrace], cell: str | None) -> list[CellTrace]:
    if cell is None:
        return found
    chosen = [one for one in found if one.cell == cell]
    if not chosen:
        raise unknown_name("cell", cell, [one.cell for one in found])
    return chosen


def _costs(
    config: Namespace, found: Sequence[CellTrace], every: Sequence[CellTrace]
) -> list[tuple[CellTrace, CostModel]]:
    """The time of a step of each cell. Of several, those without one are left out, with a note."""
    costs: list[tuple[CellTrace, CostModel]] = []
    wrong: list[tuple[str, OptionError]] = []
    for one in found:
        try:
            costs.append((one, _cost(config.cost, one, config.batch or one.batch, every)))
        except OptionError as error:
            wrong.append((one.cell, error))
    if not costs:
        raise wrong[0][1]
    for cell, error in wrong:
        say(f"bass: `{cell}` is left out. {error}", stderr=True)
    return costs


def _cost(name: str, trace: CellTrace, batch: int, every: Sequence[CellTrace]) -> CostModel:
    if name == "measured":
        if batch != trace.batch:
            raise OptionError(
                f"The measured times of `{trace.cell}` are those of batch {trace.batch}, and "
                f"`--batch` is {batch}: leave it out, or give another `--cost`."
            )
        alone = len({*trace.step_k}) > 1
        return measured_cost(
            [trace] if alone else [one for one in every if one.batch == trace.batch]
        )
    if name == "h200":
        return CostModel()
    if name.startswith(_RATIO):
        try:
            return CostModel.from_ratio(float(name.removeprefix(_RATIO)))
        except ValueError:
            pass
    raise OptionError(f"`--cost {name}` is unknown: give measured, h200, or a ratio as c=0.1.")


def _spec(text: str) -> Any:
    try:
        return read_yaml(text) if text.startswith("{") else text
    except yaml.YAMLError as error:
        raise OptionError(
            f"`--policies {text:.60}` is not YAML: write a policy with parameters as "
            "'{class_path: fixed, init_args: {k: 4}}', in quotes."
        ) from error


def _made(text: str) -> Any:
    return make("policy", _spec(text))


def _named(text: str) -> str:
    return str(called(_spec(text)))
