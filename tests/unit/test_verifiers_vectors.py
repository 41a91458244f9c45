"""Verifiers by hand, on three tokens, and what holds for all of them.

The laws of the lossless ones are in `laws/`.
"""

import pytest
import torch

from bass.interfaces import Verifier
from bass.ops.noise import exponential_race
from bass.ops.verification import next_probs
from bass.records import Draft, Noise
from bass.verifiers import VERIFIERS, Block, Coupled, Rejection, Synthetic, Typical
from bass.verifiers.block import pass_probs, prefix_probs
from bass.verifiers.lossy import typical

TARGET = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]]], dtype=torch.float64)
GUESS = torch.tensor([[[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]]], dtype=torch.float64)
EVERY = [cls() for cls in VERIFIERS.values()]
every_verifier = pytest.mark.parametrize("verifier", EVERY, ids=list(VERIFIERS))


def draft(tokens: list[int], length: int, sure: bool = False) -> Draft:
    return Draft(torch.tensor([tokens]), None if sure else GUESS, torch.tensor([length]))


def noise(accept: list[float], residual: list[float]) -> Noise:
    streams = torch.tensor(
        [[0.5] * len(accept), accept, residual, [0.5] * len(accept)], dtype=torch.float64
    )
    return Noise(torch.tensor([1]), torch.tensor([2]), streams.T[None])


def emitted(
    verifier: Verifier, drafted: Draft, random: Noise, target: torch.Tensor = TARGET
) -> tuple[int, list[int]]:
    verdict = verifier(drafted, target[:, : drafted.tokens.shape[1] + 1], random)
    accepted = int(verdict.accepted[0])
    return accepted, verdict.tokens[0, : accepted + 1].tolist()


@pytest.mark.parametrize(
    ("tokens", "length", "sure", "joint", "passes"),
    [
        # p1 = .3 / .75, p2 = p1 * .6 / .5; r1 = max(0, .4 * (.2, .2, .6) - (0, .5, .5)) = .08,
        # which passes with .08 / (.08 + .6)
        ([1, 2], 2, False, [1, 0.4, 0.48], [2 / 17, 0.48]),
        # p1 = min(1, .5 / .25), p2 = .2 / .5; r1 = (.2, 0, .1), 1 - p1 = 0
        ([0, 1], 2, False, [1, 1, 0.4], [1, 0.4]),
        # the row's own end: its prefix passes with p1
        ([1, 2], 1, False, [1, 0.4, 0.48], [0.4, 0.48]),
        # all mass on the tokens: p1 = .3, p2 = .3 * .6; r1 = .3 * (.2 + .2), which passes with .12
        # / (.12 + .7)
        ([1, 2], 2, True, [1, 0.3, 0.18], [6 / 41, 0.18]),
    ],
)
def test_block_verification_tries_each_prefix_with_its_conditional_probability(
    tokens: list[int], length: int, sure: bool, joint: list[float], passes: list[float]
) -> None:
    drafted = draft(tokens, length, sure)
    probs = prefix_probs(drafted, TARGET)
    torch.testing.assert_close(probs[0], torch.tensor(joint, dtype=torch.float64))
    got = pass_probs(drafted, probs, probs[..., None] * TARGET)
    torch.testing.assert_close(got[0], torch.tensor(passes, dtype=torch.float64))


def test_block_verification_accepts_all_of_a_draft_that_has_the_targets_distribution() -> None:
    """Of each prefix the residual is empty, and the chance of failing is zero: no NaN comes of
    it.
    """
    same = Draft(torch.tensor([[0, 2]]), TARGET[:, :2], torch.tensor([2]))
    probs = prefix_probs(same, TARGET)
    assert (
        probs[0].tolist()
        == [1.0, *pass_probs(same, probs, probs[..., None] * TARGET)[0].tolist()]
        == [1.0] * 3
    )
    assert emitted(Block(), same, noise([0.999] * 3, [0.5] * 3)) == (2, [0, 2, 1])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([0.39, 0.99], (2, [1, 2, 1])),  # all are accepted, then the bonus
        ([0.41, 0.0], (0, [2])),  # the first is rejected: the residual (.25, 0, .2) at 0.9
    ],
)
def test_rejection_accepts_up_to_the_first_token_that_its_uniform_rejects(
    accept: list[float], expected: tuple[int, list[int]]
) -> None:
    assert emitted(Rejection(), draft([1, 2], 2), noise([*accept, 0.5], [0.9] * 3)) == expected


