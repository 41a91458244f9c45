"""The simulator against closed forms and the published table, and the regret of `auto`."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bass.errors import OptionError
from bass.host_records import Feedback
from bass.policies import Auto, BatchAdaptive, Fixed, Goodput, Oracle
from bass.policies.simulate import Acceptance, Constant, CostModel, simulate
from support.matrix import matrix

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from acceptances import Bursty, Drifting, PerPosition, RowRates

ACCEPTANCES: list[Acceptance] = [Constant(0.6), PerPosition(), RowRates(), Drifting(), Bursty()]


@pytest.mark.parametrize(
    ("batch", "length", "accepted"), [(1, 4.6, 2.39), (8, 11.4, 3.64), (32, 17.1, 3.90)]
)
def test_algorithm_1_drafts_and_accepts_as_published(
    batch: int, length: float, accepted: float
) -> None:
    """Acceptance 0.8, within 3 %: drafts grow with the batch while what is accepted saturates at a
    / (1 - a) = 4.
    """
    run = simulate(BatchAdaptive(), Constant(0.8), batch, steps=30000 // min(batch, 8))
    assert run.mean_length == pytest.approx(length, rel=0.03)
    assert run.tau - 1 == pytest.approx(accepted, rel=0.03)


@pytest.mark.parametrize("k", [0, 1, 4, 12])
def test_a_fixed_length_gains_what_the_closed_form_says(k: int) -> None:
    """tau = (1 - a^(k+1)) / (1 - a);

    160,000 draws of standard deviation below 4.5: 5 deviations are 0.06.
    """
    run = simulate(Fixed(k), Constant(0.8), 16, CostModel.from_ratio(0.1), steps=10000)
    assert run.tau == pytest.approx((1 - 0.8 ** (k + 1)) / 0.2, abs=0.06)
    assert run.ms_per_token == pytest.approx((1 + 0.1 * k) / run.tau)
    assert run.ms_per_token == pytest.approx(run.fixed()[k])
    assert run.regret() >= 0


def test_acceptance_per_position_and_per_row_is_what_was_asked() -> None:
    """100,000 draws: 5 standard deviations of a share are below 0.008."""
    would = PerPosition((0.9, 0.5, 0.2)).draw(np.random.default_rng(0), 25000, 4)
    assert (would >= 1).mean() == pytest.approx(0.9, abs=0.008)
    assert (would >= 2).mean() == pytest.approx(0.45, abs=0.008)
    assert (would >= 4).mean() == pytest.approx(0.018, abs=0.008)
    rows = (RowRates((0.2, 0.7)).draw(np.random.default_rng(0), 50000, 4) >= 1).mean(axis=0)
    assert rows == pytest.approx([0.2, 0.7, 0.2, 0.7], abs=0.011)


def test_the_cost_model_is_near_what_was_measured() -> None:
    """Milliseconds of target and drafts of seven tokens at batch 1 and 8; autoregressive decoding
    at batch 1 to 16 within 4 %.
    """
    cost = CostModel()
    assert cost.target(1, 7) == pytest.approx(5.42, rel=0.01)
    assert cost.target(8, 7) == pytest.approx(6.09, rel=0.01)
    assert 7 * cost.draft(1) == pytest.approx(2.38, rel=0.01)
    assert 7 * cost.draft(8) == pytest.approx(2.59, rel=0.01)
    for batch, plain in ((1, 5.24), (2, 5.29), (4, 5.37), (8, 5.68), (16, 6.18)):
        assert cost.step(batch, 0) == pytest.approx(plain, rel=0.04)
    steps = cost.step(64, np.arange(17))
    assert (np.diff(steps) > 0).all()
    assert np.diff(steps)[-1] > 1.5 * np.diff(steps)[0], "many tokens are bound by arithmetic"
    with pytest.raises(OptionError):
        CostModel(weights=0)


def test_the_best_fixed_length_falls_with_the_batch() -> None:
    best = [
        int(simulate(Fixed(0), Constant(0.8), batch, steps=2000).fixed().argmin())
        for batch in (1, 16, 64)
    ]
    assert best[0] >= best[1] > best[2]


@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_a_simulation_is_a_function_of_its_seed(acceptance: Acceptance) -> None:
    first, again, other = (
        simulate(Auto(), acceptance, 3, steps=80, seed=seed) for seed in (1, 1, 2)
    )
    assert (first.lengths == again.lengths).all()
    assert (first.would != other.would).any()
    assert first.milliseconds.tolist() == again.milliseconds.tolist()


@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_an_oracle_wastes_no_token_and_accepts_all_that_can_be(acceptance: Acceptance) -> None:
    would = simulate(Fixed(0), acceptance, 4, steps=300).would
    run = simulate(Oracle(would, max_length=32), acceptance, 4, steps=300)
    assert (run.lengths == would).all()
    assert (run.accepted == would).all()
    assert simulate(Fixed(32), acceptance, 4, steps=300).tau == run.tau


def regrets(
    policy: Auto | Goodput, acceptance: Acceptance, batch: int, cost: CostModel, seeds: int = 3
) -> np.ndarray:
    """Of steps 200 to 1000, against the best fixed length 0..16 on the same draws; step times have
    an error of 5 %.
    """
    return np.array(
        [
            simulate(policy, acceptance, batch, cost, noise=0.05, seed=seed).since(200).regret()
            for seed in range(seeds)
        ]
    )


@matrix(strength=1, batch=[1, 8, 64], a=[0.3, 0.6, 0.8, 0.95])
def test_auto_lengths_are_within_two_percent_of_the_best_fixed_length(a: float, batch: int) -> None:
    """On the measured costs, which length 0..16 is best being known in hindsight only; in the mean
    of three seeds.
    """
    assert regrets(Auto(), Constant(a), batch, CostModel()).mean() < 0.02


@matrix(strength=1, batch=[1, 16], ac=[(0.3, 0.6), (0.5, 0.6), (0.3, 1.0), (0.8, 1.0)])
def test_auto_lengths_are_no_slower_than_plain_decoding_where_drafting_does_not_pay(
    batch: int, ac: tuple[float, float]
) -> None:
    """Autoregressive decoding is the best fixed length here: what is lost to it is the budget of
    exploration, and noise.
    """
    a, c = ac
    found = regrets(Auto(), Constant(a), batch, CostModel.from_ratio(c))
    assert found.mean() < 0.015
    assert found.max() < 0.025


@pytest.mark.parametrize("acceptance", [PerPosition(), RowRates()], ids=repr)
def test_auto_lengths_stay_near_the_best_where_acceptance_differs(acceptance: Acceptance) -> None:
    """By the mean time that a row takes for a token, and by that of the slowest row, with which a
    call ends.
    """

    def of_rows(accepted: np.ndarray) -> np.ndarray:
        times = 1 / (1 + accepted.mean(0))
        return np.array([times.mean(), times.max()])

    for cost in (CostModel(), CostModel.from_ratio(0.3)):
        run = simulate(Auto(), acceptance, 8, cost).since(200)
        fixed = [cost.step(8, k) * of_rows(np.minimum(run.would, k)) for k in range(17)]
        best = np.min(fixed, axis=0)
        assert (run.milliseconds.mean() * of_rows(run.accepted) < 1.02 * best).all()


def test_auto_tries_drafts_in_a_few_rows_of_a_large_batch() -> None:
    """And drafts in all of them once it knows that drafts pay."""
    cost = CostModel.from_ratio(0.5)
    few = (simulate(Auto(), Constant(0.2), 64, cost, steps=400).lengths > 0).sum(1)
    assert set(few) == {0, 16}
    assert (few > 0).mean() < 0.05
    rows = (simulate(Auto(), Constant(0.9), 64, cost, steps=40).lengths > 0).sum(1)
    assert rows[:2].tolist() == [16, 16]
    assert (rows[4:] == 64).all()


def test_auto_lengths_follow_a_drift_better_than_any_fixed_length() -> None:
    run = simulate(Auto(), Drifting(0.2, 0.95, 1000), 32, steps=3000).since(200)
    assert run.regret() < -0.03


def test_auto_lengths_return_from_plain_decoding_when_drafts_get_better() -> None:
    """A draft model as dear as half the target's step, useless at first and right later: rare
    probes must find it out.
    """

    class Improving(Acceptance):
        def draw(self, random: np.random.Generator, steps: int, rows: int) -> np.ndarray:
            half = steps // 2
            return np.concatenate(
                (
                    Constant(0.05).draw(random, half, rows),
                    Constant(0.97).draw(random, steps - half, rows),
                )
            )

    run = simulate(Auto(), Improving(), 8, CostModel.from_ratio(0.5), steps=2400)
    assert (run.lengths[200:1000] == 0).mean() > 0.95
    assert (run.lengths[1700:] > 0).mean() > 0.95
    assert run.since(1700).regret() < 0.03


NGRAMS = replace(CostModel(), draft_weights=0.01, draft_per_row=0.0002)
DEAR = replace(CostModel(), draft_weights=1.5, draft_per_row=0.02)
# acceptance and cost of two drafters; those that are models are fed what they lack
SETTINGS = {
    "n-grams, a better model": ((0.3, NGRAMS), (0.8, CostModel())),
    "n-grams, a dear model": ((0.7, NGRAMS), (0.8, DEAR)),
    "a model, n-grams as good": ((0.8, CostModel()), (0.8, NGRAMS)),
    "two models": ((0.6, CostModel()), (0.75, CostModel())),
    "neither pays": ((0.05, NGRAMS), (0.1, DEAR)),
}


def ms_per_token(
    drafters: Sequence[tuple[float, CostModel]], batch: int, seed: int, then: Any = None
) -> tuple[float, list[int]]:
    """Of tokens 128 to 640 of a row, or of as many with the drafters `then`, by `auto`; and the
    drafter of each of these steps. Prompts have 150 tokens, of which a pass feeds 32.
    """
    random, lacking = np.random.default_rng(seed), [150.0] * len(drafters)
    times = [
        (tuple(cost.step(batch, np.arange(17)) / 1000), (cost is not NGRAMS) * cost.draft(batch))
        for _, cost in drafters
    ]
    times = [(seconds, passes / 1000) for seconds, passes in times]
    policy = Auto().timed(*times[0], early_end_saves=False, others=tuple(times[1:]))
    state, active = policy.init(batch), np.ones(batch, dtype=bool)
    tokens = np.zeros(batch)
    chosen, spent = list[int](), list[tuple[float, float]]()
    while tokens.mean() < 640:
        lengths, part = policy.lengths(state), policy.drafter(state)
        later = then if then is not None and tokens.mean() >= 128 else drafters
        a, cost = later[part]
        ms = float(cost.step(batch, k := int(lengths.max())))
        if k and cost is not NGRAMS and lacking[part]:
            ms += cost.draft(batch) * min(np.ceil(lacking[part] / 32), 3)
        accepted = np.minimum(Constant(a).draw(random, 1, batch)[0], lengths)
        lacking = [0 if k and i == part else n + 1 + accepted.mean() for i, n in enumerate(lacking)]
        if tokens.mean() >= 128:
            spent.append((ms, 1 + accepted.mean()))
            chosen.append(part)
        tokens += 1 + accepted
        state = policy.update(state, Feedback(lengths, accepted, active, ms / 1000))
    total, emitted = np.sum(spent, 0)
    return total / emitted, chosen


@matrix(strength=1, setting=SETTINGS, batch=[1, 8, 32])
def test_auto_over_two_drafters_is_within_two_percent_of_the_better_one(
    setting: str, batch: int
) -> None:
    """After 128 tokens of a row; each of the two alone is by `auto` too."""
    drafters, seeds = SETTINGS[setting], range({1: 20, 8: 6, 32: 3}[batch])
    found, *alone = (
        np.mean([ms_per_token(some, batch, seed)[0] for seed in seeds])
        for some in (drafters, drafters[:1], drafters[1:])
    )
    assert found < 1.02 * min(alone)


def test_auto_takes_another_drafter_when_that_one_gets_better() -> None:
    before, after = ((0.8, CostModel()), (0.2, NGRAMS)), ((0.8, CostModel()), (0.95, NGRAMS))
    _, chosen = ms_per_token(before, 8, 0, then=after)
    assert np.mean(chosen[: len(chosen) // 8]) < 0.5 < np.mean(chosen[-len(chosen) // 2 :])


def test_the_best_of_each_step_is_the_least_of_all_choices_of_lengths() -> None:
    cost, batch = CostModel.from_ratio(0.3), 2
    run = simulate(Fixed(2), Constant(0.6), batch, cost, steps=4)
    least = min(
        sum(float(cost.step(batch, k)) for k in ks)
        / sum(1 + np.minimum(would, k).mean() for would, k in zip(run.would, ks, strict=True))
        for ks in itertools.product(range(4), repeat=4)
    )
    assert run.best_of_each_step(3) == pytest.approx(least)
    assert least <= run.fixed(3).min()
