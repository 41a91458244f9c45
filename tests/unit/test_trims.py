"""The formulas of the trims by hand, and what a run says of itself with them."""

from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.api.resolve import make
from bass.cli.generate import caveats
from bass.engine.step_times import StepTimes
from bass.records import Drafted
from bass.trims import AdaEdl, Survival, Tetris, Threshold

LENGTHS = torch.tensor([3, 2, 0, 3])
NONE = torch.zeros(4, 3)
PROBS = torch.tensor(
    [
        [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]],
        [[0.6, 0.4], [1.0, 0.0], [1.0, 0.0]],
        [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]],
        [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]],
    ]
)


def kept(trim: Any, **given: Any) -> list[int]:
    past = {"tried": NONE, "accepted": NONE} | given
    return trim(Drafted(LENGTHS, **past)).tolist()


def test_a_threshold_keeps_slots_up_to_the_first_whose_survival_is_below() -> None:
    """Without a past 0.7, 0.49, 0.343; by confidence 0.9, 0.72, 0.504; 0.6, 0.6; 0.5, 0.25."""
    assert kept(Threshold(0.5)) == [1, 1, 0, 1]
    assert kept(Threshold(0.34)) == [3, 2, 0, 3]
    assert kept(Threshold(0.6, "confidence"), probs=PROBS) == [2, 2, 0, 0]
    assert kept(Threshold(0.6, "confidence")) == [3, 2, 0, 3]  # a drafter without distributions
    tried, accepted = torch.full((4, 3), 8.0), torch.tensor([[8.0], [4.0], [0.0], [0.0]])
    assert kept(Threshold(0.5), tried=tried, accepted=accepted.expand(4, 3)) == [3, 1, 0, 0]


def test_survival_gives_its_budget_to_the_best_slots_of_all_rows() -> None:
    """Three rows have a draft. By confidence: 0.9, 0.72, 0.504; 0.6, 0.6; 0.5, 0.25, 0.25."""
    by = {"estimate": "confidence"}
    for tokens, expected in ((0.3, [1, 0]), (1.0, [2, 1]), (1.3, [2, 2]), (5 / 3, [3, 2])):
        assert kept(Survival(tokens, **by), probs=PROBS) == [*expected, 0, 0]
    assert kept(Survival(2.0, **by), probs=PROBS) == [3, 2, 0, 1]
    assert kept(Survival(9.0, **by), probs=PROBS) == [3, 2, 0, 3]
    assert kept(Survival(0.0)) == [0] * 4
    assert kept(Survival(1.0)) == [1, 1, 0, 1]  # equal slots: the earlier ones first


def test_a_slot_that_lowers_the_rate_is_not_kept() -> None:
    """The same slots. After n of them the next one must have c (3 + their sum) / (3 + c n): for
    c = 0.6 these are 0.6, 0.65, 0.66, for c = 0.4 0.4, 0.459, 0.486, 0.497, 0.506.
    """
    by: Any = {"estimate": "confidence"}
    for cost, expected in ((0.0, [3, 2, 0, 3]), (0.3, [3, 2, 0, 1]), (0.4, [2, 2, 0, 0])):
        assert kept(Survival(9.0, **by, cost=cost), probs=PROBS) == expected
    assert kept(Survival(9.0, **by, cost=0.6), probs=PROBS) == [2, 0, 0, 0]
    assert kept(Survival(1.0, **by, cost=0.4), probs=PROBS) == [2, 1, 0, 0]
    assert kept(Survival(9.0, **by, cost=1.0), probs=PROBS) == [0] * 4


def test_tetris_ranks_by_the_probabilities_of_the_drafted_tokens() -> None:
    tokens = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0]])
    assert kept(Tetris(1.0), probs=PROBS, tokens=tokens) == [1, 2, 0, 0]
    assert kept(Tetris(1.0), tokens=tokens) == [1, 1, 0, 1]


def test_adaedl_keeps_slots_up_to_the_first_whose_entropy_is_too_high() -> None:
    """With gamma 0.2 at 0.9 of two tokens 0.745, 0.8 0.684, 0.7 0.650, 0.6 0.633, 0.5 0.628."""
    assert kept(AdaEdl(0.5), probs=PROBS) == [3, 2, 0, 3]
    assert kept(AdaEdl(0.64), probs=PROBS) == [3, 0, 0, 0]
    assert kept(AdaEdl(0.7), probs=PROBS) == [1, 0, 0, 0]
    assert kept(AdaEdl(0.7)) == [3, 2, 0, 3]  # a drafter without distributions


