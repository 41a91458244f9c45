"""`bass bench`: what it measures, prints and keeps. Its times mean nothing here."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bass.api.llm import load, plain
from bass.cli import bench as command
from bass.experiments.bench.figures import bound, expected_tau, figures_of, tau_of
from bass.experiments.bench.measure import Bench, measure_machine, pass_bytes
from bass.experiments.bench.record import BenchRecord, Call, Machine, Parts, Setting, WarmUp
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
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
    own = ("--target", str(pair.target), "--draft", str(pair.draft), *SIZES)
    return lambda *arguments: bass_command("bench", *own, *arguments)


def found(said: Said) -> dict[str, Any]:
    """The JSON line."""
    assert said.status == 0, said.err
    assert said.out.count("\n") == 1
    return json.loads(said.out)


def call(**changed: Any) -> Call:
    figures: dict[str, Any] = {
        "seed": 1,
        "wall_seconds": 2.0,
        "capture_seconds": 0.0,
        "prefill_seconds": 0.5,
        "first": 0.1,
        "last": 0.2,
        "all": 0.15,
        "steps": 40,
        "row_steps": 80,
        "drafted": 320,
        "accepted": 120,
        "emitted": 200,
        "draft_passes": 160,
        "bytes": 10**9,
        "flops": 10**11,
        "flops_kept": 10**10,
        "step_seconds": 1.6,
        "step_median": 0.04,
        "between_median": 0.001,
        "between_p90": 0.002,
    }
    return Call(**figures | changed)


def setting(**changed: Any) -> Setting:
    figures: dict[str, Any] = {
        "method": "k=4",
        "policy": "{}",
        "batch": 2,
        "length": 4,
        "target_bytes": 10**7,
        "draft_bytes": 10**6,
        "peak_bytes": 3 * 10**9,
        "warm_up": WarmUp(1.0, 5, 2.0, 0.5),
        "calls": [call(), call(wall_seconds=3.0), call(wall_seconds=2.2)],
        "parts": Parts(4, 0.01, 0.02, 0.005, 0.004),
    }
    return Setting(**figures | changed)


def test_tau_of_imposed_acceptance() -> None:
    assert expected_tau(0.8, 7) == pytest.approx(4.16, abs=0.01)
    assert expected_tau(0.8, 4) == pytest.approx(3.36, abs=0.01)
    assert (expected_tau(1.0, 5), expected_tau(0.0, 5)) == (6.0, 1.0)
    assert (tau_of(0, None), tau_of(4, None), tau_of(None, 0.8)) == (1.0, None, None)


def test_the_figures_follow_from_the_calls() -> None:
    f = figures_of(setting(), MACHINE, new_tokens=100)
    assert f["wall_ms_per_token"] == pytest.approx(22)
    assert f["spread"] == [pytest.approx(20), pytest.approx(30)]
    assert f["tau"] == 2.5
    # 14 MB at 1 GB/s take 14 ms a step
    assert bound(10**7, 10**6, 4, 1e9) == pytest.approx(0.014)
    assert f["bound_ms_per_token"] == pytest.approx(14 / 2.5)
    assert f["share_of_bound"] == pytest.approx(14 / 2.5 / 22)
    assert f["wall_ms_per_step"] == pytest.approx(55)
    assert f["wall_ms_per_step_over_expected_tau"] is None
    assert f["mbu"] == pytest.approx(1 / 2.2)
    assert f["mbu_data_sheet"] == pytest.approx(1 / 2.2 / 4)
    assert f["mfu"] == pytest.approx(0.1 / 2.2)
    assert f["mbu_of_steps"] == pytest.approx(1 / 1.6 / 2)
    assert f["parts_ms"]["host"] == pytest.approx(55 - 35)
    assert f["sampling_share"] == pytest.approx(9 / 55)
    assert (f["speedup"], f["peak_gb"], f["mean_draft_length"]) == (None, 3.0, 4.0)


def test_imposed_acceptance_gives_the_expected_tau_to_bound_and_step() -> None:
    f = figures_of(setting(), MACHINE, 100, acceptance=0.8)
    tau = expected_tau(0.8, 4)
    assert f["bound_ms_per_token"] == pytest.approx(14 / tau)
    assert f["wall_ms_per_step_over_expected_tau"] == pytest.approx(55 / tau)
    assert f["device_ms_per_step_over_expected_tau"] == pytest.approx(40 / tau)
    slower = setting(method="plain", calls=[call(wall_seconds=w) for w in (4.4, 9.9, 1.0)])
    assert figures_of(setting(), MACHINE, 100, 0.8, slower)["speedup"] == pytest.approx(2)
    unknown = replace(MACHINE, data_sheet_bandwidth=None)
    assert figures_of(setting(parts=None), unknown, 100)["mbu_data_sheet"] is None
    assert figures_of(setting(parts=None), unknown, 100)["parts_ms"] is None


def test_a_pass_reads_the_weights_and_the_keys_of_all_rows(pair: Pair) -> None:
    llm = load(pair.target, pair.draft, num_speculative_tokens=3)
    for batch, length in ((1, 10), (4, 30)):
        target, draft = pass_bytes(llm, batch, length)
        for model, read in ((llm.models.target, target), (llm.models.draft, draft)):
            assert model is not None
            shape, weights = model.shape, sum(p.nbytes for p in model.parameters())
            keys = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
            assert read == weights + batch * length * keys
    assert pass_bytes(plain(llm), 1, 10) == (pass_bytes(llm, 1, 10)[0], 0)


class Slow(DraftLengthPolicy[int]):
    """Two tokens, after a pause of the host."""

    max_length = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, 2)

    def update(self, state: int, feedback: Feedback) -> int:
        time.sleep(0.02)
        return state


def test_wall_time_leaves_nothing_out(pair: Pair) -> None:
    """The host's time between steps is part of it, and the prefill is not."""
    llm = load(pair.target, pair.draft, Slow())
    prompts = np.ones((2, 8), int).tolist()
    one = Bench(llm, prompts, {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True})
    warm_up, peak = one.warm_up(0)
    assert (warm_up.graphs, peak, warm_up.seconds > 0) == (0, None, True)
    began = time.perf_counter()
    timed = one.call(1)
    whole = time.perf_counter() - began
    assert timed.wall_seconds > 0.02 * timed.steps
    assert timed.step_seconds < timed.wall_seconds < whole - timed.prefill_seconds
    assert timed.emitted == 24
    assert timed.steps < timed.draft_passes <= 2 * timed.steps
    parts = one.parts()
    assert parts is not None
    assert parts.k == 2
    assert min(parts.draft, parts.verify, parts.sample, parts.draft_sampling) > 0


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


