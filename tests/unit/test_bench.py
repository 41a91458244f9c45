"""`bass bench`: what it measures, prints and keeps. Its times mean nothing here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bass.cli import bench as command
from bass.experiments.bench.measure import Bench
from bass.experiments.bench.record import BenchRecord, Call, Machine
from bass.experiments.bench.run import BenchPrompts
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
MACHINE = Machine("a machine", 1e9, 2e9, 1e12, 4e9)
SIZES = ("--prompt-length", "8", "--max-new-tokens", "12")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure_machine", lambda device, dtype: MACHINE)


@pytest.fixture
def bench(bass_command: Command, pair: Pair) -> Command:
    """`bass bench ARGUMENTS` of the pair."""
    own = ("--target", str(pair.target), "--draft", str(pair.draft))

    def run(*arguments: str) -> Said:
        sizes = (
            SIZES[2:] if "--prompts" in arguments else SIZES
        )  # prompts have lengths of their own
        return bass_command("bench", *own, *sizes, *arguments)

    return run


def found(said: Said) -> dict[str, Any]:
    """The JSON line."""
    assert said.status == 0, said.err
    assert said.out.count("\n") == 1
    return json.loads(said.out)


def test_the_bound_comes_first_then_wall_time_in_tables(bench: Command) -> None:
    said = bench("--num-speculative-tokens", "3", "--batches", "1", "2", "--acceptance", "1")
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("a machine: copies 1 GB/s (data sheet 0.00)")
    assert lines[1].startswith("batch 1: bound by bytes: plain ")
    assert "(tau 4.00)" in lines[2]
    rows = [line.split() for line in lines if line.startswith((" plain", " k=3"))]
    assert [row[:2] for row in rows] == 2 * [
        ["plain", "1"], ["k=3", "1"], ["plain", "2"], ["k=3", "2"],
    ]  # fmt: skip
    assert "NOT LOSSLESS" in said.out
    assert "batch 2, k=3: 5 of 5" in said.err


def test_json_is_the_last_line_with_every_figure(bench: Command) -> None:
    said = bench("--methods", "plain", "3", "bass", "--batches", "2", "--acceptance=1", "--json")
    line = found(said)
    assert (line["lossless"], line["acceptance"], line["interrupted"]) == (False, 1.0, False)
    assert any("NOT LOSSLESS" in warning for warning in line["warnings"])
    assert "NOT LOSSLESS" in said.err
    assert line["machine"]["copy_bandwidth"] == 1e9
    by_method = {one["method"]: one for one in line["settings"]}
    assert by_method.keys() == {"plain", "k=3", "bass"}
    fixed = by_method["k=3"]
    # 12 new tokens by steps of 4
    assert [one["steps"] for one in fixed["calls"]] == [3, 3, 3]
    assert [one["seed"] for one in fixed["calls"]] == [1, 2, 3]
    assert (fixed["tau"], fixed["mean_draft_length"], fixed["length"]) == (4.0, 3.0, 3)
    assert fixed["share_of_bound"] == pytest.approx(
        fixed["bound_ms_per_token"] / fixed["wall_ms_per_token"]
    )
    assert by_method["bass"]["length"] is None
    assert by_method["plain"]["speedup"] == 1.0
    assert by_method["plain"]["wall_ms_per_step_over_expected_tau"] == pytest.approx(
        by_method["plain"]["wall_ms_per_step"]
    )
    assert fixed["warm_up"]["first_call_seconds"] > 0


def test_without_imposed_acceptance_random_prompts_are_said(bench: Command) -> None:
    line = found(bench("--num-speculative-tokens", "2", "--batches", "1", "--json"))
    assert line["lossless"] is True
    assert any("random prompts" in one and "--file" in one for one in line["warnings"])
    assert not found(bench("--methods", "plain", "--batches", "1", "--json"))["warnings"]


def test_prompts_of_a_text(bench: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("def double(value):\n    return 2 * value\n" * 20, encoding="utf-8")
    own = ("--file", str(text), "--num-speculative-tokens", "2", "--json", "--batches")
    assert not found(bench(*own, "1", "2"))["warnings"]
    said = bench(*own, "100000")
    assert said.status == 2
    assert "prompts of 8 need 800,000: give a longer text" in said.err


def test_prompts_of_a_set_have_rows_by_category(bench: Command, tmp_path: Path) -> None:
    records = [{"prompt": f"def f{i}(", "category": "ab"[i % 2]} for i in range(7)]
    records += [{"turns": ["for item", "again"], "category": "b"}, {"prompt": "x" * 900}]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    own = ("--prompts", str(file), "--methods", "plain", "2", "--batches", "1", "2", "--json")
    line = found(bench(*own, "--output", str(tmp_path / "out.json")))
    assert [(one["method"], one["category"]) for one in line["settings"]] == 2 * [
        ("plain", "a"), ("k=2", "a"), ("plain", "b"), ("k=2", "b"),
    ]  # fmt: skip
    assert all(one["speedup"] is not None for one in line["settings"])
    warnings = " ".join(line["warnings"])
    for words in (
        "1 of 9 prompts are left out, since with 12 new tokens they do not fit",
        "1 of 9 prompts have several turns, of which only the first",
        "are plain text with `User:`",
        "3 calls of as many prompts as rows measure only the first ones: at batch 1, 3 of 4 "
        "prompts of `a` and 3 of 4 prompts of `b`. Raise `--repeats` for more.",
    ):
        assert words in warnings
    again = found(bench(*own, "--output", str(tmp_path / "out.json"), "--categories", "b"))
    assert again["settings"] == [one for one in line["settings"] if one["category"] == "b"]


def test_the_calls_of_a_category_have_its_prompts_in_turn() -> None:
    prompts = BenchPrompts({"a": [[1], [2], [3], [4], [5]]})
    assert prompts.groups("a", 2) == [[[1], [2]], [[3], [4]], [[5], [1]]]
    assert prompts.groups("a", 7) == [[[1], [2], [3], [4], [5], [1], [2]]]
    assert BenchPrompts({"": [[1], [2]]}, constant=True).groups("", 1) == [[[1]]]


@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_any_drafter(bass_command: Command, pair: Pair, drafter: str) -> None:
    own = ("--target", str(pair.target), "--drafter", drafter, *SIZES, "--batches", "2", "--json")
    more = ("--drafter.layers", "1") if drafter == "self" else ()
    line = found(bass_command("bench", *own, *more, "--methods", "plain", "2", "--acceptance=0.5"))
    one = next(one for one in line["settings"] if one["method"] == "k=2")
    assert (one["draft_bytes"] > 0) == (drafter == "self")
    # drafts of n-grams may be shorter, so that their tau is not known
    assert one["length"] == (2 if drafter == "self" else None)
    assert (one["wall_ms_per_step_over_expected_tau"] is None) == (drafter == "ngram")


def test_what_is_named_twice_is_measured_once(bench: Command) -> None:
    asked = ("--methods", "2", "fixed", '{"class_path": "fixed", "init_args": {"k": 2}}', "2")
    line = found(bench(*asked, "--batches", "1", "1", "--json"))
    assert [one["method"] for one in line["settings"]] == ["k=2", "fixed"]


def test_one_new_token(bass_command: Command, pair: Pair) -> None:
    own = ("--target", str(pair.target), "--draft", str(pair.draft), "--prompt-length", "1")
    asked = ("--max-new-tokens", "1", "--num-speculative-tokens", "2", "--batches", "1", "--json")
    line = found(bass_command("bench", *own, *asked))
    assert [one["tau"] for one in line["settings"]] == [1.0, 1.0]
    assert line["settings"][1]["acceptance_rate"] is None


def test_a_stop_rule_makes_lengths_vary(bench: Command) -> None:
    asked = ("--num-speculative-tokens", "3", "--stop-rule", "confidence", "--batches", "1")
    line = found(bench(*asked, "--json"))
    assert [one["length"] for one in line["settings"]] == [0, None]


def test_methods_take_turns_and_repeats_are_spread(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    timed = Bench.call

    def noted(self: Bench, seed: int, number: int) -> Call:
        order.append(int(self.llm.parts.policy.max_length))
        return timed(self, seed, number)

    monkeypatch.setattr(Bench, "call", noted)
    line = found(
        bench("--methods", "plain", "2", "4", "--batches", "1", "--repeats", "4", "--json")
    )
    assert order == 4 * [0, 2, 4]
    assert all(one["spread"][0] <= one["wall_ms_per_token"] for one in line["settings"])


def test_a_repeated_command_continues(
    bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "bench.json"
    own = ("--output", str(output), "--json", "--acceptance", "0.5", "--methods", "plain", "2")
    first = found(bench(*own, "--batches", "1"))
    kept = BenchRecord.from_json(output.read_text(encoding="utf-8"))
    assert [len(one.calls) for one in kept.settings] == [3, 3]
    with monkeypatch.context() as patch:
        patch.setattr(command, "serve", lambda *_: pytest.fail("nothing is left to measure"))
        again = found(bench(*own, "--batches", "1"))
    assert again["settings"] == first["settings"]
    more = found(bench(*own, "4", "--batches", "1", "2", "--repeats", "4"))
    counts = {(one["method"], one["batch"]): len(one["calls"]) for one in more["settings"]}
    assert counts == {(m, b): 4 for m in ("plain", "k=2", "k=4") for b in (1, 2)}
    assert more["settings"][0]["calls"][:3] == first["settings"][0]["calls"]
    said = bench(*own, "--batches", "1", "--temperature", "0.5")
    assert said.status == 2
    assert "holds a benchmark with another value of temperature" in said.err
    # another method or batch size is the same benchmark; another target is not
    assert bench(*own, "--batches", "3", "--dtype", "bfloat16").status == 2


def test_interrupted_it_prints_what_is_measured_and_continues(
    bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, calls = tmp_path / "bench.json", [0]
    own = ("--output", str(output), "--json", "--methods", "plain", "2", "--batches", "1", "2")
    timed = Bench.call

    def interrupted(self: Bench, seed: int, number: int) -> Call:
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt
        return timed(self, seed, number)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "call", interrupted)
        said = bench(*own)
    assert said.status == 130
    line = json.loads(said.out)
    assert line["interrupted"] is True
    assert [len(one["calls"]) for one in line["settings"]] == [3, 2]
    assert "Interrupted: figures are those of the calls up to there." in said.err
    assert [one["parts_ms"] is None for one in line["settings"]] == [True, True]
    whole = found(bench(*own))
    assert [len(one["calls"]) for one in whole["settings"]] == [3, 3, 3, 3]
    assert all(one["parts_ms"] for one in whole["settings"])
    assert whole["settings"][0]["calls"] == line["settings"][0]["calls"]


def test_interrupted_before_any_call(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "prompts_for", interrupted)
    said = bench("--batches", "1")
    assert (said.status, "Interrupted before" in said.err) == (130, True)


def test_options_from_a_file(bench: Command, tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text("methods: [plain, 3]\nbatches: [2]\nacceptance: 0.9\nrepeats: 3\n")
    line = found(bench("--config", str(file), "--json"))
    assert [(one["method"], one["batch"]) for one in line["settings"]] == [("plain", 2), ("k=3", 2)]
    line = found(bench("--config", str(file), "--json", "--batches", "1", "--methods", "bass"))
    assert [(one["method"], one["batch"]) for one in line["settings"]] == [("bass", 1)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--batches 0", "`batches=0` must be an integer of 1 or more"),
        ("--batches one", "`--batches ['one']` is of the wrong type: give a list of integers"),
        ("--batches 100000000", "more than the 1,000,000 sequences of a call"),
        ("--batches", "`--batches` lacks its value"),
        ("--batches []", "`--batches` is empty"),
        ("--file x --prompts y", "both name the prompts: give one of them"),
        ("--categories a", "`--categories` is for a set of prompts: give `--prompts`"),
        ("--prompts spec-bnch", "Did you mean `spec-bench`"),
        ("--prompts FILE --data x", "`data: x` is not used by `prompts: "),
        ("--prompts FILE --prompt-length 20", "`--prompt-length 20` is not used"),
        ("--prompts FILE --categories []", "`categories` is empty: name one or more"),
        ("--repeats 2", "`repeats=2` must be an integer of 3 or more"),
        ("--prompt-length 0", "`prompt_length=0` must be an integer of 1 or more"),
        ("--max-new-tokens 0", "`max_new_tokens=0` must be"),
        ("--prompt-length 60", "exceeds the context of 64: lower `max_new_tokens` to 4"),
        ("--prompt-length 1000000000000", "exceeds the context of 64: shorten it"),
        ("--temperature -1", "temperature"),
        ("--acceptance 1.5", "`--acceptance 1.5` is out of range: give a number of 0 to 1"),
        ("--acceptance nan", "acceptance"),
        ("--acceptance 0.8 --verifier typical", "contradicts `--verifier`"),
        ("--methods 2 --policy bass", "contradicts `--policy` and `--num-speculative-tokens`"),
        ("--methods 2 --num-speculative-tokens 2", "contradicts `--policy`"),
        ("--policy bass --num-speculative-tokens 2", "contradicts"),
        ("--methods -1", "negative length"),
        ("--methods bas", "Did you mean `bass`"),
        ("--methods", "`--methods` lacks its value"),
        ("--methods no.module:Class", "no.module"),
        ("--max-batch-size 8", "Unknown option `--max-batch-size`"),
        ("--n 3", "Unknown option `--n`"),
        ("--stop x", "Unknown option `--stop`"),
        ("--file /nonexistent", "`--file /nonexistent` cannot be read (No such file"),
        ("--output /", "`--output /` cannot be written (it is a folder"),
        ("--output /nonexistent/x.json", "Cannot read or write"),
        ("--load-format x", "Unknown load format `x`"),
        ("--target /nonexistent", "No checkpoint folder at `/nonexistent`"),
        ("word", "Unexpected argument `word`"),
    ],
)
def test_bad_input_is_one_sentence(bench: Command, tmp_path: Path, given: str, words: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "category": "b"}\n', encoding="utf-8")
    said = bench(*given.replace("FILE", str(tmp_path / "p.jsonl")).split())
    assert (said.status, said.out) == (2, "")
    assert words in said.err
    assert said.err.startswith("bass: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is damaged"),
        ("[]", "holds list"),
        ("{}", "lacks about"),
        ('{"about": {}}', "lacks settings"),
        ('{"about": {}, "settings": []}', "with another value of"),
        ('{"about": {}, "settings": [{}]}', "lacks method"),
        ('{"about": {}, "machine": {"device": "x"}, "settings": []}', "lacks copy_bandwidth"),
        ("[" * 100_000, "is damaged"),
        ('{"about": {}, "x": 1}', "unknown x"),
    ],
)
def test_a_damaged_output_is_one_sentence_and_stays(
    bench: Command, tmp_path: Path, content: str, words: str
) -> None:
    output = tmp_path / "bench.json"
    output.write_text(content, encoding="utf-8")
    said = bench("--output", str(output))
    assert said.status == 2
    assert words in said.err
    assert output.read_text(encoding="utf-8") == content


def test_dummy_weights_need_a_config_alone(bass_command: Command, tmp_path: Path) -> None:
    config = {
        "model_type": "opt", "vocab_size": 97, "hidden_size": 16, "ffn_dim": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    own = ("--target", str(tmp_path), "--draft", str(tmp_path), "--load-format", "dummy", *SIZES)
    asked = ("--methods", "plain", "2", "--batches", "2", "--acceptance", "0.8", "--json")
    line = found(bass_command("bench", *own, *asked))
    assert any("RANDOM WEIGHTS" in one for one in line["warnings"])
    output = ("--output", str(tmp_path / "bench.json"))
    assert found(bass_command("bench", *own, *asked, *output))
    config["ffn_dim"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert bass_command("bench", *own, *asked, *output).status == 2
