"""Run folders: what is written is read again; what is cut off, damaged, or of another version is
told apart.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.api.results import Completion
from bass.engine.cost import Work
from bass.engine.requests import StepRecord
from bass.errors import RunFolderError
from bass.files import write_atomically
from bass.runs.lines import read_lines
from bass.runs.records import (
    AgainstPlain,
    CellEntry,
    EndLine,
    Facts,
    Manifest,
    RequestLine,
    StepLine,
    Summary,
)
from bass.runs.run_folder import RunFolder
from bass.runs.strict import Json
from support.drawn_runs import FACTS, Drawn, runs
from support.run_folders import append_line

STEP = StepLine([0, -1], 2, 8, 5, [2, 0], [1, 0], [2, 0], 0.5, 0.25, 1.5, 0, Work(4000, 300, 200))
REQUEST = RequestLine(
    0, 0, 3, [7, 8], "a\u2028\ud800\n", [-0.5, -1.0], "eos", 0.125, 1.375, [1.5, 1.5], 11
)
MANIFEST = Manifest(
    "0.1.0",
    "abc",
    "2026-01-01T00:00:00",
    "cpu",
    "2.9",
    "3.12",
    "Linux",
    {"batch": [1, 8]},
    ["batch"],
    [CellEntry("0000-b1", {"batch": 1}, {"batch": 1}, {"target": "x"}, True, "", True, ["torch"])],
    {"torch": "2.9"},
)
SUMMARY = Summary(
    "0000-b1", {"batch": 1}, "done", None, {"all": 0.5}, [{"all": 0.5}, {}], 3.0, FACTS
)
SUMMARY = dataclasses.replace(
    SUMMARY, prompts=[{"tau": 2.0}], lines={"steps.jsonl": 1, "requests.jsonl": 3}
)
MADE_OF = hashlib.sha256(SUMMARY.to_json().encode()).hexdigest()
AGAINST = AgainstPlain(
    "0000-b1", "0001-plain", {"speedup": 2.0}, [{"speedup": 2.0}, {"speedup": 2.5}],
    [{"speedup_limit": 3.0}], ["cache"], MADE_OF,
)  # fmt: skip
TIMED = dataclasses.replace(FACTS, parts_ms={"draft": 1.5, "host": 0.0}, parts_k=3)
VALUES: list[Json] = [
    STEP, REQUEST, dataclasses.replace(REQUEST, text=None, token_seconds=None), EndLine(2),
    dataclasses.replace(REQUEST, prompt=3, turn=1, category="math"),
    MANIFEST, SUMMARY, FACTS, TIMED, AGAINST,
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder with one cell, in which repeat 0 ended and repeat 1 was under way."""
    folder = RunFolder(tmp_path)
    cell = folder.cell_folder("0000-b1")
    cell.mkdir(parents=True)
    write_atomically(tmp_path / RunFolder.MANIFEST, MANIFEST.to_json(2))
    for repeat in (0, 1):
        append_line(cell / RunFolder.STEPS, dataclasses.replace(STEP, repeat=repeat))
        append_line(cell / RunFolder.REQUESTS, dataclasses.replace(REQUEST, repeat=repeat))
    append_line(cell / RunFolder.REQUESTS, dataclasses.replace(REQUEST, request=1))
    append_line(cell / RunFolder.REQUESTS, EndLine(0))
    return folder


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_what_is_written_is_read_again(value: Json) -> None:
    assert type(value).from_json(value.to_json()) == value
    assert type(value).from_json(value.to_json(indent=1)) == value
    assert "\n" not in value.to_json()


@given(runs())
def test_a_step_of_a_trace_survives_being_a_line(run: Drawn) -> None:
    for step in run.repeat().steps:
        again = StepLine.from_json(StepLine.of(step, 3).to_json())
        assert again.repeat == 3
        for field in dataclasses.fields(StepRecord):
            np.testing.assert_array_equal(
                getattr(again.record(), field.name), getattr(step, field.name)
            )


def test_a_completion_becomes_a_line_and_one_without_time_left_says_budget() -> None:
    completion = Completion(4, 1, "text", [1, 2], [-1.0, -2.0], "time", 0.5)
    line = RequestLine.of(
        completion, request=9, repeat=1, prompt_tokens=5, prefill_seconds=0.25, seed=3
    )
    assert line == RequestLine(9, 1, 5, [1, 2], "text", [-1.0, -2.0], "budget", 0.25, 0.5, None, 3)
    assert line.ended == 0.75


def test_facts_are_the_engines_costs_and_ceilings() -> None:
    assert Facts.of(FACTS.cost, FACTS.peaks, 4096) == FACTS
    assert Facts.of(FACTS.cost, FACTS.peaks, 4096, (3, {"draft": 1.5, "host": 0.0})) == TIMED


def test_only_the_repeats_that_ended_are_read(folder: RunFolder) -> None:
    lines = folder.lines("0000-b1")
    assert lines.repeats == [0]
    assert [line.repeat for line in lines.steps] == [0]
    assert [(line.request, line.repeat) for line in lines.requests] == [(0, 0), (1, 0)]
    assert lines.notes == []


