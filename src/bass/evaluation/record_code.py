"""Analyses the Python code of a file's records: used and bound names, within limits on parsing."""

import ast
import symtable
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

# Maximum characters of a record's code or tests, and of all parsed texts of a file, repeated parses
# included. MBPP has 4,148 and 386,196. The parser takes up to 3 microseconds per character.
LONGEST_CODE, MOST_CODE = 2**13, 2**19
_Parsed = TypeVar("_Parsed")


@dataclass
class Parser:
    """Python's own parser, for the records of one file.

    Raises `ValueError` before it exceeds a limit, and the errors of Python's parser.
    """

    characters: int = 0  # read so far

    def tree(self, code: str) -> ast.Module:
        """The syntax tree of a module."""
        return self._read(code, ast.parse)

    def scope(self, code: str) -> symtable.SymbolTable:
        """The names of a module, scope by scope; a comprehension is a scope of its own."""
        return self._read(code, _scope)

    def _read(self, code: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        check_length(code)
        self._count(code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes, which some solutions have
            try:
                return parse(code)
            except SyntaxError:
                self._count(code)  # Python parses invalid code twice, for a better message
                raise

    def _count(self, code: str) -> None:
        self.characters += len(code)
        if self.characters > MOST_CODE:
            raise ValueError(
                f"it and earlier records have {self.characters:,} characters of code to parse, and "
                f"{MOST_CODE:,} are the most"
            )


def _scope(code: str) -> symtable.SymbolTable:
    if sys.version_info >= (3, 12):  # which counts a comprehension's variables to its surroundings
        code = ast.unparse(_AsGenerators().visit(ast.parse(code)))
    return symtable.symtable(code, "<code>", "exec")


class _AsGenerators(ast.NodeTransformer):
    """Comprehensions become generator expressions of the same names, which keep their scope."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.AST:
        return self.generic_visit(ast.GeneratorExp(node.elt, node.generators))

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return self.generic_visit(ast.GeneratorExp(pair, node.generators))


def used(tests: str, code: str, parser: Parser) -> tuple[tuple[str, ...], list[str]]:
    """The names that the tests take from the program, and the imports that they need.

    The names are those that the tests use without binding them, and that the reference solution
    binds other than by an import. Raises `ValueError` if there are none.
    """
    scope = parser.scope(tests)
    own_names = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_local()}
    wanted = _global_uses(scope) - own_names
    names = bound(parser.scope(code)) & wanted
    if not names:
        raise ValueError("its tests use nothing that its code defines")
    body = parser.tree(code).body if "import" in code else []
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    own = [
        node
        for node in imports
        if wanted & {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    ]
    return tuple(sorted(names)), [ast.unparse(node) for node in own]


def _global_uses(scope: symtable.SymbolTable) -> set[str]:
    """The global names that are read in this scope and in nested ones."""
    module = scope.get_type() == "module"
    own = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (module or symbol.is_global())
    }
    return own.union(*map(_global_uses, scope.get_children()))


def bound(scope: symtable.SymbolTable) -> set[str]:
    """The global names that this scope and nested ones bind, except by an import."""
    module = scope.get_type() == "module"
    own = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_assigned() and (module or symbol.is_declared_global())
    }
    return own.union(*map(bound, scope.get_children()))


def check_length(code: str) -> None:
    """Raise `ValueError` for code beyond `LONGEST_CODE`."""
    if len(code) > LONGEST_CODE:
        raise ValueError(
            f"it has {len(code):,} characters of code or of tests, and {LONGEST_CODE:,} are the "
            "most"
        )
