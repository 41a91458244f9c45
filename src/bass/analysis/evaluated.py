"""Reads the folder of an evaluation, finished or not, for its report."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float

from bass.analysis.noise import Speeds, noise
from bass.analysis.scores import SCORES as KINDS
from bass.analysis.scores import Scored, scores_within, useful_budgets
from bass.errors import RequestError, RunFolderError, counted
from bass.files import read_regular
from bass.plain_json import parse_json
from bass.runs.conditions import ConditionLine
from bass.runs.evaluation_folder import (
    IN_COMMON,
    LARGEST_JSON,
    MANIFEST,
    METHODS,
    MOST_BUDGETS,
    SAMPLES,
    SCORES,
    SUMMARY,
    Sample,
    Score,
    check_own,
    digest,
    read_conditions,
    read_lines,
    read_manifest,
    read_samples,
)
from bass.runs.own_files import inside
from bass.runs.words import in_words, listed
from bass.runs.work import short

POINTS = 40  # of a curve; each has an interval of its own
MOST_FIGURES = 2**22  # problems times methods times budgets and points, whose intervals take 20 s

Groups = list[list[Scored]]


@final
@dataclass(frozen=True, eq=False)  # equality by identity: comparing all samples would be slow
class Evaluated:
    """The scored part of an evaluation. All methods have the same problems, in the same order:
    those that all of them have scored.

    problems: of the whole evaluation. notes: what a reader must know before the figures. pairs:
    methods to be compared with each other, the first with the second; none: all with the best. ks:
    of pass@k, as requested. conditions: of the machine, by problem of each method.
    """

    name: str
    manifests: Sequence[Mapping[str, Any]]
    task: str
    problems: int
    methods: Mapping[str, Groups]
    budgets: Sequence[float]
    notes: Sequence[str]
    pairs: Sequence[tuple[str, str]] = ()
    ks: Sequence[int] = ()
    conditions: Mapping[str, list[ConditionLine]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count * len(self.methods) * (len(self.budgets) + POINTS) > MOST_FIGURES:
            raise RequestError(
                f"The evaluation {self.name} has {counted(self.count, 'problem')}, "
                f"{counted(len(self.methods), 'method')} and {counted(len(self.budgets), 'budget')}"
                ", more than a report supports: give `bass eval` fewer budgets or problems."
            )

    @property
    def kind(self) -> str:
        """`code`, `exact_match` or `rouge2`."""
        return KINDS[self.task]

    @property
    def count(self) -> int:
        """The number of problems."""
        return len(next(iter(self.methods.values())))

    @property
    def samples(self) -> int:
        """The number of samples of each problem."""
        return max(len(group) for groups in self.methods.values() for group in groups)

    def speeds(self, a: str, b: str) -> Speeds:
        """The machine's speeds while two methods were sampled."""
        return Speeds.of(self.conditions.get(a, []), self.conditions.get(b, []))

    @functools.cache  # noqa: B019  one page needs the same values several times
    def scores(
        self, method: str, budget: float, clock: str
    ) -> tuple[Float[np.ndarray, " problems"], Float[np.ndarray, " problems"]]:
        """First and All of each problem."""
        first, best = self.scores_within(method, [budget], clock)
        return first[0], best[0]

    def scores_within(
        self, method: str, budgets: Sequence[float], clock: str
    ) -> tuple[Float[np.ndarray, "budgets problems"], Float[np.ndarray, "budgets problems"]]:
        """First and All of each problem within each budget."""
        return scores_within(self.methods[method], budgets, clock)


