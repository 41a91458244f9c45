"""`bass eval`: scores a pair on a benchmark, into a folder, and shows the progress."""

import functools
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.table import Table

from bass.analysis.evaluated import machine, states
from bass.analysis.scores import SCORES
from bass.api.checks import examine
from bass.api.llm import LLM, serve
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan
from bass.cli.display import Bars
from bass.cli.generate import INTERRUPTED, caveats
from bass.cli.options import read_options
from bass.cli.parsing import Option, Parser
from bass.cli.terminal import Screen, console, give
from bass.errors import OptionError, RequestError, check_integer, unknown_name
from bass.evaluation.evaluate import (
    METHODS,
    Evaluation,
    check,
    evaluate,
    fitting,
    sandbox,
    with_shots,
)
from bass.evaluation.tasks import BUILT_IN, TASKS, Problem, read_problems
from bass.files import FULL
from bass.interrupt import displayed, interruptible
from bass.problems import Problems
from bass.prompts.files import on_hub
from bass.prompts.published import DATA
from bass.provenance.described import described
from bass.provenance.environment import commit, device_name, here
from bass.provenance.made_with import (
    SCORING,
    SOURCE,
    fingerprints,
    source_of_bass,
    source_of_scoring,
)
from bass.runs.evaluation_folder import Folder, opened, read_manifest
from bass.runs.unchanged import Unchanged

_OPTIONS = (
    Option("task", help=f"kind of problems: {', '.join(TASKS)}"),
    Option(
        "data",
        help=(
            "file of problems: .jsonl, .json, either with .gz, .parquet, or one on the hub as "
            "org/name[@revision]:path/of/file; or the folder of the published file, by default "
            f"that of the environment variable {DATA}; "
            f"{', '.join(BUILT_IN)} needs none"
        ),
        metavar="FILE",
    ),
    Option(
        "output",
        help="folder for samples and scores; an unfinished evaluation in it is continued",
        metavar="FOLDER",
    ),
    Option(
        "methods", list[str], f"methods to compare: {', '.join(METHODS)}", ["batched"], "[NAME,...]"
    ),
    Option("k", list[int], "also print pass@k (unbiased)", [], "[K,...]"),
    Option(
        "budgets",
        list[float],
        "seconds at which First and All are reported; by default ten values",
        [],
        "[S,...]",
    ),
    Option("limit", int | None, "only the first N problems", metavar="N"),
    Option("shots", int, "few-shot: the first N problems, solved, precede each prompt", 0, "N"),
    Option("skip_long", bool, "leave out problems whose prompts do not fit the context"),
    Option("program_seconds", float, "time limit of each generated program", 10.0),
    Option("program_memory", int, "address space of each generated program", 1024, "MIB"),
    Option(
        "workers",
        int | None,
        "programs that run at the same time; by default one per core",
        metavar="N",
    ),
    Option("json", bool, "print the summary as one JSON line"),
)


