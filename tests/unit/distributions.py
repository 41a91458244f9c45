"""Installed packages that offer strategies, made of text."""

import sys
from pathlib import Path
from typing import Protocol

import pytest

OFFERED = '''
from dataclasses import dataclass

import numpy as np

from bass.interfaces import DraftLengthPolicy

NUMBER = 3


class NoStrategy:
    pass


@dataclass(frozen=True)
class Half(DraftLengthPolicy[int]):
    """Half of `top` tokens."""

    paper = "Nobody et al., 2020"
    top: int = 4
    max_length: int = 8

    def init(self, batch_size):
        return batch_size

    def lengths(self, state):
        return np.full(state, self.top // 2, dtype=np.int32)

    def update(self, state, feedback):
        return state


class Outer:
    class Deep(Half):
        """A class in a class."""

    class Mute(Half):
        pass
'''
MODULES = {
    "offered": OFFERED,
    "fails_on_import": "raise RuntimeError('not today')",
    "exits_on_import": "raise SystemExit(3)",
}


class Offer(Protocol):
    """`offer("bass.policies", name="module:Class")` installs a distribution with that entry
    point.
    """

    def __call__(
        self, group: str, distribution: str = "fake-strategies", **points: str
    ) -> Path: ...


def installer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Distributions go into folders of their own below `folder`, and those into `sys.path`: the
    last one first.
    """

    def offer(group: str, distribution: str = "fake-strategies", **points: str) -> Path:
        site = folder / distribution
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n", encoding="utf-8"
        )
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
        for name, text in MODULES.items():
            (site / f"{name}.py").write_text(text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(site))
        return site

    return offer
