"""The page of the paper's experiments gets its tables from their folders."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from bass import experiments
from bass.errors import RunFolderError
from support.evaluation_folders import write_evaluation
from support.run_folders import write_run_of
from unit.test_package import ROOT

CONFIGS = Path(str(experiments.__file__)).parent / "configs"
PAGE = (ROOT / "docs/paper.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("paper_tables")


def run_of(folder: Path, name: str, batches: list[int]) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    config.pop("quick")
    config["axes"]["batch"] = batches
    if "layout" in config["axes"]:  # the kernels of a GPU
        config["axes"]["layout"] = {"pad": {"cache": "padded"}, "split": {"cache": "split"}}
    write_run_of(folder, {key: config[key] for key in ("base", "axes")}, repeats=3)


def table(page: str, name: str) -> list[list[str]]:
    found = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found is not None
    rows = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_tables_have_a_row_for_each_batch_and_the_metrics_of_the_cells(
    tables: ModuleType, tmp_path: Path
) -> None:
    for name, config in (
        ("latency-bf16", "paper-latency"), ("lengths", "paper-draft-length"),
        ("drafts", "paper-draft-size"), ("layouts", "paper-pad-split"),
    ):  # fmt: skip
        run_of(tmp_path / name, config, [1, 4])
    page, absent = tables.filled(PAGE, tmp_path)
    assert absent == ["latency-int8", "shapes", "problems"]
    found = table(page, "latency-bf16")
    assert [row[0] for row in found] == ["batch", "1", "4"]
    summaries = tables.RunFolder(tmp_path / "latency-bf16").summaries().values()
    [bass] = [s for s in summaries if s.settings == {"method": "bass", "batch": 4}]
    all_, first, last = (f"{bass.metrics[name] * 1e3:.3g}" for name in ("all", "first", "last"))
    assert found[2][2:4] == [f"{all_} ({first}, {last})", f"{bass.metrics['tau']:.2f}"]
    [plain] = [s for s in summaries if s.settings == {"method": "plain", "batch": 4}]
    ratios = [plain.metrics[name] / bass.metrics[name] for name in ("all", "first", "last")]
    shown = [re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", text) for text in found[2][4:7]]
    for ratio, text in zip(ratios, shown, strict=True):
        assert text is not None
        times, low, high = map(float, text.groups())
        assert times == pytest.approx(ratio, abs=0.006)
        assert low < times < high
    drafts = table(page, "drafts")
    assert drafts[0] == ["batch", "plain", "model", "self-1", "self-2", "self-4"]
    assert all(re.fullmatch(r"[\d.]+ \([\d.]+\)", text) for text in drafts[1][1:])
    assert table(page, "lengths")[0] == ["batch", "plain", "4", "6", "8", "algorithm-1"]
    assert [row[:2] for row in table(page, "layouts")[1:]] == [
        ["alike", "1"], ["alike", "4"], ["mixed", "1"], ["mixed", "4"],
    ]  # fmt: skip
    assert tables.filled(page, tmp_path) == (page, absent)
    assert tables.filled(page, tmp_path / "nothing")[0] == page  # what was measured before stays
    quick = tables.alone(page, tmp_path)
    heads = ["# Tables of a quick run", "## latency-bf16", "## lengths", "## drafts", "## layouts"]
    assert re.findall(r"^#.*$", quick, re.MULTILINE) == heads
    assert "H200" not in quick


def test_passes_are_those_of_the_evaluation(tables: ModuleType, tmp_path: Path) -> None:
    write_evaluation(tmp_path / "problems", samples=4, commit="abcdef123-dirty")
    found = table(tables.filled(PAGE, tmp_path)[0], "problems")
    assert [float(row[0]) for row in found[1:]] == list(tables.BUDGETS)
    assert "batched: First" in found[0]
    page = tables.filled(PAGE, tmp_path)[0]
    about = "cpu, torch 2.13, commit abcdef1 with changes; 40 problems, 4 samples of each, temp"
    assert f"\n{about}erature 0.2\n" in page


def test_a_folder_of_something_else_is_an_error(tables: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "lengths").mkdir()
    with pytest.raises(RunFolderError, match="is no run folder"):
        tables.filled(PAGE, tmp_path)


def test_every_claim_names_its_experiment_and_every_speed_up_is_a_ratio_of_shown_means(
    tables: ModuleType,
) -> None:
    paper = importlib.import_module("paper")
    claims = PAGE.partition("## Claims")[2].partition("\n\nThe command")[0].strip().splitlines()[2:]
    for claim in claims:
        named = re.findall(r"`([\w-]+)`", claim.rpartition(" | ")[2])
        assert named, claim
        assert {*named} <= {*paper.EXPERIMENTS}, claim
    for name in ("latency-bf16", "latency-int8"):
        for row in table(PAGE, name)[1:]:
            plain, own = float(row[1]), re.findall(r"[\d.]+", row[2])
            for shown, seconds in zip(row[4:7], own, strict=True):
                times = float(shown.split(" ")[0])
                assert times == pytest.approx(plain / float(seconds), rel=0.006)


def test_every_table_of_the_page_is_an_experiment(tables: ModuleType) -> None:
    paper = importlib.import_module("paper")
    names = re.findall(r"<!-- table ([\w-]+) -->", PAGE)
    assert names == [*paper.EXPERIMENTS]
    assert {name.partition("-")[0] for name in names} == {*tables.TABLES}