@contextmanager
def _with_room(output: str) -> Iterator[None]:
    """Raise `RequestError` if the disk gets full within it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RequestError(
            f"`{output}` cannot be written ({error.strerror}): free disk space, and repeat the "
            "command, which continues; finished results are kept."
        ) from error


def run(parser: Parser, argv: list[str]) -> int:
    """Evaluate, or continue an interrupted evaluation.

    Nothing is written before options and problems are checked.
    """
    read: list[Problem] = []

    def examine(config: Namespace, wrong: Problems) -> None:
        _examine(config, wrong)
        read.extend(_problems(config, wrong))

    config, load_with, stream_with, named = read_options(parser, argv, _OPTIONS, examine)
    problems = with_shots(read, config.shots)
    evaluation = Evaluation(
        config.task,
        problems[: config.limit],
        stream_with,
        config.methods,
        config.k,
        config.budgets,
        sandbox(config.program_seconds, config.program_memory, config.workers),
    )
    load_plan = LoadPlan.of(LoadOptions(**load_with))
    inputs = _inputs(load_plan, named.words)
    llm = serve(load_plan)
    whole = len(evaluation.problems)
    if config.skip_long:
        evaluation = without_long(llm, evaluation, stream_with["max_new_tokens"])
    check(llm, evaluation)
    about = _about(evaluation, llm, inputs)
    identity = _identity(config, evaluation, llm, named.specs)
    below = console(stderr=True)
    with opened(Path(config.output), identity, about) as folder, _with_room(config.output):
        try:
            summary = _evaluated(llm, evaluation, folder, below, Unchanged(inputs))
        except KeyboardInterrupt:
            below.print(
                f"bass: Interrupted; finished results are in {config.output}, and the same command "
                "continues.",
                markup=False,
            )
            return INTERRUPTED
    if config.json:
        give(json.dumps(summary) + "\n")
    else:
        show(console(), summary)
        below.print(
            f"bass: `bass report {config.output}` makes a page with the curves.",
            markup=False,
        )
    for remark in machine(states(folder.path, evaluation.methods), read_manifest(folder.path)):
        below.print(remark, style="yellow", markup=False, soft_wrap=True)
    if skipped := whole - len(evaluation.problems):
        below.print(
            f"bass: {skipped} problems were left out: their prompts do not fit the context.",
            markup=False,
        )
    for caveat in caveats(llm.parts, llm.models.dummy):
        below.print(caveat, style="bold red", markup=False)
    return 0


def _evaluated(
    llm: LLM, evaluation: Evaluation, folder: Folder, screen: Screen, inputs: Unchanged
) -> dict[str, Any]:
    """Evaluate with progress bars, and return the summary; a termination signal interrupts."""
    with (
        displayed(Bars(screen)) as progress,
        interruptible(signal.SIGTERM, signal.SIGHUP) as check_interruption,
    ):

        def take(stage: str, done: int, total: int) -> None:
            progress(stage, done, total)
            check_interruption()

        return evaluate(llm, evaluation, folder, take, functools.partial(_check, inputs))


def _check(inputs: Unchanged) -> None:
    """Raise `RequestError` if an input has changed."""
    if changes := inputs.changes():
        raise RequestError(
            f"An input is not what it was when the evaluation began ({'; '.join(changes)}): "
            "restore it and repeat the command, which continues, or name another folder."
        )


def without_long(llm: LLM, evaluation: Evaluation, new_tokens: int) -> Evaluation:
    """The evaluation without the problems whose prompts do not fit the context.

    Raises `OptionError` where none is left.
    """
    kept = fitting(llm, evaluation.problems, new_tokens)
    if not kept:
        raise OptionError(
            "None of the prompts fits the context next to `max_new_tokens`: lower it, or `--shots`."
        )
    return replace(evaluation, problems=kept)


def _problems(config: Namespace, wrong: Problems) -> list[Problem]:
    """The problems of the task; nothing is downloaded if an error was found before."""
    task, data = config.task, config.data
    download = data is not None and on_hub(data)
    if task in TASKS and _has_data(config) and not (wrong.sentences and download):
        with wrong.noted():
            return read_problems(task, data)
    return []


def _has_data(config: Namespace) -> bool:
    """Whether the problems have a place: built in, by `--data`, or of the folder of BASS_DATA."""
    return config.data is not None or config.task in BUILT_IN or bool(os.environ.get(DATA))


def _examine(config: Namespace, wrong: Problems) -> None:
    """Record every error in the command's own options."""
    if config.task is None:
        wrong.add(f"`--task` is missing: name the task, one of {', '.join(TASKS)}.")
    if not _has_data(config):
        wrong.add(
            f"`--data` is missing: name the data, or set {DATA} to the folder of published files."
        )
    if config.output is None:
        wrong.add("`--output` is missing: name the folder to write to.")
    examine(vars(config), wrong)
    for name, least in {"limit": 1, "shots": 0, "workers": 1}.items():
        with wrong.noted():
            if config[name] is not None:
                check_integer(name, config[name], least)
    if config.load_format == "dummy":
        wrong.add(
            "`--load-format dummy` makes random weights, which solve no problem: leave it out, or "
            "measure their speed with `bass bench`."
        )
    known = config.task in TASKS
    if config.task is not None and not known:
        wrong.add(str(unknown_name("task", config.task, TASKS)))
    options = {"num_return_sequences": config.num_return_sequences}
    task = str(config.task) if known else "humaneval"
    for arguments in ({"methods": config.methods}, {"ks": config.k}, {"budgets": config.budgets}):
        with wrong.noted():
            Evaluation(task, [], options, **arguments)
    for arguments in ({"seconds": config.program_seconds}, {"memory": config.program_memory}):
        with wrong.noted():
            sandbox(**arguments)