def test_the_threshold_of_adaedl_moves_with_the_acceptance_of_the_row() -> None:
    """Of 12 tried tokens 12, 6 and none accepted: t = 0.6 + 0.2 (0.8 - 13.6 / 14, 7.6 / 14 and
    1.6 / 14) = 0.566, 0.651 and 0.737.
    """
    tried, accepted = torch.full((3, 3), 4.0), torch.tensor([[4.0], [2.0], [0.0]]).expand(3, 3)
    probs = PROBS[:1].expand(3, 3, 2)  # 0.745, 0.684, 0.650
    drafted = Drafted(torch.tensor([3, 3, 3]), tried, accepted, probs)
    assert AdaEdl(0.6, target=0.8, gain=0.2)(drafted).tolist() == [3, 2, 1]
    assert AdaEdl(0.6, target=0.8, gain=0.0)(drafted).tolist() == [3, 3, 3]


@pytest.mark.usefixtures("unchecked")  # as a user's Python has it
def test_settings_that_would_keep_nothing_or_everything_are_errors() -> None:
    with pytest.raises(bass.BassError, match=r"above `prior=0\.7`, so that no drafted token"):
        Threshold(0.8)
    with pytest.raises(bass.BassError, match=r"Unknown `Survival\.estimate` `draft`"):
        Survival(estimate="draft")  # pyright: ignore[reportArgumentType]


def test_a_budget_by_cost_is_not_limited_by_the_tokens_of_a_row() -> None:
    limits = [Survival(), Survival(cost=0.1), Survival(1.5, cost=0.1), Survival(2.0)]
    assert [trim.most(8, 4) for trim in limits] == [32, 32, 12, 16]


def test_a_measured_cost_takes_the_place_of_one_that_is_not_given() -> None:
    by: Any = {"estimate": "confidence"}
    for cost in (0.0, 0.3, 0.4, 0.6):
        given = {"probs": PROBS, "cost": torch.tensor(cost)}
        assert kept(Survival(**by), **given) == kept(Survival(**by, cost=cost), probs=PROBS)
        assert kept(Survival(**by, cost=0.4), **given) == [2, 2, 0, 0]
        assert kept(Survival(2.0, **by), **given) == [3, 2, 0, 1]
    reads = [Survival(), Tetris(), Survival(cost=0.1), Survival(2.0), Survival(2.0, cost=0.1)]
    assert [trim.reads_cost for trim in reads] == [True, True, False, False, False]


def test_auto_stops_drafts_of_which_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take their time, though none of their tokens is left."""
    monkeypatch.setattr(StepTimes, "measured", lambda *_: [1 + 0.5 * k for k in range(17)])
    llm = bass.load(policy="auto", trim=Survival(cost=50.0), device="cpu")
    steps = llm.generate("def area(r):", max_new_tokens=96, ignore_eos=True).trace
    assert 0 < sum(step.k > 0 for step in steps) < len(steps) / 4
    assert not sum(step.drafted.sum() for step in steps)


def test_a_budget_is_out_of_range_below_nothing() -> None:
    with pytest.raises(bass.BassError, match=r"tokens_per_row=-1.0. is out of range"):
        make("trim", {"class_path": "survival", "init_args": {"tokens_per_row": -1.0}})


@pytest.mark.parametrize(
    ("options", "lossless", "invariant"),
    [
        ({"trim": "survival"}, True, False),
        ({"trim": Tetris(1.5)}, False, False),
        ({"trim": "tetris", "verifier": "coupled"}, True, True),
        ({"trim": "tetris", "temperature": 0.0}, True, True),
        ({"trim": "tetris", "temperature": [0.0, 0.5]}, False, False),
        ({"trim": "tetris", "num_speculative_tokens": 0}, True, True),
        ({"verifier": "typical", "temperature": 0.0}, False, True),
        ({"trim": "bass.trims:Threshold", "verifier": "typical"}, False, True),
    ],
    ids=str,
)
def test_results_say_what_a_trim_keeps_exact(
    options: dict[str, Any], lossless: bool, invariant: bool
) -> None:
    loading = {"num_speculative_tokens": 4, "device": "cpu"} | options
    temperature = loading.pop("temperature", 0.2)
    llm = bass.load(**loading)
    call: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 8}
    result = llm.generate(["def area(r):", "class A:"], **call)
    assert (result.stats.lossless, result.stats.batch_invariant) == (lossless, invariant)
    text = " ".join(caveats(llm, [], np.max(temperature)))
    assert ("NOT LOSSLESS" in text, "BATCH-WIDE" in text) == (not lossless, not invariant)


def test_the_command_line_takes_a_trim_with_its_parameters(bass_command: Any) -> None:
    words = ["a", "--trim", "survival", "--trim.tokens_per_row", "0", "--policy", "fixed"]
    said = bass_command("generate", *words, "--max-new-tokens", "6", "--ignore-eos", "--json")
    *_, stats = said.lines
    assert [stats["drafted"], stats["emitted"], stats["trimmed_share"]] == [0, 6, 1.0]
    for trim in ("survival", "none"):
        said = bass_command("generate", "a", "--trim", trim, "--max-new-tokens", "6")
        assert ("trimmed, %" in said.out + said.err) == (trim != "none")
