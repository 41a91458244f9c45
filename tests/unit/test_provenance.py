"""The inputs of a result: versions, and hashes of the user's files and of nothing else."""

import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bass.experiments import provenance
from bass.experiments.cell import Cell
from bass.experiments.provenance import commit, device_name, files_of, here
from bass.experiments.settings import Settings
from bass.policies import Fixed, Lagged

BASE = "from dataclasses import dataclass, field\nfrom bass.interfaces import DraftLengthPolicy\n"
HELPER = "class Table:\n    pass\n"
POLICY = f"""{BASE}
import numpy as np
from own_helper import Table

@dataclass(frozen=True)
class Own(DraftLengthPolicy):
    constant_length = False
    max_length = 2
    file: str = ""
    table: Table = field(default_factory=Table)
    def init(self, batch_size): return batch_size
    def lengths(self, state): return np.full(state, 2, np.int32)
    def update(self, state, feedback): return state
    def reset(self, state, rows): return state
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's with a policy, which holds an object of another one."""
    (tmp_path / "own_helper.py").write_text(HELPER, encoding="utf-8")
    (tmp_path / "own_policy.py").write_text(POLICY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_policy", "own_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("own_policy")


def found(policy: Any, **options: Any) -> dict[str, str]:
    """The files of a cell with the policy, by their names."""
    settings = Settings(policy=policy, **options)
    files = files_of(Cell("", {}, settings).load_plan, settings)
    for path, digest in files.items():
        assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return {Path(path).name: digest for path, digest in files.items()}


def test_a_cell_of_bass_alone_has_no_files() -> None:
    assert found("bass") == {}
    assert found(Lagged(Fixed(3)), prompts=["a text"], stop=["def"]) == {}


def test_it_has_the_users_classes_and_the_files_of_their_parameters(
    own: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "tables").mkdir()
    data, prompts = tmp_path / "tables" / "table.csv", tmp_path / "prompts.txt"
    data.write_text("1,2\n", encoding="utf-8")
    prompts.write_text("def f(", encoding="utf-8")
    spec = {"class_path": "own_policy:Own", "init_args": {"file": str(data)}}
    names = {"own_policy.py", "own_helper.py"}
    assert {*found(own.Own())} == names
    assert {*found(Lagged(own.Own()))} == names
    before = found(spec, prompts=str(prompts))
    assert {*before} == {*names, "table.csv", "prompts.txt"}
    data.write_text("1,3\n", encoding="utf-8")
    after = found(spec, prompts=str(prompts))
    assert {name for name in before if before[name] != after[name]} == {"table.csv"}
    assert {*found(spec | {"init_args": {"file": str(data.parent)}})} == {*names, "table.csv"}


def test_here_says_which_software_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert here().keys() == {"bass", "commit", "created", "torch", "python", "platform"}
    assert here()["torch"] == torch.__version__
    assert device_name(torch.device("cpu")).startswith("cpu (")
    assert len(commit().removesuffix("-dirty")) in (40, len("unknown"))
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    assert commit() == "unknown"
