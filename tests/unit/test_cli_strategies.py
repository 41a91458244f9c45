"""Strategies and their parameters as options, to any depth, in every form."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bass.api.resolve import make
from bass.cli.choices import choose, chosen, over, take_strategies
from bass.errors import OptionError
from bass.interfaces import Drafter, DrafterContext, DraftLengthPolicy, DraftMethod, StopRule
from bass.policies import BatchAdaptive, Clamped, Fixed, Lagged
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
HERE = __name__


@dataclass(frozen=True)
class Weights:
    first: float = 0.5
    second: float = 0.25


@dataclass(frozen=True)
class Weighted(Fixed):
    """A parameter that is a dataclass, and one that may be any number of numbers."""

    weights: Weights = Weights()
    sizes: tuple[int, ...] = (1, 2)
    mode: str = "a"


class Untyped(Fixed):
    def __init__(self, k=3) -> None:  # type: ignore[no-untyped-def]
        super().__init__(k)


@dataclass(frozen=True)
class Around(Clamped):  # type: ignore[misc]
    """Its default is not what its class makes by itself."""

    policy: DraftLengthPolicy[Any] = field(default_factory=lambda: Lagged(Fixed(3), 2))


@dataclass(frozen=True)
class Maybe(DraftMethod):
    """Parameters that may be nothing."""

    rule: StopRule | None = None
    methods: tuple[DraftMethod, ...] = ()

    def build(self, context: DrafterContext) -> Drafter:
        return self.methods[0].build(context)


def made(kind: str, *argv: str) -> Any:
    """The strategy that the words of a command line describe."""
    said, rest = take_strategies(argv)
    assert rest == []
    return make(kind, chosen(kind, None, said))


def ensemble(*methods: Any) -> Any:
    return make("drafter", {"class_path": "ensemble", "init_args": {"methods": list(methods)}})


def as_json(**spec: Any) -> str:
    return json.dumps(spec)


FIXED_3 = {"class_path": "fixed", "init_args": {"k": 3}}
POLICIES = {
    "a name": (["--policy", "fixed", "--policy.k", "3"], Fixed(3)),
    "the parameter first": (["--policy.k=3", "--policy=fixed"], Fixed(3)),
    "an import path": (["--policy", "bass.policies:Fixed", "--policy.k", "3"], Fixed(3)),
    "JSON": (["--policy", as_json(class_path="bass.policies.Fixed", init_args={"k": 3})], Fixed(3)),
    "JSON without arguments": (["--policy", as_json(class_path="fixed")], Fixed(4)),
    "an option over JSON": (["--policy.k", "5", "--policy", as_json(**FIXED_3)], Fixed(5)),
    "the last of two": (
        ["--policy", "bass", "--policy", "fixed", "--policy.k", "1", "--policy.k", "2"],
        Fixed(2),
    ),
    "a wrapper": (["--policy", "lagged"], Lagged(BatchAdaptive())),
    "a wrapper with a name": (
        [
            "--policy",
            "lagged",
            "--policy.policy",
            "fixed",
            "--policy.policy.k",
            "3",
            "--policy.steps",
            "2",
        ],
        Lagged(Fixed(3), 2),
    ),
    "a wrapper's default, with a parameter": (
        ["--policy", "lagged", "--policy.policy.start", "3"],
        Lagged(BatchAdaptive(start=3)),
    ),
    "a wrapper of an import path": (
        ["--policy", "lagged", "--policy.policy", "bass.policies:Fixed"],
        Lagged(Fixed(4)),
    ),
    "JSON in a wrapper": (
        ["--policy", "lagged", "--policy.policy", as_json(**FIXED_3)],
        Lagged(Fixed(3)),
    ),
    "YAML": (["--policy", "{class_path: fixed, init_args: {k: 3}}"], Fixed(3)),
    "YAML in YAML": (
        [
            "--policy",
            (
                "{class_path: lagged, init_args: {policy: {class_path: fixed, init_args: {k: 3}}, "
                "steps: 2}}"
            ),
        ],
        Lagged(Fixed(3), 2),
    ),
    "JSON in JSON": (
        ["--policy", as_json(class_path="lagged", init_args={"policy": FIXED_3, "steps": 2})],
        Lagged(Fixed(3), 2),
    ),
    "an option over JSON in JSON": (
        [
            "--policy",
            as_json(class_path="lagged", init_args={"policy": FIXED_3, "steps": 2}),
            "--policy.policy.k",
            "5",
        ],
        Lagged(Fixed(5), 2),
    ),
    "a name over JSON in JSON": (
        [
            "--policy",
            as_json(class_path="lagged", init_args={"policy": FIXED_3, "steps": 2}),
            "--policy.policy",
            "fixed",
        ],
        Lagged(Fixed(4), 2),
    ),
    "three deep": (
        [
            "--policy=lagged",
            "--policy.policy=clamped",
            "--policy.policy.hi=5",
            "--policy.policy.policy=fixed",
            "--policy.policy.policy.k=6",
        ],
        Lagged(Clamped(Fixed(6), 0, 5)),
    ),
    "a default that is no class's own": (
        ["--policy", f"{HERE}:Around", "--policy.hi", "2"],
        Around(hi=2),
    ),
    "a parameter of such a default": (
        ["--policy", f"{HERE}:Around", "--policy.policy.steps", "1"],
        Around(Lagged(Fixed(3), 1)),
    ),
    "a parameter deep in it": (
        ["--policy", f"{HERE}:Around", "--policy.policy.policy.k", "1"],
        Around(Lagged(Fixed(1), 2)),
    ),
    "a part of a dataclass": (
        ["--policy", f"{HERE}:Weighted", "--policy.weights.second", "1"],
        Weighted(weights=Weights(0.5, 1.0)),
    ),
    "a dataclass as JSON": (
        ["--policy", f"{HERE}:Weighted", "--policy.weights", '{"first": 2}'],
        Weighted(weights=Weights(2.0)),
    ),
    "a list and a text that looks like a number": (
        ["--policy", f"{HERE}:Weighted", "--policy.sizes", "[3, 4, 5]", "--policy.mode", "7"],
        Weighted(sizes=(3, 4, 5), mode="7"),
    ),
}


@pytest.mark.parametrize("case", POLICIES)
def test_policies_with_their_parameters(case: str) -> None:
    argv, expected = POLICIES[case]
    assert made("policy", *argv) == expected


DRAFTERS = {
    "names": (["--drafter.methods", '["ngram", "model"]'], ensemble("ngram", "model")),
    "names in YAML": (["--drafter.methods", "[ngram, model]"], ensemble("ngram", "model")),
    "a name and a mapping in YAML": (
        ["--drafter.methods", "[model, {class_path: ngram, init_args: {longest: 5}}]"],
        ensemble("model", {"class_path": "ngram", "init_args": {"longest": 5}}),
    ),
    "one name": (["--drafter.methods", "ngram"], ensemble("ngram")),
    "its default": ([], ensemble("ngram", "model")),
    "a parameter of its default": (
        ["--drafter.methods.0.longest", "4"],
        ensemble({"class_path": "ngram", "init_args": {"longest": 4}}, "model"),
    ),
    "a name and JSON": (
        [
            "--drafter.methods",
            '["model", {"class_path": "ngram", "init_args": {"longest": 5}}]',
            "--drafter.methods.1.shortest",
            "2",
        ],
        ensemble("model", {"class_path": "ngram", "init_args": {"longest": 5, "shortest": 2}}),
    ),
}


@pytest.mark.parametrize("case", DRAFTERS)
def test_a_drafter_of_several(case: str) -> None:
    argv, expected = DRAFTERS[case]
    assert made("drafter", "--drafter", "ensemble", *argv) == expected


def test_a_parameter_that_may_be_nothing() -> None:
    assert made("drafter", "--drafter", f"{HERE}:Maybe") == Maybe()
    assert made(
        "drafter",
        "--drafter",
        f"{HERE}:Maybe",
        "--drafter.rule",
        "confidence",
        "--drafter.rule.threshold",
        "0.3",
    ) == Maybe(make("stop_rule", {"class_path": "confidence", "init_args": {"threshold": 0.3}}))


def test_what_is_said_of_an_object_changes_that_alone() -> None:
    assert make("policy", choose("policy", "policy", Fixed(7), {})) == Fixed(7)
    assert make(
        "policy", choose("policy", "policy", Lagged(Fixed(7), 3), {"steps": "2"})
    ) == Lagged(Fixed(7), 2)


def test_other_words_are_left_alone() -> None:
    words = [
        "a prompt",
        "--cache",
        "split",
        "--cache.x=1",
        "--temperature",
        "1",
        "--",
        "--policy",
        "x",
    ]
    assert take_strategies(["--verifier", "block", *words]) == ({"verifier": "block"}, words)


def test_what_is_said_later_of_a_strategy_replaces_it_with_its_parameters() -> None:
    said = {
        "policy": "lagged",
        "policy.policy": "fixed",
        "policy.policy.k": 3,
        "policy.steps": 2,
        "policyholder": 1,
    }
    assert over(said, {"policy": "bass"}) == {"policy": "bass", "policyholder": 1}
    assert over(said, {"policy.policy": "bass"}) == {
        "policy": "lagged",
        "policy.policy": "bass",
        "policy.steps": 2,
        "policyholder": 1,
    }
    assert over(said, {"policy.policy.k": 4}) == said | {"policy.policy.k": 4}


WRONG: dict[str, tuple[list[str], str]] = {
    "unknown name inside": (
        ["--policy", "lagged", "--policy.policy", "fixd"],
        "Unknown policy `fixd`. Did you mean `fixed`",
    ),
    "unknown parameter inside": (
        ["--policy=lagged", "--policy.policy=fixed", "--policy.policy.q=3"],
        "Unknown parameter of policy `Fixed` `q`. Known: k.",
    ),
    "a part of a number": (
        ["--policy=fixed", "--policy.k.x=3"],
        "Unknown option `--policy.k.x`: `--policy.k` has no parameters",
    ),
    "a part of what may be anything": (
        ["--policy", f"{HERE}:Untyped", "--policy.k.x=3"],
        "Unknown option `--policy.k.x`",
    ),
    "unknown parameter in JSON": (
        [
            "--policy",
            as_json(
                class_path="lagged",
                init_args={"policy": {"class_path": "fixed", "init_args": {"kk": 3}}},
            ),
        ],
        "Unknown parameter of policy `Fixed` `kk`. Did you mean `k`",
    ),
    "wrong kind inside": (
        ["--policy=lagged", "--policy.policy=fixed", "--policy.policy.k=x"],
        "`policy.policy.k='x'` is of the wrong type: give an integer",
    ),
    "wrong kind in JSON": (
        ["--policy", as_json(class_path="fixed", init_args={"k": [1]})],
        "`policy.k=[1]` is of the wrong type: give an integer",
    ),
    "out of range inside": (
        ["--policy=lagged", "--policy.policy=fixed", "--policy.policy.k=-1"],
        "Fixed(k=-1)",
    ),
    "a strategy in a plain one": (
        ["--policy=fixed", "--policy.policy=fixed"],
        "Unknown parameter of policy `Fixed` `policy`",
    ),
    "several where one is wanted": (
        ["--policy=lagged", '--policy.policy=["fixed"]'],
        "is no policy",
    ),
    "a list that does not end": (
        ["--drafter=ensemble", "--drafter.methods=[ngram"],
        "`--drafter.methods [ngram` is not of the form",
    ),
    "a date that is none": (
        ["--drafter=ensemble", "--drafter.methods=[2020-13-41]"],
        "is not of the form",
    ),
    "a list of nothing": (["--drafter=ensemble", "--drafter.methods=[null]"], "is no drafter"),
    "a key that is no text": (
        ["--policy", "{class_path: fixed, init_args: {1: 2}}"],
        "has the wrong form",
    ),
    "no JSON inside": (
        ["--policy=lagged", "--policy.policy={k: 3"],
        "`--policy.policy {k: 3` is not of the form",
    ),
    "another form inside": (
        ["--policy=lagged", '--policy.policy={"k": 3}'],
        "has the wrong form: give `class_path`",
    ),
    "lacks its value": (
        ["--policy=lagged", "--policy.policy"],
        "`--policy.policy` lacks its value",
    ),
    "followed by an option": (["--policy.k", "--policy", "fixed"], "`--policy.k` lacks its value"),
    "beyond the list": (
        ["--drafter=ensemble", "--drafter.methods.2.longest=3"],
        "`--drafter.methods.2.longest` is out of range: `--drafter.methods` names 2",
    ),
    "no number in a list": (
        ["--drafter=ensemble", "--drafter.methods.longest=3"],
        "`--drafter.methods.longest` is out of range: `--drafter.methods` names 2",
    ),
    "wrong kind in a list": (
        ["--drafter=ensemble", "--drafter.methods.0.longest=x"],
        "`drafter.methods.0.longest='x'` is of the wrong type",
    ),
    "unknown name in a list": (
        ["--drafter=ensemble", '--drafter.methods=["ngrm"]'],
        "Unknown drafter `ngrm`. Did you mean `ngram`",
    ),
    "parameter of no stop rule": (
        ["--stop_rule.threshold=0.3"],
        "`--stop-rule.threshold` is a parameter without a strategy: name one with `--stop-rule`",
    ),
    "parameter of attention=auto": (
        ["--attention.x=0.3"],
        "`--attention.x` is a parameter without a strategy",
    ),
    "parameter of nothing inside": (
        ["--drafter", f"{HERE}:Maybe", "--drafter.rule.threshold=1"],
        "name one with `--drafter.rule`",
    ),
    "unknown stop rule": (
        ["--stop_rule", "confidnce"],
        "Unknown stop rule `confidnce`. Did you mean `confidence`",
    ),
    "parameter of a cache": (["--cache.x", "3"], "Unknown option `--cache.x`"),
    "parameter that has to be given": (["--drafter", "replay"], "scripts"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(
    bass_command: Command, pair: Pair, case: str
) -> None:
    argv, words = WRONG[case]
    said = bass_command("generate", *pair.options, "def f(", *argv)
    assert (said.status, said.out) == (2, "")
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err
    assert words in said.err


def test_a_class_that_nothing_can_be_asked_of_takes_no_parameter() -> None:
    with pytest.raises(OptionError, match="Unknown parameter of verifier `Rejection` `x`"):
        made("verifier", "--verifier", "rejection", "--verifier.x=1")
