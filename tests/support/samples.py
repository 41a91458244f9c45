"""Many samples of one prompt at once, as rows of one batch, in steps that the host hardly looks
at.
"""

import numpy as np
import torch

from bass.engine.prefill import feeds_target
from bass.engine.shapes import StepShape
from bass.records import Feedback, Window
from bass.sampling import RowSampling
from bass.testing.checking import Checker
from bass.testing.engine import require_samples
from bass.testing.statistics import FALSE_FAILURE, detectable
from support.engines import Setup, same_prompt

# the smallest bias of a real defect so far: one uniform shared by draft and residual
SEEN_BIAS = 0.029


def assert_law(counts: np.ndarray, expected: np.ndarray, must_see: float = SEEN_BIAS) -> None:
    """Assert that the counts follow `expected`, with a test that detects a bias of `must_see`."""
    np.testing.assert_allclose(expected.sum(), 1, atol=1e-9)
    seen = detectable(expected, int(counts.sum()))
    assert seen <= must_see, f"{counts.sum()} samples detect {seen:.4f}, not {must_see}: use more"
    require_samples(Checker("engine", 1), "samples of a law.", counts, expected, FALSE_FAILURE)


def first_tokens(
    setup: Setup, prompt: list[int], new: int, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `new` tokens of every sample [samples, new], and how many were drafted for each
    [samples].

    Steps, policy and noise are those of `Run`, which needs ten times as long for as many rows.
    """
    requests = [setup.own(one) for one in same_prompt(prompt, new, 1)] * samples
    run = setup.but(batch=samples, warp=RowSampling(), eos=()).engine(requests)
    step, s, policy, end = run.step, run.sequences, setup.policy, len(prompt) + new
    keys = torch.randint(1 << 62, (samples,), generator=torch.Generator().manual_seed(0))
    for field, value in (
        (s.lens, len(prompt)),
        (s.prompt_lens, len(prompt)),
        (s.limits, end),
        (s.active, True),
        (s.keys, keys),
        (s.sampling, run.requests[0].sampling),
    ):
        field.copy_(torch.as_tensor(value))
    s.tokens[:, : len(prompt)] = torch.tensor(prompt)
    positions = torch.arange(len(prompt) - 1, device=s.lens.device).expand(samples, -1)
    window = Window(s.tokens[:, : len(prompt) - 1].clone(), positions, s.capacity)
    feeds_target(step.target, step.drafter)(window, s.tokens[:, 1 : len(prompt)].clone())
    step.drafter.fill(window)
    state, lens, drafted = (
        policy.init(samples),
        np.full(samples, len(prompt)),
        np.zeros(samples, dtype=np.int64),
    )
    while (active := lens < end).any():
        lengths = np.where(active, np.minimum(policy.lengths(state), end - lens - 1), 0).astype(
            np.int64
        )
        shape = StepShape(int(lengths.max()), s.capacity)
        report = step.launch(s, lengths.tolist(), shape)()
        counts = np.array(report.drafted), np.array(report.accepted)
        state = policy.update(state, Feedback(*counts, active, 0.01))
        lens, drafted = np.array(report.lens), drafted + np.array(report.drafted)
    return s.tokens[:, len(prompt) : end].cpu().numpy(), drafted
