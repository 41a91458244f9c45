"""The tables of docs/shapes.md, which `make options` writes from the annotations of `bass.records`
and `bass.interfaces`.
"""

import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bass import interfaces, records

PAGE = Path(__file__).parents[2] / "docs/shapes.md"
_MARK = re.compile(r"(<!-- shapes of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# a shape on the host, in a docstring: the letters of the source, and the axes' names
_HOST = re.compile(r"(?:#| ) ?(int(?:32)?|bool) \[([BR])\]")
_NAMES = {torch.device: "torch.device", torch.dtype: "torch.dtype", np.ndarray: "NumPy array"}
_AXES = {"B": "batch", "R": "requests"}
RECORDS = [
    one
    for name in records.__all__
    if isinstance(one := getattr(records, name), type) and is_dataclass(one)
]
# `ForwardingRowStore` repeats `RowStore`
INTERFACES = [
    one
    for name in interfaces.__all__
    if isinstance(one := getattr(interfaces, name), type) and name != "ForwardingRowStore"
]
# what no annotation says: where each record lives, who writes it, who reads it
LIVES = {
    "AttentionRule": ("host", "the decoder, at load", "attention backends"),
    "CacheBudget": ("host", "the engine, before a run", "`KVCache.allocate`"),
    "DecoderShape": ("host", "the decoder, at load", "caches, backends, cost model"),
    "Draft": ("device", "drafter", "engine, verifier"),
    "Feedback": ("host", "the engine, after a step", "policy"),
    "History": ("device", "`Sequences.history`", "warp"),
    "Noise": ("device", "the engine, before a step", "drafter, verifier"),
    "PaddedView": ("device", "cache `padded`", "attention backends"),
    "PagedView": ("device", "cache `paged`", "attention backends"),
    "Projection": ("device", "`project_qkv`, in a layer", "cache, attention backend"),
    "RaggedView": ("device", "cache `split`", "attention backends"),
    "Rotation": ("device", "the decoder, once per pass", "`Projection.rotated`, kernels"),
    "RowAssignment": ("host", "the engine, at admission", "caches, drafters with state"),
    "Scored": ("device", "scorer", "engine, drafters with a model"),
    "Sequences": ("device", "the engine alone", "drafter, warp: read-only"),
    "Verdict": ("device", "verifier", "engine"),
    "Window": ("device; `span`, `start` host", "engine, drafter", "scorer, decoder, `observe`"),
}
# by method, or else by class
CALLERS = {
    "Attend": "a layer",
    "AttentionBackend.check": "`bass.load`",
    "AttentionBackend.plan": "scorer, once per pass",
    "AttentionBackend.run": "`AttentionBackend.attend`",
    "AttentionBackend.attend": "`Attend`, in each layer",
    "Decoder": "scorer",
    "DraftLengthPolicy": "schedule, on the host",
    "DraftMethod": "engine, once per run",
    "Drafter.build": "engine, once per run",
    "Drafter.propose": "engine, in each step",
    "Drafter.observe": "engine, in each prefill and step",
    "DrafterContext": "`DraftMethod.build`",
    "Draw": "drafter",
    "KVCache.allocate": "engine, before a run",
    "KVCache.write": "`KVCache.store`",
    "KVCache.store": "`Attend`, attention backend",
    "KVCache.view": "attention backend",
    "KVCache.rows": "scorer, for a part of the rows",
    "KVCache": "engine, at admission",
    "Quantization": "`bass.load`",
    "RowStore": "engine, at admission",
    "Scorer": "engine, drafter",
    "StopRule": "drafter, after each drafted token",
    "Verifier": "engine, once per step",
    "Warp": "engine, drafter",
}


def axes(annotation: Any) -> Iterator[str]:
    """The names of the axes of all tensors in an annotation."""
    if hasattr(annotation, "dim_str"):
        yield from re.findall(r"\w+", annotation.dim_str)
    for part in typing.get_args(annotation):
        yield from axes(part)


def written(annotation: Any) -> str:
    """An annotation: shape and dtype of a tensor, the name of any other type."""
    if hasattr(annotation, "dim_str"):
        dtype = annotation.dtype.__name__.lower()
        return f"`[{', '.join(annotation.dim_str.split())}]` {dtype}"
    parts = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType):
        return " or ".join(written(part) for part in parts)
    if typing.get_origin(annotation) is tuple:
        if parts[-1] is Ellipsis:
            return f"tuple of {written(parts[0])}"
        return "; ".join(written(part) for part in parts)
    if annotation in (None, types.NoneType):
        return "None"
    if isinstance(annotation, torch.dtype | str):
        return str(annotation).strip("'\"")
    if annotation in _NAMES:
        return _NAMES[annotation]
    if isinstance(annotation, typing.TypeVar) or not parts:
        return getattr(annotation, "__name__", str(annotation))
    return getattr(typing.get_origin(annotation), "__name__", str(annotation))


