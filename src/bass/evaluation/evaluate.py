"""Samples every problem, then scores the samples; both continue after an interruption."""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bass.analysis.scores import (
    CLOCKS,
    SCORES,
    Scored,
    curve,
    mean_pass_at_k,
    point,
    useful_budgets,
)
from bass.api.llm import LLM, plain
from bass.api.options import RequestOptions
from bass.errors import OptionError, RequestError, is_finite, unknown_name
from bass.evaluation.sandbox import Limits, Sandbox
from bass.evaluation.scoring import exact_match, rouge2
from bass.evaluation.tasks import Problem
from bass.runs.evaluation_folder import METHODS as NAMES
from bass.runs.evaluation_folder import MOST_BUDGETS, Folder, Sample, Score, digest
from bass.runs.machine import Conditions
from bass.runs.prompts import occurrences
from bass.text import Tokenizer

Progress = Callable[[str, int, int], None]  # stage, items done, items in total
WARM_UP_TOKENS = 4


def single(llm: LLM) -> LLM:
    """The same speculation for one sequence at a time: samples of a problem follow each other."""
    return LLM(llm.models, llm.parts, 1, llm.graphs)


METHODS: dict[str, Callable[[LLM], LLM]] = dict(
    zip(NAMES, (lambda llm: llm, plain, single), strict=True)
)


@dataclass(frozen=True)
class Evaluation:
    """The request of an evaluation.

    `options`: of `LLM.generate`; `ks`: of pass@k; `budgets`: in seconds; empty: ten from the
    samples.
    """

    task: str
    problems: Sequence[Problem]
    options: Mapping[str, Any]
    methods: Sequence[str] = ("batched",)
    ks: Sequence[int] = ()
    budgets: Sequence[float] = ()
    sandbox: Sandbox = field(default_factory=Sandbox)

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
        if len(set(self.methods)) != len(self.methods) or not self.methods:
            raise OptionError(
                f"`methods={list(self.methods)}` must name one or more methods, each once."
            )
        samples = self.options["num_return_sequences"]
        for k in self.ks:
            if not 1 <= k <= samples:
                raise OptionError(
                    f"pass@{k} needs 1 to {samples} of {samples} samples: raise "
                    "`num_return_sequences`, or lower k."
                )
        if self.ks and SCORES[self.task] == "rouge2":
            raise OptionError(
                "pass@k counts samples that pass, and summaries do not pass or fail: leave it out."
            )
        if max(len(self.budgets), len(self.ks)) > MOST_BUDGETS:
            raise OptionError(
                f"There are more than {MOST_BUDGETS} budgets, or values of k: give fewer."
            )
        if not all(is_finite(b) and b > 0 for b in self.budgets):
            raise OptionError(
                f"`budgets={list(self.budgets)}` must be more than 0 seconds each, and finite: "
                "scores without a budget are always reported."
            )

    @property
    def fingerprint(self) -> str:
        """A hash of the problems, so that a folder is continued only with the same ones."""
        return hashlib.sha256(json.dumps([asdict(p) for p in self.problems]).encode()).hexdigest()[
            :16
        ]


def sandbox(
    seconds: float = Limits.seconds, memory: int = Limits.memory, workers: int | None = None
) -> Sandbox:
    """The sandbox of generated programs, with limits in seconds and MiB; `workers` programs at a
    time, by default one per core.

    Errors name the options of `bass eval`, `program_seconds` and `program_memory`.
    """
    limits = Limits(seconds, memory)
    try:
        return Sandbox(limits) if workers is None else Sandbox(limits, workers)
    except OptionError as error:
        named = re.sub("`(seconds|memory)=", r"`program_\1=", str(error))
        raise OptionError(named) from error


def with_shots(problems: Sequence[Problem], shots: int) -> list[Problem]:
    """The problems after the first `shots`, each with those and their solutions in its prompt."""
    if not 0 <= shots < len(problems):
        raise OptionError(
            f"`shots={shots}` must leave at least one of the {len(problems)} problems: "
            "give a smaller number."
        )
    before = "".join(f"{p.prompt}{p.solution}\n\n" for p in problems[:shots])
    return [replace(p, prompt=before + p.prompt) for p in problems[shots:]]


