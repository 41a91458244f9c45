"""Tier 0: which trims keep the joint output distribution of several rows, exactly.

No sampling: `bass.testing.enumeration` adds up all drafts of all rows. Each claim of
docs/correctness.md is a test here, and each biased variant one with its distance.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bass.interfaces import Verifier
from bass.records import Drafted
from bass.testing.enumeration import Problem, independent, trim_inputs, trimmed_law
from bass.testing.inputs import problem
from bass.trims import TRIMS, AdaEdl, Survival, Tetris, Threshold
from bass.trims.trims import product
from support.engines import BY_STEP

TOLERANCE = 1e-12  # float64 sums of up to some 10^4 terms
Trim = Callable[[Drafted], Tensor]
LIVE = "confidence"


def witness(second: tuple[float, float] = (1.0, 0.0)) -> Problem:
    """Two tokens, two slots: `second` is the draft's distribution after token 0, uniform after
    token 1.
    """
    even = np.array([0.5, 0.5])
    after = [(a,) for a in range(2)] + [(a, b) for a in range(2) for b in range(2)]
    target = {(): np.array([0.3, 0.7])} | dict.fromkeys(after, even)
    return Problem(2, 2, target, {(): np.array([0.6, 0.4]), (0,): np.array(second), (1,): even})


WITNESS = [witness(), witness()]
EVEN = np.array([0.5, 0.5])
AFTER = [path for n in range(1, 4) for path in itertools.product((0, 1), repeat=n)]
# three slots: the draft is sure of the second after token 0 alone
LONG = Problem(
    2,
    3,
    {(): np.array([0.3, 0.7])} | dict.fromkeys(AFTER, EVEN),
    dict.fromkeys(AFTER, EVEN) | {(): np.array([0.7, 0.3]), (0,): np.array([0.9, 0.1])},
)


def confidence(d: Drafted) -> Tensor:
    assert d.probs is not None
    return d.probs.amax(2)


def of_tokens(d: Drafted) -> Tensor:
    """The draft's probability of each drafted token."""
    assert d.probs is not None
    assert d.tokens is not None
    return d.probs.gather(2, d.tokens[..., None])[..., 0]


def live(d: Drafted) -> Tensor:
    return product(d, confidence(d))


def top(d: Drafted, scores: Tensor, budget: int, later_first: bool = False) -> Tensor:
    """The best slots by any scores, each row's up to its first gap; the earlier or the later slot
    first where scores are equal.
    """
    slots = torch.arange(scores.shape[1])
    scores = torch.where(slots < d.lengths[:, None], scores, -1.0)
    scores = scores.flip(1) if later_first else scores
    ordered = scores.T.flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(len(ordered), dtype=torch.bool)
    chosen[ordered[:budget]] = True
    chosen = chosen.unflatten(0, scores.T.shape).T
    chosen = chosen.flip(1) if later_first else chosen
    return torch.minimum(chosen.cumprod(1).sum(1), d.lengths)


def rates(d: Drafted, costs: list[float]) -> Tensor:
    """The expected tokens per second of each budget."""
    gains = live(d).flatten().sort(descending=True).values.cumsum(0)
    expected = len(d.lengths) + torch.nn.functional.pad(gains, (1, 0))
    return expected / torch.tensor(costs[: len(expected)])


def most_rate(costs: list[float]) -> Trim:
    """The budget of the highest rate of all."""
    return lambda d: top(d, live(d), int(rates(d, costs).argmax()))


def first_fall(costs: list[float]) -> Trim:
    """The budget at which one more slot, the best that is known, no longer raises the rate."""

    def trim(d: Drafted) -> Tensor:
        falls = rates(d, costs).diff() <= 0
        return top(d, live(d), int(falls.long().argmax()) if falls.any() else len(falls))

    return trim


