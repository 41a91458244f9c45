"""The reference has every public name, and each docstring says what the reference needs.

Without a build of the site; `test_docs` looks into the built pages.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
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
from support.pages import PYTHON, blocks, imported, pages
from unit.test_docs import DOCS, REFERENCE, named, public

PUBLIC = (
    *("bass", "bass.interfaces", "bass.records", "bass.testing", "bass.analysis.metrics"),
    *("bass.policies", "bass.drafters", "bass.stop_rules", "bass.verifiers", "bass.caches"),
    *("bass.attention", "bass.quantization", "bass.policies.simulate"),
)
# a method is from a paper (author and year), from other software, or this project's own
SOURCE = re.compile(
    r"[A-Z]\w+.*\b(?:19|20)\d\d\b|\b(?:vLLM|SGLang|Hugging Face|torch)\b|this project"
)
CHECKS = {name for name in vars(errors) if name.startswith("check_")}  # each an `OptionError`
NO_METHOD = ("none",)  # they leave something out


def in_reference() -> dict[str, Any]:
    """Everything that the pages of the reference show, by the name there."""
    found: dict[str, Any] = {}
    for spec in REFERENCE:
        one = named(spec)
        found[spec] = one
        if inspect.ismodule(one):
            found |= {f"{spec}.{name}": getattr(one, name) for name in public(one)}
    return found


SHOWN = in_reference()
IDS = {id(one) for one in SHOWN.values()}
CALLABLES = {
    name: one for name, one in SHOWN.items() if inspect.isfunction(one) or inspect.isclass(one)
}


def test_the_reference_has_every_public_name() -> None:
    names = {
        f"{module}.{name}": getattr(named(module), name)
        for module in PUBLIC
        for name in public(named(module))
    }
    names |= {
        f"bass.errors.{name}": one for name, one in vars(errors).items() if name.endswith("Error")
    }
    assert len(names) > 120
    assert [name for name, one in names.items() if id(one) not in IDS] == []
    assert {module for module in PUBLIC if not getattr(named(module), "__all__", None)} == {
        "bass.analysis.metrics",
        "bass.policies.simulate",
    }
    assert {*bass.__all__} <= {name.removeprefix("bass.") for name in names}


def test_the_reference_has_every_registered_strategy_and_family() -> None:
    registered = [*(one for kind in KINDS.values() for one in kind.registry.values())]
    registered += [kind.interface for kind in KINDS.values()]
    registered += [one for family in FAMILIES.values() for one in (family, family.config_type)]
    assert [one for one in registered if id(one) not in IDS] == []


@pytest.mark.parametrize("page", pages())
def test_the_reference_has_every_name_that_a_page_imports(page: str) -> None:
    names = {
        name
        for block in blocks(page)
        if block.language in PYTHON
        for name, _ in imported(ast.parse(block.text))
    }
    assert [name for name in sorted(names) if id(named(name)) not in IDS] == []


# --- docstrings -----------------------------------------------------------------------------------


def functions(name: str, one: Any) -> Iterator[tuple[str, Any]]:
    """A function, or the public ones that a class defines itself."""
    if inspect.isfunction(one):
        yield name, one
        return
    for part, value in vars(one).items():
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        value = value.fget if isinstance(value, property) else value
        if not inspect.isfunction(value) or part.startswith("_"):
            continue
        if inspect.unwrap(value).__module__.startswith("bass"):
            yield f"{name}.{part}", value


FUNCTIONS = {k: v for name, one in CALLABLES.items() for k, v in functions(name, one)}


def documented(name: str) -> str:
    """The docstring of a function, of the one that it overrides, or of its class."""
    one = FUNCTIONS[name]
    owner = CALLABLES.get(name.rpartition(".")[0])
    texts = [one.__doc__]
    if inspect.isclass(owner):
        part = name.rpartition(".")[2]
        texts += [getattr(base.__dict__.get(part), "__doc__", None) for base in owner.__mro__]
        texts.append(owner.__doc__)
    return "\n".join(text for text in texts if text)


def test_every_docstring_begins_with_a_sentence() -> None:
    wrong = []
    for name, one in CALLABLES.items() | {k: v for k, v in FUNCTIONS.items() if v.__doc__}.items():
        first = (one.__doc__ or "").strip().partition("\n\n")[0]
        if not first or first[-1] not in ".:" or "(self" in first:
            wrong.append(name)
    assert sorted(wrong) == []


def test_every_function_has_a_docstring_or_overrides_one_that_has() -> None:
    assert [name for name in FUNCTIONS if not documented(name)] == []


def arrays_without_shape(hints: dict[str, Any]) -> list[str]:
    """The names of plain tensors and arrays: annotations of jaxtyping have a shape. One of several
    kinds of values, as a prompt is, may have any.
    """
    plain = (torch.Tensor, np.ndarray)
    return [
        name
        for name, hint in hints.items()
        if [one for one in typing.get_args(hint) or (hint,) if one is not type(None)]
        in [[one] for one in plain]
    ]


def test_every_tensor_has_a_shape() -> None:
    """In its annotation, or as `[axes]` in the docstring; a field of a record has it there behind
    its name.
    """
    wrong: dict[str, list[str]] = {}
    for name, one in CALLABLES.items():
        if dataclasses.is_dataclass(one):
            fields = arrays_without_shape({f.name: f.type for f in dataclasses.fields(one)})
            text = one.__doc__ or ""
            if bare := [f for f in fields if not re.search(rf"\b{f}\b[^.]*\[[^]]+\]", text)]:
                wrong[name] = bare
    for name, one in FUNCTIONS.items():
        own = inspect.unwrap(one)
        bare = arrays_without_shape(own.__annotations__)
        if bare and not re.search(r"\[[\w .,+*^()/-]*\]", documented(name)):
            wrong[name] = bare
    assert wrong == {}, "\n".join(f"{k}: {v}" for k, v in wrong.items())


def test_every_function_is_annotated() -> None:
    wrong = {}
    for name, one in FUNCTIONS.items():
        signature = inspect.signature(inspect.unwrap(one))
        missing = [
            p.name
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        if signature.return_annotation is signature.empty:
            missing.append("return")
        if missing:
            wrong[name] = missing
    assert wrong == {}, "\n".join(f"{k}: {v}" for k, v in wrong.items())


def raised(one: Any) -> set[str]:
    """The errors of bass that a function raises itself, or by a check of `bass.errors`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(one))))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            found.add(made.id if isinstance(made, ast.Name) else "")
        called = getattr(node, "func", None)
        if isinstance(called, ast.Name) and called.id in CHECKS:
            found.add("OptionError")
    return {name for name in found if inspect.isclass(getattr(errors, name, None))}


def test_errors_that_are_raised_are_named() -> None:
    wrong = {
        name: missing
        for name, one in FUNCTIONS.items()
        if (missing := {error for error in raised(one) if error not in documented(name)})
    }
    assert wrong == {}, "\n".join(f"{k}: {v}" for k, v in wrong.items())


@pytest.mark.parametrize("kind", KINDS)
def test_every_registered_method_names_its_source(kind: str) -> None:
    """As `paper`, which `bass list` and the reference show."""
    wrong = {
        name: getattr(one, "paper", None)
        for name, one in KINDS[kind].registry.items()
        if name not in NO_METHOD and not SOURCE.search(getattr(one, "paper", ""))
    }
    assert wrong == {}, "\n".join(f"{k}: {v}" for k, v in wrong.items())


def test_the_pages_of_strategies_name_the_error_of_their_parameters() -> None:
    for page in ("policies", "drafters", "stop-rules", "verifiers"):
        assert (
            "OptionError" in (DOCS / f"reference/{page}.md").read_text("utf-8").partition(":::")[0]
        )
