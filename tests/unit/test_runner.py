"""Runs of a small grid: what the folder holds, and how it is continued, extended and reduced."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import bass
from bass.analysis.frames import REQUESTS, SUMMARY, Run
from bass.analysis.report import report
from bass.analysis.tables import to_text
from bass.api.queue import poisson
from bass.experiments import cell as cells
from bass.experiments import runner
from bass.experiments.cell import Cell, Worker
from bass.experiments.executors import Ray
from bass.experiments.grid import Plan, plan
from bass.experiments.provenance import here as this_process
from bass.experiments.runner import preview, run
from unit.checkpoints import byte_tokenizer, write_checkpoint

PROMPTS = ["def f(", "for item"]
BASE = {
    "prompts": PROMPTS, "batch": 2, "max_new_tokens": 8, "repeats": 2, "temperature": 0.8,
    "seed": 3, "policy": "fixed", "policy.k": 2,
}  # fmt: skip
METHODS: dict[str, Any] = {
    "plain": {"policy.k": 0}, "fixed": {"drafter": "model"}, "ngram": {"drafter": "ngram"},
}  # fmt: skip


MODELS: dict[str, str] = {}  # the folders of a tiny pair


def made(methods: Mapping[str, Any] = METHODS, **base: Any) -> Plan:
    return plan({"name": "small", "base": BASE | MODELS | base, "axes": {"method": {**methods}}})


def states(grid: Plan, folder: Path) -> dict[str, str]:
    return {cell.labels["method"]: state for cell, state in preview(grid, folder)}


def tokens(folder: Path) -> dict[str, list[Any]]:
    """Of each cell: repeat, call and tokens of each request, in the order of its file."""
    found = Run(folder)
    return {
        name: found.requests.query("cell == @cell")[["repeat", "call", "token_ids"]]
        .to_numpy()
        .tolist()
        for cell in found.entries
        for name in [found.entries[cell]["labels"]["method"]]
    }


class Seen:
    """Notes what it receives; `stop` may raise at a place."""

    def __init__(self, stop: Callable[[str, float], None] = lambda name, repeats: None) -> None:
        self.places: list[tuple[str, float]] = []
        self.summaries: dict[str, Mapping[str, Any]] = {}
        self.stop = stop

    def __call__(self, cell: Cell, repeats: float, summary: Mapping[str, Any] | None) -> None:
        method = cell.labels["method"]
        if summary is not None:
            self.summaries[method] = summary
            return
        self.places.append((method, repeats))
        self.stop(method, repeats)

    @property
    def turns(self) -> list[tuple[str, float]]:
        """The begins and ends of turns: the method, and how many of its repeats are done."""
        return list(dict.fromkeys(place for place in self.places if place[1] == int(place[1])))


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory) -> None:
    root, tokenizer = tmp_path_factory.mktemp("pair"), byte_tokenizer()
    for name, hidden, layers in (("target", 32, 2), ("draft", 16, 1)):
        size = tokenizer.get_vocab_size()
        folder = write_checkpoint(root / name, tokenizer, hidden, layers, size, context=256)
        MODELS[name] = str(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "small"
    run(made(), folder)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def test_a_run_has_every_request_and_every_step(whole: Path) -> None:
    found = Run(whole)
    assert list(found.cells["state"]) == ["done"] * 3
    assert list(found.cells["autoregressive"]) == [True, False, False]
    assert found.manifest["cells"][1]["settings"]["policy"]["init_args"] == {"k": 2}
    counts = found.requests.groupby(["cell", "repeat", "call"]).size()
    assert (counts == 2).all()
    assert len(counts) == 3 * 2 * 2
    assert set(found.requests["seed"]) == {3, 4}
    # the tokens that steps have emitted are those of the requests
    emitted = found.steps.groupby("cell")["emitted"].agg(lambda rows: sum(map(sum, rows)))
    wanted = found.requests.groupby("cell")["token_ids"].agg(lambda lists: sum(map(len, lists)))
    assert (emitted == wanted).all()
    # drafted tokens are recorded of the first repeat
    fixed = found.steps[found.steps["cell"] == found.manifest["cells"][1]["id"]]
    assert fixed.groupby("repeat")["draft_tokens"].agg(lambda v: v.notna().all()).tolist() == [
        True, False,
    ]  # fmt: skip
    texts = json.loads((whole / "texts.json").read_text())
    row = found.requests.iloc[0]
    assert "".join(texts[token] for token in row["token_ids"]) == row["text"]


def test_a_cell_ends_with_facts_and_what_it_was_made_with(whole: Path) -> None:
    found = Run(whole)
    for cell in found.entries:
        summary = found.summaries[cell]
        assert summary is not None
        assert (summary["cell"], summary["state"], summary["error"]) == (cell, "done", None)
        assert summary["repeats"] == 2
        assert summary["seconds"] > 0
        assert summary["facts"]["bandwidth"] > 0
        assert summary["made_with"]["files"] == {}


def test_a_cell_generates_what_generate_does(whole: Path) -> None:
    llm = bass.load(
        **MODELS, policy={"class_path": "fixed", "init_args": {"k": 2}}, max_batch_size=2
    )
    found = tokens(whole)["fixed"]
    for repeat in range(2):
        for call, prompt in enumerate(PROMPTS):
            own = [ids for r, c, ids in found if (r, c) == (repeat, call)]
            result = llm.generate(
                prompt, 2, max_new_tokens=8, temperature=0.8, seed=3 + repeat, top_p=0.95
            )
            assert own == [completion.token_ids for completion in result.completions]


def test_a_cell_with_a_queue_serves_its_prompts_in_turn(here: Path) -> None:
    grid = made(queue=5, rate=1000.0, lengths=[2, 9], repeats=1, ttft_limit=60.0)
    folder = here / "queue"
    found = run(grid, folder)
    for cell in found.finished:
        requests = found.measurement(cell).requests
        assert requests["prompt"].tolist() == [0, 1, 0, 1, 0]
        assert requests["arrival_seconds"].is_monotonic_increasing
        assert requests["arrival_seconds"].iloc[-1] > 0
        assert found.values(cell, "goodput").mean() > 0
        assert found.values(cell, "ttft").mean() > 0
    assert len(found.finished) == 3
    assert len({found.entries[cell]["work"] for cell in found.entries}) == 1
    assert grid.cells[0].id != made(queue=5, repeats=1).cells[0].id
    text, page = to_text(found), report(found)
    for heading in ("tokens/s", "ttft, ms", "tpot, ms per token", "itl_p99", "goodput"):
        assert heading in text
        assert heading.partition(",")[0] in page
    assert "MBU" not in text
    # any request alone, by its seed
    llm = bass.load(**MODELS, policy={"class_path": "fixed", "init_args": {"k": 2}})
    requests = found.measurement(found.finished[1]).requests
    assert len({*requests["seed"]}) == 5
    arrivals = poisson([*range(5)], 1000.0, 3, [2, 9])
    for one, arrival in zip(requests.itertuples(), arrivals, strict=True):
        options: dict[str, Any] = {"temperature": 0.8, **arrival.options}
        [again] = llm.generate(PROMPTS[one.prompt], **options).completions
        assert again.token_ids == one.token_ids
        assert (again.seed, again.sample_index) == (one.seed, one.sample_index)


def test_a_finished_run_runs_nothing(copied: Path) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*.json*")}
    watch = Seen()
    run(made(), copied, watch=watch)
    assert (watch.places, watch.summaries) == ([], {})
    after = {path: path.read_bytes() for path in copied.rglob("*.json*")}
    assert {path: data for path, data in after.items() if path.name != "manifest.json"} == {
        path: data for path, data in before.items() if path.name != "manifest.json"
    }
    created = [json.loads(data[copied / "manifest.json"])["created"] for data in (before, after)]
    assert created[0] == created[1]


def test_a_grid_grows_and_shrinks(copied: Path) -> None:
    larger = made(METHODS | {"longer": {"policy.k": 3}})
    assert states(larger, copied) == dict.fromkeys(METHODS, "finished") | {"longer": "new"}
    watch, before = Seen(), tokens(copied)
    run(larger, copied, watch=watch)
    assert watch.turns == [("longer", 0), ("longer", 1), ("longer", 2)]
    assert {name: own for name, own in tokens(copied).items() if name != "longer"} == before
    smaller = made({name: METHODS[name] for name in ("plain", "ngram")})
    assert states(smaller, copied) == {"plain": "finished", "ngram": "finished"}
    assert [*tokens(run(smaller, copied).folder)] == ["plain", "ngram"]
    # what was taken out is still there
    assert states(larger, copied) == dict.fromkeys(larger.config["axes"]["method"], "finished")


def test_more_repeats_continue_every_cell_in_turns(copied: Path) -> None:
    before, watch = tokens(copied), Seen()
    longer = made(repeats=3)
    assert set(states(longer, copied).values()) == {"2 of 3 repeats done"}
    run(longer, copied, watch=watch)
    assert [place for place in watch.turns if place[1] == 2] == [
        ("fixed", 2), ("plain", 2), ("ngram", 2),
    ]  # fmt: skip
    assert min(repeats for _, repeats in watch.places) == 2
    for name, own in tokens(copied).items():
        assert [one for one in own if one[0] < 2] == before[name]
        assert sum(one[0] == 2 for one in own) == 4
    assert set(states(made(), copied).values()) == {"finished"}  # fewer need nothing


def test_an_interrupted_run_resumes_at_the_next_repeat(whole: Path, tmp_path: Path) -> None:
    """Interrupted in the second call of the second repeat of the second cell."""

    def stop(name: str, repeats: float) -> None:
        if (name, repeats) == ("plain", 1.5):
            raise KeyboardInterrupt

    first, second = Seen(stop), Seen()
    with pytest.raises(KeyboardInterrupt):
        run(made(), tmp_path, watch=first)
    assert states(made(), tmp_path) == {
        "plain": "1 of 2 repeats done", "fixed": "finished", "ngram": "1 of 2 repeats done",
    }  # fmt: skip
    assert list(Run(tmp_path).cells["state"]) == ["not finished", "done", "not finished"]
    run(made(), tmp_path, watch=second)
    begun = [place for place in second.places if place[1] == int(place[1]) < 2]
    assert begun == [("plain", 1), ("ngram", 1)]
    assert tokens(tmp_path) == tokens(whole)


def test_a_repeat_has_the_time_of_its_run_and_the_table_names_comparisons_across_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the second of two works, whose rest comes first in the second run."""

    def stop(name: str, repeats: float) -> None:
        if (name, repeats) == ("warm fixed", 1.5):
            raise KeyboardInterrupt

    cold = {f"cold {name}": METHODS[name] | {"temperature": 0.5} for name in ("plain", "fixed")}
    warm = {f"warm {name}": METHODS[name] for name in ("plain", "fixed")}
    for number, (methods, watch) in enumerate(((warm, Seen(stop)), (cold | warm, Seen()))):
        began = {"created": f"2026-01-0{number + 1}"}
        monkeypatch.setattr(runner, "here", lambda made=began: this_process() | made)
        with pytest.raises(KeyboardInterrupt) if number == 0 else contextlib.nullcontext():
            run(made(methods), tmp_path, watch=watch)
    assert watch.turns[0][0].startswith("warm")
    assert [name for name, _ in watch.turns][-1].startswith("cold")
    found = Run(tmp_path)
    runs = {found.entries[one]["labels"]["method"]: found.summaries[one] for one in found.entries}
    first, second = "2026-01-01", "2026-01-02"
    assert {name: one and one["runs"] for name, one in runs.items()} == {
        "cold plain": [second] * 2, "cold fixed": [second] * 2,
        "warm plain": [first, second], "warm fixed": [first, second],
    }  # fmt: skip
    assert "other runs" not in to_text(found)
    longer = made(cold | {"warm ngram": METHODS["ngram"], **warm})
    monkeypatch.setattr(runner, "here", lambda: this_process() | {"created": "2026-01-03"})
    text = to_text(run(longer, tmp_path))
    assert "between which the machine may have changed: `warm ngram`." in text


