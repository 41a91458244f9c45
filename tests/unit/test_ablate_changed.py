"""A run folder that is gone on with: whatever its cells were made with must be what it was, or the
cells are made again.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.experiments import inputs, runner
from bass.runs.run_folder import RunFolder
from support.matrix import by_day
from unit.checkpoints import Pair, Said, byte_tokenizer, write_checkpoint

Command = Callable[..., Said]
POLICY = """
from dataclasses import dataclass
from own_lengths import LENGTH
from bass.policies import Fixed
from bass.interfaces import DraftLengthPolicy

@dataclass(frozen=True)
class Mine(DraftLengthPolicy):
    max_length: int = 4
    def init(self, batch_size): return Fixed(LENGTH).init(batch_size)
    def lengths(self, state): return Fixed(LENGTH).lengths(state)
    def update(self, state, feedback): return state
"""
METHODS = {
    "mine": {
        "policy": {"class_path": "clamped", "init_args": {"policy": "own_policy:Mine", "hi": 2}}
    },
    "fixed": {"policy": "fixed"},
}
OWN = ("own_policy", "own_lengths")
CELLS = ["0000-mine", "0001-fixed"]


@pytest.fixture
def folder(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works: a policy that imports a module beside it, prompts in a file, and two
    checkpoints.
    """
    monkeypatch.chdir(tmp_path)
    forget()
    (tmp_path / "own_policy.py").write_text(POLICY, encoding="utf-8")
    (tmp_path / "own_lengths.py").write_text("LENGTH = 2\n", encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "def f("}\n', encoding="utf-8")
    tokenizer = byte_tokenizer()
    target = write_checkpoint(tmp_path / "target", tokenizer, 32, 2, tokenizer.get_vocab_size())
    base = {
        "batch": 2,
        "max_new_tokens": 3,
        "repeats": 1,
        "warm_up": False,
        "target": str(target),
        "draft": str(pair.draft),
    }
    methods = {
        "mine": METHODS["mine"] | {"prompts": "prompts.jsonl"},
        "fixed": METHODS["fixed"] | {"prompts": ["for"]},
    }
    (tmp_path / "c.yaml").write_text(
        json.dumps({"base": base, "axes": {"method": methods}}), encoding="utf-8"
    )
    return tmp_path


def forget() -> None:
    """As in a new process."""
    for name in OWN:
        sys.modules.pop(name, None)


def results(folder: Path) -> dict[str, bytes]:
    files = [(cell, name) for cell in CELLS for name in ("steps.jsonl", "summary.json")]
    return {
        f"{cell} {name}": (folder / "out/cells" / cell / name).read_bytes() for cell, name in files
    }


def edit(name: str, old: str, new: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode(), 1))

    return change


def retrained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights of the same size."""
    path = folder / "target/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = b"\0\0\0\0"
    path.write_bytes(data)


def other(owner: Any, name: str, value: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda folder, monkeypatch: monkeypatch.setattr(owner, name, lambda *_: value)


CHANGES = {  # what is changed, how it is told, and the cells that depend on it
    "a class inside a wrapper": (edit("own_policy.py", "LENGTH)", "LENGTH + 1)"),
    "the module `own_policy`", ["0000-mine"]),
    "a module that it imports": (edit("own_lengths.py", "2", "3"), "the module `own_lengths`",
        ["0000-mine"]),
    "prompts of an axis": (edit("prompts.jsonl", "def f(", "def g("), "the prompts of `0000-mine`",
        ["0000-mine"]),
    "weights": (retrained, "the target `", CELLS),
    "a tokenizer": (edit("target/tokenizer.json", "\n", "\n\n"), "the target `", CELLS),
    "bass itself": (other(inputs, "source_of_bass", "other"), "the source of bass", CELLS),
    "the device": (other(runner, "device_name", "another GPU"), "and is another GPU", CELLS),
}  # fmt: skip


# a tokenizer is a file as weights are, and `test_ablate_sources.py` changes modules
@pytest.mark.parametrize(
    "case", by_day(CHANGES, CHANGES.keys() - {"a tokenizer", "a module that it imports"})
)
def test_what_has_changed_is_refused_and_redone_on_request_in_the_cells_that_depend_on_it(
    bass_command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    change, words, cells = CHANGES[case]
    assert bass_command("ablate", "c.yaml", "--output", "out").status == 0
    before, manifest = results(folder), (folder / "out/manifest.json").read_bytes()
    change(folder, monkeypatch)
    forget()
    said = bass_command("ablate", "c.yaml", "--output", "out")
    assert said.status == 2
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err
    for way in ("--output", "--redo-changed"):
        assert way in said.err
    assert (results(folder), (folder / "out/manifest.json").read_bytes()) == (before, manifest)
    said = bass_command("ablate", "c.yaml", "--output", "out", "--redo-changed")
    assert said.status == 0, said.err
    after = results(folder)
    assert {name.split()[0] for name in before if before[name] != after[name]} == {*cells}
    # what is recorded now is what is there
    assert bass_command("ablate", "c.yaml", "--output", "out").status == 0
    assert results(folder) == after


def test_another_version_of_what_runs_is_refused(bass_command: Command, folder: Path) -> None:
    assert bass_command("ablate", "c.yaml", "--output", "out").status == 0
    path = folder / "out/manifest.json"
    manifest = json.loads(path.read_text())
    for name in ("bass", "torch"):
        path.write_text(json.dumps(manifest | {name: "0.0.1"}))
        said = bass_command("ablate", "c.yaml", "--output", "out")
        assert (
            said.status,
            f"{name} was 0.0.1 and is " in said.err,
            "--redo-changed" in said.err,
        ) == (2, True, True)


def test_what_no_result_depends_on_may_change(
    bass_command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that failed at once is mended, and its cell run again, without a word about the
    others.
    """
    edit("own_lengths.py", "2", "None")(folder, monkeypatch)
    assert bass_command("ablate", "c.yaml", "--output", "out").status == 2
    before = results_of("0001-fixed", folder)
    edit("own_lengths.py", "None", "2")(folder, monkeypatch)
    forget()
    assert bass_command("ablate", "c.yaml", "--output", "out", "--retry-failed").status == 0
    assert results_of("0001-fixed", folder) == before


def results_of(cell: str, folder: Path) -> bytes:
    return (folder / "out/cells" / cell / "summary.json").read_bytes()


def test_what_changes_no_token_is_noted(bass_command: Command, folder: Path) -> None:
    assert bass_command("ablate", "c.yaml", "--output", "out").status == 0
    before, path = results(folder), folder / "out/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"python": "3.11.0"}))
    said = bass_command("ablate", "c.yaml", "--output", "out")
    words = "Python was 3.11.0 for the first results and is "
    assert (said.status, results(folder)) == (0, before)
    assert words in said.err
    assert words in " ".join(RunFolder(folder / "out").manifest.notes or [])
