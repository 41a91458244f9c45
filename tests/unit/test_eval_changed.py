"""An evaluation that was begun is gone on with by what it was begun with, and by nothing else."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bass.analysis.evaluated import read_evaluation
from bass.drafters import Ensemble, Ngram
from bass.errors import RequestError
from bass.policies import Clamped, Fixed
from bass.provenance import made_with as inputs
from bass.provenance.described import described
from bass.runs.evaluation_folder import opened, read_manifest
from support.evaluation_folders import write_evaluation
from unit.checkpoints import Pair
from unit.test_eval_runs import BassCommand, arguments

OWN = """
import numpy as np
from bass.drafters import Ngram
from bass.interfaces import DraftLengthPolicy, DraftMethod

class Mine(DraftLengthPolicy):
    max_length = 8
    def __init__(self, margin: int = 1):
        self.margin = margin
    def init(self, batch_size):
        return batch_size
    def lengths(self, state):
        return np.full(state, self.margin)
    def update(self, state, feedback):
        return state

class Drafts(DraftMethod):
    def __init__(self, margin: int = 1):
        self.margin = margin
    def build(self, context):
        return Ngram(self.margin).build(context)
"""
PART = '{"class_path": "NAME:Drafts", "init_args": {"margin": MARGIN}}'
ENSEMBLE = f'{{"class_path": "ensemble", "init_args": {{"methods": [{PART}]}}}}'


@pytest.mark.parametrize("option", ["policy", "drafter", "ensemble"])
def test_another_parameter_of_an_own_class_is_refused(
    option: str,
    pair: Pair,
    tmp_path: Path,
    bass_command: BassCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"own_margin_of_{option}"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def asked(margin: int) -> list[str]:
        if option == "ensemble":
            return [
                "--drafter",
                ENSEMBLE.replace("NAME", name).replace("MARGIN", str(margin)),
            ]
        cls = f"{name}:{'Mine' if option == 'policy' else 'Drafts'}"
        return [f"--{option}", cls, f"--{option}.margin", str(margin)]

    command = arguments(pair, tmp_path, count=1)
    if option != "policy":
        at = command.index("--draft")
        del command[at : at + 2]
    assert bass_command(*command, *asked(1)).status == 0
    assert bass_command(*command, *asked(1)).status == 0
    said = bass_command(*command, *asked(2))
    words = "policy" if option == "policy" else "drafter"
    assert (said.status, f"an evaluation with {words}=" in said.err) == (2, True), said.err


def test_a_changed_scoring_of_bass_is_refused(
    pair: Pair, tmp_path: Path, bass_command: BassCommand
) -> None:
    asked = arguments(pair, tmp_path, count=1)
    assert bass_command(*asked).status == 0
    manifest = tmp_path / "out" / "manifest.json"
    found = json.loads(manifest.read_text(encoding="utf-8"))
    assert found["inputs"][inputs.SCORING] == inputs.source_of_scoring()
    found["inputs"][inputs.SCORING] = "another"
    manifest.write_text(json.dumps(found), encoding="utf-8")
    said = bass_command(*asked)
    assert (said.status, "the source of bass's scoring has changed" in said.err) == (2, True)


def test_scoring_is_what_makes_problems_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(path: Path) -> str:
        read.append(path.as_posix())
        return ""

    read: list[str] = []
    monkeypatch.setattr(inputs, "hash_of", hashed)
    inputs.source_of_scoring()
    of_scores = ("tasks", "checker", "scoring", "sandbox", "confine", "evaluate")
    for name in of_scores:
        assert any(re.search(rf"\b{name}\b", path) for path in read), name
    assert not any("report" in path for path in read)
    inputs.source_of_bass()  # what ablations and benchmarks depend on too
    for name in ("files", "forms"):
        assert any(path.endswith(f"prompts/{name}.py") for path in read), name


def test_a_strategy_is_described_with_all_its_parameters() -> None:
    policy = described(Clamped(Fixed(2), hi=3), {"class_path": "clamped", "init_args": {"hi": "3"}})
    assert policy["init_args"]["policy"]["init_args"] == {"k": 2}
    assert policy["init_args"]["hi"] == 3
    drafter = described(Ensemble((Ngram(),)))
    assert drafter["init_args"]["methods"][0]["class_path"].endswith(":Ngram")
    assert json.loads(json.dumps([policy, drafter])) == [policy, drafter]


def test_problems_of_strategies_and_of_the_evaluation_are_told_together(
    tmp_path: Path, bass_command: BassCommand
) -> None:
    config = tmp_path / "eval.yaml"
    config.write_text(
        "task: humanevl\npolicy: fixd\nk: [9]\nlimit: 0\nmethods: [foo]\nbudgets: [-1]\n"
        "program_memory: 1\nprogram_seconds: -1\n",
        encoding="utf-8",
    )
    said = bass_command("eval", "--config", str(config), "--data", "x", "--output", "y")
    assert "has 8 problems:" in said.err.splitlines()[0]


@pytest.mark.parametrize("source", ["other/batched", "own/plain"])
def test_samples_of_another_evaluation_or_method_are_not_taken_for_a_methods_own(
    source: str, tmp_path: Path
) -> None:
    own = write_evaluation(tmp_path / "own", ("batched", "plain"), problems=2)
    write_evaluation(tmp_path / "other", ("batched",), problems=2, device="another")
    read_evaluation(own)
    shutil.rmtree(own / "batched")
    shutil.copytree(tmp_path / source, own / "batched")
    told = "batched` holds samples of another evaluation or method: delete it, and run"
    with pytest.raises(RequestError, match=told):
        read_evaluation(own)
    manifest = read_manifest(own)
    with opened(own, manifest["config"], manifest) as folder:
        folder.samples("plain")
        with pytest.raises(RequestError, match=told):
            folder.samples("batched")
    shutil.rmtree(own / "batched")
    read_evaluation(own)