def test_lines_of_a_repeat_that_did_not_end_are_removed(copied: Path) -> None:
    """As a process leaves a cell that is ended while it writes the second repeat."""
    [folder] = (copied / "cells").glob("fixed-*")
    summary = json.loads((folder / SUMMARY).read_text())
    kept = {name: summary[name] for name in ("key", "seconds", "made_with")}
    (folder / SUMMARY).write_text(json.dumps(kept | {"repeats": 1, "state": "not finished"}))
    before = tokens(copied)
    text = (folder / REQUESTS).read_text()
    (folder / REQUESTS).write_text(text[:-30])
    watch = Seen()
    run(made(), copied, watch=watch)
    assert watch.turns == [("fixed", 1), ("fixed", 2)]
    assert tokens(copied) == before
    counts = Run(copied).steps.groupby(["cell", "repeat", "call"])["step"].agg(["max", "size"])
    assert (counts["max"] + 1 == counts["size"]).all()


MINE = """
from dataclasses import dataclass
from bass.policies import Fixed

@dataclass(frozen=True)
class Mine(Fixed):
    def lengths(self, state):
        {body}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, with a module `mine_own` and a file of prompts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    (tmp_path / "mine_own.py").write_text(MINE.format(body='raise RuntimeError("oh no")'))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "def f("}\n')
    yield tmp_path
    sys.modules.pop("mine_own", None)


def test_a_failing_cell_stops_no_other_and_runs_again_when_its_file_has_changed(here: Path) -> None:
    methods = {"mine": {"policy": "mine_own:Mine"}, "fixed": {"policy": "fixed"}}

    def planned() -> Plan:
        base = MODELS | {name: value for name, value in BASE.items() if name[:6] != "policy"}
        base |= {"prompts": "prompts.jsonl", "repeats": 1, "max_new_tokens": 4}
        return plan({"name": "x", "base": base, "axes": {"method": methods}})

    watch, folder = Seen(), here / "run"
    run(planned(), folder, watch=watch)
    assert {name: one["state"] for name, one in watch.summaries.items()} == {
        "mine": "failed", "fixed": "done",
    }  # fmt: skip
    assert watch.summaries["mine"]["error"] == "RuntimeError: oh no"
    [failed] = (folder / "cells").glob("mine-*")
    assert 'raise RuntimeError("oh no")' in (failed / "error.txt").read_text()
    assert states(planned(), folder) == {"mine": "failed", "fixed": "finished"}
    for retry, again in ((False, []), (True, ["mine"])):
        watch = Seen()
        run(planned(), folder, watch=watch, retry_failed=retry)
        assert [*watch.summaries] == again
    # a cell depends on the file of its class, and both on the file of the prompts
    (here / "mine_own.py").write_text(MINE.format(body="return super().lengths(state)"))
    del sys.modules["mine_own"]
    assert states(planned(), folder) == {
        "mine": f"changed: {here / 'mine_own.py'}", "fixed": "finished",
    }  # fmt: skip
    assert [*run(planned(), folder).cells["state"]] == ["done", "done"]
    assert not (failed / "error.txt").exists()
    (here / "prompts.jsonl").write_text('{"prompt": "for item"}\n')
    assert set(states(planned(), folder).values()) == {f"changed: {here / 'prompts.jsonl'}"}
    run(planned(), folder)
    assert set(Run(folder).requests["prompt_tokens"]) == {
        len(bass.load(**MODELS).models.tokenizer.encode("for item"))  # pyright: ignore[reportOptionalMemberAccess]
    }
    assert len(Run(folder).requests) == 2 * BASE["batch"]


KILLS_ITSELF = """import os, pathlib
        if not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os._exit(1)
        return super().lengths(state)"""


def test_a_ray_cluster_runs_the_same_turns_and_continues_a_killed_worker(
    here: Path, whole: Path
) -> None:
    pytest.importorskip("ray")
    (here / "mine_own.py").write_text(MINE.format(body=KILLS_ITSELF))
    methods = METHODS | {"fixed": {"policy": "mine_own:Mine", "policy.k": 2}}
    watch = Seen()
    run(made(methods), here / "run", Ray(), watch)
    assert (here / "killed").exists()
    assert {one["state"] for one in watch.summaries.values()} == {"done"}
    assert tokens(here / "run") == tokens(whole)


TALKS: list[Any] = [{"turns": ["Write a loop.", "Now another."], "category": "code"}, "def f("]


@pytest.mark.parametrize("samples", [None, 2])
def test_a_later_turn_continues_the_answers_of_the_cell(
    tmp_path: Path, samples: int | None
) -> None:
    base = {"prompts": TALKS, "samples": samples, "repeats": 1}
    found = run(made({"fixed": {}}, **base), tmp_path).requests
    llm = bass.load(
        **MODELS, policy={"class_path": "fixed", "init_args": {"k": 2}}, max_batch_size=2
    )
    options = {"max_new_tokens": 8, "temperature": 0.8, "seed": 3}
    first = found.query("category == 'code' and turn == 0")
    second = found.query("turn == 1")
    talks = [
        f"User: Write a loop.\nAssistant: {text.strip()}\nUser: Now another.\nAssistant:"
        for text in first["text"]
    ]
    result = llm.generate(talks, **options)
    assert second["token_ids"].tolist() == [one.token_ids for one in result.completions]
    assert len(first) == len(second) == 2
    assert found.groupby("call").size().tolist() == ([2, 2, 2] if samples is None else [4, 2])


def test_models_are_loaded_once_and_llms_are_kept_for_their_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept while half of the memory is free, and dropped where memory is full."""
    loads, free, graphs, real = [], [0.9], [False], cells.serve

    def serve(*given: Any) -> Any:
        llm = real(*given)
        loads.append(id(llm.models.target))
        llm.graphs = graphs[0]
        llm.warm_up_for = lambda calls: None
        return llm

    monkeypatch.setattr(cells, "serve", serve)
    monkeypatch.setattr(cells, "_free_share", lambda device: free[0])
    methods = {name: METHODS[name] for name in ("plain", "fixed")}
    grid = made(methods, prompts=["def f("], max_new_tokens=4)
    for graphs[0], free[0], served in ((False, 0.9, 4), (True, 0.9, 2), (True, 0.4, 4)):
        loads.clear()
        run(grid, tmp_path / f"{graphs[0]} {free[0]}")
        assert (len(loads), len({*loads})) == (served, 1)
    worker, calls = Worker(tmp_path), []
    (folder := tmp_path / "cells" / grid.cells[0].id).mkdir(parents=True)
    (folder / SUMMARY).write_text('{"state": "not finished"}')

    def repeat(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise MemoryError

    monkeypatch.setattr(worker, "_kept", {"other": object()})
    monkeypatch.setattr(worker, "_repeat", repeat)
    assert worker.turn(grid.cells[0], 0, lambda *_: None) is None
    assert (len(calls), worker._kept) == (2, {})
