"""One cell of an ablation: what identifies it, and the turns that measure it.

cells/ID/steps.jsonl, requests.jsonl   lines of a repeat, written when it has ended
cells/ID/summary.json                  state, repeats that have ended, inputs, and at the end facts;
                                       of each repeat the time at which its run began (`runs`)
cells/ID/error.txt                     the traceback of a failed cell
"""

import functools
import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import torch

from bass.analysis.frames import ENDED, REQUESTS, STEPS, SUMMARY, request_lines, step_lines
from bass.api.generation import Generation, first_step
from bass.api.llm import LLM, serve
from bass.api.loading import ModelCache
from bass.api.options import LoadOptions, ModelOptions, RequestOptions
from bass.api.plan import LoadPlan
from bass.api.queue import poisson
from bass.api.requests import Prompts
from bass.api.resolve import make
from bass.engine.cost import measure_peaks
from bass.errors import BassError, is_out_of_memory
from bass.experiments.prompts import longest_prompts, rendered
from bass.experiments.provenance import device_name
from bass.experiments.settings import LIMITS, Settings, request_of
from bass.files import write_atomically

ERROR = "error.txt"
LEAST_FREE = 0.5  # share of a GPU's memory that stays free next to the LLMs of other cells


@final
@dataclass(frozen=True)
class Cell:
    """One run of a plan. labels: its value on each axis."""

    id: str
    labels: Mapping[str, Any]
    settings: Settings

    @functools.cached_property
    def load_plan(self) -> LoadPlan:
        """The checked arguments of `load`; reads no weight.

        A cell whose drafter needs no draft model ignores `draft`, its adapter and its quantization.
        Raises a `BassError` for parts that do not match.
        """
        options = {f.name: getattr(self.settings, f.name) for f in fields(ModelOptions)}
        options["drafter"] = make("drafter", options["drafter"])
        if not options["drafter"].needs_draft:
            options |= {"draft": None, "draft_lora": None, "draft_quantization": None}
        return LoadPlan.of(LoadOptions(**options, max_batch_size=self.settings.batch))


# Receives a cell, its repeats that are done, such as 1.5, and its summary when it has ended.
Watch = Callable[[Cell, float, Mapping[str, Any] | None], None]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file of a run at once."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def add_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines to a file of a run."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def keep_lines(folder: Path, ended: Callable[[Mapping[str, Any]], bool]) -> None:
    """Remove the lines of what did not end."""
    for path in (path for name in (STEPS, REQUESTS) if (path := folder / name).exists()):
        lines = path.read_text(encoding="utf-8").splitlines(True)
        kept = [one for one in lines if one[-1] == "\n" and ended(json.loads(one))]
        if len(kept) < len(lines):
            write_atomically(path, "".join(kept))


def end(cell: Cell, folder: Path, error: str | None = None) -> dict[str, Any]:
    """Write the summary of a cell, and return it. error: of a failed one."""
    summary = json.loads((folder / SUMMARY).read_text())
    summary |= {"cell": cell.id, "state": "failed" if error else "done", "error": error}
    write_json(folder / SUMMARY, summary)
    return summary


