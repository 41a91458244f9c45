"""Settings that are not lossless are ranked among themselves, below the lossless ones, and no
sentence compares the two. Speed-ups name the cell that they are over.
"""

import dataclasses

from bass.cli.ablate_table import results
from bass.experiments.config import plan
from bass.report.cells import LOSSY, Cell
from bass.report.page import figures
from bass.report.summary import sentences, winners
from bass.runs.records import Summary
from unit.test_report_summary import measured

TIMES = {"plain": [2.0, 2.02, 1.98], "speculative": [1.5, 1.51, 1.49], "bench": [1.0, 1.01, 0.99]}


def lossy(cell: Cell) -> Cell:
    entry = dataclasses.replace(cell.entry, lossless=False, caveat="bench")
    name = cell.label + LOSSY
    return dataclasses.replace(cell, entry=entry, label=name, choice=name)


def cells(batch: int, *lossy_ones: str) -> list[Cell]:
    made = [measured(name, batch, times, name != "plain") for name, times in TIMES.items()]
    return [lossy(cell) if cell.label in lossy_ones else cell for cell in made]


def test_the_fastest_is_a_lossless_setting_and_no_sentence_compares_it_with_a_lossy_one() -> None:
    both = [*cells(2, "bench"), *cells(4, "bench")]
    found = winners(both)
    assert [*found] == ["batch 2", "batch 4", "batch 2, not lossless", "batch 4, not lossless"]
    said = sentences(found)
    assert said[0] == (
        "speculative is the fastest lossless setting at every batch, 1.33 times as fast as "
        "autoregressive decoding: a lead beyond the noise (95 %)."
    )
    assert "Batch 2, not lossless: bench (not lossless) takes 10.0 ms per token, and is the only" \
        " setting there." in said  # fmt: skip
    assert [("bench" in one) for one in said[:3]] == [False] * 3
    assert not any("bench" in one and "times as fast" in one for one in said)
    rows = figures(both, found)["rows"]
    assert [row["cells"][0] for row in rows if row["best"]] == ["speculative"] * 2
    assert [row["cells"][0] for row in rows[-2:]] == ["bench (not lossless)"] * 2
    assert [row["cells"][3] for row in rows[-2:]] == [{"text": "–"}] * 2


def test_lossless_settings_that_are_slower_are_called_so_among_lossless_ones() -> None:
    found = winners(cells(2, "speculative", "bench"))
    said = sentences(found)
    assert said[0] == "Only one lossless setting was run: there is nothing to compare."
    assert not any(("plain" in one) and ("bench" in one) for one in said)
    assert any(one.startswith("Batch 2, not lossless: bench (not lossless) takes") for one in said)


def test_a_page_with_lossy_settings_only_says_so_first() -> None:
    found = winners(cells(2, *TIMES))
    said = sentences(found)
    assert said[0] == (
        "None of these settings is lossless: their texts do not follow the target's distribution, "
        "whatever their times."
    )
    assert not any(row["best"] for row in figures(cells(2, *TIMES), found)["rows"])
    assert "lossless" not in sentences(winners(cells(2)))[0]


def test_a_figure_names_the_plain_setting_that_it_is_relative_to() -> None:
    found = winners([*cells(2), measured("plain, rows", 2, [4.5, 4.6, 4.4], False)])
    winner = found["batch 2"]
    table = figures([winner.best, *winner.others], found)
    at = [head["text"] for head in table["heads"]].index("speed-up")
    by_name = {row["cells"][0]: row["cells"][at] for row in table["rows"]}
    assert by_name["speculative"]["small"].endswith(" over plain")
    assert by_name["plain, rows"]["text"] == "0.44"
    assert "times as fast" not in str(table)


def test_the_table_of_a_run_names_the_cell_that_a_speed_up_is_over() -> None:
    way = {"rows": {"attention": "per-row", "cache": "split"}, "padded": {"attention": "sdpa"}}
    axes = {"policy.k": [0, 3], "way": way}
    made = plan({"name": "x", "base": {"policy": "fixed"}, "axes": axes})
    plain, other, *_ = (cell.id for cell in made.cells)
    for faster, names in (
        (plain, ["–", "rows", "policy.k=0", "policy.k=0, rows"]),
        (other, ["padded", "–", "policy.k=0, padded", "policy.k=0"]),
    ):
        summaries = {
            cell.id: Summary(
                cell.id,
                cell.labels,
                "done",
                None,
                metrics := {
                    "all": 0.5 if cell.id == faster else 1.0,
                    "tokens_per_second": 1.0,
                    "drafted": 9.0 * cell.labels["policy.k"],
                },
                [metrics],
                1.0,
            )
            for cell in made.cells
        }
        table = results(made, summaries)
        shown = {str(one.header): [str(x) for x in one._cells] for one in table.columns}
        expected = [0.5 / one.metrics["all"] for one in summaries.values()]
        assert [float(text) for text in shown["speed-up, ratio"]] == expected
        assert shown["over"] == names
