"""`bass generate`: completions, JSON, comparison, sources of prompts, terminals and caveats."""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bass
from bass.analysis.statistics import compare
from bass.api.generation import Generation
from bass.api.results import Completion, Result
from bass.cli.generate import EXAMPLE_STOPS, FIGURES, print_completions, share_drafted, warnings
from bass.cli.options import console
from bass.experiments.prompts import PYTHON
from bass.policies import Auto, Fixed
from bass.text.conversation import plain_text
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tail }}"


def expected(pair: Pair, prompts: Any, **options: Any) -> Any:
    """The result of the same request in Python."""
    return bass.load(pair.target, pair.draft).generate(prompts, **{"max_new_tokens": 8} | options)


def ids(said: Said) -> list[list[int]]:
    """The token ids of the completions."""
    assert said.status == 0, said.err
    return [line["token_ids"] for line in said.lines if line["type"] == "completion"]


def test_a_prompt_gives_its_text_and_the_figures_on_standard_error(
    bass_command: Command, pair: Pair
) -> None:
    text = expected(pair, "def f(").completions[0].text
    assert bass_command("generate", *pair.options, "def f(").out == f"{text}\n"
    said = bass_command("generate", *pair.options, "def f(", "--policy", "fixed", "--cache=split")
    for words in ("tau", "accepted", "tokens/s", "MBU", "lossless", "yes"):
        assert words in said.err
    for words in ("Fixed(k=4)", "ModelDraft", "SplitCache", "Rejection", "cpu", "float32"):
        assert words in said.err
    for line in said.err.splitlines():  # of positions that no draft reached there is nothing
        assert "accepted by position" not in line or "–" not in line
    assert "\x1b" not in said.err
    said = bass_command("generate", *pair.options, "def f(", "-n", "3")
    assert "Auto(acceptance=" in said.err
    assert "times=" not in said.err
    assert re.findall(r"=== prompt 0, sample (\d): \d+ tokens, \w+ ===", said.out) == [*"012"]


def test_json_has_a_line_for_each_completion_and_one_of_figures(
    bass_command: Command, pair: Pair
) -> None:
    options = ["-n", "2", "--seed", "5", "--temperature", "1.5", "--top-k", "9", "--stop", "e"]
    said = bass_command("generate", *pair.options, "def f(", "for", "--json", *options)
    *completions, stats = said.lines
    assert [(c["type"], c["prompt_index"], c["sample_index"]) for c in completions] == [
        ("completion", p, s) for p in range(2) for s in range(2)
    ]
    wanted = {"num_return_sequences": 2, "seed": 5, "temperature": 1.5, "top_k": 9, "stop": "e"}
    result = expected(pair, ["def f(", "for"], **wanted)
    assert [c["token_ids"] for c in completions] == [c.token_ids for c in result.completions]
    assert {"text", "logprobs", "mean_logprob", "finish_reason", "seconds"} <= {*completions[0]}
    assert stats["type"] == "stats"
    assert {*FIGURES, "acceptance_by_position", "lossless", "steps"} <= {*stats}
    assert stats["tau"] == result.stats.tau
    assert said.err == ""


def test_a_comparison_alternates_with_autoregressive_decoding(
    bass_command: Command, pair: Pair
) -> None:
    words = ("def f(", "--compare-plain", "--temperature", "0")
    completion, stats = bass_command("generate", *pair.options, *words, "--json").lines
    assert completion["type"] == "completion"
    assert (stats["plain"]["drafted"], stats["plain"]["tau"]) == (0, 1)
    assert stats["plain"]["acceptance_by_position"] == []
    assert stats["drafted"] > 0
    for name, of in (("speedup", "tokens_per_second"), ("speedup_all", "all")):
        assert stats["comparisons"][of]["n"] == 3
        assert stats[name] == stats["comparisons"][of]["ratio"] > 0
    assert isinstance(stats["warnings"], list)
    said = bass_command("generate", *pair.options, *words)
    assert said.status == 0
    for text in ("speculative", "plain", "median"):
        assert text in said.err


