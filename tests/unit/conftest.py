"""A pair of tiny checkpoints, and the command line as a function."""

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bass.api import resolve
from bass.cli import main
from bass.engine import assembly, engines, parts
from support.prepared_steps import Captured
from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint
from unit.distributions import Offer, installer


@pytest.fixture(scope="session", autouse=True)
def short_calibration() -> Iterator[None]:
    """The parts of a step are timed as seldom as on a slow CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "REPEATS", parts.LEAST_REPEATS)
        yield


@pytest.fixture(scope="session", autouse=True)
def installed_packages() -> Iterator[None]:
    """What the installed packages offer is read once for each `sys.path`: it takes 10 ms."""
    found = functools.cache(lambda path: importlib.metadata.entry_points())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            resolve, "entry_points", lambda group: found(tuple(sys.path)).select(group=group)
        )
        yield


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder, tokenizer = tmp_path_factory.mktemp("pair"), byte_tokenizer()
    size = tokenizer.get_vocab_size()
    return Pair(
        write_checkpoint(folder / "target", tokenizer, 32, 2, size),
        write_checkpoint(folder / "draft", tokenizer, 16, 1, size),
    )


@pytest.fixture(scope="session")
def silent_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair without tokenizer."""
    folder = tmp_path_factory.mktemp("silent")
    return Pair(
        write_checkpoint(folder / "target", None, 32, 2, 50),
        write_checkpoint(folder / "draft", None, 16, 1, 50),
    )


@pytest.fixture
def bass_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """`bass ARGUMENTS` in this process."""
    # to whose end a class of one's own adds the working directory
    monkeypatch.setattr("sys.path", list(sys.path))

    def call(*arguments: str) -> Said:
        status = main(list(arguments))
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return call


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Installs packages that offer strategies, for the time of a test."""
    return installer(tmp_path, monkeypatch)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> type[Captured]:
    """Engines are kept, as on a GPU; counts what is captured."""
    monkeypatch.setattr(assembly, "GraphedStep", Captured)
    monkeypatch.setattr("bass.api.llm.use_graphs", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(engines, "CAPACITY_STEP", 8)
    monkeypatch.setattr(engines.EngineCache, "_positions_with_room", lambda _: 64)
    monkeypatch.setattr("bass.engine.shapes.LEAST_SPAN", 8)
    monkeypatch.setattr("bass.engine.prefill.SEGMENT", 4)
    monkeypatch.setattr("bass.engine.prefill.SEGMENTS", (4, 1))
    Captured.count = Captured.prefills = 0
    return Captured