def check(llm: LLM, evaluation: Evaluation) -> list[str]:
    """Check before sampling: raise an error for prompts beyond the context, programs that cannot
    run, or a missing library.

    Returns the layers that confine programs.
    """
    tokenizer = llm.models.tokenizer
    if tokenizer is None:
        raise RequestError(
            "The problems are texts, and the target's folder has no tokenizer: add its files."
        )
    room = room_for_prompt(llm, evaluation.options["max_new_tokens"])
    sizes = [_size(tokenizer, p.prompt, room) for p in evaluation.problems]
    empty = sizes.count(0)
    if empty:
        named = evaluation.problems[sizes.index(0)].task_id
        raise RequestError(
            f"{empty} of {len(sizes)} problems have an empty prompt, the first is `{named}`: "
            "remove them from the file."
        )
    long = sum(size > room for size in sizes)
    if long:
        raise RequestError(
            f"{long} of {len(sizes)} prompts have more than the {max(room, 0)} tokens that the "
            "context leaves next to `max_new_tokens`: "
            "lower it or `shots`, or leave them out with `skip_long`."
        )
    if SCORES[evaluation.task] == "rouge2":
        rouge2(evaluation.problems[0], "")
    return list(evaluation.sandbox.layers) if SCORES[evaluation.task] == "code" else []


def fitting(llm: LLM, problems: Sequence[Problem], max_new_tokens: int) -> list[Problem]:
    """The problems whose prompts fit."""
    tokenizer = llm.models.tokenizer
    room = room_for_prompt(llm, max_new_tokens)
    return [p for p in problems if tokenizer is None or _size(tokenizer, p.prompt, room) <= room]


def _size(tokenizer: Tokenizer, prompt: str, room: int) -> int:
    """Tokens of a prompt; for one that cannot fit, any number above `room`."""
    room = max(room, 0)
    return room + 1 if tokenizer.cannot_fit(prompt, room) else len(tokenizer.encode(prompt))


def room_for_prompt(llm: LLM, max_new_tokens: int) -> int:
    """The tokens that the shorter context leaves for a prompt."""
    return llm.max_model_len - max_new_tokens


def sample(
    llm: LLM,
    evaluation: Evaluation,
    folder: Folder,
    progress: Progress,
    check_inputs: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, list[Sample]]]:
    """Samples of every problem by every method, one request at a time, so that clocks measure a
    single request. A problem with the prompt of an earlier one gets other samples.

    The methods take turns, problem by problem and in an order that rotates, so that changes of the
    machine affect all of them equally. `check_inputs` raises for a changed input; it is called
    before samples are written.
    """
    problems, count = evaluation.problems, len(evaluation.problems)
    done = {method: folder.samples(method) for method in evaluation.methods}
    models = {method: METHODS[method](llm) for method in evaluation.methods}
    for method in evaluation.methods:
        progress(f"sampling, {method}", len(done[method]), count)
        left = [p for p in problems if p.task_id not in done[method]]
        if left:  # one-time costs of the process must not count for any problem
            options = RequestOptions(**evaluation.options)
            models[method].warm_up_for([(problem.prompt, options) for problem in left])
            _warm_up(models[method], evaluation, left[0])
    before = occurrences([p.prompt for p in problems])
    for number, problem in enumerate(problems):
        turn = number % len(evaluation.methods)
        for method in (*evaluation.methods[turn:], *evaluation.methods[:turn]):
            if problem.task_id in done[method]:
                continue
            conditions = Conditions(llm.models.device)
            group = _samples(models[method], evaluation, problem, before[number])
            line = conditions.line(number)
            check_inputs()
            folder.add_conditions(method, line)
            folder.add_samples(method, problem.task_id, group)
            done[method][problem.task_id] = group
            progress(f"sampling, {method}", len(done[method]), count)
    return done


def _warm_up(model: LLM, evaluation: Evaluation, problem: Problem) -> None:
    few: dict[str, Any] = {
        "max_new_tokens": min(WARM_UP_TOKENS, evaluation.options["max_new_tokens"]),
        "min_new_tokens": 0,
        "time_budget": None,
    }
    model.generate(problem.prompt, **dict(evaluation.options) | few)