def before(d: Drafted) -> Tensor:
    """The probability of the tokens before a slot, times the largest one at the slot."""
    earlier = torch.nn.functional.pad(of_tokens(d)[:, :-1], (1, 0), value=1.0).cumprod(1)
    return (earlier * confidence(d)).cummin(1).values


def if_sure(d: Drafted, asked: Tensor) -> Tensor:
    """All or nothing, by the confidence of the last slot of a row."""
    return torch.where(asked[:, -1] > 0.75, d.lengths, 0)


AFFINE = [1 + 0.15 * n for n in range(7)]  # seconds of a step that verifies n slots
RISING = [1.0, 1.2, 1.4, 1.62, 1.9, 2.5, 3.0]
STEPPED = [1.0, 1.35, 1.7, 1.85, 2.0, 2.5, 3.0]  # the third and fourth slot are cheap

EXACT: dict[str, Trim] = {
    "a row's own stopping time": Threshold(0.4, LIVE),
    "a row's own entropy, and a threshold of its past": AdaEdl(0.6),
    "a row's past": Threshold(0.4),
    "top M by the survival": Survival(1.5, LIVE),
    "top M by the survival, a slot for each row": Survival(1.0, LIVE),
    "top M by the survival, one slot": Survival(0.5, LIVE),
    "top M by the past": Survival(1.0),
    "a budget by the cost of a slot": Survival(9.0, LIVE, cost=0.5),
    "the same, of at most M slots": Survival(1.5, LIVE, cost=0.5),
    "the same by the past": Survival(9.0, cost=0.5),
    "the same by a measured cost": Survival(estimate=LIVE),
    "the same, of at most the places of the step": lambda d: Survival(9.0, LIVE, cost=0.2)(
        replace(d, places=torch.tensor(3))
    ),
    "top M by the least confidence so far": lambda d: top(d, confidence(d).cummin(1).values, 3),
    "the tokens before the slot": lambda d: top(d, before(d), 3),
    "a budget at the first fall": first_fall(RISING),
    "the best budget at costs without steps": most_rate(AFFINE),
    "a budget of stale scores": lambda d: top(d, live(d), 2 + int(d.accepted.sum()) % 2),
}
# the total variation of the joint distribution, with the two rows of `WITNESS`
BIASED: dict[str, tuple[Trim, float]] = {
    "top M by the raw confidence": (lambda d: top(d, confidence(d), 2), 0.0984),
    "the best budget at costs with steps": (most_rate(STEPPED), 0.0816),
    "the token of the slot": (Tetris(1.0), 0.0720),
    "the token of the slot, and its cost": (Tetris(9.0, cost=0.5), 0.1536),
    "the next slot's distribution": (lambda d: if_sure(d, confidence(d)), 0.1536),
    "the next slot of another row": (lambda d: if_sure(d, confidence(d).flip(0)), 0.0288),
    "later slots first": (lambda d: top(d, live(d), 1, later_first=True), 0.0480),
}


def distance(
    trim: Trim, verifier: Verifier, problems: list[Problem], seed: int = 0, ends: float = 0.0
) -> float:
    """The total variation between the joint output distribution of all rows and the target's."""
    expected = independent([one.target_law() for one in problems])
    return float(np.abs(trimmed_law(trim, verifier, problems, seed, ends) - expected).sum() / 2)


def drawn(seed: int, rows: int = 2, vocab: int = 3, fixed: bool = False) -> list[Problem]:
    random = np.random.default_rng(seed)
    lengths = [2] * (rows - 1) + [2 - seed % 2]
    return [problem(random, vocab, length, fixed, generic=seed % 3 > 0) for length in lengths]


@pytest.fixture(params=BY_STEP, scope="module")
def verifier(request: pytest.FixtureRequest) -> Verifier:
    return BY_STEP[request.param]


