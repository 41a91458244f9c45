"""The properties of a verifier over the steps of a run; `laws_of_verifiers` tests single verdicts.

A single verdict cannot show noise that is reused in a later step, or state that a verifier keeps
between steps; and it is not computed in the engine's precision.
"""

from bass.drafters import Ngram
from bass.interfaces import Verifier
from bass.policies import Fixed
from bass.sampling import Sampling
from bass.testing import runs
from bass.testing.engine import By, Setup
from bass.testing.policies import ByRow, OwnPast
from bass.testing.proof import Proof
from bass.testing.strategies import MIXED, Work

LAW = (
    "the first tokens of a run are distributed as the target's own: no noise is used in two "
    "steps, and nothing is kept from one step to the next."
)
MATES = (
    "a request's tokens depend neither on its batch mates nor on its place: a verifier keeps "
    "nothing of a row."
)
NEW = 5  # tokens whose joint distribution is tested: of up to five steps
COIN_NEW, COIN_LENGTH = 4, 2  # the same in `runs.coin`, and the draft's length
CERTAIN_NEW = 3  # the same with deterministic drafts


def prove_runs(proof: Proof, verifier: Verifier) -> None:
    """Test a verifier that is not coupled in an engine: greedy decoding, `MATES` and `LAW`."""
    setup = Setup(runs.wide(), runs.CPU, policy=ByRow(), verifier=verifier)
    runs.prove_greedy(proof, setup, proof.examples // 4)
    # drafts without distributions
    runs.prove_greedy(proof, setup.but(drafter=By(Ngram())), proof.examples // 8)
    # lengths that depend only on the row's own past
    sampling = setup.but(policy=OwnPast())

    def mates(work: Work) -> None:
        together = runs.sampled(sampling, work)
        backwards = runs.sampled(sampling, work, backwards=True)
        proof.require(MATES, backwards == together, f"{together} in the other order too", backwards)

    runs.for_requests(proof, MATES, mates, proof.examples // 4, setup.world.vocab)
    prove_run_law(proof, setup)


def prove_run_law(proof: Proof, setup: Setup) -> None:
    """Test `LAW` in two worlds, and with deterministic drafts in rows of different sampling
    options, with 768 samples per example, at a false-failure rate of `FALSE_FAILURE` in each.
    """
    for world, policy, new in (
        (runs.narrow(), ByRow(3), NEW),
        (runs.coin(), Fixed(COIN_LENGTH), COIN_NEW),
    ):
        runs.prove_law(proof, setup.but(world=world, policy=policy), Sampling(), LAW, new)
    certain = setup.but(world=runs.narrow(), policy=ByRow(3), drafter=By(Ngram()))
    runs.prove_law(proof, certain, MIXED, LAW, CERTAIN_NEW)
