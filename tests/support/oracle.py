"""What the engine must do, in the plainest way: recompute everything for every token, in float64."""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from bass.sampling import Sampling
from support.worlds import World

SMALLEST_GAP = 1e-4  # between the two largest logits: a nearer tie could flip in float32, and would prove nothing


def greedy(world: World, prompt: list[int], limit: int, eos: tuple[int, ...] = ()) -> list[int]:
    """The most probable continuation, cut at `limit` tokens in all and after the first token of `eos`."""
    tokens = _greedy(world, tuple(prompt), limit - len(prompt))
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return list(tokens[:end])


@functools.lru_cache(maxsize=4096)
def _greedy(world: World, prompt: tuple[int, ...], new: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(new):
        logits = world.oracle("target", np.array([tokens]))[0]
        second, first = np.sort(logits)[-2:]
        assert first - second > SMALLEST_GAP, f"the test's own model has a near tie after {tokens}: give it another seed"
        tokens.append(int(logits.argmax()))
    return tuple(tokens[len(prompt) :])


@dataclass(frozen=True)
class HuggingFace:
    """The warp as `transformers` does it, in float64: the oracle of `Sampling`."""

    options: Sampling

    def probs(self, prefixes: np.ndarray, logits: np.ndarray) -> Float[np.ndarray, "rows vocab"]:
        o, processors = self.options, LogitsProcessorList()
        if o.repetition_penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(o.repetition_penalty))
        if o.temperature not in (0, 1):
            processors.append(TemperatureLogitsWarper(o.temperature))
        if o.top_k:
            processors.append(TopKLogitsWarper(o.top_k))
        if o.top_p < 1:
            processors.append(TopPLogitsWarper(o.top_p))
        if o.min_p > 0:
            processors.append(MinPLogitsWarper(o.min_p))
        scores = processors(torch.as_tensor(prefixes), torch.as_tensor(logits, dtype=torch.float64).clone())
        if o.temperature == 0:
            return np.eye(scores.shape[1])[scores.argmax(-1).numpy()]
        return scores.softmax(-1).numpy()


def joint_law(world: World, prompt: list[int], new: int, options: Sampling) -> Float[np.ndarray, "..."]:
    """The target's law of the first `new` tokens, an array with one axis per token."""
    warp, law = HuggingFace(options), np.ones(1)
    for n in range(new):
        prefixes = np.array([[*prompt, *tail] for tail in itertools.product(range(world.vocab), repeat=n)], dtype=np.int64)
        law = (law[:, None] * warp.probs(prefixes, world.oracle("target", prefixes))).reshape(-1)
    return law.reshape((world.vocab,) * new)
