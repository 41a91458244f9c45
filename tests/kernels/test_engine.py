"""The backends that are slow on a CPU, in the engine: laws of the smallest size that still has
ragged rows, drafts and rejections.
"""

import pytest
import torch

from bass.engine.requests import Request
from bass.ops.noise import row_key
from bass.sampling_params import Sampling
from bass.testing.doubles import OwnPast
from bass.testing.small_models import SmallLlama
from support.engines import SLOW, Setup
from support.oracle import greedy

PROMPTS, NEW = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7]), (3, 5, 2)


def requests(world: SmallLlama) -> list[Request]:
    return [
        Request(prompt, len(prompt) + new, row_key(0, prompt, 0))
        for prompt, new in zip(PROMPTS, NEW, strict=True)
    ]


# by day, one of each layout; each backend is compared with dense attention in tests/unit
BY_DAY = ("padded+pad", "split+ragged", "paged+paged")


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.parametrize(
    "pairing",
    [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in SLOW],
)
def test_a_backend_that_is_slow_on_a_cpu_emits_the_oracles_tokens(
    pairing: str, dtype: torch.dtype, device: torch.device
) -> None:
    world = SmallLlama(dtype=dtype)
    outcome = Setup(
        world, device, SLOW[pairing], OwnPast(), warp=Sampling(temperature=0), batch=2
    ).outcome(requests(world))
    assert outcome.tokens == [
        greedy(world, request.prompt, request.limit) for request in requests(world)
    ]
    assert 0 < outcome.acceptance()[1] < outcome.acceptance()[0]