def test_a_cell_without_a_summary_is_not_finished(folder: RunFolder) -> None:
    assert folder.summary("0000-b1") is None
    assert folder.summaries() == {}
    write_atomically(folder.cell_folder("0000-b1") / RunFolder.SUMMARY, SUMMARY.to_json())
    assert folder.summaries() == {"0000-b1": SUMMARY}
    assert folder.cells == MANIFEST.cells


def test_what_compares_a_cell_with_plain_decoding_is_in_its_summary(folder: RunFolder) -> None:
    cell = folder.cell_folder("0000-b1")
    write_atomically(cell / RunFolder.AGAINST_PLAIN, AGAINST.to_json())
    assert (folder.against_plain("0000-b1"), folder.summary("0000-b1")) == (AGAINST, None)
    write_atomically(cell / RunFolder.SUMMARY, SUMMARY.to_json())
    found = folder.summary("0000-b1")
    assert found is not None
    assert (found.metrics, found.repeats) == (
        {"all": 0.5, "speedup": 2.0},
        [{"all": 0.5, "speedup": 2.0}, {"speedup": 2.5}],
    )
    assert (found.prompts, found.unlike) == ([{"tau": 2.0, "speedup_limit": 3.0}], ["cache"])
    # it is of an earlier life of one of the two cells
    later = dataclasses.replace(SUMMARY, seconds=4.0)
    write_atomically(cell / RunFolder.SUMMARY, later.to_json())
    assert folder.summary("0000-b1") == later


def test_a_summary_of_another_cell_is_one_sentence(folder: RunFolder) -> None:
    other = dataclasses.replace(SUMMARY, cell="0001-plain")
    path = folder.cell_folder("0000-b1")
    write_atomically(path / RunFolder.SUMMARY, other.to_json())
    with pytest.raises(RunFolderError) as raised:
        folder.summary("0000-b1")
    assert str(raised.value) == (
        f"{path} holds results of another run or cell: delete it, and give the run's command "
        "again, which runs the cell again."
    )


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b"\xff"])
def test_a_damaged_comparison_may_be_deleted(folder: RunFolder, damage: bytes) -> None:
    path = folder.cell_folder("0000-b1") / RunFolder.AGAINST_PLAIN
    path.write_bytes(damage)
    with pytest.raises(
        RunFolderError,
        match=(
            rf"{path} is damaged: delete it, and give the run's command again, which makes it "
            r"again\."
        ),
    ):
        folder.against_plain("0000-b1")


def test_a_cell_that_never_began_has_no_lines(tmp_path: Path) -> None:
    lines = RunFolder(tmp_path).lines("0000-b1")
    assert (lines.steps, lines.requests, lines.repeats, lines.notes) == ([], [], [], [])


@given(st.data())
def test_wherever_the_last_line_was_cut_it_is_left_out_and_said_so(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "requests.jsonl"
    append_line(path, REQUEST)
    whole = path.stat().st_size
    append_line(path, dataclasses.replace(REQUEST, request=1, text="é"))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(whole, len(content)))])
    lines = read_lines(path, RequestLine.from_json)
    if path.stat().st_size == len(content):
        assert (len(lines.values), lines.dropped) == (2, None)
    else:
        assert lines.values == [REQUEST]
        assert lines.dropped == (
            None
            if path.stat().st_size == whole
            else f"{path}: line 2, the last, is incomplete and was left out."
        )


def test_a_dropped_line_is_in_the_notes_of_the_cell(folder: RunFolder) -> None:
    path = folder.cell_folder("0000-b1") / RunFolder.STEPS
    path.write_bytes(path.read_bytes() + b'{"request_rows": [0')
    assert folder.lines("0000-b1").notes == [
        f"{path}: line 3, the last, is incomplete and was left out."
    ]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe", b"\x00\x00", b"null"])
