"""From names, mappings and classes to objects."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

import bass
from bass.api.options import KINDS
from bass.api.resolve import REQUIRED, make, parameters
from bass.drafters import Block, Eagle
from bass.policies import BatchAdaptive, Fixed, Lagged

HERE = __name__


class Plain(Fixed):
    """No dataclass of its own making: its parameters are those of its signature."""

    def __init__(
        self, size: int, factor: float = 0.5, *rest: int, mode: str = "a", **more: Any
    ) -> None:
        super().__init__(size)


class Failing(Fixed):
    def __init__(self) -> None:
        raise RuntimeError("no luck")


def defaults(cls: type) -> dict[str, Any]:
    return {name: one.default for name, one in parameters(cls).items()}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cache"])
def test_a_registered_name_makes_its_class_unless_a_parameter_has_to_be_given(kind: str) -> None:
    for name, cls in KINDS[kind].registry.items():
        if missing := [p for p, one in parameters(cls).items() if one.default is REQUIRED]:
            with pytest.raises(bass.BassError, match=missing[0]):
                make(kind, name)
        else:
            assert type(make(kind, name)) is cls
            assert type(make(kind, {"class_path": name})) is cls


def test_heads_have_the_names_of_vllm_too() -> None:
    found = {
        name: type(make("drafter", name)) for name in ("eagle3", "EAGLE-3", "dflash", "dspark")
    }
    assert found == {"eagle3": Eagle, "EAGLE-3": Eagle, "dflash": Block, "dspark": Block}
    with pytest.raises(bass.BassError, match="Unknown verifier `dflash`"):
        make("verifier", "dflash")


def test_the_ways_to_say_one_strategy() -> None:
    ways = [
        "fixed",
        Fixed,
        "bass.policies:Fixed",
        "bass.policies.fixed:Fixed",
        {"class_path": "fixed"},
        {"class_path": "bass.policies:Fixed", "init_args": {"k": 4}},
        {"class_path": Fixed, "init_args": {}},
        Fixed(4),
    ]
    assert [make("policy", way) for way in ways] == [Fixed(4)] * len(ways)
    assert (
        make("policy", {"class_path": Fixed, "init_args": {"k": "2"}})
        == make("policy", {"class_path": "fixed", "init_args": {"k": 2}})
        == Fixed(2)
    )


def test_strategies_within_strategies_are_said_in_the_same_ways() -> None:
    inner = {"class_path": "lagged", "init_args": {"policy": "fixed", "steps": 2}}
    assert make(
        "policy", {"class_path": "lagged", "init_args": {"policy": inner, "steps": 3}}
    ) == Lagged(Lagged(Fixed(4), 2), 3)
    said = {"class_path": "lagged", "init_args": {"policy": Fixed(1)}}
    assert make("policy", said) == Lagged(Fixed(1))
    assert make("policy", "lagged") == Lagged(BatchAdaptive())


def test_parameters_come_from_fields_and_signatures() -> None:
    assert defaults(Fixed) == {"k": 4}
    assert defaults(Lagged) == {"policy": BatchAdaptive(), "steps": 1}
    assert defaults(Plain) == {"size": REQUIRED, "factor": 0.5, "mode": "a"}

    @dataclass
    class Lists:
        given: list[int]
        made: list[int] = field(default_factory=lambda: [1])
        inside: int = field(default=3, init=False)

    assert defaults(Lists) == {"given": REQUIRED, "made": [1]}


WRONG: dict[str, tuple[str, Any, str]] = {
    "a name that nearly is one": ("policy", "baas", "Unknown policy `baas`. Did you mean `bass`"),
    "a name in other letters": ("policy", "EMA_Tiers", "Did you mean `ema-tiers`?"),
    "a name that its module nearly has": (
        "policy",
        f"{HERE}:Failin",
        "has no attribute 'Failin'. Did you mean `Failing`",
    ),
    "an object of another kind": ("stop_rule", Fixed(3), "`stop_rule=Fixed(k=3)` is no stop rule"),
    "an unknown parameter": (
        "policy",
        {"class_path": "fixed", "init_args": {"K": 3}},
        "Unknown parameter of policy `fixed` `K`",
    ),
    "a class that fails": (
        "policy",
        f"{HERE}:Failing",
        "Cannot make policy `Failing`: no luck. It takes ()",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_stands_for_no_strategy_is_refused_in_a_sentence(case: str) -> None:
    kind, spec, words = WRONG[case]
    with pytest.raises(bass.BassError, match=re.escape(words)):
        make(kind, spec)
