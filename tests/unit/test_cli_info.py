"""`bass info` of layouts that are not ours: what is counted, and what cannot be known."""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bass import pair as embedded
from bass.caches import PaddedCache
from bass.interfaces import KVCache
from bass.records import AttentionRule, CacheBudget, DecoderShape, PaddedView
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
HERE = __name__


class Around(KVCache[PaddedView]):
    """A layout that wraps another, with a tensor of its own."""

    view_type: ClassVar[type] = PaddedView

    def __init__(self, inner: Any, own: torch.Tensor) -> None:
        self.inner, self.own = inner, own

    @classmethod
    def allocate(
        cls, shape: DecoderShape, budget: CacheBudget, device: torch.device, dtype: torch.dtype
    ) -> "Around":
        return cls(
            PaddedCache.allocate(shape, budget, device, dtype),
            torch.zeros(5, dtype=torch.int8, device=device),
        )

    def write(self, *_: Any) -> None: ...
    def view(self, layer: int) -> PaddedView: ...  # type: ignore[empty-body]
    def rows(self, start: int, stop: int) -> "Around": ...  # type: ignore[empty-body]
    def reserve(self, assignment: Any) -> None: ...
    def copy_rows(self, assignment: Any) -> None: ...


class Hiding(Around):
    """Its storage is where nothing looks for it."""

    def __init__(self, inner: Any, own: torch.Tensor) -> None:
        self.hidden, self.own = [inner], own


def figure(said: Said, name: str) -> str:
    """What is told of a layout."""
    assert said.status == 0, said.err
    found = re.findall(rf"^  {re.escape(name)} +(.+)$", said.out, re.MULTILINE)
    assert len(found) == 1, said.out
    return found[0]


def test_a_cache_takes_what_the_caches_in_it_take() -> None:
    shape, budget = (
        DecoderShape(5, 64, 1, 16, 64, (AttentionRule(1.0),)),
        CacheBudget.of(np.array([3, 4])),
    )
    cache = Around.allocate(shape, budget, torch.device("cpu"), torch.float32)
    assert cache.nbytes == cache.inner.nbytes + 5
    assert Around(cache, cache.own).nbytes == cache.nbytes + 5


def test_a_layout_around_another_is_told_with_what_it_wraps(
    bass_command: Command, pair: Pair
) -> None:
    own = figure(
        bass_command("info", str(pair.target), "--cache", f"{HERE}:Around"), f"{HERE}:Around"
    )
    assert own == figure(bass_command("info", str(pair.target), "--cache", "padded"), "padded")


def test_less_than_the_rows_need_is_no_figure(bass_command: Command, pair: Pair) -> None:
    told = figure(
        bass_command("info", str(pair.target), "--cache", f"{HERE}:Hiding"), f"{HERE}:Hiding"
    )
    assert told == "unknown (it reports less than the rows need)"


def test_the_rows_of_the_help_are_rows_of_the_embedded_pair(
    bass_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bass_command("info", "--help")
    found = re.search(r"e\.g\. (\[[\d,\s]+\])", capsys.readouterr().out)
    assert found is not None
    said = bass_command("info", str(embedded.TARGET), "--rows", found[1])
    assert said.status == 0, said.err
    assert f"MiB for {', '.join(map(str, json.loads(found[1])))} positions" in said.out