def test_a_slower_run_has_a_warning_and_latency_may_win_where_throughput_loses() -> None:
    slow, fast = (
        compare([1.0, 1.0, 1.1], [2.0, 2.1, 2.0]),
        compare([2.0, 2.1, 2.05], [1.0, 1.05, 1.0]),
    )
    assert [*warnings({})] == []
    assert [*warnings({"tokens_per_second": fast, "all": slow})] == []
    [both] = warnings({"tokens_per_second": slow, "all": slow})
    assert both.startswith("WARNING: mean latency loses and throughput loses, compared")
    [one] = warnings({"tokens_per_second": slow, "all": fast})
    assert "mean latency wins and throughput loses" in one
    for words in ("0.50 times as high in the median of 3 runs", slow.text, f"{fast.text}."):
        assert words in one
    even = compare([1.0, 1.2, 1.0], [1.02, 1.1, 1.04])
    assert even.low < 0.96 < even.median < 1 < even.high
    assert [*warnings({"tokens_per_second": even, "all": slow})] == []
    maybe = compare([1.0, 1.4, 1.0], [1.2, 1.3, 1.2])
    assert maybe.median < 0.95 < 1 < maybe.high
    for undecided in (maybe, compare([1.0, 3.0], [4.0, 4.0])):
        [noisy] = warnings({"tokens_per_second": undecided, "all": maybe})
        assert noisy.startswith("WARNING: throughput probably loses (undecided), compared")
        assert f"the means: {undecided.text}" in noisy
    [unsure] = warnings({"tokens_per_second": slow, "all": maybe})
    assert unsure.startswith("WARNING: throughput loses")


@pytest.mark.parametrize(
    ("drafted", "words"),
    [
        ((1, 0, 0), "in 33 % of the steps: at this batch size a draft costs more than it gains."),
        ((2, 1, 4, 0), "in 75 % of the steps."),
    ],
)
def test_a_comparison_says_how_often_auto_drafted(drafted: tuple[int, ...], words: str) -> None:
    steps = [SimpleNamespace(drafted=np.array([k, 0])) for k in drafted]
    runs: Any = [SimpleNamespace(trace=steps)] * 2
    assert [*share_drafted(runs, Auto())] == [f"NOTE: `auto` drafted {words}"]
    assert [*share_drafted(runs, Fixed())] == []


def test_a_comparison_shows_the_beginnings_of_several_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = ["a\nb\nc\nd\n", "e\nf\ng"]
    result = Result([Completion(0, i, x, [1], [0], "eos", 1) for i, x in enumerate(texts)], [])
    for short, first in ((True, "a\nb\nc\n..."), (False, texts[0])):
        print_completions(console(), result, ["p"], short)
        assert [x.partition("===\n")[2] for x in capsys.readouterr().out.split("\n=== ")] == [
            first, f"{texts[1]}\n",
        ]  # fmt: skip
    print_completions(console(), Result(result.completions[:1], []), ["p"], True)
    assert capsys.readouterr().out == f"{texts[0]}\n"


# Sources of prompts


