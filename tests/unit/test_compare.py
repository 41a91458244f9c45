"""`--compare-plain`: both sides in turn, the median ratio, and what is said of one that is not to
be believed.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bass.api.results import Stats
from bass.cli.compare import REPEATS, Comparison
from unit.checkpoints import Pair, Said

TOKENS = 700
SPEEDS = st.lists(st.floats(50, 5000), min_size=REPEATS, max_size=REPEATS)


def repeats(speeds: Sequence[float], steps: int) -> list[Stats]:
    """Repeats of one request at these speeds in tokens per second."""
    figures: dict[str, Any] = dict.fromkeys(Stats.__dataclass_fields__, 0)
    figures |= {
        "acceptance_by_position": [],
        "reached_by_position": [],
        "lossless": True,
        "batch_invariant": True,
    }
    return [
        Stats(**figures | {"tokens": TOKENS, "steps": steps, "seconds": TOKENS / speed})
        for speed in speeds
    ]


def comparison(
    speculative: Sequence[float], plain: Sequence[float], per_step: float = 3.5
) -> Comparison:
    return Comparison(repeats(speculative, round(350 / per_step)), repeats(plain, 350))


@given(SPEEDS, SPEEDS)
def test_the_speedup_is_the_median_of_pairs_and_doubted_where_it_is_noise(
    own: list[float], plain: list[float]
) -> None:
    compared = comparison(own, plain)
    ratios = [a / b for a, b in zip(own, plain, strict=True)]
    assert compared.ratios(lambda stats: stats.tokens_per_second) == pytest.approx(ratios)
    assert compared.speedup == pytest.approx(sorted(ratios)[1])
    effect = abs(sorted(ratios)[1] - 1)
    for speeds in (own, plain):
        spread = (max(speeds) - min(speeds)) / sorted(speeds)[1]
        assume(abs(spread - effect) > 1e-9)  # which rounding decides
        assert spread < effect or any("which is faster" in doubt for doubt in compared.doubts)


@given(SPEEDS, SPEEDS)
def test_a_ratio_above_what_the_steps_allow_is_told_however_far_repeats_are_apart(
    own: list[float], plain: list[float]
) -> None:
    compared = comparison(own, plain)
    told = any(f"{compared.speedup:.2f}x is impossible" in doubt for doubt in compared.doubts)
    assert told == (float(f"{compared.speedup:.2f}") > 3.5)


@pytest.mark.parametrize(
    ("own", "plain", "words"),
    [
        (
            (830, 835, 840),
            (200, 201, 202),
            ["4.15x is impossible: a step emitted 3.50 times as many tokens"],
        ),
        (
            (196, 45, 120),
            (100, 100, 100),
            [
                "repeats of speculative decoding differ by 126% among themselves",
                "sides differ by 20%",
            ],
        ),
        (
            (110, 112, 111),
            (100, 80, 100),
            [
                "repeats of autoregressive decoding differ by 20% among themselves",
                "sides differ by 11%",
            ],
        ),
        (
            (830, 840, 150),
            (200, 200, 100),
            ["4.15x is impossible: a step emitted 3.50 times as many tokens"],
        ),
        ((140, 141, 142), (100, 101, 102), []),
        ((340, 350, 352), (100, 100, 101), []),  # at the limit, within the spread
    ],
)
def test_a_ratio_that_cannot_be_or_is_noise_is_told(
    own: Sequence[float], plain: Sequence[float], words: list[str]
) -> None:
    doubts = comparison(own, plain).doubts
    if words:
        assert [all(word in doubt for word in words) for doubt in doubts] == [True]
    else:
        assert not [doubt for doubt in doubts if "is impossible" in doubt]


@pytest.mark.parametrize(
    ("steps", "speeds", "impossible"),
    [
        ((350, 100, 100), (100, 250, 260), False),  # the first repeat alone drafted nothing
        ((100, 350, 350), (300, 150, 140), True),  # the first repeat alone drafted
        ((100, 350, 350), (300, 99, 98), False),
    ],
)
def test_each_ratio_is_judged_by_the_steps_of_its_own_repeat(
    steps: Sequence[int], speeds: Sequence[float], impossible: bool
) -> None:
    own = [repeats([speed], count)[0] for speed, count in zip(speeds, steps, strict=True)]
    doubts = Comparison(own, repeats([100] * 3, 350)).doubts
    assert any("is impossible" in doubt for doubt in doubts) is impossible
    assert any("emitted 2.00 to 7.00 tokens a step" in doubt for doubt in doubts)


def test_both_sides_run_in_turn_after_a_warm_up(
    bass_command: Callable[..., Said],
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Callable[[int], list[str]],
) -> None:
    order = interrupted(1000)
    *_, stats = bass_command("generate", *pair.options, "def f(", "--json", "--compare-plain").lines
    assert order == ["speculative", "plain"] * REPEATS
    assert (len(stats["speedups"]), stats["plain"]["drafted"]) == (REPEATS, 0)


@pytest.mark.parametrize(("after", "pairs"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_pairs_that_ended_before_ctrl_c_are_compared(
    bass_command: Callable[..., Said],
    pair: Pair,
    interrupted: Callable[[int], list[str]],
    after: int,
    pairs: int,
) -> None:
    interrupted(after)
    said = bass_command("generate", *pair.options, "def f(", "--json", "--compare-plain")
    completion, stats = map(json.loads, said.out.splitlines())
    assert (said.status, len(stats.get("speedups", []))) == (130, pairs)
    assert completion["finish_reason"] == "length"


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Ctrl-C after so many measured runs; the sides in the order in which they ran."""
    from bass.cli import generate

    finish, order = generate.finish, list[str]()

    def set_up(after: int) -> list[str]:
        def counted(generation: Any, *follow: Any) -> Any:
            if len(order) == after:
                return generation.result(interrupted=True), True
            found = finish(generation, *follow)
            order.append("speculative" if found[0].stats.drafted else "plain")
            return found

        monkeypatch.setattr(generate, "finish", counted)
        return order

    return set_up