@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_any_drafter(bass_command: Command, pair: Pair, drafter: str) -> None:
    own = ("--target", str(pair.target), "--drafter", drafter, *SIZES, "--batches", "2", "--json")
    more = ("--drafter.layers", "1") if drafter == "self" else ()
    line = found(bass_command("bench", *own, *more, "--num-speculative-tokens", "2"))
    read = {one["method"]: one["draft_bytes"] for one in line["settings"]}
    assert (read["k=2"] > 0) == (drafter == "self")


def test_methods_take_turns_and_repeats_are_spread(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    timed = Bench.call

    def noted(self: Bench, seed: int) -> Call:
        order.append(int(self.llm.parts.policy.max_length))
        return timed(self, seed)

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

    def interrupted(self: Bench, seed: int) -> Call:
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt
        return timed(self, seed)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "call", interrupted)
        said = bench(*own)
    assert said.status == 130
    line = json.loads(said.out)
    assert line["interrupted"] is True
    assert [len(one["calls"]) for one in line["settings"]] == [3, 2]
    assert "Interrupted: figures are those of the calls up to there." in said.err
    whole = found(bench(*own))
    assert [len(one["calls"]) for one in whole["settings"]] == [3, 3, 3, 3]
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
        ("--repeats 2", "`repeats=2` must be an integer of 3 or more"),
        ("--prompt-length 0", "`prompt_length=0` must be an integer of 1 or more"),
        ("--max-new-tokens 0", "`max_new_tokens=0` must be"),
        ("--prompt-length 60", "exceeds the context of 64: lower `max_new_tokens` to 4"),
        ("--prompt-length 1000000000000", "exceeds the context of 64: shorten it"),
        ("--temperature -1", "temperature"),
        ("--acceptance 1.5", "`--acceptance 1.5` is out of range: give a number of 0 to 1"),
        ("--acceptance nan", "acceptance"),
        ("--acceptance 0.8 --verifier typical", "contradicts `--verifier`"),
        ("--methods 2 --policy bass", "contradicts `--policy` and `--num_speculative_tokens`"),
        ("--methods 2 --num-speculative-tokens 2", "contradicts `--policy`"),
        ("--policy bass --num-speculative-tokens 2", "contradicts"),
        ("--methods -1", "negative length"),
        ("--methods bas", "Did you mean `bass`"),
        ("--methods", "`--methods` lacks its value"),
        ("--methods no.module:Class", "no.module"),
        ("--max-batch-size 8", "Unknown option `--max_batch_size`"),
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
def test_bad_input_is_one_sentence(bench: Command, given: str, words: str) -> None:
    said = bench(*given.split())
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


def test_figures_that_no_measurement_has_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    record = BenchRecord({}, MACHINE, [setting()])
    record.save(path)
    assert BenchRecord.opened(path, {}) == record
    for old, new in (('"wall_seconds": 2.0', '"wall_seconds": 0.0'), ("1000000000.0", "-1.0")):
        path.write_text(record.to_json(indent=1).replace(old, new), encoding="utf-8")
        with pytest.raises(Exception, match="must be > 0"):
            BenchRecord.opened(path, {})


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


def test_the_machine_is_measured_on_a_processor() -> None:
    machine = measure_machine(CPU, torch.float32)
    assert machine.copy_bandwidth > 1e8
    assert machine.data_sheet_bandwidth is None