def test_a_residual_that_rounding_has_emptied_gives_the_target() -> None:
    same = Draft(torch.tensor([[1, 1]]), TARGET[:, :2], torch.tensor([2]))
    assert next_probs(same, TARGET, torch.tensor([0]))[0].tolist() == [0.5, 0.3, 0.2]


@pytest.mark.parametrize("sure", [False, True])
def test_coupled_verification_keeps_the_draft_while_it_is_what_key_position_and_target_determine(
    sure: bool,
) -> None:
    random = noise([0.5] * 3, [0.5] * 3)
    right = exponential_race(TARGET, random.keys, random.first)[0].tolist()
    wrong = [(token + 1) % 3 for token in right]
    for tokens, length, accepted in (
        (right[:2], 2, 2),
        ([right[0], wrong[1]], 2, 1),
        ([wrong[0], right[1]], 2, 0),
        (right[:2], 1, 1),
        (right[:2], 0, 0),
    ):
        assert emitted(Coupled(), draft(tokens, length, sure), random) == (
            accepted,
            right[: accepted + 1],
        )


@pytest.mark.parametrize(
    ("epsilon", "delta", "kept"),
    [
        (0.25, 0.9, [True, True, False]),  # .25 is below .9 * exp(-entropy)
        (0.3, 0.9, [True, False, False]),  # a probability of just epsilon is not above it
        # entropy of (.5, .3, .2) = 1.0297 nats: .9 * .3571 = .321
        (0.9, 0.9, [True, False, False]),
        (0.9, 0.55, [True, True, True]),  # .55 * .3571 = .196
    ],
)
def test_a_token_is_typical_above_a_floor_that_falls_with_the_entropy(
    epsilon: float, delta: float, kept: list[bool]
) -> None:
    for token in range(3):
        one = Draft(torch.tensor([[token]]), None, torch.tensor([1]))
        assert typical(one, TARGET[:, :1], epsilon, delta).tolist() == [[kept[token]]]


def test_typical_acceptance_with_a_certain_target_is_greedy() -> None:
    """Entropy 0, so the floor is below 1; the token after the accepted ones is the target's."""
    sure = torch.eye(3, dtype=torch.float64)[[2, 0, 1]][None]
    assert emitted(Typical(), draft([2, 0], 2), noise([0.99] * 3, [0.5] * 3), sure) == (
        2,
        [2, 0, 1],
    )
    assert emitted(Typical(), draft([2, 1], 2), noise([0.0] * 3, [0.5] * 3), sure) == (1, [2, 0])


@pytest.mark.parametrize(
    ("rates", "accept", "accepted"),
    [(0.8, [0.79, 0.79], 2), (0.8, [0.79, 0.81], 1), (0.8, [0.81, 0.0], 0),
        ((0.9, 0.1), [0.5, 0.5], 1), ((0.3,), [0.2, 0.2], 2),
     (1.0, [0.999999, 0.999999], 2), (0.0, [1e-9, 1e-9], 0), ((0.0, 1.0), [0.5, 0.5], 0)],
)  # fmt: skip
def test_synthetic_acceptance_is_that_of_its_rates_whatever_the_tokens_and_the_distributions_are(
    rates: float | tuple[float, ...], accept: list[float], accepted: int
) -> None:
    random = noise([*accept, 0.5], [0.5] * 3)
    for tokens in ([0, 0], [1, 2], [2, 1]):
        for sure in (False, True):
            for target in (TARGET, TARGET.flip(2), torch.full_like(TARGET, 1 / 3)):
                count, out = emitted(Synthetic(rates), draft(tokens, 2, sure), random, target)
                assert count == accepted
                assert out[:-1] == tokens[:accepted]
                assert target[0, accepted, out[-1]] > 0
        assert emitted(Synthetic(rates), draft(tokens, 1), random)[0] == min(accepted, 1)
        assert emitted(Synthetic(rates), draft(tokens, 0), random)[0] == 0


