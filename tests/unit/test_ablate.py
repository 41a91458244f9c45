"""`bass ablate` on a tiny pair: what is in the run folder."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bass
from bass.analysis.metrics import AGAINST_PLAIN, METRICS, means, measure
from bass.analysis.repeats import repeats_of
from bass.api.loading import Models
from bass.engine.parts import PARTS
from bass.provenance.environment import bass_version
from bass.runs.drafts import read_drafts, read_texts
from bass.runs.run_folder import RunFolder
from bass.text import Tokenizer
from unit.ablations import texts, tokens
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]


def test_a_run_folder_holds_every_step_every_request_and_a_summary(
    whole_run: Path, pair: Pair
) -> None:
    run = RunFolder(whole_run)
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
        assert (len(summary.repeats), len(summary.prompts)) == (2, 2)  # two generations each
        assert summary.lines == {
            "steps.jsonl": len(lines.steps),
            "requests.jsonl": len(lines.requests) + 4,
        }
        assert {"all", "tokens_per_second", "mbu"} <= set(summary.metrics) <= set(METRICS)
    assert len(run.summaries()) == 6


def test_a_cell_generates_what_generate_does(whole_run: Path, pair: Pair) -> None:
    policy = {"class_path": "bass", "init_args": {"start": 3}}
    llm = bass.load(pair.target, pair.draft, policy=policy, max_batch_size=2)
    result = llm.generate(
        "for item", num_return_sequences=2, max_new_tokens=6, temperature=0.8, seed=4
    )
    found = [ids for repeat, _, ids in tokens(whole_run)["0002-bass-padded"] if repeat == 3]
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


def test_the_drafts_of_the_first_repeat_are_those_that_its_steps_count(whole_run: Path) -> None:
    run = RunFolder(whole_run)
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
    whole_run: Path, pair: Pair
) -> None:
    run, pieces = RunFolder(whole_run), read_texts(whole_run)
    tokenizer = Tokenizer.read(pair.target)
    assert tokenizer is not None
    assert len(pieces) == 1 + max(tokenizer.vocabulary.values())
    for line in (line for cell in run.cells for line in run.lines(cell.id).requests):
        text = "".join(pieces[token] for token in line.tokens if token not in tokenizer.silent)
        assert "\ufffd" in text or text == line.text  # a character may be in several tokens


def test_the_parts_of_a_step_are_facts_of_every_cell(whole_run: Path) -> None:
    run = RunFolder(whole_run)
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


def test_a_cell_is_held_against_plain_decoding_repeat_by_repeat(whole_run: Path) -> None:
    run, summaries = RunFolder(whole_run), RunFolder(whole_run).summaries()
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
        assert {
            "speedup_tokens_per_second",
            "speedup_all",
            "exact_match_rate",
        } <= summary.metrics.keys()
        own, plain = (
            [measure(one) for one in repeats_of(run.lines(one))] for one in (cell, against.plain)
        )
        for i, repeat in enumerate(summary.repeats):
            a, b = (means(ones[2 * i : 2 * i + 2]) for ones in (plain, own))
            for name in ("first", "last", "all"):
                assert repeat[f"speedup_{name}"] == pytest.approx(a[name] / b[name])
        for name in AGAINST_PLAIN:
            ones = summary.prompts if METRICS[name].over == "prompts" else summary.repeats
            values = [one[name] for one in ones if name in one]
            assert (name in summary.metrics) == bool(values)
            assert not values or summary.metrics[name] == pytest.approx(np.mean(values))


def test_a_comparison_of_other_summaries_is_made_again_whatever_the_clock_says(
    ablate: Command, copied_run: Path, whole_run: Path
) -> None:
    before, path = texts(copied_run), "cells/0002-bass-padded/against_plain.json"
    (copied_run / path).write_text(
        json.dumps(
            json.loads(before[path])
            | {"metrics": {"speedup_all": 99.0}, "made_of": "other summaries"}
        )
    )
    os.utime(copied_run / path, (2**33, 2**33))  # younger than them all
    (copied_run / "cells/0003-bass-split/against_plain.json").unlink()
    assert ablate().status == 0
    assert texts(copied_run) == before


@pytest.mark.parametrize(
    "how", [["--temperature", "0"], ["--verifier", "coupled"]], ids=["greedy", "coupled"]
)
def test_greedy_and_coupled_decoding_give_the_tokens_of_plain_decoding_and_a_limit_gives_goodput(
    ablate: Command, tmp_path: Path, how: list[str]
) -> None:
    assert ablate("--axes.cache", "null", "--repeats", "1", "--e2e_limit", "1000", *how).status == 0
    summaries = RunFolder(tmp_path / "out").summaries()
    assert [s.metrics.get("exact_match_rate") for s in summaries.values()] == [None, 1.0, 1.0]
    assert all("first_divergence" not in s.metrics for s in summaries.values())
    for summary in summaries.values():
        for repeat in summary.repeats:
            # of two requests of six tokens each
            assert repeat["goodput"] == pytest.approx(repeat["tokens_per_second"] * 2 / 12)


def test_a_finished_run_is_not_run_again(ablate: Command, copied_run: Path) -> None:
    before = texts(copied_run)
    said = ablate()
    assert said.status == 0, said.err
    assert "tokens/s" in said.out
    assert texts(copied_run) == before


def test_a_dry_run_lists_the_cells_and_writes_nothing(ablate: Command, tmp_path: Path) -> None:
    said = ablate("--dry_run")
    assert said.status == 0, said.err
    assert "0005-ngram-split" in said.out
    assert re.search(r"6 of 6 cells to run into `out`. One after the other, about: \d", said.out)
    assert not (tmp_path / "out").exists()


def test_the_models_are_loaded_once(ablate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = Models.read, []
    monkeypatch.setattr(Models, "read", lambda *given: asked.append(given) or read(*given))
    assert ablate("--repeats", "1", "--num_prompts", "1").status == 0
    assert len(asked) == 1
