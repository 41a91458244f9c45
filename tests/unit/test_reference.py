"""The reference has every public name, and every method names its source."""

import ast
import inspect
import re
from typing import Any

import pytest

import bass
from bass import errors
from bass.api.options import KINDS
from bass.models import FAMILIES
from support.pages import PYTHON, blocks, pages
from unit.test_docs import REFERENCE, named, public

PUBLIC = (
    *("bass", "bass.interfaces", "bass.records", "bass.testing", "bass.analysis.metrics"),
    *("bass.policies", "bass.drafters", "bass.stop_rules", "bass.trims", "bass.verifiers"),
    *("bass.caches", "bass.attention", "bass.quantization", "bass.policies.simulate"),
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


def test_every_registered_method_names_its_source() -> None:
    """As `paper`, which `bass list` and the reference show."""
    methods = {
        f"{kind}: {name}": getattr(one, "paper", "")
        for kind, found in KINDS.items()
        for name, one in found.registry.items()
    }
    assert {name: paper for name, paper in methods.items() if not SOURCE.search(paper)} == {}
