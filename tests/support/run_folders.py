"""Run folders that no model was run for: a small simulation of batched speculative decoding,
written in the format of `bass ablate`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bass.analysis.independent import independent
from bass.analysis.repeats import Repeat
from bass.engine.cost import ModelCost, PairCost, Peaks, Work
from bass.experiments import runner
from bass.experiments.cells import Task
from bass.experiments.config import plan
from bass.experiments.inputs import Inputs
from bass.files import append, write_atomically
from bass.runs.drafts import DRAFTS, TEXTS, DraftLine
from bass.runs.lines import jsonl
from bass.runs.records import CellEntry, EndLine, Facts, Manifest, RequestLine, StepLine, Summary
from bass.runs.run_folder import RunFolder
from bass.runs.settings import Call
from bass.runs.strict import Json

WORDS = [
    "def ",
    "fib",
    "(",
    "n",
    "):",
    "\n",
    "    ",
    "return",
    " ",
    "if",
    " <",
    " 2",
    "else",
    "</script>",
    '"&quot;"',
    "for",
    " in",
    " range",
    "self",
    ".",
    "x",
    "=",
    " +",
    " 1",
    "é",
    "→",
    "\u2028",
    "print",
    ",",
    "# a comment",
    "\t",
]
COST = PairCost(ModelCost(16_000_000, 16_000_000, 4_096), ModelCost(2_000_000, 2_000_000, 1_024))
PEAKS = Peaks(4e9, 1e12)
AGREEMENT = 0.8  # of draft and target, at every position


def append_line(path: Path, value: Json) -> None:
    """Add one line to a file of a run."""
    append(path, jsonl([value]))


def lengths(policy: str, state: int, accepted: np.ndarray) -> int:
    """The next draft length: 0, 4, or one more than was accepted at the most."""
    return {"plain": 0, "fixed": 4}.get(
        policy,
        state + 2 if accepted.max(initial=0) >= state else max(1, int(accepted.max(initial=0)) + 1),
    )


def agreed(rng: np.random.Generator, drafted: int) -> int:
    """How many drafted tokens come before the first that is rejected."""
    wrong = rng.random(drafted) >= AGREEMENT
    return int(wrong.argmax()) if wrong.any() else drafted


def judged(
    rng: np.random.Generator, drafted: list[int], room: list[int]
) -> tuple[list[int], list[int]]:
    """How many tokens are accepted and emitted, of which each row has room for so many."""
    accepted = [min(agreed(rng, d), left) for d, left in zip(drafted, room, strict=True)]
    return accepted, [min(a + 1, left) for a, left in zip(accepted, room, strict=True)]


def simulate(
    rng: np.random.Generator, policy: str, batch: int, tokens: int, repeat: int, slower: float = 1.0
) -> tuple[list[StepLine], list[RequestLine], list[DraftLine]]:
    """One repeat with half as many requests more than rows; a row that is free takes the next
    one.
    """
    count = batch + batch // 2
    asked = np.random.default_rng([batch, repeat])  # the same of every policy
    prompts, limits = asked.integers(5, 30, count), asked.integers(tokens // 2, tokens + 1, count)
    rows, waiting = list(range(batch)), list(range(batch, count))
    done: dict[int, list[int]] = {i: [] for i in range(count)}
    at, began, when = (
        0.02,
        dict.fromkeys(range(batch), 0.02),
        {i: list[float]() for i in range(count)},
    )
    steps: list[StepLine] = []
    drafts: list[DraftLine] = []
    requests: list[RequestLine] = []
    k = lengths(policy, 4, np.array([3]))
    while any(row >= 0 for row in rows):
        active = [row >= 0 for row in rows]
        drafted = [k if on else 0 for on in active]
        room = [limits[row] - len(done[row]) if row >= 0 else 0 for row in rows]
        accepted, emitted = judged(rng, drafted, room)
        held = sum(
            int(prompts[row]) + len(done[row]) + d + 1
            for row, d in zip(rows, drafted, strict=True)
            if row >= 0
        )
        seconds = float((0.005 + 0.0004 * k + 1e-5 * held) * rng.uniform(0.97, 1.03) * slower)
        host = float(rng.uniform(2e-4, 5e-4))
        at += seconds + host
        ids, *counts = replace_ints(rows, drafted, accepted, emitted)
        work = work_of(k, held, drafted, emitted)
        steps.append(StepLine(ids, k, 64, held, *counts, seconds, host, at, repeat, work))
        guesses = [[int(token) for token in rng.integers(0, len(WORDS), d)] for d in drafted]
        for b, row in enumerate(rows):
            if row < 0:
                continue
            new = [int(token) for token in rng.integers(0, len(WORDS), emitted[b])]
            guesses[b][: accepted[b]] = new[: accepted[b]]
            done[row] += new
            when[row] += [at] * emitted[b]
            if len(done[row]) >= limits[row]:
                requests.append(
                    finished(rng, row, repeat, int(prompts[row]), done[row], when[row], began[row])
                )
                rows[b] = waiting.pop(0) if waiting else -1
                began[rows[b]] = at
        probs = [[float(rng.uniform(0.05, 1)) for _ in row] for row in guesses]
        drafts.append(DraftLine(repeat, len(steps) - 1, guesses, probs))
        k = lengths(policy, k, np.array(accepted))
    return steps, requests, drafts


def work_of(k: int, held: int, drafted: list[int], emitted: list[int]) -> Work:
    """Of a step that holds so many positions; all rows draft alike."""
    one = [
        cost.weight_bytes + held * cost.kv_bytes_per_position for cost in (COST.target, COST.draft)
    ]
    flops = [
        count * (COST.target.flops_per_token + (k > 0) * COST.draft.flops_per_token)
        for count in (sum(drafted) + len(drafted), sum(emitted))
    ]
    return Work(one[0] + k * one[1], flops[0], int(flops[1]))


def replace_ints(*lists: Sequence[int]) -> list[list[int]]:
    """Plain integers, and copies."""
    return [[int(value) for value in values] for values in lists]


def finished(
    rng: np.random.Generator,
    row: int,
    repeat: int,
    prompt: int,
    tokens: list[int],
    when: list[float],
    began: float,
) -> RequestLine:
    """The line of a request at its end."""
    logprobs = [math.log(p) for p in rng.uniform(0.1, 1, len(tokens))]
    text = "".join(WORDS[token] for token in tokens)
    return RequestLine(
        row, repeat, prompt, tokens, text, logprobs, "length", began, when[-1] - began, when, row
    )


def write_run(
    folder: Path,
    batches: Sequence[int] = (1, 4),
    policies: Sequence[str] = ("plain", "fixed", "bass"),
    repeats: int = 3,
    tokens: int = 24,
    seed: int = 0,
    watched: int = 10_000,
    slower: float = 1.0,
    unfinished: Sequence[int] = (),
    failed: Sequence[int] = (),
) -> RunFolder:
    """A run folder.

    watched: steps whose drafts are noted. slower: the factor of every step's time. unfinished,
    failed: cells (by number) that came to that.
    """
    folder.mkdir(parents=True)
    settings = [{"policy": policy, "batch": batch} for batch in batches for policy in policies]
    cells = [entry(f"{i:04}-{s['policy']}-b{s['batch']}", s) for i, s in enumerate(settings)]
    config = {
        "target": "models/target",
        "draft": "models/draft",
        "temperature": 0.2,
        "max_new_tokens": tokens,
    }
    manifest = Manifest(
        "0.1.0",
        "abc1234",
        "2025-01-02T03:04:05+00:00",
        "cpu",
        "2.13",
        "3.11",
        "Linux",
        config,
        ["policy", "batch"],
        cells,
        {},
    )
    write_atomically(folder / "manifest.json", manifest.to_json(indent=1))
    if watched:
        write_atomically(folder / TEXTS, json.dumps(WORDS))
    for number, cell in enumerate(cells):
        (folder / "cells" / cell.id).mkdir(parents=True)
        if number in unfinished:
            continue
        policy, batch = str(cell.settings["policy"]), int(cell.settings["batch"])
        rng = np.random.default_rng([seed, number])
        drawn = [simulate(rng, policy, batch, tokens, repeat, slower) for repeat in range(repeats)]
        write_cell(folder, cell, drawn, watched, number in failed)
    return RunFolder(folder)


def write_run_of(
    folder: Path, config: dict[str, Any], repeats: int = 4, slower: float = 1.0
) -> RunFolder:
    """A run folder of a config: its manifest is the command's own, its steps are made up."""
    made = plan({"name": "x"} | config)
    tasks = [Task(cell.id, cell.labels, cell.settings, str(folder)) for cell in made.cells]
    folder.mkdir(parents=True)
    told = runner.manifest(made, tasks, Inputs.of(tasks, made.config))
    write_atomically(folder / "manifest.json", told.to_json(indent=1))
    for number, (task, cell) in enumerate(zip(tasks, told.cells, strict=True)):
        task.folder.mkdir(parents=True)
        policy = "fixed" if task.load_plan.parts.policy.max_length else "plain"
        rng = np.random.default_rng(number)
        batch = task.settings.batch
        drawn = [simulate(rng, policy, batch, 24, repeat, slower) for repeat in range(repeats)]
        write_cell(folder, cell, drawn)
    return RunFolder(folder)


