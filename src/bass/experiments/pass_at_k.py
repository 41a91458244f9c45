"""Pass@First, Pass@All and pass@k of samples of programming problems, within time budgets.

All samples of a problem decode in one batch. Of the samples that are finished within a budget,
Pass@First is whether the one with the highest mean log-probability passes the problem's tests, and
Pass@All whether any does (Qian et al., 2024). The times of all samples are recorded, so one run
has the scores of every budget.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from bass.analysis import frames
from bass.analysis.metrics import Measurement, measure
from bass.analysis.statistics import LEVEL, interval
from bass.analysis.tables import markdown, shown
from bass.api.llm import LLM, plain
from bass.api.requests import requests_for
from bass.errors import OptionError, RequestError, RunFolderError
from bass.experiments.cell import add_lines, keep_lines, write_json
from bass.experiments.problems import CodingProblem, read_problems
from bass.experiments.programs import check_all, isolation
from bass.experiments.provenance import device_name, here
from bass.experiments.settings import METHODS, PLAIN, EvalOptions
from bass.sampling_params import stop_strings

# options that change no sample: a folder is continued with other values of them
FREE = ("data", "methods", "budgets", "limit", "skip_long", "allow_code_execution")
FIGURES = ("first", "last", "all", "tau", "tokens_per_second")  # of `METRICS`
Watch = Callable[[str, int, int], object]  # the next problem, scores made, scores to make


def evaluate(
    llm: LLM,
    options: EvalOptions,
    folder: str | Path,
    watch: Watch = lambda name, done, total: None,
    load: Mapping[str, Any] | None = None,
) -> "Evaluation":
    """Sample and score every problem with every method, into a folder.

    A folder of the same options continues with the next problem; it may get more problems and
    methods. The methods take turns, each problem with another one first, so that changes of the
    machine affect all of them. load: how `llm` was loaded, for the manifest.

    Raises `OptionError`, `RequestError` or `RunFolderError` before anything is sampled.
    """
    folder, problems = Path(folder), list[CodingProblem]()
    given = read_problems(options.problems, options.data)[: options.limit]
    isolation(options.allow_code_execution)
    for problem in given:
        try:
            requests_for(llm.models, problem.prompt, options, 0, llm.max_model_len)
            problems.append(problem)
        except RequestError as error:
            if not options.skip_long:
                hint = f"It is `{problem.name}`; `--skip-long` leaves such problems out."
                raise RequestError(f"{error} {hint}") from error
    done = _opened(folder, options, llm, load or {})
    models = {name: with_method(llm, name) for name in options.methods or METHODS[:2]}
    for method, model in models.items():
        left = [one.prompt for one in problems if (method, one.name) not in done]
        if left:  # one-time costs of the process do not count for any problem
            model.warm_up_for([(prompt, options) for prompt in left])
            few = replace(options, max_new_tokens=1, min_new_tokens=0, time_budget=None)
            model.start(left[0], few).result()
    total = len(problems) * len(models)
    for i, problem in enumerate(problems):
        turn = i % len(models)
        for j, method in enumerate([*models][turn:] + [*models][:turn]):
            watch(problem.name, i * len(models) + j, total)
            if (method, problem.name) not in done:
                _add(folder, models[method], options, problem, method=method, call=i)
    watch("", total, total)
    found = Evaluation(folder, options.budgets)
    tables = {"scores": found.scores(), "curve": found.curve()}
    records = {name: json.loads(one.to_json(orient="records")) for name, one in tables.items()}
    write_json(folder / frames.SUMMARY, records)
    return found


def with_method(llm: LLM, name: str) -> LLM:
    """The model with one of `METHODS`: as it is; the same batch without speculation; or with the
    same speculation, one sample after the other.
    """
    if name == "single":
        return LLM(llm.models, replace(llm.plan, max_batch_size=1))
    return plain(llm) if name == PLAIN else llm


def _opened(
    folder: Path, options: EvalOptions, llm: LLM, load: Mapping[str, Any]
) -> set[tuple[str, str]]:
    """Create the folder, or open it again; returns the pairs of method and problem in it.

    Lines of a pair that is not complete are removed.
    """
    path, given = folder / frames.MANIFEST, vars(options) | {"load": load}
    config: dict[str, Any] = json.loads(json.dumps(given, default=str))
    manifest = {
        "name": f"eval {options.problems}",
        **here(),
        "lossless": llm.parts.lossless_at(options.temperature),
        "batch_invariant": llm.parts.batch_invariant_at(options.temperature),
        "device": device_name(llm.models.device),
        "config": config | {"methods": []},
    }
    if path.exists():
        manifest = json.loads(path.read_text(encoding="utf-8"))
    before = manifest["config"]
    unlike = [name for name in config if name not in FREE and before.get(name) != config[name]]
    if unlike:
        named = ", ".join(f"`{name}`" for name in unlike)
        raise RunFolderError(f"`{folder}` has another {named}: give the same, or a new folder.")
    methods = {*before["methods"], *(options.methods or METHODS[:2])}
    folder.mkdir(parents=True, exist_ok=True)
    manifest["config"] = config | {"methods": [name for name in METHODS if name in methods]}
    write_json(path, manifest)
    lines = frames.read_lines(folder / frames.REQUESTS)
    counts = Counter((line["method"], line["problem"]) for line in lines)
    done = {pair for pair, n in counts.items() if n == options.num_return_sequences}
    keep_lines(folder, lambda line: (line["method"], line["problem"]) in done)
    return done


def _add(
    folder: Path, model: LLM, options: EvalOptions, problem: CodingProblem, **place: Any
) -> None:
    """Sample and score one problem, and write it."""
    own = replace(options, stop=(*problem.stop, *stop_strings(options.stop)))
    result = model.start(problem.prompt, own).result()
    programs = [problem.program(one.text or "") for one in result.completions]
    passed = check_all(programs, options.program_seconds, options.allow_code_execution)
    place |= {"problem": problem.name, "repeat": 0}
    marks = [{"passed": one, "prompt": place["call"]} for one in passed]
    lines = frames.request_lines(result.completions, marks, **place)
    steps = frames.step_lines(result.trace, drafts=False, **place)
    add_lines(folder / frames.STEPS, steps)
    add_lines(folder / frames.REQUESTS, lines)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate that one of k samples passes, of `samples` of which `passed` do.

    1 - C(n-c, k) / C(n, k), Chen et al. (2021), equation 1. Raises `OptionError` for another k.
    """
    if not 1 <= k <= samples:
        raise OptionError(f"pass@{k} of {samples} samples does not exist: give 1 to {samples}.")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