@final
class Worker:
    """Runs turns of cells in this process, a repeat each.

    It holds the models loaded last, and on a GPU the LLMs of cells, for their CUDA graphs, while
    half of the memory is free.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._models = run, ModelCache()
        self._kept: dict[str, LLM] = {}

    def turn(self, cell: Cell, repeat: int, watch: Watch) -> dict[str, Any] | None:
        """Measure a repeat of a cell, unless its folder has it, and end the cell after the last.

        Returns the summary of a cell that has ended, with an error or without one.
        """
        folder = self._run / "cells" / cell.id
        record = json.loads((folder / SUMMARY).read_text())
        if record["state"] in ENDED:  # a process that was ended then has its turn again
            return record
        try:
            return self._repeat(cell, repeat, folder, watch)
        except Exception as error:  # such as one of a user's class: the other cells run
            if not (is_out_of_memory(error) and self._kept):
                lines = [str(error)] if isinstance(error, BassError) else []
                text = " ".join(lines or traceback.format_exception_only(error))
                (folder / ERROR).write_text(traceback.format_exc(), errors="backslashreplace")
                return end(cell, folder, " ".join(text.split()))
        self._kept.clear()  # frees memory
        return self.turn(cell, repeat, watch)

    def _repeat(self, cell: Cell, repeat: int, folder: Path, watch: Watch) -> dict | None:
        """Measure a repeat. Returns the summary of the cell after its last one."""
        record, settings = json.loads((folder / SUMMARY).read_text()), cell.settings
        began, facts = time.perf_counter(), record.setdefault("facts", {})
        keep_lines(folder, lambda line: line["repeat"] < record["repeats"])
        llm, others = self._served(cell)
        device = llm.models.device
        if record["repeats"] <= repeat:
            calls = _stand_ins(llm, settings, repeat)
            # in every turn, since other cells ran in between
            llm.warm_up_for(calls) if settings.queue is None else llm.warm_up()
            for _ in range(2):  # on a CPU a pass is recorded the second time
                first_step(_started(llm, settings, *calls[0]))
            if others is not None:
                torch.cuda.reset_peak_memory_stats(device)
            for name, lines in _measured(llm, cell, repeat, watch).items():
                add_lines(folder / name, lines)
            before = record.get("runs", [None] * repeat)[:repeat]
            record |= {"repeats": repeat + 1, "runs": [*before, record["run"]]}
            if others is not None:
                facts["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device) - others
        record["seconds"] += time.perf_counter() - began
        facts |= vars(measure_peaks(device, llm.models.dtype)) | {"device": device_name(device)}
        facts |= {name: getattr(settings, name) for name in LIMITS}
        write_json(folder / SUMMARY, record)
        if record["repeats"] < settings.repeats:
            if llm.graphs and _free_share(device) >= LEAST_FREE:
                self._kept[cell.id] = llm
            return None
        return end(cell, folder)

    def _served(self, cell: Cell) -> tuple[LLM, int | None]:
        """The LLM of a cell; of a new one on a GPU also the bytes of memory that are not its."""
        if cell.id in self._kept:
            return self._kept.pop(cell.id), None
        if self._models.find(*cell.load_plan.models) is None:
            self._kept.clear()  # frees the memory of the models first
            self._models.last = None
        llm, device = serve(cell.load_plan, self._models), cell.load_plan.target.device
        if device.type != "cuda":
            return llm, None
        return llm, torch.cuda.memory_allocated(device) - llm.models.weight_bytes


def _measured(llm: LLM, cell: Cell, repeat: int, watch: Watch) -> dict[str, list[dict[str, Any]]]:
    """The lines of a repeat by the names of their files, those of the steps first."""
    settings, tokenizer, number = cell.settings, llm.models.tokenizer, 0
    total = sum(group.turns for group in settings.groups)
    lines: dict[str, list[dict[str, Any]]] = {STEPS: [], REQUESTS: []}
    for group in settings.groups:
        entries, answers = group.entries, defaultdict[tuple[int, int], list[str]](list)
        for turn in range(group.turns if settings.queue is None else 1):
            watch(cell, repeat + number / total, None)
            places = [i for i, entry in enumerate(entries) if entry.turns > turn]
            rows = [(i, sample) for i in places for sample in range(group.samples)]
            # in a later turn each sample has a prompt, which continues its own answers
            own, samples = (rows, 1) if turn else (rows[:: group.samples], group.samples)
            prompts = [rendered(tokenizer, entries[i], turn, answers[i, j]) for i, j in own]
            options = request_of(settings, repeat, samples)
            generation = _started(llm, settings, prompts, options, group.first_sample)
            completions = generation.result().completions
            for row, one in zip(rows, completions, strict=True):
                answers[row].append((one.text or "").strip())
            where = {"repeat": repeat, "call": number}
            lines[STEPS] += step_lines(generation.run.trace.steps, repeat == 0, **where)
            each = [{"prompt": group.prompts[i], "category": entries[i].category} for i, _ in rows]
            lines[REQUESTS] += request_lines(completions, each, **where, turn=turn)
            number += 1
    watch(cell, repeat + 1, None)
    return lines


def _started(
    llm: LLM, settings: Settings, prompts: Prompts, options: RequestOptions, first_sample: int = 0
) -> Generation:
    """A call of a cell, whose prompts arrive where it has a queue."""
    if settings.queue is None:
        return llm.start(prompts, options, first_sample)
    each: Any = prompts
    return llm.arriving(poisson(each, settings.rate, options.seed, settings.lengths), vars(options))


def _stand_ins(llm: LLM, settings: Settings, repeat: int) -> list[tuple[Prompts, RequestOptions]]:
    """The calls of a repeat, with prompts as long as theirs can be; without graphs the first one,
    since there is nothing to reserve.
    """
    tokenizer, new = llm.models.tokenizer, settings.max_new_tokens
    calls: list[tuple[Prompts, RequestOptions]] = []
    for group in settings.groups if llm.graphs else settings.groups[:1]:
        first: Prompts = [rendered(tokenizer, entry) for entry in group.entries]
        calls.append((first, request_of(settings, repeat, group.samples)))
        for turn in range(1, group.turns if llm.graphs else 1):
            left = [entry for entry in group.entries if entry.turns > turn]
            longest = longest_prompts(tokenizer, llm.models.target.shape.vocab_size, left, new)
            sizes = [min(n, llm.max_model_len - new) for n in longest]
            prompts = [[0] * n for n in sizes for _ in range(group.samples)]
            calls.append((prompts, request_of(settings, repeat, 1)))
    return calls


def _free_share(device: torch.device) -> float:
    torch.cuda.empty_cache()  # torch keeps the memory of dropped LLMs
    free, total = torch.cuda.mem_get_info(device)
    return free / total
