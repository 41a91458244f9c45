"""`bass ablate` on a tiny pair: what is in the run folder, and what becomes of it when something
goes wrong.
"""

import fcntl
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import bass
from bass.analysis.metrics import AGAINST_PLAIN, METRICS
from bass.api.loading import Models
from bass.engine.parts import PARTS
from bass.provenance.environment import bass_version
from bass.runs.drafts import read_drafts, read_texts
from bass.runs.records import EndLine
from bass.runs.run_folder import RunFolder
from bass.text import Tokenizer
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
CONFIG = """
name: small
base: {prompts: [def f(, "for item"], batch: 2, max_new_tokens: 6, repeats: 2, temperature: 0.8,
       seed: 3}
axes:
  method:
    plain: {policy: fixed, policy.k: 0}
    bass: {policy: bass, policy.start: 3}
    ngram: {drafter: ngram}
  cache: [padded, split]
"""
BROKEN = """
from dataclasses import dataclass
from bass.policies import Fixed
from bass.interfaces import DraftLengthPolicy

@dataclass(frozen=True)
class Broken(DraftLengthPolicy):
    max_length: int = 4
    def init(self, batch_size): return batch_size
    def lengths(self, state): raise KeyError("lost")
    def update(self, state, feedback): return state
"""


@pytest.fixture
def run(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bass_command: Command
) -> Command:
    """`bass ablate` with the config above, into `out`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG, encoding="utf-8")
    models = ("--target", str(pair.target), "--draft", str(pair.draft))
    return lambda *more: bass_command("ablate", "small.yaml", "--output", "out", *models, *more)


@pytest.fixture(scope="session")
def whole(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of the config that nothing happened to."""
    from bass.cli.ablate import run
    from bass.cli.parsing import Parser

    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(CONFIG, encoding="utf-8")
    options = [
        "--output",
        str(folder / "out"),
        "--target",
        str(pair.target),
        "--draft",
        str(pair.draft),
    ]
    assert run(Parser("ablate", "text"), [str(folder / "small.yaml"), *options]) == 0
    return folder / "out"


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy of it where `run` writes."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def texts(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.js*"))
    }


def tokens(folder: Path) -> dict[str, list[tuple[int, int, list[int]]]]:
    run = RunFolder(folder)
    return {
        cell.id: [(line.repeat, line.request, line.tokens) for line in run.lines(cell.id).requests]
        for cell in run.cells
    }


def refused(said: Said, words: str) -> None:
    assert said.status == 2
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err


