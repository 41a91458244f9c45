"""Counts the experts that a step's pass of the target touches, next to the timed calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.engine.cost import expected_experts
from bass.engine.parts import without_graphs
from bass.engine.step import Step
from bass.experiments.bench.record import ExpertsRead
from bass.models.layers import SparseMLP
from bass.ops.batch_state import window
from bass.ops.experts import choose
from bass.ops.noise import step_noise
from bass.records import Sequences, Window

MOST_STEPS = 16  # that are looked at


@final
class RecordedRouter(nn.Module):
    """A router that keeps which experts the rows of each pass choose."""

    def __init__(self, router: nn.Module, chosen: int) -> None:
        super().__init__()
        self.router, self.chosen = router, chosen
        self.choices: list[Tensor] = []  # device, int [rows, chosen]

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows experts"]:
        logits = self.router(x)
        rows = logits.reshape(-1, logits.shape[-1])
        self.choices.append(choose(rows, self.chosen, normalised=True)[0])
        return logits


@contextmanager
def recorded_routers(layers: list[SparseMLP]) -> Iterator[list[RecordedRouter]]:
    """Wrap the routers of the layers, and restore them afterwards."""
    routers = [RecordedRouter(layer.router, layer.experts.chosen) for layer in layers]
    try:
        for layer, router in zip(layers, routers, strict=True):
            layer.router = router
        yield routers
    finally:
        for layer, router in zip(layers, routers, strict=True):
            layer.router = router.router


@torch.inference_mode()
def experts_read(
    target: nn.Module, step: Step, rows: Sequences, k: int, lengths: range
) -> ExpertsRead | None:
    """The experts that steps of k drafted tokens touch, at up to `MOST_STEPS` of these lengths,
    which all rows have had; k is cut to what fits into the rows.

    None without a mixture, and for a step of another class, whose passes are unknown. The steps run
    without graphs. Afterwards no row is active.
    """
    inner = without_graphs(step)
    layers = [module for module in target.modules() if isinstance(module, SparseMLP)]
    if not layers or inner is None:
        return None
    count, chosen = layers[0].experts.count, layers[0].experts.chosen
    rows.limits.fill_(rows.capacity)
    rows.active.fill_(True)
    k = min(k, rows.capacity - lengths[-1] - 1)
    measured, expected = [], []
    # The longest first: a step replaces the keys after its length, which shorter ones do not read.
    for length in np.linspace(lengths[-1], lengths[0], min(MOST_STEPS, len(lengths)), dtype=int):
        rows.lens.fill_(int(length))
        span = step.span(int(length) + k, rows.capacity)
        noise = step_noise(rows.keys, rows.steps, rows.lens, k)
        draft, _ = inner.drafted(rows, torch.full_like(rows.lens, k), k, noise, span)
        with recorded_routers(layers) as routers:  # without the drafter's passes
            inner.target(Window(*window(rows, draft), span))
        choices = [choice for router in routers for choice in router.choices]
        measured += [len(choice.unique()) for choice in choices]
        expected += [expected_experts(count, chosen, len(choice)) for choice in choices]
    rows.active.fill_(False)
    inner.log.take()
    return ExpertsRead(k, count, chosen, fmean(expected), fmean(measured))