@pytest.mark.parametrize("claim", EXACT)
def test_a_slot_by_what_is_known_before_its_token_is_exact(claim: str, verifier: Verifier) -> None:
    trim = EXACT[claim]
    kept = {tuple(trim(drafted).tolist()) for *_, drafted in trim_inputs(WITNESS, 2)}
    assert len(kept) > 1 or claim.endswith(("past", "slot", "each row"))  # else it is no test
    assert distance(trim, verifier, WITNESS) < TOLERANCE
    assert distance(trim, verifier, drawn(len(claim))) < TOLERANCE
    if verifier == BY_STEP["rejection"]:
        assert distance(trim, verifier, drawn(len(claim), rows=3, vocab=2)) < TOLERANCE
    # drafts that end by a later distribution; pasts whose third slots were rejected
    for seed in (8, 11):
        assert distance(trim, verifier, [LONG, LONG], seed, ends=0.6) < TOLERANCE


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_a_length_that_a_stop_rule_decides_tells_of_tokens(name: str) -> None:
    def trim(d: Drafted) -> Tensor:
        return torch.where(d.lengths > 2, 0, d.lengths)

    assert distance(trim, BY_STEP[name], [LONG], ends=0.6) == pytest.approx(
        0.09
    )  # 0.7 * 0.7 + 0.3 instead of 0.7
    assert distance(trim, BY_STEP[name], [LONG]) < TOLERANCE


@pytest.mark.parametrize("claim", BIASED)
def test_a_slot_by_what_its_token_decides_is_biased(claim: str) -> None:
    trim, expected = BIASED[claim]
    for name in ("rejection", "block"):
        assert abs(distance(trim, BY_STEP[name], WITNESS) - expected) < 5e-5


@pytest.mark.parametrize("claim", BIASED)
def test_a_verifier_that_ignores_the_draft_makes_every_trim_exact(claim: str) -> None:
    """As does a drafter without chance, such as every one at temperature 0."""
    trim, _ = BIASED[claim]
    verifiers = [one for one in BY_STEP.values() if one.ignores_draft]
    assert verifiers
    for one in verifiers:
        assert distance(trim, one, WITNESS) < TOLERANCE


@pytest.mark.parametrize("claim", [name for name in BIASED if "the token" not in name])
def test_drafts_that_do_not_read_their_own_tokens_make_trims_by_distributions_exact(
    claim: str,
) -> None:
    """As those of Medusa and of blocks: all distributions are known before any token is drawn."""
    parallel = [witness((0.5, 0.5)), witness((0.5, 0.5))]
    assert distance(BIASED[claim][0], BY_STEP["rejection"], parallel) < TOLERANCE


def test_the_budget_at_the_first_fall_is_the_best_of_all_at_linear_costs() -> None:
    """So that it is found without the slots that come later. No cost makes two budgets equal."""
    for cost in (0.11, 0.31, 0.47, 0.68):
        best = most_rate([2 + cost * n for n in range(7)])
        for problems in (WITNESS, drawn(3), drawn(4), [LONG, LONG]):
            for *_, drafted in trim_inputs(problems, 3):
                found = Survival(9.0, LIVE, cost=cost)(drafted)
                assert found.tolist() == best(drafted).tolist()


def test_the_marginal_distributions_of_rows_hide_a_bias() -> None:
    """Each row is trimmed by the other's next distribution: each is exact, and they depend."""
    trim, expected = BIASED["the next slot of another row"]
    law = trimmed_law(trim, BY_STEP["rejection"], WITNESS, 0)
    target = WITNESS[0].target_law()
    for own in (law.sum((0, 1, 2)), law.sum((3, 4, 5))):
        np.testing.assert_allclose(own, target, rtol=0, atol=TOLERANCE)
    assert abs(np.abs(law - independent([target, target])).sum() / 2 - expected) < 5e-5


@pytest.mark.parametrize("name", TRIMS)
def test_every_trim_is_exact_for_drafts_without_chance(name: str, verifier: Verifier) -> None:
    for seed in range(3):
        assert distance(TRIMS[name](), verifier, drawn(seed, fixed=True), seed) < TOLERANCE
