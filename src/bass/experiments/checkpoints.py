"""Checks the checkpoints of cells, and that prompts fit them, before anything runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bass.api.loading import Checkpoint
from bass.api.requests import check_context
from bass.checkpoints.hub import HUB_ID
from bass.errors import RequestError
from bass.experiments.cell import Cell
from bass.experiments.prompts import answer_tokens, lengths, plain_turns
from bass.experiments.settings import Settings
from bass.problems import Problems

_OF_PROMPTS = ("prompts", "data", "categories", "num_prompts_per_category", "num_prompts")


def fitting(cells: Sequence[Cell], problems: Problems) -> tuple[list[Cell], list[str]]:
    """The cells without the prompts that `skip_long` leaves out, and remarks.

    Cells of the same prompts leave out the same ones. Problems are checkpoints that are missing or
    do not match, and prompts that do not fit. With earlier problems nothing is downloaded.
    """
    pairs: dict[Any, list[Checkpoint]] = {}
    long: dict[Any, set[int]] = {}
    remarks: dict[str, None] = {}
    checked, offline = set[Any](), bool(problems.sentences)
    for cell in cells:
        settings, plan = cell.settings, cell.load_plan
        pair, prompts = (*plan.models, plan.parts.drafter.needs_draft), _prompts(settings)
        if pair not in pairs:
            pairs[pair] = []
            names = [name for name in plan.folders.values() if not Path(name).exists()]
            if not (offline and any(map(HUB_ID.fullmatch, names))):
                with problems.noted():
                    pairs[pair] = plan.check()
        if pairs[pair] and (pair, prompts) not in checked:
            checked.add((pair, prompts))
            with problems.noted():
                long.setdefault(prompts, set()).update(_long(settings, pairs[pair], remarks))
    kept = []
    for cell in cells:
        out, entries = long.get(_prompts(cell.settings), ()), cell.settings.entries
        if out:
            count = f"{len(out)} of {len(entries)} prompts are left out"
            remarks[f"{count}: they do not fit the context next to the new tokens."] = None
            left = [one for i, one in enumerate(entries) if i not in out]
            cell = replace(cell, settings=replace(cell.settings, prompts=left))
        kept.append(cell)
    return kept, [*remarks]


def _prompts(settings: Settings) -> str:
    """A key of the prompts and their new tokens."""
    names = (*_OF_PROMPTS, "max_new_tokens", "skip_long")
    return repr([getattr(settings, name) for name in names])


def _long(settings: Settings, pair: list[Checkpoint], remarks: dict[str, None]) -> list[int]:
    """The prompts that do not fit the context next to the new tokens.

    Raises a `RequestError` for one, unless the settings leave them out.
    """
    entries, new, tokenizer = settings.entries, settings.max_new_tokens, pair[0].tokenizer
    shapes = [checkpoint.index.decoder.shape for checkpoint in pair]
    context = min(shape.max_positions for shape in shapes)
    if settings.num_prompts is not None and len(entries) < settings.num_prompts:
        remarks[f"`num_prompts` is {settings.num_prompts}, and there are {len(entries)}."] = None
    if plain_turns(entries, tokenizer):
        remarks["Conversations are plain text (`User:`), since there is no chat template."] = None
    own = lengths(tokenizer, shapes[0].vocab_size, entries)
    needed = [n + answer_tokens(entry, new) for n, entry in zip(own, entries, strict=True)]
    long = [i for i, length in enumerate(needed) if length + new > context]
    if long and not (settings.skip_long and len(long) < len(entries)):
        most = max(long, key=needed.__getitem__)
        try:
            check_context(most, needed[most], new, context)
        except RequestError as error:
            count = f"{len(long)} of {len(entries)} prompts do not fit"
            more = "; `skip_long: true` leaves them out" if len(long) < len(entries) else ""
            raise RequestError(f"{error} {count}{more}.") from error
    return long
