"""The expected output of the engine: recomputes everything for every token, in float64."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from einops import rearrange
from jaxtyping import Float

from bass.testing.worlds import World

# minimum gap of the two largest logits: float32 could flip a nearer tie
SMALLEST_GAP = 1e-4


class NearTie(AssertionError):
    """In the test's model, rounding decides the most probable token."""


def greedy(world: World, prompt: list[int], limit: int, eos: tuple[int, ...] = ()) -> list[int]:
    """The greedy continuation, cut at `limit` tokens in all and after the first token of `eos`."""
    return ended(list(_greedy(world, tuple(prompt), limit - len(prompt))), eos)


def ended(tokens: list[int], eos: tuple[int, ...]) -> list[int]:
    """The tokens up to the first one of `eos`."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[:end]


@functools.lru_cache(maxsize=4096)
def _greedy(world: World, prompt: tuple[int, ...], new: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(new):
        logits = world.oracle("target", np.array([tokens]))[0]
        second, first = np.sort(logits)[-2:]
        if first - second <= SMALLEST_GAP:
            raise NearTie(
                f"the test's own model has a near tie after {tokens}: give it another seed"
            )
        tokens.append(int(logits.argmax()))
    return tuple(tokens[len(prompt) :])


@dataclass(frozen=True)
class Softmax:
    """Temperature and top-p in float64, by a sort: the reference of `bass.sampling.Sampling`."""

    temperature: float = 1.0
    top_p: float = 1.0

    def __call__(
        self, prefixes: np.ndarray, logits: Float[np.ndarray, "rows vocab"]
    ) -> Float[np.ndarray, "rows vocab"]:
        weights = np.exp((logits - logits.max(1, keepdims=True)) / self.temperature)
        probs = weights / weights.sum(1, keepdims=True)
        order = np.argsort(-probs, 1)
        before = np.cumsum(np.take_along_axis(probs, order, 1), 1) - np.take_along_axis(
            probs, order, 1
        )
        kept = np.zeros_like(probs)
        np.put_along_axis(kept, order, (before < self.top_p).astype(float), 1)
        return probs * kept / (probs * kept).sum(1, keepdims=True)


def joint_law(
    world: World, prompt: list[int], new: int, probs: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Float[np.ndarray, "..."]:
    """The target's joint distribution of the first `new` tokens, with one axis per token.

    `probs`: of prefixes and their logits.
    """
    law = np.ones(1)
    for n in range(new):
        prefixes = np.array(
            [[*prompt, *tail] for tail in itertools.product(range(world.vocab), repeat=n)],
            dtype=np.int64,
        )
        following = probs(prefixes, world.oracle("target", prefixes))
        law = rearrange(law[:, None] * following, "prefix token -> (prefix token)")
    return law.reshape((world.vocab,) * new)
