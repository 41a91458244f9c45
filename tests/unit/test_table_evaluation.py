"""pass@k of a table is that of an evaluation of the same decoding, and of no other."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bass.api.resolve import make
from bass.errors import OptionError
from bass.provenance.described import described
from bass.report.cells import read_cells
from bass.report.pass_at_k import PassAtK, check_labels, read_evaluations
from bass.report.table import table
from bass.runs.run_folder import RunFolder
from support.evaluation_folders import change_manifest, write_evaluation
from support.run_folders import write_run_of
from unit.checkpoints import Said
from unit.test_table import CONFIG

Command = Callable[..., Said]
BASE = {"max_new_tokens": 24, "prompts": ["a", "b"], "temperature": 0.2, "ignore_eos": True}
METHODS = {
    "plain": {"policy": "fixed", "policy.k": 0},
    "bass": {"policy": "bass"},
    "typical": {"policy": "bass", "verifier": "typical"},
    "int8": {"policy": "bass", "quantization": "int8"},
    "int8-draft": {"policy": "bass", "draft_quantization": "int8"},
    "float32": {"policy": "bass", "dtype": "float32"},
}
LOSSLESS = {
    "policy": "bass",
    "verifier": "rejection",
    "drafter": "model",
    "stop_rule": None,
    "quantization": None,
    "draft_quantization": None,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    config = {"base": BASE, "axes": {"kind": METHODS, "how": {"bass": {}}, "batch": [2]}}
    return write_run_of(tmp_path_factory.mktemp("runs") / "one", config, repeats=2)


def evaluation(path: Path, label: str = "bass", **changes: Any) -> PassAtK:
    """An evaluation as `bass eval` describes it, of lossless decoding but for the changes."""
    folder = write_evaluation(path, ("batched", "plain"), ks=(1,))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    options = {"temperature": 0.2, "max_new_tokens": 512, "ignore_eos": False}
    strategies = LOSSLESS | {name: changes.pop(name) for name in LOSSLESS if name in changes}
    manifest["config"] |= {
        name: None if spec is None else described(make(name.removeprefix("draft_"), spec), spec)
        for name, spec in strategies.items()
    }
    manifest["config"] |= {"dtype": "torch.bfloat16", "options": options | changes.pop("own", {})}
    manifest["lossless"] = changes.pop("lossless", True)
    manifest["config"] |= changes
    change_manifest(folder, manifest)
    [found] = read_evaluations([f"{label}={folder}"])
    return found


def kinds(run: RunFolder, one: PassAtK) -> set[str]:
    """The kinds of cells that get its figure."""
    return {str(row["kind"]) for row in table(run, [one]).rows if row.get("pass_at_k") is not None}


def test_a_figure_goes_to_no_cell_that_decodes_otherwise(run: RunFolder, tmp_path: Path) -> None:
    """All cells have the label `bass` on an axis; of a lossless evaluation only the lossless and
    unquantized ones get its figure, at any end of the texts.
    """
    assert kinds(run, evaluation(tmp_path / "a")) == {"plain", "bass"}
    assert kinds(run, evaluation(tmp_path / "b", verifier="block")) == {"plain", "bass"}
    lossy = evaluation(tmp_path / "c", verifier="typical", lossless=False)
    assert kinds(run, lossy) == {"plain", "typical"}
    quantized = evaluation(tmp_path / "d", quantization="int8", draft_quantization="int8")
    assert kinds(run, quantized) == {"int8"}
    draft = evaluation(tmp_path / "e", draft_quantization="int8")
    assert kinds(run, draft) == {"plain", "int8-draft"}
    assert kinds(run, evaluation(tmp_path / "f", dtype="torch.float32")) == {"float32"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"own": {"temperature": 0.5}}, "`temperature` (0.5 in the evaluation, 0.2 in `"),
        ({"own": {"top_p": 0.9}}, "`top_p` (0.9 in the evaluation, "),
        ({"lora": "mine"}, "`lora` (mine in the evaluation, null in `"),
        ({"family": "llama"}, "`family` (llama in the evaluation, null in `"),
        ({"quantization": "fp8"}, "`quantization` (Fp8 in the evaluation, null in `"),
    ],
)
def test_what_differs_is_named_with_both_values(
    changes: dict[str, Any], says: str, run: RunFolder, tmp_path: Path
) -> None:
    one = evaluation(tmp_path / "a", **changes)
    with pytest.raises(OptionError, match="matches no finished cell") as error:
        check_labels([one], read_cells(run))
    assert says in str(error.value)


def test_a_label_that_no_cell_has_is_named_with_those_there_are(
    run: RunFolder, tmp_path: Path
) -> None:
    one = evaluation(tmp_path / "a", "fast")
    with pytest.raises(OptionError, match=r"none has this value on an axis: give one of 2, bass"):
        check_labels([one], read_cells(run))


def test_an_unfinished_evaluation_and_two_of_a_cell_are_refused(
    run: RunFolder, tmp_path: Path
) -> None:
    one, two = (evaluation(tmp_path / name) for name in "ab")
    with pytest.raises(OptionError, match=r"The evaluations a and b are all of `.*give one of"):
        check_labels([one, two], read_cells(run))
    (tmp_path / "a" / "summary.json").unlink()
    with pytest.raises(OptionError, match=r"is not finished \(\d+ of \d+ problems have scores"):
        read_evaluations([f"bass={tmp_path / 'a'}"])


@pytest.mark.parametrize("label", ["a=b", "bass"])
@pytest.mark.parametrize("folder", ["c", "c=d"])
def test_label_and_folder_may_have_an_equals_sign(label: str, folder: str, tmp_path: Path) -> None:
    found = evaluation(tmp_path / folder, label)
    assert found.label == label
    assert found.evaluated.name.endswith(folder)


def test_pass_at_k_comes_from_an_evaluation(tmp_path: Path, bass_command: Command) -> None:
    run = write_run_of(tmp_path / "cold", CONFIG)
    evaluation = write_evaluation(tmp_path / "scored", ("batched",), ks=(1,))
    said = bass_command("table", str(run.path), "--evaluation", f"bass={evaluation}")
    assert "matches no finished cell" in said.err  # its temperature is another
    warm = write_run_of(tmp_path / "warm", CONFIG | {"base": CONFIG["base"] | {"temperature": 0.2}})
    output = tmp_path / "table.csv"
    given = ("--evaluation", f"bass={evaluation}", "--output", str(output))
    said = bass_command("table", str(warm.path), *given)
    assert said.status == 0, said.err
    read = list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))
    assert {row["method"] for row in read if row["pass_at_k"]} == {"bass"}
    assert all(0.2 < float(row["pass_at_k"]) < 0.6 for row in read if row["pass_at_k"])


def test_the_evaluation_of_the_page_matches_the_cells_of_its_config(
    tmp_path: Path, bass_command: Command
) -> None:
    """As in docs/comparison.md, with the embedded pair and few tokens."""
    said = bass_command(
        "ablate", "comparison", "--quick", "--axes.batch", "[1]", "--max_new_tokens", "4",
        "--num_prompts", "1", "--repeats", "1", "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert said.status == 0
    given = []
    for temperature in ("0", "1"):
        folder = tmp_path / f"t{temperature}"
        said = bass_command(
            "eval", "--task", "small-problems", "--temperature", temperature, "-n", "2",
            "--methods", "[batched,plain]", "--limit", "2", "--max-new-tokens", "8",
            "--output", str(folder),
        )  # fmt: skip
        assert said.status == 0, said.err
        for method in ("autoregressive", "fixed-4", "bass"):
            given += ["--evaluation", f"{method}={folder}"]
    said = bass_command("table", str(tmp_path / "run"), *given)
    assert said.status == 0, said.err
    assert "`pass_at_k`" not in said.out  # in no row it is empty
    assert "of at most 8 new tokens, by `bass eval` in" in said.out