def read_evaluation(path: Path) -> Evaluated:
    """Read an evaluation. Raises `RequestError` if it has no scores, or a file is damaged."""
    manifest = read_manifest(path)
    task, options, whole = (
        manifest["config"].get("task"),
        manifest["config"].get("options"),
        manifest.get("problems"),
    )
    if not (isinstance(options, dict | None) and isinstance(whole, int | None)):
        raise RequestError(
            f"`{path / MANIFEST}` is damaged: restore it, or run the evaluation again in a new "
            "folder."
        )
    if not isinstance(task, str) or task not in KINDS:
        raise RequestError(
            f"`{path}` is an evaluation of the task {task!r}, which this `bass` does not "
            "support: use the version that wrote it."
        )
    for name in _methods(path):
        check_own(path, manifest, name)
    scored = {name: found for name in _methods(path) if (found := _scored(path, name))}
    begun = [name for name in _methods(path) if name not in scored]
    if not scored:
        raise RequestError(
            f"`{path}` has nothing to report: no sample has a score yet; run the same `bass "
            "eval` again, which continues."
        )
    shared = [
        task_id
        for task_id in next(iter(scored.values()))
        if all(task_id in found for found in scored.values())
    ]
    if not shared:
        raise RequestError(
            f"`{path}` has nothing to report: its methods share no problem; run the same "
            "`bass eval` again."
        )
    methods = {name: [found[task_id] for task_id in shared] for name, found in scored.items()}
    whole = len(shared) if whole is None else whole
    conditions = states(path, [*methods])
    notes = machine(conditions, manifest)
    if len(shared) < whole:
        notes.append(
            f"The evaluation is not finished: {len(shared)} of {whole} problems have scores. "
            "The report shows these."
        )
    if begun:
        notes.append(f"Not scored yet, and left out: {', '.join(begun)}.")
    notes += _claims(manifest)
    budgets, ks = _requested(path)
    budgets = budgets or useful_budgets([group for groups in methods.values() for group in groups])
    return Evaluated(
        path.resolve().name, [manifest], task, whole, methods, budgets, notes, ks=ks,
        conditions=conditions,
    )  # fmt: skip


def states(path: Path, methods: Sequence[str]) -> dict[str, list[ConditionLine]]:
    """The state of the machine during each problem, by method."""
    return {name: read_conditions(path, name) for name in methods}


def _claims(manifest: Mapping[str, Any]) -> list[str]:
    """What the verifier and the drafter declare, where it limits the results."""
    notes = []
    if not manifest.get("lossless", True):
        notes.append(
            "The verifier is not lossless: samples of a method that drafts do not follow the "
            "target's distribution."
        )
    if not manifest.get("batch_invariant", True):
        notes.append("The drafter is batch-wide: tokens of a row depend on its batch.")
    return notes


def machine(lines: Mapping[str, list[ConditionLine]], manifest: Mapping[str, Any]) -> list[str]:
    """Remarks on the machine while these methods were sampled: its noise, changes between sessions,
    or that its state was not recorded.
    """
    reported = [*noise(itertools.chain(*lines.values()), "request"), *manifest.get("notes", [])]
    if not all(lines.values()):
        reported.append(
            "The state of the machine was not recorded: differences within a time budget may be "
            "the machine's."
        )
    return reported


