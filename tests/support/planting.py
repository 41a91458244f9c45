"""Finds a symbol of `bass` and plants a mutant in it, on syntax trees."""

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.mutants.mutant import Mutant

SOURCE = Path(__file__).resolve().parents[2] / "src" / "bass"


def find(symbol: str) -> Path:
    """The file of the only symbol whose dotted path ends with `symbol`."""
    found = [path for name, path in _symbols() if _ends_with(name, symbol)]
    if len(found) != 1:
        places = ", ".join(str(path.relative_to(SOURCE)) for path in found) or "nowhere"
        raise ValueError(f"`{symbol}` has to name one symbol of `bass`; it stands in: {places}.")
    return found[0]


def planted(mutant: Mutant) -> tuple[Path, str]:
    """The file (relative to the package) that `mutant` changes, and its text with the defect."""
    path = find(mutant.symbol)
    source = path.read_text(encoding="utf-8")
    named = _named(ast.parse(source).body, _module(path))
    [symbol] = [node for name, node in named if _ends_with(name, mutant.symbol)]
    old, new = ast.parse(mutant.old).body, ast.parse(mutant.new).body
    module = ast.Module([symbol], [])
    places = list(_places(module, old))
    if len(places) != 1:
        raise ValueError(
            f"Mutant `{mutant.name}`: its code occurs {len(places)} times in `{mutant.symbol}`, "
            f"and must occur once: {mutant.old}"
        )
    first = min(node.lineno for node in (symbol, *getattr(symbol, "decorator_list", ())))
    last, indent = symbol.end_lineno, " " * symbol.col_offset
    _replace(*places[0], old, new)
    lines = source.splitlines(keepends=True)
    lines[first - 1 : last] = [textwrap.indent(ast.unparse(module), indent) + "\n"]
    return path.relative_to(SOURCE), "".join(lines)


@cache
def _symbols() -> list[tuple[str, Path]]:
    return [
        (name, path)
        for path in sorted(SOURCE.rglob("*.py"))
        for name, _ in _named(ast.parse(path.read_text(encoding="utf-8")).body, _module(path))
    ]


def _ends_with(name: str, symbol: str) -> bool:
    return f".{name}".endswith(f".{symbol}")


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _named(body: list[ast.stmt], within: str) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes, their methods, and constants, with their dotted paths."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name):
                yield f"{within}.{name}", node
            case ast.ClassDef(name=name):
                yield f"{within}.{name}", node
                yield from _named(node.body, f"{within}.{name}")
            case ast.Assign(targets=[ast.Tuple(elts=targets)]) | ast.Assign(targets=targets):
                yield from ((f"{within}.{t.id}", node) for t in targets if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield f"{within}.{name}", node


def _places(tree: ast.AST, old: list[ast.stmt]) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where `old` stands: the parent, its field, and the index if that field is a list."""
    expression = old[0].value if len(old) == 1 and isinstance(old[0], ast.Expr) else None
    statements = [_key(statement) for statement in old]
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                keys = [_key(child) if isinstance(child, ast.AST) else None for child in value]
                for start in range(len(keys)):
                    whole = keys[start : start + len(statements)] == statements
                    if whole or (expression is not None and keys[start] == _key(expression)):
                        yield parent, field, start
            elif expression is not None and isinstance(value, ast.AST):
                alone = isinstance(parent, ast.Expr)  # found already, as a statement
                if not alone and _key(value) == _key(expression):
                    yield parent, field, None


def _replace(
    parent: ast.AST, field: str, at: int | None, old: list[ast.stmt], new: list[ast.stmt]
) -> None:
    value = getattr(parent, field)
    if at is not None and isinstance(value[at], ast.stmt):
        value[at : at + len(old)] = new
        if not value:
            value.append(ast.Pass())
        return
    [statement] = new
    assert isinstance(statement, ast.Expr), f"An expression is replaced by one: {parent}"
    if at is None:
        setattr(parent, field, statement.value)
    else:
        value[at] = statement.value


@cache
def _key(node: ast.AST) -> str:
    """The tree as text, whether it is read or assigned to."""
    text = ast.dump(node)
    for context in ("Load", "Store", "Del"):
        text = text.replace(f", ctx={context}()", "").replace(f"ctx={context}()", "")
    return text
