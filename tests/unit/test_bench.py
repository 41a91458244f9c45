"""`bass bench`: what it measures and prints. Its times mean nothing here."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bass.analysis.metrics import METRICS
from bass.api.llm import load
from bass.api.options import LoadOptions, RequestOptions
from bass.api.queue import poisson
from bass.engine import cost
from bass.engine.cost import Peaks
from bass.engine.schedule import Schedule
from bass.errors import OptionError
from bass.experiments.bench import Bench, Timing, expected_tau, row_of
from bass.experiments.settings import BenchOptions
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
SIZES = {"prompt_length": 8, "max_new_tokens": 12}


@pytest.fixture
def options(pair: Pair) -> LoadOptions:
    return LoadOptions(target=pair.target, draft=pair.draft)


@pytest.fixture
def bench(bass_command: Command, pair: Pair) -> Command:
    """`bass bench ARGUMENTS` of the pair."""
    own = ("--target", str(pair.target), "--draft", str(pair.draft), "--max-new-tokens", "12")
    return lambda *arguments: bass_command("bench", *own, *arguments)


def test_the_command_prints_the_bound_first_and_the_result_last(bench: Command) -> None:
    own = ("--methods", "plain", "3", "bass", "--batches", "2", "--acceptance", "1")
    own += ("--prompt-length", "8")
    said = bench(*own)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert " GB/s, products " in lines[0]
    assert lines[1].startswith("batch 2: bound by bytes: ")
    words = map(str.split, lines)
    rows = [line[:2] for line in words if line[:1] in (["plain"], ["k=3"], ["bass"])]
    assert rows == 2 * [["plain", "2"], ["k=3", "2"], ["bass", "2"]]
    assert "NOT LOSSLESS" in said.out

    said = bench(*own, "--json", "--seed", "5")
    assert "bound by bytes" in said.err
    [line] = said.out.splitlines()
    kept = json.loads(line)
    assert (kept["lossless"], kept["seed"]) == (False, 5)
    assert {"device", "bandwidth", "flops"} == kept["machine"].keys()
    assert {"bass", "commit", "torch", "options", "notes"} <= kept.keys()
    by = {row["method"]: row for row in kept["settings"]}
    fixed = by["k=3"]
    # 12 new tokens by steps of 4
    assert (fixed["tau"], fixed["mean_draft_length"], fixed["calls"]) == (4.0, 3.0, 3)
    assert fixed["share_of_bound"] == pytest.approx(
        fixed["bound_ms_per_token"] / fixed["wall_ms_per_token"]
    )
    assert fixed["least"] <= fixed["wall_ms_per_token"] <= fixed["most"]
    assert fixed["wall_ms_per_step_over_expected_tau"] == pytest.approx(
        fixed["wall_ms_per_step"] / 4
    )
    assert by["plain"]["speedup"] is None
    assert all(row["draft_ms"] > 0 for name, row in by.items() if name != "plain")


def test_a_queue_is_measured_with_its_times_next_to_autoregressive_decoding(
    bench: Command,
) -> None:
    own = ("--queue", "7", "--rate", "400", "--lengths", "3", "12", "--batches", "2")
    own += ("--methods", "plain", "3", "--acceptance", "1", "--repeats", "2")
    own += ("--prompt-length", "8")
    said = bench(*own, "--ttft-limit", "60", "--tpot-limit", "60")
    assert said.status == 0, said.err
    headings = (
        "TTFT",
        "TPOT",
        "ITL p50",
        "ITL p99",
        "good/s",
        "of full batch, %",
        "active rows, %",
    )
    for heading in headings:
        assert heading in said.out
    said = bench(*own, "--json")
    plain, fixed = json.loads(said.out)["settings"]
    assert plain["tau"] == 1.0 < fixed["tau"]
    assert 0 < fixed["itl_p50"] <= fixed["itl_p99"]
    assert 0 < fixed["share_of_steps"] < 1.2 * fixed["active_rows"]  # of median steps
    assert 0.5 <= fixed["active_rows"] <= 1  # of two
    assert fixed["goodput"] is None
    assert fixed["speedup"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": 2, "lengths": [40, 8]}, "`lengths=[40, 8]` are not the least and the most new"),
        ({"queue": 2, "lengths": [0, 8]}, "give two numbers from 1, the smaller one first"),
        ({"queue": 2, "lengths": [8]}, "`lengths=[8]` are not"),
        ({"rate": 4}, "`rate` is for `queue`: give it too, or leave this out."),
        ({"lengths": [8, 40]}, "`lengths` is for `queue`"),
        ({"ttft_limit": 1}, "`ttft_limit` is for `queue`"),
        ({"tpot_limit": 1}, "`tpot_limit` is for `queue`"),
    ],
)
def test_a_wrong_queue_is_a_sentence(
    bench: Command, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "queue.yaml").write_text(json.dumps(options), encoding="utf-8")
    words = [str(x) for name, one in options.items() for x in (f"--{name}", *np.ravel(one))]
    for arguments in (words, ["--config", str(tmp_path / "queue.yaml")]):
        said = bench(*arguments)
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
        assert sentence in said.err


def test_the_help_has_units_and_what_acceptance_is(
    bench: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench("--help")
    shown = capsys.readouterr().out
    for words in (
        "most seconds to a request's first token", "most seconds for each later token",
        "accept each drafted token with this probability (NOT LOSSLESS)",
    ):  # fmt: skip
        assert words in shown


def test_the_arrivals_of_a_queue_are_those_of_the_seed() -> None:
    prompts, requests = [[i] for i in range(400)], poisson([[1]] * 400, 50.0, 3, (64, 512))
    assert requests == poisson([[1]] * 400, 50.0, 3, (64, 512))
    times = np.array([one.at for one in requests])
    assert (np.diff(times) > 0).all()
    assert times[-1] / 400 == pytest.approx(1 / 50, rel=0.2)  # 4 standard deviations
    lengths = [one.options["max_new_tokens"] for one in requests]
    assert 64 <= min(lengths) < 80 < 496 < max(lengths) <= 512
    at_once = poisson(prompts, None, 4)
    assert [(one.prompt, one.at) for one in at_once] == [(prompt, 0.0) for prompt in prompts]
    seeds = [one.options["seed"] for one in requests + at_once]
    assert len({*seeds}) == 800


def test_a_row_has_the_medians_of_the_metrics_and_the_ratios_of_means(options: LoadOptions) -> None:
    wanted = BenchOptions(methods=["plain", 2], batches=[3], acceptance=0.5, **SIZES)
    one = Bench(wanted, options)
    timings = {name: one.timing(name, 3, "") for name in one.methods}
    for timing in timings.values():
        timing.warm_up()
        for repeat in range(1, 4):
            timing.call(repeat)
    own, base = timings["k=2"], timings["plain"]
    assert [len(call.requests) for call in own.calls] == [3] * 3
    row = row_of(own, 0.5, base)
    for name in ("all", "tokens_per_second", "tau", "mbu"):
        assert row[name] == pytest.approx(np.median([METRICS[name](m) for m in own.calls]))

    def mean(timing: Timing, name: str) -> float:
        return float(np.mean([METRICS[name](call) for call in timing.calls]))

    rate, latency = "tokens_per_second", "all"
    assert row["speedup"] == pytest.approx(mean(own, rate) / mean(base, rate))
    assert row["speedup_all"] == pytest.approx(mean(base, latency) / mean(own, latency))
    bound = 1e3 * np.median([METRICS["bound_seconds"](m) for m in own.calls]) / 12
    assert row["bound_ms_per_token"] == pytest.approx(bound)
    assert row["draft_cost_ratio"] is not None
    assert "speedup" not in row_of(base, 0.5, base)
    parts = own.parts()
    assert {*parts} == {"draft_ms", "verify_ms", "sample_ms"}
    assert not own.last.run.sequences.active.any()


def test_tau_of_imposed_acceptance() -> None:
    def tau(acceptance: float | None, *drafted: int) -> float:
        return expected_tau(pd.DataFrame({"drafted": drafted}), acceptance)

    assert tau(0.8, 7, 7) == pytest.approx(4.16, abs=0.01)
    assert tau(0.5, 2, 0) == (1.75 + 1) / 2
    assert (tau(1.0, 5), tau(0.0, 5), tau(None, 0)) == (6.0, 1.0, 1.0)
    assert np.isnan(tau(None, 4))


def test_the_bound_is_of_the_weights_and_the_keys_of_all_rows(
    pair: Pair, options: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "measure_peaks", lambda device, dtype: Peaks(1e9, 1e12))
    one = Bench(BenchOptions(batches=[4], **SIZES), options)
    model = load(pair.target, pair.draft).models.target
    keys = 2 * model.shape.layers * model.shape.kv_heads * model.shape.head_dim * 4
    read = sum(p.nbytes for p in model.parameters()) + 4 * (8 + 6) * keys
    timing = one.timing("plain", 4, "")
    assert timing.plain_bound == pytest.approx(read / 1e9)
    timing.warm_up()
    timing.call(1)
    assert timing.calls[0].steps["bytes"].mean() == pytest.approx(read, rel=0.1)


class Slow(DraftLengthPolicy[int]):
    """Two tokens, after a pause of the host."""

    constant_length = False
    max_length = 2

    def init(self, batch_size: int) -> int:
        return batch_size

    def lengths(self, state: int) -> np.ndarray:
        return np.full(state, 2)

    def update(self, state: int, feedback: Feedback) -> int:
        time.sleep(0.02)
        return state


def test_wall_time_has_the_hosts_time_and_no_prefill(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(pair.target, pair.draft, policy=Slow(), cuda_graphs=False)
    request = RequestOptions(max_new_tokens=12, temperature=1.0, ignore_eos=True)
    timing = Timing(llm, [np.ones((2, 8), int).tolist()], request)
    assert timing.warm_up() > 0
    assert timing.calls == []
    admit, pauses = Schedule.admit, [0.5]

    def slow(self: Schedule, *args: Any) -> Any:
        time.sleep(pauses.pop() if pauses else 0)
        return admit(self, *args)

    monkeypatch.setattr(Schedule, "admit", slow)
    began = time.perf_counter()
    timing.call(1)
    whole = time.perf_counter() - began
    assert whole - 0.5 > timing.walls[0] > 0.02 * len(timing.calls[0].steps)
    assert METRICS["prefill_seconds"](timing.calls[0]) > 0.5


def test_calls_have_the_prompts_of_a_category_in_turn(options: LoadOptions, tmp_path: Path) -> None:
    records = [{"prompt": f"def f{i}(", "category": "ab"[i % 2]} for i in range(7)]
    records += [{"turns": ["for item", "again"], "category": "b"}, {"prompt": "x" * 900}]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    wanted = BenchOptions(
        methods=["plain", 2], batches=[1, 2], prompts=str(file), max_new_tokens=4, repeats=2
    )
    one = Bench(wanted, options)
    texts = {name: [*map(one.timing("plain", 1, name).llm.models.tokenizer.fast.decode, prompts)]
             for name, prompts in one.prompts.items()}  # fmt: skip
    assert texts["a"] == ["def f0(", "def f2(", "def f4(", "def f6("]
    assert texts["b"][-1] == "User: for item\nAssistant:"
    own = one.prompts["b"]
    assert one.timing("plain", 3, "b").groups == [own[:3], [own[3], *own[:2]]]
    frame = one.run()
    assert [*zip(frame["batch"], frame["category"], frame["method"], strict=True)] == [
        (batch, name, method) for batch in (1, 2) for name in "ab" for method in ("plain", "k=2")
    ]
    notes = " ".join(one.notes)
    for words in ("1 of 9 prompts do not fit", "Of 1 prompts with several turns", "plain text",
                  "Only the first 2 prompts of a category"):  # fmt: skip
        assert words in notes
    only = Bench(BenchOptions(prompts=str(file), categories=["b"], max_new_tokens=4), options)
    assert [*only.prompts] == ["b"]


def test_a_text_is_cut_into_pieces(options: LoadOptions, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"def f{i}(" for i in range(9)), encoding="utf-8")
    found = Bench(BenchOptions(batches=[2], prompts=str(file), **SIZES), options)
    assert [len(piece) for piece in found.prompts[""]] == [8, 8]
    tokens = [token for piece in found.prompts[""] for token in piece]
    tokenizer = found.timing("plain", 2, "").llm.models.tokenizer
    assert tokenizer is not None
    assert tokenizer.fast.decode(tokens) in file.read_text(encoding="utf-8")
    file.write_text("def", encoding="utf-8")
    with pytest.raises(OptionError, match="2 prompts of 8 need 16: give a longer text"):
        Bench(BenchOptions(batches=[2], prompts=str(file), **SIZES), options)


def test_the_policy_with_its_parameters_is_one_of_the_methods(bench: Command) -> None:
    own = ("--batches", "1", "--repeats", "1", "--prompt-length", "8", "--json")
    for words, methods in {
        "--methods plain 2 --policy fixed --policy.k 3": ["plain", "k=2", "fixed(k=3)"],
        "--policy.max_length 2": ["plain", "auto(max_length=2)"],
        "--num-speculative-tokens 2 --methods bass": ["bass", "k=2"],
    }.items():
        [line] = bench(*words.split(), *own).out.splitlines()
        assert [row["method"] for row in json.loads(line)["settings"]] == methods


@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_drafters_without_a_draft_model(pair: Pair, drafter: str) -> None:
    spec = {"class_path": "self", "init_args": {"layers": 1}} if drafter == "self" else drafter
    own = LoadOptions(target=pair.target, drafter=spec, num_speculative_tokens=2)
    one = Bench(BenchOptions(batches=[1], repeats=1, **SIZES), own)
    frame = one.run()
    assert frame["method"].tolist() == ["plain", "k=2"]
    assert frame["speedup_interval"].tolist()[1] == "undecided (n = 1)"
    assert any("random prompts" in note for note in one.notes)


LAYER = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 256,
    "num_hidden_layers": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
HEADS: dict[str, dict[str, Any]] = {
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40},
    "dflash": {"architectures": ["DFlashDraftModel"], "block_size": 8,
               "dflash_config": {"mask_token_id": 95, "target_layer_ids": [0, 1, 2]}},
}  # fmt: skip


@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_heads_with_random_weights(tmp_path: Path, head: str) -> None:
    target = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 6}
    for role, own in {"target": target, "draft": HEADS[head]}.items():
        (tmp_path / role).mkdir()
        config = LAYER | {"model_type": "llama"} | own
        (tmp_path / role / "config.json").write_text(json.dumps(config), encoding="utf-8")
    folders = {"target": tmp_path / "target", "draft": tmp_path / "draft"}
    wanted = BenchOptions(methods=["plain", 3], batches=[2], acceptance=1.0, repeats=1, **SIZES)
    one = Bench(wanted, LoadOptions(**folders, load_format="dummy"))
    frame = one.run().set_index("method")
    assert frame["tau"].to_dict() == {"plain": 1.0, "k=3": 4.0}
    assert frame.loc["k=3", ["draft_ms", "verify_ms", "sample_ms", "observe_ms"]].gt(0).all()


def test_options_from_a_file(bench: Command, tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text("methods: [plain, 3]\nbatches: [2]\nacceptance: 0.9\nrepeats: 1\n")
    own = ("--config", str(file), "--json", "--prompt-length", "8")
    rows = json.loads(bench(*own).out)["settings"]
    assert [(row["method"], row["batch"]) for row in rows] == [("plain", 2), ("k=3", 2)]
    rows = json.loads(bench(*own, "--batches", "1", "--methods", "bass").out)["settings"]
    assert [(row["method"], row["batch"]) for row in rows] == [("bass", 1)]
