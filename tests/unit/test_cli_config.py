"""`bass generate --config FILE.yaml`: the options of the command line in a file, which it
overrides.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import bass
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., list[str]]:
    """`--config` with a file of this text."""

    def write(text: str, name: str = "run.yaml") -> list[str]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return ["--config", str(tmp_path / name)]

    return write


Written = Callable[..., list[str]]


def caption(said: Said) -> str:
    assert said.status == 0, said.err
    return " ".join(said.err.split())


def test_a_file_holds_the_options_of_a_request(
    bass_command: Command, pair: Pair, written: Written
) -> None:
    text = f"""
target: {pair.target}
draft: {pair.draft}
prompt: [def f(, "-for"]
max-new-tokens: 7
temperature: 1e-1
top_p: 0.9
seed: 3
stop: ["q\\n", 'x\\ny']
num_return_sequences: 2
ignore_eos: true
json: true
compare_plain: false
time_budget: null
"""
    *completions, stats = bass_command("generate", *written(text)).lines
    wanted = {
        "max_new_tokens": 7,
        "temperature": 0.1,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["q\n", "x\ny"],
        "ignore_eos": True,
    }
    result = bass.load(pair.target, pair.draft).generate(
        ["def f(", "-for"], num_return_sequences=2, **wanted
    )
    assert [c["token_ids"] for c in completions] == [c.token_ids for c in result.completions]
    assert "plain" not in stats


STRATEGIES = {
    "a name": ("policy: fixed", "Fixed(k=4)"),
    "a name and a parameter": ("policy: fixed\npolicy.k: 2", "Fixed(k=2)"),
    "a class path": ("policy: {class_path: bass.policies.Fixed, init_args: {k: 2}}", "Fixed(k=2)"),
    "nested": (
        "policy: {class_path: lagged, init_args: {policy: bass, steps: 2}}",
        "Lagged(policy=BatchAdaptive(start=7",
    ),
    "nested twice": (
        (
            "policy:\n  class_path: lagged\n  init_args:\n    policy:\n      class_path: clamped\n "
            "   "
            "  init_args: {policy: fixed, hi: 3}"
        ),
        "Lagged(policy=Clamped(policy=Fixed(k=4), lo=0, hi=3), steps=1)",
    ),
    "several": (
        (
            "drafter: {class_path: ensemble, init_args: {methods: [{class_path: ngram, init_args: "
            "{longest: 2}}, model]}}"
        ),
        "Ensemble(methods=(Ngram(longest=2, shortest=1), ModelDraft()))",
    ),
    "a stop rule": (
        "stop_rule: {class_path: confidence, init_args: {threshold: 0.3}}",
        "Confidence(threshold=0.3)",
    ),
    "no stop rule": ("stop_rule: null", "ModelDraft, Rejection"),
    "other kinds": (
        "verifier: block\ncache: split\nattention: per-row",
        "Block, SplitCache, PerRow",
    ),
    "auto": ("attention: auto\ndevice: cpu", "SDPA"),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_a_file_holds_strategies(
    bass_command: Command, pair: Pair, written: Written, case: str
) -> None:
    text, words = STRATEGIES[case]
    assert words in caption(bass_command("generate", *pair.options, "def f(", *written(text)))


NESTED = (
    "policy: {class_path: lagged, init_args: {policy: {class_path: fixed, init_args: {k: 3}}, "
    "steps: 2}}"
)
OVERRIDES = {
    "a parameter": (["--policy.steps", "1"], "Lagged(policy=Fixed(k=3), steps=1)"),
    "a parameter deep inside": (["--policy.policy.k", "2"], "Lagged(policy=Fixed(k=2), steps=2)"),
    "what is inside, with its parameters": (
        ["--policy.policy", "fixed"],
        "Lagged(policy=Fixed(k=4), steps=2)",
    ),
    "the whole": (["--policy", "fixed"], "Fixed(k=4), ModelDraft"),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_the_command_line_overrides_strategies(
    bass_command: Command, pair: Pair, written: Written, case: str
) -> None:
    argv, words = OVERRIDES[case]
    assert words in caption(
        bass_command("generate", *argv, *pair.options, "def f(", *written(NESTED))
    )


def test_the_command_line_overrides_options(
    bass_command: Command, pair: Pair, written: Written
) -> None:
    file = written(
        "temperature: 1.5\nmax_new_tokens: 30\nstop: [a]\nexample: true\njson: true\nseed: 1"
    )
    said = bass_command(
        "generate", *file, *pair.options, "def f(", "--temperature", "0.5", "--stop", "b"
    )
    wanted = {"max_new_tokens": 8, "temperature": 0.5, "stop": ["b"], "seed": 1}
    assert (
        said.lines[0]["token_ids"]
        == bass.load(pair.target, pair.draft).generate("def f(", **wanted).completions[0].token_ids
    )


def test_a_later_file_overrides_an_earlier_one(
    bass_command: Command, pair: Pair, written: Written
) -> None:
    first, second = (
        written(f"{NESTED}\nprompt: x\nseed: 1\njson: true", "a.yaml"),
        written("policy.policy: bass\nprompt: def f(", "b.yaml"),
    )
    said = bass_command("generate", *pair.options, *first, *second)
    assert len(said.lines) == 2
    policy = {"class_path": "lagged", "init_args": {"policy": "bass", "steps": 2}}
    ours = bass.load(pair.target, pair.draft, policy=policy).generate(
        "def f(", max_new_tokens=8, seed=1
    )
    assert said.lines[0]["token_ids"] == ours.completions[0].token_ids


WRONG = {
    "no YAML": ("a: [", "is not YAML"),
    "a list": ("- a", "holds ['a'], which are no options"),
    "nothing": ("", "holds None, which are no options"),
    "an unknown option": (
        "temprature: 1",
        "run.yaml`: Unknown option `--temprature`. Did you mean `--temperature`",
    ),
    "another library's name": (
        "max_tokens: 8",
        "run.yaml`: Unknown option `--max-tokens`: give `--max-new-tokens` (most new tokens",
    ),
    "a wrong kind": (
        "temperature: hot",
        "run.yaml`: `--temperature hot` is of the wrong type: give a number",
    ),
    "a mapping for a number": ("temperature: {a: 1}", "`--temperature"),
    "a text for a flag": (
        "json: 'yes'",
        "`json: yes` is of the wrong type: give true or false",
    ),
    "a file in a file": ("config: other.yaml", "`config` is not allowed in a file"),
    "help": ("help: true", "`help` is not allowed in a file"),
    "out of range": ("temperature: -1", "temperature=-1"),
    "an unknown policy": ("policy: baas", "Unknown policy `baas`. Did you mean `bass`"),
    "an unknown policy inside": (
        "policy: {class_path: lagged, init_args: {policy: fixd}}",
        "Unknown policy `fixd`",
    ),
    "an unknown parameter": (
        "policy: {class_path: fixed, init_args: {kk: 3}}",
        "Unknown parameter of policy `Fixed` `kk`. Did you mean `k`",
    ),
    "a wrong kind inside": (
        "policy: {class_path: lagged, init_args: {policy: {class_path: fixed, init_args: {k: x}}}}",
        "`policy.policy.k='x'` is of the wrong type: give an integer",
    ),
    "another form": ("policy: {k: 3}", "`policy={'k': 3}` has the wrong form"),
    "no policy at all": ("policy: null", "`policy=None` is no policy"),
    "a number": ("policy: 3", "`policy=3` is no policy"),
    "a list for one": ("policy: [fixed]", "is no policy"),
    "a parameter of nothing": (
        "stop_rule.threshold: 0.3",
        "`--stop-rule.threshold` is a parameter without a strategy",
    ),
    "a parameter of a cache": ("cache.x: 0.3", "Unknown option `--cache.x`"),
    "two sources of prompts": ("prompt: a\nexample: true", "a prompt and `--example`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(
    bass_command: Command, pair: Pair, written: Written, case: str
) -> None:
    text, words = WRONG[case]
    refused(
        bass_command(
            "generate", *pair.options, *written(text), *([] if "prompt" in text else ["def f("])
        ),
        words,
    )


def test_all_that_is_wrong_in_a_file_is_told_a_line_each(
    bass_command: Command, pair: Pair, written: Written
) -> None:
    text = (
        "temprature: 1\ntop_p: high\njson: 'yes'\npolicy: baas\nverifier: {class_path: rejection, "
        "init_args: {x: 1}}\nconfig: x.yaml"
    )
    said = bass_command("generate", *pair.options, *written(text), "def f(")
    head, *lines = said.err.splitlines()
    assert (said.status, said.out) == (2, "")
    assert head.startswith("bass: ")
    assert head.endswith("6 problems:")
    for words in (
        "`--temprature`",
        "`--top-p high`",
        "`json: yes`",
        "`baas`",
        "Unknown parameter of verifier `Rejection` `x`",
        "`config` is not allowed in a file",
    ):
        assert sum(words in line for line in lines) == 1, said.err


def test_a_file_that_cannot_be_read(bass_command: Command, tmp_path: Path) -> None:
    (tmp_path / "no-text").write_bytes(b"\xff\xfe\x00")
    refused(
        bass_command("generate", "--config", "/nonexistent.yaml"),
        "`/nonexistent.yaml` cannot be read (No such file",
    )
    refused(
        bass_command("generate", "--config", str(tmp_path)),
        "cannot be read (it is a folder, not a regular file)",
    )
    refused(
        bass_command("generate", "--config", str(tmp_path / "no-text")), "cannot be read ('utf-8'"
    )
    refused(bass_command("generate", "--config"), "`--config` lacks its value")
    refused(bass_command("generate", "--config", "--json"), "`--config` lacks its value")


def refused(said: Said, words: str) -> None:
    assert (said.status, said.out) == (2, "")
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err