def both(a: Evaluated, b: Evaluated) -> Evaluated:
    """Two evaluations of the same problems as one, with methods `A: batched`, `B: batched`, ..."""
    if a.manifests[0]["config"].get("problems") != b.manifests[0]["config"].get("problems"):
        raise RunFolderError(
            f"{a.name} ({a.task}, {counted(a.problems, 'problem')}) and {b.name} ({b.task}, "
            f"{b.problems}) are not of the same problems: "
            "report them one by one."
        )
    known = _ids(a)
    shared = [task_id for task_id in _ids(b) if task_id in known]
    if not shared:
        raise RunFolderError(
            f"{a.name} and {b.name} share no problem that is scored in both: there is "
            "nothing to compare."
        )
    methods, conditions = {}, {}
    for letter, one in (("A", a), ("B", b)):
        for name, groups in one.methods.items():
            conditions[f"{letter}: {name}"] = one.conditions.get(name, [])
            by_id = {group[0].sample.task_id: group for group in groups}
            methods[f"{letter}: {name}"] = [by_id[task_id] for task_id in shared]
    budgets = (
        a.budgets
        if list(a.budgets) == list(b.budgets)
        else useful_budgets([g for groups in methods.values() for g in groups])
    )
    notes = _differences(a.manifests[0], b.manifests[0]) + [
        f"{letter}: {note}" for letter, one in (("A", a), ("B", b)) for note in one.notes
    ]
    if len(shared) < max(a.count, b.count):
        notes.append(
            f"Only the {counted(len(shared), 'problem')} that both have scored are compared, of "
            f"{a.count} in A and {b.count} in B."
        )
    made = replace(
        a, name=f"{a.name} (A) and {b.name} (B)", manifests=[*a.manifests, *b.manifests],
        problems=len(shared), methods=methods,
        budgets=budgets, notes=notes,
        pairs=[(f"A: {name}", f"B: {name}") for name in a.methods if name in b.methods],
        ks=sorted({*a.ks, *b.ks}), conditions=conditions,
    )  # fmt: skip
    speeds = [found for pair in made.pairs if (found := made.speeds(*pair)).differ]
    warned = [speeds[0].warning("samples")] if speeds else []
    return replace(made, notes=[*warned, *notes])


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """A sentence on the differences between the inputs of two evaluations."""
    x, y = _made_with(a), _made_with(b)
    unlike = [
        f"{name} ({in_words(short(x.get(name)))} and {in_words(short(y.get(name)))})"
        for name in dict.fromkeys([*x, *y])
        if x.get(name) != y.get(name)
    ]
    return [f"The evaluations differ in {listed(unlike)}, that of A first."] if unlike else []


def _made_with(manifest: Mapping[str, Any]) -> dict[str, Any]:
    config, others = manifest["config"], {name: manifest.get(name) for name in IN_COMMON}
    reported = dict(config)
    for part in (reported.pop("options", None), others, others.pop("inputs", None)):
        reported |= part if isinstance(part, dict) else {}
    return reported


def _ids(evaluated: Evaluated) -> list[str]:
    return [group[0].sample.task_id for group in next(iter(evaluated.methods.values()))]


def _methods(path: Path) -> list[str]:
    return [name for name in METHODS if (path / name / SAMPLES).exists()]


def _scored(path: Path, method: str) -> dict[str, list[Scored]]:
    """The problems with a score for every sample."""
    values = {
        (line.task_id, line.sample, line.text): line.value
        for line in read_lines(inside(path, method, SCORES), Score)
    }

    def value(sample: Sample) -> float | None:
        return values.get((sample.task_id, sample.sample, digest(sample.text)))

    found = {}
    for task_id, group in read_samples(inside(path, method, SAMPLES)).items():
        if group and all(value(sample) is not None for sample in group):
            found[task_id] = [
                Scored(sample, values[task_id, sample.sample, digest(sample.text)])
                for sample in group
            ]
    return found


def _requested(path: Path) -> tuple[list[float], list[int]]:
    """The budgets, requested or from the samples, and the values of k; empty before the evaluation
    has ended.
    """
    file = inside(path, SUMMARY)
    if not file.exists():
        return [], []
    try:
        methods = parse_json(read_regular(file, LARGEST_JSON))["methods"].values()
        budgets = {float(p["budget"]) for one in methods for p in one["curve"]}
        if not all(0 < budget < math.inf for budget in budgets):
            raise ValueError("a budget is not a number of seconds")
        ks = {int(k) for one in methods for k in one["pass@k"]}
        if max(len(budgets), len(ks)) > MOST_BUDGETS:
            raise ValueError(f"it has more than {MOST_BUDGETS} budgets, or values of k")
        return sorted(budgets), sorted(ks)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ) as error:
        raise RequestError(
            f"`{file}` is damaged ({error}): delete it, and run the same `bass eval` again, which "
            "writes it again."
        ) from error
