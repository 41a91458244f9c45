"""An input that is replaced while an ablation or an evaluation runs: nothing that may be of the new
one is kept as a result of the old one.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bass.evaluation import evaluate as evaluation
from bass.experiments.cells import Task
from bass.experiments.config import plan
from bass.experiments.executors import Local, Watch
from bass.experiments.runner import Ablation
from bass.runs.evaluation_folder import Folder, Sample
from bass.runs.records import Summary
from bass.runs.run_folder import RunFolder
from support.matrix import night
from unit.checkpoints import Pair, Said
from unit.test_eval_runs import arguments

Change = Callable[[], None]
CELLS = ["0000-one", "0001-two"]
POLICY = """
import numpy as np
from bass.interfaces import DraftLengthPolicy

class Mine(DraftLengthPolicy):
    max_length = 4
    def init(self, batch_size): return np.full(batch_size, 2)
    def lengths(self, state): return state
    def update(self, state, feedback):
        from late_lengths import LENGTH
        return np.full(len(state), LENGTH)
"""
OWN = ("late_policy", "late_lengths")


class Meanwhile(Watch):
    """Makes a change when a cell has completed a share of itself."""

    def __init__(
        self, cell: str, share: float, change: Change, after: Change = lambda: None
    ) -> None:
        self.cell, self.share, self.change, self.done = cell, share, change, False
        self.after = after  # done when a cell has failed
        self.summaries: dict[str, Summary] = {}

    def at(self, task: Task, share: float) -> None:
        if task.id == self.cell and share >= self.share and not self.done:
            self.done = True
            self.change()

    def ended(self, task: Task, summary: Summary) -> None:
        self.summaries[task.id] = summary
        if summary.state == "failed":
            self.after()


@pytest.fixture
def work(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two drafts, and an own policy that imports a module in its first update."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(pair.draft, tmp_path / name)
    (tmp_path / "late_policy.py").write_text(POLICY, encoding="utf-8")
    (tmp_path / "late_lengths.py").write_text("LENGTH = 2\n", encoding="utf-8")
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in OWN:
        sys.modules.pop(name, None)


def ablation(
    pair: Pair, policy: str = "fixed", seeds: tuple[int, ...] = (0,), **flags: bool
) -> Ablation:
    base = {
        "target": str(pair.target), "draft": "one", "policy": policy, "prompts": ["def f("],
        "batch": 2, "max_new_tokens": 6, "repeats": 3, "warm_up": False, "temperature": 1.0,
    }  # fmt: skip
    axes = {"draft": ["one", "two"]} | ({"seed": [*seeds]} if len(seeds) > 1 else {})
    return Ablation(plan({"name": "small", "base": base, "axes": axes}), Path("out"), **flags)


def replaced(folder: Path) -> None:
    """Other weights of the same size take the place of a checkpoint's file."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-64:] = bytes(64)
    (folder / "part").write_bytes(data)
    (folder / "part").replace(path)


def repeats(cell: str) -> list[int]:
    return RunFolder(Path("out")).lines(cell).repeats


@pytest.mark.parametrize("when", [night(0.0), 0.4, night(0.99)])
def test_a_replaced_checkpoint_fails_the_cells_that_read_it(
    pair: Pair, work: Path, when: float
) -> None:
    watch = Meanwhile(CELLS[1], when, lambda: replaced(work / "two"))
    summaries = ablation(pair).run(Local(), watch)
    assert summaries[CELLS[0]].state == "done"
    wrong = summaries[CELLS[1]]
    assert (wrong.state, wrong.metrics) == ("failed", {})
    told = str(wrong.error)
    assert f"(the draft `{work / 'two'}` has changed)" in told
    for remedy in ("restore", "--retry-failed", "--redo-changed"):
        assert remedy in told
    before = repeats(CELLS[1])
    assert before == [*range(int(3 * when))]
    # the new file is not taken for the old one
    redone = ablation(pair, redo_changed=True).run(Local(), Meanwhile("", 0, forget))
    assert {one.state for one in redone.values()} == {"done"}
    shutil.rmtree("out")
    new = ablation(pair).run(Local(), Meanwhile("", 0, forget))
    assert redone[CELLS[1]].repeats[0]["tau"] == new[CELLS[1]].repeats[0]["tau"]


def test_a_restored_checkpoint_continues_what_was_complete(pair: Pair, work: Path) -> None:
    shutil.copytree(work / "two", work / "saved")
    ablation(pair).run(Local(), Meanwhile(CELLS[1], 0.4, lambda: replaced(work / "two")))
    steps = (work / "out/cells" / CELLS[1] / "steps.jsonl").read_text()
    (work / "saved/model.safetensors").replace(work / "two/model.safetensors")
    summaries = ablation(pair, retry_failed=True).run(Local(), Meanwhile("", 0, forget))
    assert {one.state for one in summaries.values()} == {"done"}
    assert (work / "out/cells" / CELLS[1] / "steps.jsonl").read_text().startswith(steps)