def _identity(
    config: Namespace, evaluation: Evaluation, llm: LLM, specs: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that samples and scores depend on. `specs`: of the strategies, by option."""
    models = llm.models
    quantizations = zip(("quantization", "draft_quantization"), models.quantizations, strict=True)
    strategies = vars(llm.parts) | dict(quantizations)
    limits = {"program_seconds": config.program_seconds, "program_memory": config.program_memory}
    return {
        "task": evaluation.task,
        "problems": evaluation.fingerprint,
        "target": config.target,
        "draft": config.draft,
        **{name: config[name] for name in ("lora", "draft_lora", "family") if config[name]},
        **{name: described(part, specs.get(name)) for name, part in strategies.items()},
        "dtype": str(models.dtype),
        "device": str(models.device),
        "max_batch_size": llm.max_batch_size,
        "options": evaluation.options,
        **(limits if SCORES[evaluation.task] == "code" else {}),
    }


def _inputs(load_plan: LoadPlan, specs: Sequence[Any]) -> dict[str, str]:
    """The fingerprints of strategies and checkpoints; taken before the models are loaded."""
    return fingerprints(load_plan.strategies, specs, load_plan.folders)


def _about(evaluation: Evaluation, llm: LLM, inputs: dict[str, str]) -> dict[str, Any]:
    return {
        "inputs": {SOURCE: source_of_bass(), SCORING: source_of_scoring()} | inputs,
        "problems": len(evaluation.problems),
        "lossless": llm.parts.verifier.lossless,
        "batch_invariant": llm.parts.drafter.batch_invariant,
        **here(),
        "commit": commit(),
        "device": device_name(llm.models.device),
    }


def show(console: Screen, summary: dict[str, Any]) -> None:
    """Print the scores, and First and All by budget, with one column per method."""
    methods = summary["methods"]
    heading = {
        "code": "share of problems that pass",
        "exact_match": "share of problems answered",
        "rouge2": "ROUGE-2, F-measure",
    }
    console.print(
        f"{summary['task']}: {summary['problems']} problems, {summary['samples']} samples each; "
        f"{heading[summary['score']]}"
    )
    if summary["confined_by"]:
        console.print(f"programs were confined by {', '.join(summary['confined_by'])}", style="dim")
    grid = Table("", *methods)
    rows = {
        "first (highest mean log-probability)": "first",
        "all (any sample)": "all",
        "mean of samples": "mean",
        "samples finished": "finished",
    }
    for label, name in rows.items():
        grid.add_row(label, *(f"{one[name]:.1%}" for one in methods.values()))
    for k in next(iter(methods.values()))["pass@k"]:
        grid.add_row(f"pass@{k}", *(f"{one['pass@k'][k]:.1%}" for one in methods.values()))
    console.print(grid)
    curves = [one["curve"] for one in methods.values()]
    for clock, since in (("prefill", "the end of the prefill"), ("start", "the start")):
        console.print(f"first / all (samples finished), by time limit in seconds from {since}:")
        table = Table("seconds", *methods)
        for points in zip(
            *([p for p in curve if p["clock"] == clock] for curve in curves), strict=True
        ):
            table.add_row(
                f"{points[0]['budget']:.3g}",
                *(f"{p['first']:.1%} / {p['all']:.1%} ({p['finished']:.0%})" for p in points),
            )
        console.print(table)