def _samples(model: LLM, evaluation: Evaluation, problem: Problem, before: int) -> list[Sample]:
    """The samples of one problem, whose prompt `before` earlier problems have."""
    options = dict(evaluation.options)
    options["stop"] = (*problem.stop, *options.get("stop", ()))
    first = before * options["num_return_sequences"]
    generation = model.start(problem.prompt, RequestOptions(**options), first)
    result = generation.result()
    prefilled = generation.run.trace.prefilled
    began = min(prefilled.values(), default=0.0)
    group = []
    for index, c in enumerate(result.completions):
        ended = prefilled.get(index, began) + c.seconds
        group.append(
            Sample(
                problem.task_id,
                index,
                c.text or "",
                c.token_ids,
                c.mean_logprob,
                c.finish_reason,
                ended - began,
                ended,
            )
        )
    return group


def score(
    evaluation: Evaluation,
    method: str,
    samples: Mapping[str, Sequence[Sample]],
    folder: Folder,
    progress: Progress,
) -> list[list[Scored]]:
    """The scores of all samples, problem by problem in the order of the file."""
    known = folder.scores(method)
    problems = {p.task_id: p for p in evaluation.problems}
    drawn = [s for p in evaluation.problems for s in samples[p.task_id]]
    left = [s for s in drawn if _identity(s) not in known]
    progress(f"scoring, {method}", len(drawn) - len(left), len(drawn))
    # an interruption ends the running programs
    with contextlib.closing(
        _judged(evaluation, [(problems[s.task_id], s) for s in left])
    ) as judged:
        for i, (one, (value, reason, detail)) in enumerate(
            zip(left, judged, strict=True), len(drawn) - len(left) + 1
        ):
            task_id, index, text = _identity(one)
            folder.add_score(method, Score(task_id, index, text, value, reason, detail))
            known[task_id, index, text] = value
            progress(f"scoring, {method}", i, len(drawn))
    return [
        [Scored(s, known[_identity(s)]) for s in samples[p.task_id]] for p in evaluation.problems
    ]


def _judged(
    evaluation: Evaluation, drawn: Sequence[tuple[Problem, Sample]]
) -> Generator[tuple[float, str, str], None, None]:
    """The score of each sample; for a program with reason and detail."""
    kind = SCORES[evaluation.task]
    if kind != "code":
        measure = exact_match if kind == "exact_match" else rouge2
        yield from ((measure(problem, sample.text), "", "") for problem, sample in drawn)
        return
    programs = (problem.program(sample.text) for problem, sample in drawn)
    with contextlib.closing(evaluation.sandbox.check_all(programs)) as outcomes:
        for outcome in outcomes:
            yield float(outcome.passed), outcome.reason, outcome.detail


def _identity(sample: Sample) -> tuple[str, int, str]:
    return sample.task_id, sample.sample, digest(sample.text)


def evaluate(
    llm: LLM,
    evaluation: Evaluation,
    folder: Folder,
    progress: Progress = lambda stage, done, total: None,
    check_inputs: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Sample and score with every method; write and return the summary.

    `check_inputs`: of `sample`.
    """
    layers = check(llm, evaluation)
    drawn = sample(llm, evaluation, folder, progress, check_inputs)
    scored = {
        method: score(evaluation, method, drawn[method], folder, progress)
        for method in evaluation.methods
    }
    # the same budgets for all methods, so that their curves can be compared
    budgets = sorted(set(evaluation.budgets)) or useful_budgets(
        [group for groups in scored.values() for group in groups]
    )
    summary = {
        "task": evaluation.task,
        "score": SCORES[evaluation.task],
        "problems": len(evaluation.problems),
        "samples": evaluation.options["num_return_sequences"],
        "confined_by": layers,
        "methods": {
            method: summarize(groups, evaluation.ks, budgets) for method, groups in scored.items()
        },
    }
    folder.finish(summary)
    return summary


def summarize(
    groups: Sequence[Sequence[Scored]], ks: Sequence[int], budgets: Sequence[float]
) -> dict[str, Any]:
    """Scores without a budget, pass@k, and the curve."""
    whole = point(groups, math.inf, CLOCKS[0])
    flat = [s for group in groups for s in group]
    return {
        "first": whole.first,
        "all": whole.all,
        "mean": math.fsum(s.value for s in flat) / len(flat),
        "finished": whole.finished,
        "pass@k": {str(k): mean_pass_at_k(groups, k) for k in ks},
        "curve": [asdict(p) for p in curve(groups, budgets)],
    }