def entry(
    id_: str, settings: dict[str, Any], own: dict[str, Any] | None = None, caveat: str = ""
) -> CellEntry:
    """A cell of a manifest. `own`: its settings; `caveat`: of a verifier that is not lossless."""
    target = {"target": "models/target", "device": "cpu", "dtype": "auto", "quantization": "None"}
    return CellEntry(id_, settings, own or {}, target, not caveat, caveat, True, [])


def write_cell(
    folder: Path,
    cell: CellEntry,
    drawn: Sequence[tuple[list[StepLine], list[RequestLine], list[DraftLine]]],
    watched: int = 0,
    failed: bool = False,
) -> None:
    """The files of a cell that ended. `drawn`: its repeats."""
    where, calls, generations = folder / "cells" / cell.id, [], []
    drafts_anything = any(sum(step.drafted) for steps, _, _ in drawn for step in steps)
    timed = (
        {"draft": 2.0, "verify": 3.0, "sample": 0.5, "host": 0.4}
        if drafts_anything
        else {"verify": 3.0, "host": 0.4}
    )
    facts = Facts.of(COST, PEAKS, 50_000_000, (4, timed))
    for repeat, (steps, requests, drafts) in enumerate(drawn):
        for name, lines in (
            ("steps.jsonl", steps),
            ("requests.jsonl", [*requests, EndLine(repeat)]),
            (DRAFTS, drafts[:watched]),
        ):
            for line in lines:
                append_line(where / name, line)
        generations.append(Repeat([step.record() for step in steps], requests, facts))
        rows = [*range(len(requests))]
        calls.append(Call(repeat, [], 1, repeat, 0, rows))
    found, counts = independent(calls, generations), RunFolder(folder).line_counts(cell.id)
    done = Summary(
        cell.id, cell.settings, "done", None, found.metrics, found.repeats, 1.0, facts,
        found.prompts, counts,
    )  # fmt: skip
    if failed:
        told = "Out of memory: lower the batch."
        done = replace(done, state="failed", error=told, metrics={}, repeats=[])
    write_atomically(where / "summary.json", done.to_json())