def test_prompts_come_from_words_a_file_ids_or_standard_input(
    bass_command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("def f(", encoding="utf-8")
    tokenizer = bass.load(pair.target, pair.draft).models.tokenizer
    assert tokenizer is not None
    tokens = json.dumps(tokenizer.encode("def f("))
    command = ("generate", *pair.options, "--json")
    by_words = ids(bass_command(*command, "def f("))
    assert ids(bass_command(*command, "--token-ids", tokens)) == by_words
    assert ids(bass_command(*command, "--prompts", str(tmp_path / "prompt.txt"))) == by_words
    monkeypatch.setattr("sys.stdin", io.StringIO("def f("))
    assert ids(bass_command(*command)) == by_words


def test_the_example_ends_with_its_class(
    bass_command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    start = bass.LLM.start
    monkeypatch.setattr(bass.LLM, "start", lambda *args: requests.append(args[1:]) or start(*args))
    monkeypatch.setattr("bass.cli.generate.PYTHON", ["def f("])
    assert bass_command("generate", *pair.options, "--example").status == 0
    assert bass_command("generate", *pair.options, "--example", "--stop", "x").status == 0
    assert [prompts for prompts, _ in requests] == [["def f("]] * 2
    assert [request.stop for _, request in requests] == [EXAMPLE_STOPS, ["x"]]
    assert PYTHON[0].startswith("class Account")


def test_a_message_is_put_into_the_chat_template(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    chatting = pair.copy(tmp_path)
    for folder in (chatting.target, chatting.draft):
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    command = ("generate", *chatting.options, "--json")
    user, system = {"role": "user", "content": "x"}, {"role": "system", "content": "s"}
    llm = bass.load(chatting.target, chatting.draft)

    def chat(talk: list[dict[str, str]], **template: Any) -> list[list[int]]:
        result = llm.chat(talk, max_new_tokens=8, **template)
        return [one.token_ids for one in result.completions]

    assert ids(bass_command(*command, "x", "--chat")) == chat([user])
    assert ids(bass_command(*command, "x", "--chat", "--system", "s")) == chat([system, user])
    more = ("--chat-template-kwargs", "{tail: y}")
    wanted = chat([user], chat_template_kwargs={"tail": "y"})
    assert ids(bass_command(*command, "x", "--chat", *more)) == wanted
    for content in ([system, user], {"messages": [system, user]}):
        (tmp_path / "talk.json").write_text(json.dumps(content), encoding="utf-8")
        found = bass_command(*command, "--messages", str(tmp_path / "talk.json"))
        assert ids(found) == chat([system, user])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a published set."""
    (tmp_path / "mt_bench").mkdir()
    records = [{"turns": ["def f(", "x"], "category": "a"}, {"prompt": "for", "category": "b"}]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    (tmp_path / "mt_bench/question.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_published_set_of_which_the_first_turn_is_answered(
    bass_command: Command, pair: Pair, data: Path
) -> None:
    own = ("--prompts", "mt-bench", "--data", str(data), "--temperature", "0", "--json")
    said = bass_command("generate", *pair.options, *own)
    assert "1 of 2 prompts have later turns" in said.err
    assert "plain text with `User:`" in said.err
    prompts = [plain_text([{"role": "user", "content": "def f("}]), "for"]
    result = expected(pair, prompts, temperature=0)
    assert ids(said) == [one.token_ids for one in result.completions]
    for selected, index in (("--categories b", 1), ("--num-prompts 1", 0)):
        said = bass_command("generate", *pair.options, *own, *selected.split())
        assert ids(said) == [result.completions[index].token_ids]


# Terminals, interruptions, caveats


@pytest.mark.parametrize("more", [(), ("--json",), ("--compare-plain",)])
def test_ctrl_c_prints_the_output_so_far(
    bass_command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    ordinary = Generation.__iter__

    def interrupted(generation: Generation) -> Iterator[Any]:
        if generation.run.requests[0].limit < 20:  # the warm-up of a comparison
            return ordinary(generation)
        next(generation._events)
        raise KeyboardInterrupt

    monkeypatch.setattr(Generation, "__iter__", interrupted)
    monkeypatch.setattr("bass.api.generation.finished", lambda made, **_: [*made] and made.result())
    limit = ("--max-new-tokens", "30", "--num-speculative-tokens", "2")
    said = bass_command("generate", *pair.options, *limit, "def f(", *more)
    assert said.status == 130
    if more == ("--json",):
        completion, _ = said.lines
        assert completion["finish_reason"] == "interrupted"
        assert 1 <= len(completion["token_ids"]) < 30
    else:
        assert said.out
        assert "interrupted: figures up to there" in said.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--verifier", "synthetic"), "WARNING: NOT LOSSLESS: by `Synthetic(rates=0.8)`"),
        (("--load-format", "dummy"), "WARNING: RANDOM WEIGHTS"),
    ],
)
def test_a_text_that_is_not_the_targets_has_a_warning(
    bass_command: Command, pair: Pair, options: tuple[str, ...], words: str
) -> None:
    said = bass_command("generate", *pair.options, *options, "def f(")
    assert said.status == 0
    assert words in said.err
    assert "WARNING" not in bass_command("generate", *pair.options, "def f(").err
