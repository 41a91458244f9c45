"""The engine with every kernel in its place, or with none, on any device."""

import sys
from collections.abc import Callable

import pytest

Choose = Callable[[bool], None]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Says whether the functions that choose between kernels and torch take the kernels."""

    def choose(on: bool) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("bass.") and name != "bass.kernels" and hasattr(module, "serves"):
                monkeypatch.setattr(module, "serves", lambda _: on)

    return choose