@every_verifier
@pytest.mark.parametrize("sure", [False, True])
def test_every_verifier_samples_the_target_where_there_is_no_draft(
    verifier: Verifier, sure: bool
) -> None:
    """A step of no draft at all, and a row of length 0 among longer ones, with junk in its places:
    the same token.
    """
    none = Draft(torch.zeros(1, 0, dtype=torch.int64), None, torch.tensor([0]))
    for uniform in (0.1, 0.6, 0.9):
        alone = emitted(verifier, none, noise([0.5], [uniform]))
        assert alone == emitted(verifier, draft([1, 2], 0, sure), noise([0.0] * 3, [uniform] * 3))
        if not isinstance(verifier, Coupled):
            assert alone == (0, [{0.1: 0, 0.6: 1, 0.9: 2}[uniform]])


@every_verifier
@pytest.mark.parametrize("sure", [False, True])
def test_every_verifier_gives_the_same_verdict_in_every_precision(
    verifier: Verifier, sure: bool
) -> None:
    """Of probabilities that bfloat16 holds exactly, at uniforms away from the edges; shapes and
    types stay what they are.
    """
    target = torch.tensor(
        [[[0.5, 0.25, 0.25], [0.0625, 0.4375, 0.5], [0.25, 0.5, 0.25]]], dtype=torch.float64
    )
    guess = torch.tensor([[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]], dtype=torch.float64)
    seen = set()
    for tokens in ([0, 2], [1, 0], [2, 1]):
        for uniform in (0.07, 0.44, 0.93):
            verdicts = []
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                drafted = Draft(
                    torch.tensor([tokens]), None if sure else guess.to(dtype), torch.tensor([2])
                )
                verdict = verifier(drafted, target.to(dtype), noise([uniform] * 3, [uniform] * 3))
                assert (verdict.tokens.shape, verdict.tokens.dtype, verdict.accepted.shape) == (
                    (1, 3),
                    torch.int64,
                    (1,),
                )
                own = int(verdict.accepted[0]) + 1
                verdicts.append((own, verdict.tokens[0, :own].tolist()))
            assert verdicts[0] == verdicts[1] == verdicts[2]
            seen.add(verdicts[0][0])
    assert len(seen) > 1


@every_verifier
def test_probabilities_of_zero_make_no_verifier_stumble(verifier: Verifier) -> None:
    """One-hot targets and drafts, apart and alike, a drafted token that neither can say, and zeros
    beyond a row's length.
    """
    hot = torch.eye(3, dtype=torch.float32)
    target = hot[torch.tensor([[0, 1, 2], [0, 1, 2], [2, 2, 2], [1, 1, 1]])]
    guess = hot[torch.tensor([[0, 1], [0, 0], [0, 0], [1, 0]])]
    drafted = Draft(
        torch.tensor([[0, 1], [0, 0], [1, 1], [1, 0]]), guess, torch.tensor([2, 2, 2, 1])
    )
    random = Noise(
        torch.arange(4), torch.arange(4), torch.full((4, 3, 4), 0.5, dtype=torch.float64)
    )
    verdict = verifier(drafted, target, random)
    if not isinstance(verifier, Synthetic):
        assert verdict.accepted.tolist() == [2, 1, 0, 1]
        assert [
            row[: n + 1] for row, n in zip(verdict.tokens.tolist(), [2, 1, 0, 1], strict=True)
        ] == [[0, 1, 2], [0, 1], [2], [1, 1]]
    probs = prefix_probs(drafted, target)
    assert probs.isfinite().all()
    assert pass_probs(drafted, probs, probs[..., None].float() * target).isfinite().all()


@every_verifier
@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_no_verifier_reads_a_value_on_the_host(verifier: Verifier, sure: bool, k: int) -> None:
    """Tensors without values have none to be read, so the step can be captured: shapes alone decide
    what is done.
    """
    with torch.device("meta"):
        lengths, probs = torch.zeros(5, dtype=torch.int64), torch.rand(5, k + 1, 7)
        drafted = Draft(
            torch.zeros(5, k, dtype=torch.int64), None if sure or not k else probs[:, :k], lengths
        )
        verdict = verifier(
            drafted, probs, Noise(lengths, lengths, torch.rand(5, k + 1, 4, dtype=torch.float64))
        )
    assert verdict.tokens.shape == (5, k + 1)
    assert verdict.accepted.shape == (5,)