@pytest.mark.parametrize("name", [RunFolder.STEPS, RunFolder.REQUESTS])
def test_a_damaged_line_elsewhere_is_an_error_that_names_file_and_line(
    folder: RunFolder, name: str, damage: bytes
) -> None:
    path = folder.cell_folder("0000-b1") / name
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + damage + b"\n" + rest)
    with pytest.raises(RunFolderError) as caught:
        folder.lines("0000-b1")
    assert str(caught.value).startswith(f"{path}, line 2 ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("value", "change", "told"),
    [
        (STEP, {"k": "2"}, "`k` is '2', and must be int"),
        (STEP, {"k": True}, "`k` is True, and must be int"),
        (STEP, {"drafted": [2, 0.5]}, "`drafted[1]` is 0.5, and must be int"),
        (STEP, {"drafted": 2}, "`drafted` is 2, and must be list[int]"),
        (STEP, {"drafted": [2]}, "one entry for each row"),
        (STEP, {"accepted": [3, 0]}, "accepted 3 of 2 drafted tokens"),
        (STEP, {"emitted": [3, 0]}, "accepted 1 tokens emitted 3"),
        (STEP, {"emitted": [2, 1]}, "an idle row has no tokens"),
        (STEP, {"seconds": None}, "`seconds` is None, and must be float"),
        (
            REQUEST,
            {"finish": "time"},
            "`finish` is 'time', and must be one of length, eos, stop, budget",
        ),
        (REQUEST, {"logprobs": [-0.5]}, "1 log-probabilities for 2 tokens"),
        (REQUEST, {"token_seconds": [1.0]}, "1 times for 2 tokens"),
        (STEP, {"at": -1.0}, "a time of -1 s is not possible"),
        (STEP, {"seconds": 1e308}, "a time of 1e+308 s is not possible"),
        (REQUEST, {"prefill_seconds": -0.5}, "a time of -0.5 s is not possible"),
        (REQUEST, {"token_seconds": [1.0, 1e9]}, "a time of 1e+09 s is not possible"),
        (SUMMARY, {"metrics": {"all": 1e300}}, "`all` of 1e+300 is not possible"),
        (SUMMARY, {"repeats": [{"tau": 1e300}]}, "`tau` of 1e+300 is not possible"),
        (REQUEST, {"extra": 1}, "has the unknown extra"),
        (EndLine(0), {"end": False}, "`end` must be true"),
        (SUMMARY, {"state": "running"}, "`state` is 'running', and must be one of done, failed"),
        (SUMMARY, {"error": "no room"}, "a cell has an error if it failed"),
        (SUMMARY, {"metrics": {"all": "fast"}}, "`metrics.all` is 'fast', and must be float"),
        (
            SUMMARY,
            {"facts": {"target": {}}},
            "`facts` lacks draft, bandwidth, flops, peak_memory_bytes",
        ),
        (FACTS, {"target": {}}, "`target` must have weight_bytes"),
        (
            MANIFEST,
            {"axes": ["batch", "policy"]},
            "cell `0000-b1` must have a value for each of the axes batch, policy",
        ),
        (
            MANIFEST,
            {"cells": [dataclasses.asdict(MANIFEST.cells[0])] * 2},
            "two cells have the same id",
        ),
        (
            MANIFEST,
            {"inputs": {}},
            "cell `0000-b1` has the unknown input 'torch'",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_sentence(
    value: Json, change: dict, told: str
) -> None:
    data = json.loads(value.to_json()) | change
    with pytest.raises(RunFolderError) as caught:
        type(value).from_json(json.dumps(data), "file, line 3")
    assert str(caught.value).startswith("file, line 3 ")
    assert told in str(caught.value)
    assert ".." not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_a_field_that_is_missing_is_named(value: Json) -> None:
    data = json.loads(value.to_json())
    required = [f.name for f in dataclasses.fields(value) if f.default is dataclasses.MISSING]  # pyright: ignore[reportArgumentType]
    for name in required:
        with pytest.raises(RunFolderError, match=f"lacks {name}"):
            type(value).from_json(json.dumps({k: v for k, v in data.items() if k != name}))


@pytest.mark.parametrize("version", [0, 2, "3", None])
def test_another_format_version_is_refused_before_anything_else_is_read(
    folder: RunFolder, version: object
) -> None:
    path = folder.path / RunFolder.MANIFEST
    path.write_text(json.dumps({"format": version, "bass": "9.9", "novelty": {}}))
    with pytest.raises(RunFolderError) as caught:
        _ = RunFolder(folder.path).manifest
    assert str(caught.value) == (
        f"{path} has the format version {version!r}, and this `bass` reads versions 4 and 5: use "
        "the `bass` that wrote it (9.9), or run the experiment again."
    )


def test_version_4_is_read_without_the_prompts_turns_and_categories_that_it_lacks() -> None:
    manifest = json.loads(MANIFEST.to_json()) | {"format": 4}
    assert Manifest.from_json(json.dumps(manifest)).format == 4
    line = json.loads(REQUEST.to_json())
    for name in ("prompt", "turn", "category"):
        del line[name]
    assert RequestLine.from_json(json.dumps(line)) == REQUEST


@pytest.mark.parametrize(
    "wrong", [{"turn": -1}, {"turn": 10**6}, {"prompt": -1}, {"category": "x" * 101}, {"turn": "0"}]
)
def test_a_turn_a_prompt_or_a_category_that_is_not_possible_is_refused(
    wrong: dict[str, object],
) -> None:
    with pytest.raises(RunFolderError, match="is no valid `RequestLine`"):
        RequestLine.from_json(json.dumps(json.loads(REQUEST.to_json()) | wrong))


def test_a_folder_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is no run folder: it has no manifest\.json"):
        _ = RunFolder(tmp_path).manifest


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_has_no_word_for_is_neither_written_nor_read(value: float) -> None:
    with pytest.raises(RunFolderError, match="not finite"):
        dataclasses.replace(FACTS, bandwidth=value).to_json()
    with pytest.raises(RunFolderError, match="is not JSON"):
        StepLine.from_json(STEP.to_json().replace("0.25", json.dumps(value)))


def test_an_atomic_write_leaves_the_old_file_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def fails(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fails)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
