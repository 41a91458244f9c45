"""The Python code of a file's records: which names it takes and binds, within limits on what is
parsed.
"""

import ast
import symtable
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

# Characters of a record's code or its tests, and those that one file has the parser read in all,
# again and again where a text is parsed more than once. MBPP has 4,148 and 386,196. The parser
# takes up to 3 microseconds for each.
LONGEST_CODE, MOST_CODE = 2**13, 2**19
_Parsed = TypeVar("_Parsed")


@dataclass
class Parser:
    """Python's own parser, for the records of one file.

    Raises `ValueError` before it would read more than the limits allow, and what Python's raises.
    """

    characters: int = 0  # read so far

    def tree(self, code: str) -> ast.Module:
        """The syntax tree of a module."""
        return self._read(code, ast.parse)

    def scope(self, code: str) -> symtable.SymbolTable:
        """The names of a module, scope by scope."""
        return self._read(code, lambda text: symtable.symtable(text, "<code>", "exec"))

    def _read(self, code: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        check_length(code)
        self._count(code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are none, as some solutions have them
            try:
                return parse(code)
            except SyntaxError:
                self._count(code)  # it is read twice: the second time to say what is wrong
                raise

    def _count(self, code: str) -> None:
        self.characters += len(code)
        if self.characters > MOST_CODE:
            raise ValueError(
                f"it and those before it give the parser {self.characters:,} characters of code in "
                f"all, and {MOST_CODE:,} are the most"
            )


def used(tests: str, code: str, parser: Parser) -> tuple[tuple[str, ...], list[str]]:
    """The names that the tests take from the program: those they use and do not bind themselves,
    and the reference solution binds, in whatever way but an import. And its imports of what they
    use, which the tests need too.

    Raises `ValueError` where they take nothing from it.
    """
    scope = parser.scope(tests)
    own_names = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_local()}
    wanted = _global_uses(scope) - own_names
    names = _bound(parser.scope(code)) & wanted
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
    """The names of the module that are read in this scope and in those within it."""
    module = scope.get_type() == "module"
    own = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (module or symbol.is_global())
    }
    return own.union(*map(_global_uses, scope.get_children()))


def _bound(scope: symtable.SymbolTable) -> set[str]:
    """The names of the module that this scope and those within it bind, but by no import."""
    module = scope.get_type() == "module"
    own = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_assigned() and (module or symbol.is_declared_global())
    }
    return own.union(*map(_bound, scope.get_children()))


def check_length(code: str) -> None:
    """Raise `ValueError` for code that is longer than that of any problem."""
    if len(code) > LONGEST_CODE:
        raise ValueError(
            f"it has {len(code):,} characters of code or of tests, and {LONGEST_CODE:,} are the "
            "most"
        )
