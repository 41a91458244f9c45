"""Names that were public once: who imports one is told the new name."""

from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: an ImportError that gives the new name, for each old name."""

    def find(name: str) -> Any:
        if name in names:
            raise ImportError(f"`{module}.{name}` is now `{names[name]}`.", name=name)
        raise AttributeError(f"module `{module}` has no attribute `{name}`")

    return find