def test_a_run_folder_holds_every_step_every_request_and_a_summary(whole: Path, pair: Pair) -> None:
    run = RunFolder(whole)
    assert [cell.id for cell in run.cells][:3] == [
        "0000-plain-padded",
        "0001-plain-split",
        "0002-bass-padded",
    ]
    assert (run.manifest.bass, run.manifest.axes) == (bass_version(), ["method", "cache"])
    assert run.manifest.config["base"]["max_new_tokens"] == 6
    for cell, summary in run.summaries().items():
        lines = run.lines(cell)
        assert (summary.state, lines.repeats, lines.notes) == ("done", [0, 1, 2, 3], [])
        assert [(line.repeat, line.request, line.seed) for line in lines.requests] == [
            (r, i, 3 + r // 2) for r in range(4) for i in range(2)
        ]
        for repeat in range(4):
            steps = [line for line in lines.steps if line.repeat == repeat]
            kept = sum(len(line.tokens) for line in lines.requests if line.repeat == repeat)
            assert sum(sum(step.emitted) for step in steps) == kept
        assert len(summary.repeats) == 4
        assert {"all", "tokens_per_second", "mbu"} <= set(summary.metrics) <= set(METRICS)
    assert len(run.summaries()) == 6


def test_a_cell_generates_what_generate_does(whole: Path, pair: Pair) -> None:
    policy = {"class_path": "bass", "init_args": {"start": 3}}
    llm = bass.load(pair.target, pair.draft, policy=policy, max_batch_size=2)
    result = llm.generate(
        "for item", num_return_sequences=2, max_new_tokens=6, temperature=0.8, seed=4
    )
    found = [ids for repeat, _, ids in tokens(whole)["0002-bass-padded"] if repeat == 3]
    assert found == [completion.token_ids for completion in result.completions]


def test_a_prompt_that_a_cell_repeats_gets_the_samples_that_it_gets_in_one_call(
    pair: Pair, tmp_path: Path, bass_command: Command
) -> None:
    prompts = ["for item", "def f", "for item"]
    base = {"policy": "fixed", "batch": 2, "max_new_tokens": 6, "temperature": 0.8, "repeats": 1}
    (tmp_path / "again.yaml").write_text(json.dumps({"base": base | {"prompts": prompts}}))
    models = ("--target", str(pair.target), "--draft", str(pair.draft))
    out = str(tmp_path / "out")
    assert (
        bass_command("ablate", str(tmp_path / "again.yaml"), "--output", out, *models).status == 0
    )
    llm = bass.load(pair.target, pair.draft, policy="fixed", max_batch_size=2)
    result = llm.generate(prompts, num_return_sequences=2, max_new_tokens=6, temperature=0.8)
    expected = [completion.token_ids for completion in result.completions]
    [found] = [[ids for _, _, ids in lines] for cell, lines in tokens(tmp_path / "out").items()]
    assert found == expected
    assert found[:2] != found[4:]


def test_the_drafts_of_the_first_repeat_are_those_that_its_steps_count(whole: Path) -> None:
    run = RunFolder(whole)
    for cell in run.cells:
        drafts, dropped = read_drafts(run.cell_folder(cell.id), 0)
        lines = run.lines(cell.id)
        steps = [step for step in lines.steps if step.repeat == 0]
        committed = {line.request: line.tokens for line in lines.requests if line.repeat == 0}
        assert (sorted(drafts), dropped) == (list(range(len(steps))), None)
        assert read_drafts(run.cell_folder(cell.id), 1) == ({}, None)
        for number, step in enumerate(steps):
            assert [len(row) for row in drafts[number].tokens] == step.drafted
            sure = cell.settings["method"] == "ngram" or not any(step.drafted)
            assert (drafts[number].probs is None) == sure
            for row, request in enumerate(step.request_rows):
                accepted, emitted = step.accepted[row], step.emitted[row]
                if request < 0:
                    continue
                assert drafts[number].tokens[row][:accepted] == committed[request][:accepted]
                committed[request] = committed[request][emitted:]
        assert not any(committed.values())


def test_the_texts_of_tokens_are_there_once_and_make_the_text_of_every_request(
    whole: Path, pair: Pair
) -> None:
    run, pieces = RunFolder(whole), read_texts(whole)
    tokenizer = Tokenizer.read(pair.target)
    assert tokenizer is not None
    assert len(pieces) == 1 + max(tokenizer.vocabulary.values())
    for line in (line for cell in run.cells for line in run.lines(cell.id).requests):
        text = "".join(pieces[token] for token in line.tokens if token not in tokenizer.silent)
        assert "\ufffd" in text or text == line.text  # a character may be in several tokens


def test_the_parts_of_a_step_are_facts_of_every_cell(whole: Path) -> None:
    run = RunFolder(whole)
    for cell, summary in run.summaries().items():
        facts, plain = summary.facts, "plain" in cell
        assert facts is not None
        assert facts.parts_ms is not None
        assert tuple(facts.parts_ms) == PARTS
        assert all(ms >= 0 for ms in facts.parts_ms.values())
        assert facts.parts_ms["verify"] > 0 < facts.parts_ms["sample"]
        assert (facts.parts_ms["draft"] == 0) == (facts.parts_k == 0)
        assert facts.parts_k in {step.k for step in run.lines(cell).steps}
        assert facts.parts_k == 0 or not plain


def test_a_cell_is_held_against_plain_decoding_repeat_by_repeat(whole: Path) -> None:
    run, summaries = RunFolder(whole), RunFolder(whole).summaries()
    for cell, summary in summaries.items():
        against = run.against_plain(cell)
        if "plain" in cell:
            assert against is None
            assert not summary.metrics.keys() & set(AGAINST_PLAIN)
            continue
        assert against is not None
        assert (
            against.plain
            == {"padded": "0000-plain-padded", "split": "0001-plain-split"}[cell.rpartition("-")[2]]
        )
        assert {"speedup", "speedup_all", "exact_match_rate"} <= summary.metrics.keys()
        for own, plain in zip(summary.repeats, summaries[against.plain].repeats, strict=True):
            assert own["speedup"] == pytest.approx(
                own["tokens_per_second"] / plain["tokens_per_second"]
            )
            for name in ("first", "last", "all"):
                assert own[f"speedup_{name}"] == pytest.approx(plain[name] / own[name])
        for name in AGAINST_PLAIN:
            values = [repeat[name] for repeat in summary.repeats if name in repeat]
            assert (name in summary.metrics) == bool(values)
            assert not values or summary.metrics[name] == pytest.approx(np.mean(values))


def test_a_comparison_of_other_summaries_is_made_again_whatever_the_clock_says(
    run: Command, out: Path, whole: Path
) -> None:
    before, path = texts(out), "cells/0002-bass-padded/against_plain.json"
    (out / path).write_text(
        json.dumps(
            json.loads(before[path]) | {"metrics": {"speedup": 99.0}, "made_of": "other summaries"}
        )
    )
    os.utime(out / path, (2**33, 2**33))  # younger than them all
    (out / "cells/0003-bass-split/against_plain.json").unlink()
    assert run().status == 0
    assert texts(out) == before


@pytest.mark.parametrize(
    "how", [["--temperature", "0"], ["--verifier", "coupled"]], ids=["greedy", "coupled"]
)
def test_greedy_and_coupled_decoding_give_the_tokens_of_plain_decoding_and_a_limit_gives_goodput(
    run: Command, tmp_path: Path, how: list[str]
) -> None:
    assert run("--axes.cache", "null", "--repeats", "1", "--e2e_limit", "1000", *how).status == 0
    summaries = RunFolder(tmp_path / "out").summaries()
    assert [s.metrics.get("exact_match_rate") for s in summaries.values()] == [None, 1.0, 1.0]
    assert all("first_divergence" not in s.metrics for s in summaries.values())
    for summary in summaries.values():
        for repeat in summary.repeats:
            # of two requests of six tokens each
            assert repeat["goodput"] == pytest.approx(repeat["tokens_per_second"] * 2 / 12)


def test_a_finished_run_is_not_run_again(run: Command, out: Path) -> None:
    before = texts(out)
    said = run()
    assert said.status == 0, said.err
    assert "tokens/s" in said.out
    assert texts(out) == before


def test_a_dry_run_lists_the_cells_and_writes_nothing(run: Command, tmp_path: Path) -> None:
    said = run("--dry_run")
    assert said.status == 0, said.err
    assert "0005-ngram-split" in said.out
    assert re.search(r"6 of 6 cells to run into `out`. One after the other, about: \d", said.out)
    assert not (tmp_path / "out").exists()


def test_the_models_are_loaded_once(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = Models.read, []
    monkeypatch.setattr(Models, "read", lambda *given: asked.append(given) or read(*given))
    assert run("--repeats", "1", "--num_prompts", "1").status == 0
    assert len(asked) == 1


def unfinished(out: Path, cell: str) -> Path:
    """The cell as a process leaves it that is ended in its last repeat."""
    folder = out / "cells" / cell
    (folder / "summary.json").unlink()
    path = folder / "requests.jsonl"
    path.write_text(path.read_text().rpartition('{"repeat": 3, "end"')[0], encoding="utf-8")
    return folder


def test_a_cell_goes_on_with_its_first_unfinished_repeat(
    run: Command, out: Path, whole: Path
) -> None:
    before = texts(out)
    folder = unfinished(out, "0003-bass-split")
    asked = folder.joinpath("requests.jsonl").read_text().count('"tokens"')
    assert asked == 8  # the last repeat's requests are there, its end is not
    assert run().status == 0
    assert tokens(out) == tokens(whole)
    after = texts(out)
    changed = {name for name in before if before[name] != after[name]}
    files = (
        "requests.jsonl",
        "steps.jsonl",
        "conditions.jsonl",
        "summary.json",
        "against_plain.json",
    )
    assert changed == {f"cells/0003-bass-split/{name}" for name in files}
    # the ended repeats are those of the first process, to the byte
    for name in ("requests.jsonl", "steps.jsonl"):
        old, new = before[f"cells/0003-bass-split/{name}"], after[f"cells/0003-bass-split/{name}"]
        assert [x for x in old.splitlines() if b'"repeat": 3' not in x] == [
            x for x in new.splitlines() if b'"repeat": 3' not in x
        ]


@pytest.mark.parametrize("name", ["requests.jsonl", "steps.jsonl"])
def test_a_line_that_was_cut_by_a_crash_is_dropped(
    run: Command, out: Path, whole: Path, name: str
) -> None:
    folder = unfinished(out, "0002-bass-padded")
    (folder / name).write_bytes((folder / name).read_bytes()[:-30])
    assert run().status == 0
    assert tokens(out) == tokens(whole)
    assert RunFolder(out).lines("0002-bass-padded").notes == []


def test_a_process_that_ended_before_the_summary_repeats_nothing(run: Command, out: Path) -> None:
    before = texts(out)
    (out / "cells/0001-plain-split/summary.json").unlink()
    assert run().status == 0
    after = texts(out)
    held = {f"cells/{cell}/against_plain.json" for cell in ("0003-bass-split", "0005-ngram-split")}
    assert {name for name in before if before[name] != after[name]} == {
        "cells/0001-plain-split/summary.json",
        *held,
    }
    assert all(
        json.loads(before[name])["repeats"] == json.loads(after[name])["repeats"] for name in held
    )


@pytest.mark.parametrize("cut", [0, 30])
def test_the_drafts_of_a_repeat_that_did_not_end_are_written_anew(
    run: Command, out: Path, whole: Path, cut: int
) -> None:
    folder = out / "cells/0002-bass-padded"
    (folder / "summary.json").unlink()
    for name, mark in (("requests.jsonl", '{"repeat": 0, "end"'), ("steps.jsonl", "")):
        (folder / name).write_text(
            (folder / name).read_text().partition(mark)[0] if mark else "", encoding="utf-8"
        )
    drafts = (folder / "drafts.jsonl").read_bytes()
    (folder / "drafts.jsonl").write_bytes(drafts[: len(drafts) - cut])
    assert run().status == 0
    assert (folder / "drafts.jsonl").read_bytes() == drafts
    assert tokens(out) == tokens(whole)


def test_a_damaged_line_is_told_and_kept(run: Command, out: Path) -> None:
    folder = unfinished(out, "0002-bass-padded")
    lines = (folder / "steps.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "steps.jsonl").write_bytes(lines[0] + b"garbage\n" + b"".join(lines[1:]))
    before = texts(out)
    refused(run(), "steps.jsonl, line 2 is damaged")
    assert texts(out) == before


def test_a_cell_that_fails_is_recorded_and_the_others_run(run: Command, tmp_path: Path) -> None:
    (tmp_path / "broken_policy.py").write_text(BROKEN, encoding="utf-8")
    axes = (
        "--axes.method",
        "null",
        "--axes.cache",
        "null",
        "--axes.policy",
        "[broken_policy:Broken, fixed]",
    )
    said = run(*axes)
    assert said.status == 2
    assert "0000-Broken FAILED: KeyError: 'lost'" in said.err
    summaries = RunFolder(tmp_path / "out").summaries()
    assert {cell: (s.state, s.error) for cell, s in summaries.items()} == {
        "0000-Broken": ("failed", "KeyError: 'lost'"),
        "0001-fixed": ("done", None),
    }
    assert "broken_policy.py" in (tmp_path / "out/cells/0000-Broken/error.txt").read_text(
        encoding="utf-8"
    )
    before = texts(tmp_path / "out")
    assert run(*axes).status == 2  # it is not tried again, and not forgotten
    assert texts(tmp_path / "out") == before
    (tmp_path / "broken_policy.py").write_text(
        BROKEN.replace('raise KeyError("lost")', "import numpy; return numpy.ones(state, int)")
    )
    sys.modules.pop("broken_policy")
    assert run(*axes, "--retry_failed").status == 0


def test_a_second_process_is_refused(run: Command, out: Path) -> None:
    with (out / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(run(), f"`out` is being written by process {os.getpid()} on")
    assert run().status == 0


OTHER = {
    "settings": (["--seed", "4"], "`base.seed` is 3 in the folder and 4 in the config"),
    "axes": (
        ["--axes.cache", "[padded]"],
        "`axes.cache` is ['padded', 'split'] in the folder and ['padded'] in the config",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_the_folder_of_another_run_is_refused(run: Command, out: Path, case: str) -> None:
    argv, words = OTHER[case]
    before = texts(out)
    refused(run(*argv), words)
    assert texts(out) == before


VERSIONS = {
    "format": ({"format": 2}, "has the format version 2, and this `bass` reads version 3"),
    "bass": ({"bass": "0.0.1"}, "(bass was 0.0.1 and is "),
    "device": ({"device": "a GPU"}, "the device was a GPU and is cpu"),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_the_folder_of_another_version_is_refused(run: Command, out: Path, case: str) -> None:
    change, words = VERSIONS[case]
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | change))
    before = texts(out)
    refused(run(), words)
    assert texts(out) == before


def test_a_folder_that_cannot_be_written_is_told(run: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run("--output", "file/run"), "cannot be written (Not a directory)")
    refused(run("--output", "file"), "cannot be written (File exists)")
    refused(run("--output", "/proc/run"), "cannot be written (No such file or directory)")


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file may become larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [pytest.param(100, marks=pytest.mark.nightly), 6000])
def test_a_full_disk_is_told_and_nothing_is_lost(
    run: Command, tmp_path: Path, whole: Path, size: int
) -> None:
    with full(size):
        said = run()
    assert said.status == 2
    assert re.search(
        r"cannot be written \(File too large\): free disk space .*finished results are kept",
        said.err,
    )
    folder = RunFolder(tmp_path / "out")
    ended = {c.id: folder.lines(c.id).repeats for c in folder.cells} if size > 3000 else {}
    before = texts(tmp_path / "out")
    assert run().status == 0
    assert tokens(tmp_path / "out") == tokens(whole)
    after = texts(tmp_path / "out")
    for cell, repeats in ended.items():
        name = f"cells/{cell}/requests.jsonl"
        marks = [EndLine(repeat).to_json().encode() for repeat in repeats]
        assert all(mark in after[name].splitlines() for mark in marks)
        until = before.get(name, b"").rfind(marks[-1]) if marks else 0
        assert after[name][:until] == before.get(name, b"")[:until]
