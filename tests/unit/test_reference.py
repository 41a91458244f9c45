"""The reference has every public name, and each docstring says what the reference needs.

Without a build of the site; `test_docs` looks into the built pages.
"""

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass import errors
from bass.api.kinds import KINDS
from bass.models import FAMILIES
from support.pages import PYTHON, blocks, pages
from unit.test_docs import REFERENCE, named, public

PUBLIC = (
    *("bass", "bass.interfaces", "bass.records", "bass.testing", "bass.analysis.metrics"),
    *("bass.policies", "bass.drafters", "bass.stop_rules", "bass.verifiers", "bass.caches"),
    *("bass.attention", "bass.quantization", "bass.policies.simulate"),
)
# a method is from a paper (author and year), from other software, or this project's own
SOURCE = re.compile(
    r"[A-Z]\w+.*\b(?:19|20)\d\d\b|\b(?:vLLM|SGLang|Hugging Face|torch)\b|this project"
)


def in_reference() -> dict[str, Any]:
    """Everything that the pages of the reference show, by the name there."""
    found = {spec: named(spec) for spec in REFERENCE}
    modules = {spec: one for spec, one in found.items() if inspect.ismodule(one)}
    return found | {
        f"{spec}.{name}": getattr(one, name)
        for spec, one in modules.items()
        for name in public(one)
    }


SHOWN = in_reference()
IDS = {id(one) for one in SHOWN.values()}
CALLABLES = {
    name: one for name, one in SHOWN.items() if inspect.isfunction(one) or inspect.isclass(one)
}


def functions(name: str, one: Any) -> Iterator[tuple[str, Any]]:
    """A function, or the public ones that a class defines itself."""
    if inspect.isfunction(one):
        yield name, one
        return
    for part, value in vars(one).items():
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        value = value.fget if isinstance(value, property) else value
        ours = inspect.isfunction(value) and inspect.unwrap(value).__module__.startswith("bass")
        if ours and not part.startswith("_"):
            yield f"{name}.{part}", value


FUNCTIONS = {k: v for name, one in CALLABLES.items() for k, v in functions(name, one)}


def test_the_reference_has_every_public_name() -> None:
    names = {
        f"{module}.{name}": getattr(named(module), name)
        for module in PUBLIC
        for name in public(named(module))
    }
    names |= {name: one for name, one in vars(errors).items() if name.endswith("Error")}
    assert len(names) > 120
    assert [name for name, one in names.items() if id(one) not in IDS] == []
    assert {f"bass.{name}" for name in bass.__all__} <= {*names}


def test_the_reference_has_every_registered_strategy_and_family() -> None:
    registered = [one for kind in KINDS.values() for one in kind.registry.values()]
    registered += [kind.interface for kind in KINDS.values()]
    registered += [one for family in FAMILIES.values() for one in (family, family.config_type)]
    assert [one for one in registered if id(one) not in IDS] == []


@pytest.mark.parametrize("page", pages())
def test_the_reference_has_every_name_that_a_page_imports(page: str) -> None:
    nodes = [
        node
        for block in blocks(page)
        if block.language in PYTHON
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bass"
    ]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    assert [name for name in sorted(names) if id(named(name)) not in IDS] == []


def documented(name: str) -> str:
    """The docstring of a function, of the one that it overrides, or of its class."""
    owner, _, part = name.rpartition(".")
    bases = getattr(CALLABLES.get(owner), "__mro__", ())
    texts = [FUNCTIONS[name].__doc__, getattr(CALLABLES.get(owner), "__doc__", None)]
    texts += [getattr(vars(base).get(part), "__doc__", None) for base in bases]
    return "\n".join(text for text in texts if text)


def test_every_docstring_begins_with_a_sentence() -> None:
    wrong = []
    for name, one in CALLABLES.items() | {k: v for k, v in FUNCTIONS.items() if v.__doc__}.items():
        first = (one.__doc__ or "").strip().partition("\n\n")[0]
        if not first or first[-1] not in ".:" or "(self" in first:
            wrong.append(name)
    assert sorted(wrong) == []
    assert [name for name in FUNCTIONS if not documented(name)] == []


def arrays_without_shape(hints: dict[str, Any]) -> list[str]:
    """The names of plain tensors and arrays: annotations of jaxtyping have a shape."""
    plain = ([torch.Tensor], [np.ndarray])
    parts = {name: typing.get_args(hint) or (hint,) for name, hint in hints.items()}
    return [name for name, of in parts.items() if [x for x in of if x is not type(None)] in plain]


def test_every_tensor_has_a_shape() -> None:
    """In its annotation, or as `[axes]` in the docstring."""
    wrong: dict[str, list[str]] = {}
    for name, one in CALLABLES.items():
        if dataclasses.is_dataclass(one):
            fields = arrays_without_shape({f.name: f.type for f in dataclasses.fields(one)})
            text = one.__doc__ or ""
            if bare := [f for f in fields if not re.search(rf"\b{f}\b[^.]*\[[^]]+\]", text)]:
                wrong[name] = bare
    for name, one in FUNCTIONS.items():
        bare = arrays_without_shape(inspect.unwrap(one).__annotations__)
        if bare and not re.search(r"\[[\w .,+*^()/-]*\]", documented(name)):
            wrong[name] = bare
    assert wrong == {}


def test_every_registered_method_names_its_source() -> None:
    """As `paper`, which `bass list` and the reference show."""
    methods = {
        f"{kind}: {name}": getattr(one, "paper", "")
        for kind, found in KINDS.items()
        for name, one in found.registry.items()
        if name != "none"
    }
    assert {name: paper for name, paper in methods.items() if not SOURCE.search(paper)} == {}
