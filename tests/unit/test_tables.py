"""The table of a run: its figures against hand counts, its notes, its formats, and `bass table`."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bass
from bass.analysis.metrics import METRICS
from bass.analysis.tables import ALL, shown, table, to_text, verdicts
from bass.cli import main
from bass.errors import OptionError
from support.run_folders import METHODS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> bass.Run:
    """Two batches and two categories; a method that is not lossless, and one cell that failed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    methods = METHODS | {"typical": 3}
    return bass.open_run(
        write_run(
            folder, methods, categories=("qa", "math"), lossy=["typical"], failed=["fixed-b4"]
        )
    )


@pytest.fixture(scope="module")
def frame(run: bass.Run) -> pd.DataFrame:
    return table(run)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bass.Run:
    """One batch, for tests of commands."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    return bass.open_run(write_run(folder, {"plain": 0, "bass": 4}, [2], tokens=12))


def by_hand(run: bass.Run, cell: str, category: str = ALL) -> tuple[np.ndarray, np.ndarray]:
    """The mean latency and tokens/s of each repeat, from the recorded lines."""
    found = run.requests[run.requests["cell"] == cell]
    latency, rate = [], []
    for repeat in sorted(found["repeat"].unique()):
        own = found[found["repeat"] == repeat]
        own = own if category == ALL else own[own["category"] == category]
        tokens = own["token_ids"].map(len)
        latency.append((own["seconds"] / tokens).mean())
        calls = (own["prefill_seconds"] + own["seconds"]).groupby(own["call"]).max()
        rate.append(tokens.sum() / calls.sum())
    return np.array(latency), np.array(rate)


def test_a_row_for_each_finished_cell_and_category(run: bass.Run, frame: pd.DataFrame) -> None:
    assert [*frame.index] == [cell for cell in run.finished for _ in range(3)]
    assert [*frame["category"]] == [ALL, "qa", "math"] * len(run.finished)
    assert [*frame.columns[:4]] == ["method", "batch", "category", "lossless"]
    assert {"tau", "all", "all_low", "mbu", "mfu"} < {*frame.columns}
    assert len(table(run, categories=False)) == len(run.finished)


def test_figures_are_those_of_the_recorded_lines(run: bass.Run, frame: pd.DataFrame) -> None:
    for cell, row in frame.iterrows():
        latency, rate = by_hand(run, str(cell), row["category"])
        plain_latency, plain_rate = by_hand(run, f"autoregressive-b{row['batch']}", row["category"])
        assert row["all"] == pytest.approx(latency.mean())
        assert row["tokens_per_second"] == pytest.approx(rate.mean())
        assert row["speedup_all"] == pytest.approx(plain_latency.mean() / latency.mean())
        assert row["speedup"] == pytest.approx(rate.mean() / plain_rate.mean())
        assert row["speedup_all_median"] == pytest.approx(np.median(plain_latency / latency))


def test_speedups_are_those_of_the_run_with_p_values_of_a_family(
    run: bass.Run, frame: pd.DataFrame
) -> None:
    whole = frame[frame["category"] == ALL]
    for work in ("work-1", "work-4"):
        cells = [cell for cell in run.finished if run.entries[cell]["work"] == work]
        compared = {c: one for c in cells if (one := run.speedup(c, "all")) is not None}
        assert len(compared) == len(cells) - 1
        largest = max(one.p for one in compared.values())
        for cell, one in compared.items():
            row = whole.loc[cell]
            if not one.undecided:
                assert [row["speedup_all_low"], row["speedup_all_high"]] == [one.low, one.high]
            assert one.p <= row["speedup_all_p"] <= 1
            assert row["speedup_all_p"] <= max(largest, len(compared) * one.p)
        plain = whole.loc[next(cell for cell in cells if cell not in compared)]
        assert plain["speedup"] == plain["speedup_all"] == 1
        assert np.isnan(plain["speedup_p"])


def test_notes_name_what_is_not_lossless_what_failed_and_the_cell_of_each_work(
    run: bass.Run,
) -> None:
    notes = "\n".join(table(run).attrs["notes"])
    assert "`typical` is not lossless: `typical` keeps likely tokens of the draft." in notes
    assert "1 of 8 cells have failed or are not finished." in notes
    assert "(`autoregressive, batch 1`, `autoregressive, batch 4`)" in notes


def test_the_fastest_is_named_with_its_leads(run: bass.Run) -> None:
    (first, said), _ = verdicts(run)
    ranked = sorted(METHODS, key=lambda name: run.values(f"{name}-b1", "all").mean())
    lead = run.compare(f"{ranked[1]}-b1", f"{ranked[0]}-b1", "all")
    over_plain = run.speedup(f"{ranked[0]}-b1", "all")
    assert over_plain is not None
    assert said.startswith("Batch 1: ")
    assert "typical" not in said  # it is not lossless
    assert f"over `{ranked[1]}`, the second: {lead.text}, median {lead.median:.2f}" in said
    assert f"over autoregressive decoding: {over_plain.text}" in said
    assert first in (None, f"{ranked[0]}-b1")


def test_a_method_is_the_fastest_only_if_that_is_decided(tmp_path: Path) -> None:
    """Two methods with the same draft length differ by chance alone; a slow one does not."""
    methods = {"plain": 0, "one": 4, "other": 4}
    equal = bass.open_run(write_run(tmp_path / "equal", methods, [4], tokens=60))
    assert verdicts(equal)[0][0] is None
    assert verdicts(equal)[0][1].startswith("No method is decided to be fastest")
    slower = {"plain": 1.5, "other": 2.0}
    unequal = write_run(tmp_path / "unequal", methods, [4], tokens=60, slower=slower)
    assert verdicts(bass.open_run(unequal))[0][0] == "one-b4"
    once = bass.open_run(write_run(tmp_path / "once", methods, [4], repeats=1, slower=slower))
    assert verdicts(once)[0][0] is None
    assert "undecided (n = 1)" in verdicts(once)[0][1]
    assert {*shown(table(once))["speed-up, latency"]} == {"1", "undecided (n = 1)"}
    assert table(once)["speedup_all_low"].isna().sum() == 2


@pytest.mark.parametrize(
    ("slower", "tokens", "repeats", "loses", "noted"),
    [(2.2, 60, 5, True, True), (2.2, 24, 3, True, False), (1.0, 24, 3, False, False)],
)
def test_a_method_that_wins_in_latency_and_loses_in_throughput_is_named_if_both_are_decided(
    tmp_path: Path, slower: float, tokens: int, repeats: int, loses: bool, noted: bool
) -> None:
    """With long drafts at a large batch, the mean request ends long before the last one."""
    methods, factors = {"plain": 0, "bass": 8}, {"bass": slower}
    folder = write_run(tmp_path / "run", methods, [8], repeats, tokens, slower=factors)
    found = table(bass.open_run(folder))
    row = found.loc["bass-b8"]
    assert row["speedup_all"] > 1
    assert (row["speedup"] < 1) == loses
    assert (row["speedup_all_low"] > 1 and row["speedup_high"] < 1) == noted
    [*notes] = [note for note in found.attrs["notes"] if "wins in mean latency" in note]
    assert len(notes) == noted
    for note in notes:
        assert f"loses in tokens/s, {row['speedup']:.3f} ({row['speedup_low']:.3f} to " in note


def test_a_value_has_its_interval_however_wide_or_its_count(tmp_path: Path) -> None:
    methods = {"bass": 4}
    once = shown(table(bass.open_run(write_run(tmp_path / "once", methods, [1], repeats=1))))
    assert once["all, ms per token"]["bass-b1"].endswith(" (n = 1)")
    frame = table(bass.open_run(write_run(tmp_path / "twice", methods, [1], repeats=2, tokens=4)))
    assert frame["all_high"]["bass-b1"] > 3 * frame["all_low"]["bass-b1"]
    assert re.fullmatch(r"\S+ \(\S+ to \S+\)", shown(frame)["all, ms per token"]["bass-b1"])


def test_cells_of_several_versions_are_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"bass": 4, "other": 4}, [2])
    path = folder / "cells" / "bass-b2" / "summary.json"
    path.write_text(path.read_text().replace('"2.13"', '"2.12"'))
    notes = table(bass.open_run(folder)).attrs["notes"]
    assert "Cells were made with several values of `torch`: 2.12, 2.13." in notes


def test_speedups_need_autoregressive_decoding(tmp_path: Path) -> None:
    run = bass.open_run(write_run(tmp_path / "run", {"bass": 4}, [2]))
    found = table(run)
    assert found[["speedup", "speedup_all", "speedup_p"]].isna().all(axis=None)
    assert any("(there is none)" in note for note in found.attrs["notes"])
    assert "speed-up, latency" not in shown(found)
    assert verdicts(run) == []


def test_markdown_and_latex_have_every_row_and_escape_labels(tmp_path: Path) -> None:
    methods = {"no_draft": 0, "50% | x&y": 3}
    run = bass.open_run(write_run(tmp_path / "run", methods, [2], axes=["method", "batch"]))
    texts = shown(table(run))
    lines = [line for line in to_text(run).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(texts)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(texts.columns) + 1}
    assert r"50% \| x&y" in to_text(run)
    latex = to_text(run, "latex")
    assert r"no\_draft & 2 & yes & 1 &" in latex
    assert r"50\% | x\&y & 2 &" in latex
    assert latex.index(r"\toprule") < latex.index(r"\midrule") < latex.index(r"\bottomrule")
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(texts.columns) - 1}
    with pytest.raises(OptionError, match="html"):
        to_text(run, "html")


def test_the_command_prints_the_table(small: bass.Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(small.folder)
    assert main(["table", folder]) == 0
    assert capsys.readouterr().out == to_text(small)
    for name in ("latex", "csv", "markdown"):
        assert main(["table", folder, "--format", name]) == 0
        assert capsys.readouterr().out == to_text(small, name)
    assert main(["table", folder, "--format", "doc"]) == 2


def test_a_metric_of_ones_own_is_a_column(
    small: bass.Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "from bass.analysis import metric\n\n\n"
        '@metric("tokens", "neither", over="prompts", heading="longest", interval=True)\n'
        "def longest(m):\n    return m.requests['token_ids'].map(len).max()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    command = ["table", str(small.folder), "--columns", "ttft", "my_metrics:longest"]
    try:
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "| ttft, ms | longest | repeats |" in text
        assert "| 12.0 (12.0 to 12.0) |" in text
        assert small.values("bass-b2", "longest").to_list() == [12.0, 12.0]
        value = METRICS["longest"](small.measurement("bass-b2"))
        assert type(value) is int, "JSON takes no NumPy integer"
        assert main([*command[:2], "--columns", "my_metrics:longst"]) == 2
    finally:
        del METRICS["longest"], sys.modules["my_metrics"]


def test_the_commands_load_no_torch(small: bass.Run, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from bass.cli import main; "
    code += f"main(['table', {str(small.folder)!r}]); "
    code += f"main(['report', {str(small.folder)!r}, '--output', {str(tmp_path / 'r.html')!r}])"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    assert (tmp_path / "r.html").exists()