def test_a_model_that_was_loaded_from_a_changed_file_is_used_by_no_later_cell(
    pair: Pair, work: Path
) -> None:
    shutil.copytree(work / "two", work / "saved")

    def restored() -> None:
        shutil.copy(work / "saved/model.safetensors", work / "two/model.safetensors")

    watch = Meanwhile("0000-one-s0", 0, lambda: replaced(work / "two"), restored)
    found = ablation(pair, seeds=(0, 1)).run(Local(), watch)
    states = {cell: one.state for cell, one in found.items() if "two" in cell}
    assert [*states.values()] == ["failed", "done"], states
    kept = (work / "out/cells/0003-two-s1/steps.jsonl").read_text()
    shutil.rmtree("out")
    ablation(pair, seeds=(0, 1)).run(Local(), Meanwhile("", 0, forget))
    assert drafted(kept) == drafted((work / "out/cells/0003-two-s1/steps.jsonl").read_text())


def drafted(steps: str) -> list[tuple[list[int], list[int]]]:
    lines = [json.loads(line) for line in steps.splitlines()]
    return [(line["drafted"], line["accepted"]) for line in lines]


def test_a_file_that_is_only_touched_is_no_change(pair: Pair, work: Path) -> None:
    def touched() -> None:
        shutil.copytree(work / "two", work / "copy")
        shutil.rmtree(work / "two")
        (work / "copy").rename(work / "two")

    summaries = ablation(pair).run(Local(), Meanwhile(CELLS[1], 0.4, touched))
    assert {one.state for one in summaries.values()} == {"done"}


def test_a_module_that_is_edited_before_its_late_import_fails_the_cell(
    pair: Pair, work: Path
) -> None:
    late = work / "late_lengths.py"
    edit = Meanwhile(
        CELLS[0], 0.0, lambda: late.write_text("LENGTH = 4\n", encoding="utf-8") and None
    )
    ablation(pair, "late_policy:Mine").run(Local(), edit)
    for cell in CELLS:
        assert "(the module `late_lengths` has changed)" in str(edit.summaries[cell].error)
        assert repeats(cell) == []


def test_a_module_that_was_loaded_from_a_changed_file_fails_every_later_cell(
    pair: Pair, work: Path
) -> None:
    late = work / "late_lengths.py"

    def write(length: int) -> None:
        late.write_text(f"LENGTH = {length}\n", encoding="utf-8")

    imported = (
        POLICY.replace("        from late", "        write()\n        from late").replace(
            "import numpy", "from pathlib import Path\nimport numpy"
        )
        + f"""
def write():
    Path({str(late)!r}).write_text("LENGTH = 4\\n")
"""
    )
    (work / "late_policy.py").write_text(imported, encoding="utf-8")
    watch = Meanwhile("", 0, forget, lambda: write(2))
    ablation(pair, "late_policy:Mine").run(Local(), watch)
    for cell in CELLS:
        assert "(the module `late_lengths` has changed)" in str(watch.summaries[cell].error)
        assert repeats(cell) == []


def test_a_module_that_is_edited_after_its_import_is_not_what_runs(pair: Pair, work: Path) -> None:
    edit = Meanwhile(
        CELLS[0], 0.4, lambda: (work / "late_policy.py").write_text("", encoding="utf-8") and None
    )
    ablation(pair, "late_policy:Mine").run(Local(), edit)
    assert {one.state for one in edit.summaries.values()} == {"done"}


def eval_changing(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Make a change after the first problem's samples are written."""
    add = Folder.add_samples

    def added(self: Folder, method: str, task_id: str, group: list[Sample]) -> None:
        add(self, method, task_id, group)
        change()

    monkeypatch.setattr(Folder, "add_samples", added)


def test_an_evaluation_stops_at_a_changed_checkpoint(
    pair: Pair, work: Path, bass_command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = arguments(Pair(pair.target, work / "two"), work)
    eval_changing(monkeypatch, lambda: replaced(work / "two"))
    said = bass_command(*command)
    assert said.status == 2
    assert f"(the draft `{work / 'two'}` has changed)" in said.err
    assert "name another folder" in said.err
    lines = (work / "out/batched/samples.jsonl").read_text().splitlines()
    assert sum('"end"' in line for line in lines) == 1


def test_an_evaluation_notices_a_checkpoint_that_is_replaced_while_it_is_loaded(
    pair: Pair, work: Path, bass_command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bass.cli import eval as command

    serve = command.serve

    def served(*given: object) -> object:
        found = serve(*given)  # pyright: ignore[reportArgumentType]
        replaced(work / "two")
        return found

    monkeypatch.setattr(command, "serve", served)
    said = bass_command(*arguments(Pair(pair.target, work / "two"), work))
    assert (said.status, "has changed)" in said.err) == (2, True), said.err
    assert not (work / "out/batched").exists()


def test_an_evaluation_notices_an_edit_before_a_late_import(
    pair: Pair, work: Path, bass_command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = evaluation.RequestOptions

    def edited(**options: object) -> object:
        (work / "late_lengths.py").write_text("LENGTH = 4\n", encoding="utf-8")
        return start(**options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(evaluation, "RequestOptions", edited)
    said = bass_command(*arguments(pair, work), "--policy", "late_policy:Mine")
    assert (said.status, "(the module `late_lengths` has changed)" in said.err) == (2, True)
    assert json.loads((work / "out/manifest.json").read_text())["inputs"]["module late_lengths"]