@final
class Evaluation:
    """The folder of an evaluation, finished or not, as frames.

    requests: one row per sample; besides the columns of `bass.analysis.frames`, `method`,
    `problem`, `passed`, `mean_logprob`, `decoded` (seconds since the end of the problem's first
    prefill, as `ended` is since its start). Only problems that every method has are in it, and in
    `steps`. budgets: seconds; by default ten, at equal shares of the samples.
    """

    def __init__(self, folder: str | Path, budgets: Iterable[float] | None = None) -> None:
        path = Path(folder)
        lines = frames.read_lines(path / frames.REQUESTS)
        if not lines or "passed" not in lines[0]:
            raise RunFolderError(f"`{folder}` has no scores: give a folder that `bass eval` wrote.")
        self.manifest = json.loads((path / frames.MANIFEST).read_text(encoding="utf-8"))
        found = frames.requests_frame(lines)
        self.methods = [name for name in METHODS if name in set(found["method"])]
        common = found.groupby("problem")["method"].transform("nunique") == len(self.methods)
        found = found[common].reset_index(drop=True)
        found["mean_logprob"] = [float(np.mean(one)) if one else 0.0 for one in found["logprobs"]]
        prefilled = found["prefill_seconds"].fillna(0.0)
        first = prefilled.groupby([found["method"], found["problem"]]).transform("min")
        found["decoded"] = found["ended"] - first
        self.requests, self.problems = found, list(dict.fromkeys(found["problem"]))
        steps = frames.steps_frame(frames.read_lines(path / frames.STEPS))
        self.steps = steps[steps["problem"].isin(self.problems)]
        ended = found.loc[found["finished"], "ended"] if found["finished"].any() else found["ended"]
        useful = [float(part[-1]) for part in np.array_split(np.sort(ended), 10) if len(part)]
        self.budgets = sorted({*(budgets or useful)})

    def within(self, method: str, seconds: float = math.inf, clock: str = "ended") -> pd.DataFrame:
        """One row per problem: `pass_first` and `pass_all` (bool), and the number of samples that
        are `finished`, within a budget.

        clock: `ended` or `decoded`, of `requests`. A problem without a finished sample does not
        pass. Of samples that are equally probable the first counts.
        """
        found = self.requests[self.requests["method"] == method]
        found = found[found["finished"] & (found[clock] <= seconds)]
        found = found.sort_values(["mean_logprob", "sample_index"], ascending=[False, True])
        passed = found.groupby("problem")["passed"].agg(["first", "any", "size"])
        passed.columns = ["pass_first", "pass_all", "finished"]
        kinds = {"pass_first": bool, "pass_all": bool, "finished": int}
        return passed.astype(int).reindex(self.problems, fill_value=0).astype(kinds)

    def curve(self, budgets: Sequence[float] = (), clock: str = "ended") -> pd.DataFrame:
        """One row per method and budget, by default `self.budgets`; clock: as in `within`.

        Columns: `method`, `seconds`, the shares of problems `pass_first` and `pass_all` with
        `_low` and `_high`, and the share of samples `finished`.
        """
        rows = []
        for method in self.methods:
            samples = (self.requests["method"] == method).sum()
            for seconds in budgets or self.budgets:
                found = self.within(method, seconds, clock)
                row = {"method": method, "seconds": float(seconds)}
                for name in ("pass_first", "pass_all"):
                    row |= _mean(name, found[name])
                rows.append(row | {"finished": found["finished"].sum() / samples})
        return pd.DataFrame(rows)

    def pass_at(self, k: int) -> pd.DataFrame:
        """pass@k without a budget: one row per problem, one column per method."""
        passed = self.requests.groupby(["problem", "method"])["passed"].agg(["size", "sum"])
        values = [pass_at_k(int(n), int(c), k) for n, c in passed.to_numpy()]
        return pd.Series(values, passed.index).unstack().loc[self.problems, self.methods]

    def scores(self) -> pd.DataFrame:
        """One row per method, without a budget: the columns of `curve`; `pass@1`, `pass@2`,
        `pass@4` ... with `_low` and `_high`; the metrics of `FIGURES`.
        """
        samples = int(self.requests.groupby(["method", "problem"]).size().min())
        rows = self.curve([math.inf]).drop(columns="seconds").to_dict(orient="records")
        for row in rows:
            for k in (2**i for i in range(samples.bit_length())):
                row |= _mean(f"pass@{k}", self.pass_at(k)[row["method"]])
            own = (one[one["method"] == row["method"]] for one in (self.steps, self.requests))
            row |= measure(Measurement(*own), FIGURES)
        return pd.DataFrame(rows)

    def to_text(self) -> str:
        """The scores and the curve in Markdown, with 95 % intervals in brackets."""
        scores = shown(self.scores()).set_index("method").T.reset_index(names="method")
        curve = shown(self.curve().sort_values("seconds", kind="stable"))
        return f"{markdown(scores, 1)}\n{markdown(curve, 1)}"


def _mean(name: str, values: pd.Series) -> dict[str, float]:
    """The mean over problems with its 95 % interval: Wilson's for bools, else Student's t."""
    around = interval(values.to_numpy(dtype=float))
    bounds = around.low, around.high
    if values.dtype == bool:
        bounds = binomtest(int(values.sum()), len(values)).proportion_ci(LEVEL, method="wilson")
    low, high = np.clip(np.array([*bounds], dtype=float), 0.0, 1.0).tolist()
    return {name: around.mean, f"{name}_low": low, f"{name}_high": high}
