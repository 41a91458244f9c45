"""Greedy decoding and a joint law on the kernels for CPUs, which the other tiers do not use."""

import itertools

import numpy as np
import pytest
import torch

from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama
from bass.testing.statistics import count
from support.cpu import UNSUPPORTED, cpu_kernels
from support.engines import DRAFTER_MAKERS, LOSSLESS, Setup, mixed_requests, same_prompt
from support.matrix import night
from support.oracle import greedy, joint_law
from support.samples import SEEN_BIAS, assert_law

if UNSUPPORTED is not None:
    pytest.skip("the kernels for CPUs do not run here", allow_module_level=True)

HERE = torch.device("cpu")
LLAMA = SmallLlama()
THREE = SmallLlama(vocab=3, layers=1, seed=2, unlikeness=0.4, sharpness=0.3)
EOS = (2, 5)


BY_DAY = [("model", "rejection"), ("self", "block"), ("none", "rejection"), ("model", "coupled")]


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        (pytest.param if pair in BY_DAY else night)(*pair)
        for pair in itertools.product(DRAFTER_MAKERS, LOSSLESS)
    ],
)
def test_kernels_emit_the_oracles_tokens(drafter: str, verifier: str) -> None:
    requests = mixed_requests(LLAMA)
    setup = Setup(
        LLAMA,
        HERE,
        policy=ByRow(3),
        drafter=drafter,
        verifier=LOSSLESS[verifier],
        warp=Sampling(temperature=0),
        eos=EOS,
    )
    with cpu_kernels():
        outcome = setup.outcome(requests)
    assert outcome.tokens == [greedy(LLAMA, one.prompt, one.limit, EOS) for one in requests]


@pytest.mark.parametrize(
    ("warp", "samples", "seen"),  # the smallest bias that the test detects
    [
        (Sampling(temperature=0.8, top_p=0.9), 4096, 0.084),
        night(Sampling(temperature=0.8, top_p=0.9), 53248, SEEN_BIAS),
        night(Sampling(temperature=1.0, top_k=2), 53248, SEEN_BIAS),
        night(Sampling(temperature=1.2, min_p=0.25), 53248, SEEN_BIAS),
        night(Sampling(temperature=1.0, repetition_penalty=1.5), 53248, SEEN_BIAS),
    ],
)
def test_the_joint_law_of_two_tokens_is_the_targets(
    warp: Sampling, samples: int, seen: float
) -> None:
    """Batches of 16 rows, whose windows have at most the 64 rows that the kernels support."""
    setup = Setup(THREE, HERE, policy=ByRow(3), warp=warp, batch=16)
    prompt = [0, 2]
    with cpu_kernels():
        outcome = setup.outcome(same_prompt(prompt, 2, samples, 0))
    assert_law(count(np.array(outcome.tokens), 3), joint_law(THREE, prompt, 2, warp), seen)