def host_shapes(record: type) -> dict[str, str]:
    """The shapes that the docstring of a record gives to its NumPy arrays: `name: int [B]`."""
    found = re.findall(r"(\w+): (int(?:32)?|bool) \[([BR])\]", record.__doc__ or "")
    return {name: f"`[{_AXES[axis]}]` {kind}" for name, kind, axis in found}


def _result_of_property(owner: type, name: str) -> Any:
    one = vars(owner)[name]
    if isinstance(one, property):
        return inspect.signature(one.fget).return_annotation  # pyright: ignore[reportArgumentType]
    if isinstance(one, cached_property):
        return inspect.signature(one.func).return_annotation
    return None


def record_rows() -> Iterator[list[str]]:
    """A row for each record: its fields and the properties that are tensors, and where it lives."""
    for record in RECORDS:
        host = host_shapes(record)
        parts = [(f.name, host.get(f.name) or written(f.type)) for f in fields(record)]
        for name in vars(record):
            result = _result_of_property(record, name)
            if [*axes(result)]:
                parts.append((name, written(result)))
        together = [
            f"{', '.join(f'`{name}`' for name, _ in same)} {shape}"
            for shape, same in itertools.groupby(parts, key=lambda part: part[1])
        ]
        yield [f"`{record.__name__}`", "; ".join(together), *LIVES[record.__name__]]


def interface_rows() -> Iterator[list[str]]:
    """A row for each method."""
    for owner in INTERFACES:
        for name, one in vars(owner).items():
            function = getattr(one, "__func__", one)
            if not inspect.isfunction(function) or (name[0] == "_" and name != "__call__"):
                continue
            signature = inspect.signature(function)
            taken = [
                f"`{p.name}` {written(p.annotation)}"
                for p in signature.parameters.values()
                if p.name not in ("self", "cls")
            ]
            returned = written(signature.return_annotation)
            if (shape := _HOST.search(" " + (function.__doc__ or ""))) and "NumPy" in returned:
                returned = f"`[{_AXES[shape[2]]}]` {shape[1]}"
            yield [
                f"`{owner.__name__}.{name}`",
                "; ".join(taken) or "–",
                returned,
                CALLERS.get(f"{owner.__name__}.{name}") or CALLERS[owner.__name__],
            ]


_TABLES = {
    "records": (
        ["record", "fields: shape and type", "lives on", "written by", "read by"],
        record_rows,
    ),
    "interfaces": (["method", "arguments", "returns", "called by"], interface_rows),
}


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def filled(text: str) -> str:
    """The page with its tables as they have to be."""

    def replaced(found: re.Match[str]) -> str:
        head, rows = _TABLES[found[2]]
        return f"{found[1]}\n{table(head, rows())}\n\n{found[3]}"

    return _MARK.sub(replaced, text)


def all_axes() -> set[str]:
    """The names of the axes in the annotations of all records and interfaces."""
    found = {
        axis
        for record in RECORDS
        for f in fields(record)
        for axis in axes(f.type)
        if not axis.isdigit()
    }
    for owner in INTERFACES:
        for one in vars(owner).values():
            function = getattr(one, "__func__", one)
            if inspect.isfunction(function):
                signature = inspect.signature(function)
                for p in signature.parameters.values():
                    found |= {*axes(p.annotation)}
                found |= {*axes(signature.return_annotation)}
    return found


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
