"""The expected output of the engine: recomputes everything for every token, in float64."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bass.sampling import Sampling
from bass.testing.small_models import Logits, Prefixes, SmallModel

# minimum gap of the two largest logits: float32 could flip a nearer tie
SMALLEST_GAP = 1e-4


class NearTie(AssertionError):
    """In the test's model, rounding decides the most probable token."""


def greedy(
    model: SmallModel, prompt: list[int], limit: int, eos: tuple[int, ...] = ()
) -> list[int]:
    """The greedy continuation, cut at `limit` tokens in all and after the first token of `eos`."""
    tokens = list(prompt)
    while len(tokens) < limit and not {*tokens[len(prompt) :]} & {*eos}:
        tokens.append(_most_probable(model, tuple(tokens)))
    return tokens[len(prompt) :]


@functools.lru_cache(maxsize=2**16)
def _most_probable(model: SmallModel, tokens: tuple[int, ...]) -> int:
    logits = model.oracle("target", np.array([tokens]))[0]
    second, first = np.sort(logits)[-2:]
    if first - second <= SMALLEST_GAP:
        raise NearTie(f"the model has a near tie after {tokens}: give it another seed")
    return int(logits.argmax())


@dataclass(frozen=True)
class SamplingReference:
    """The distribution with sampling options in float64, from whole prefixes: the reference of
    `bass.sampling.Sampling`.

    `prompt`: tokens of the prompt. `end`: the token that ends a sequence; it follows itself, so an
    output that ended counts as filled with it.
    """

    options: Sampling
    prompt: int
    end: int | None = None

    def __call__(self, prefixes: Prefixes, logits: Logits) -> Logits:
        o, vocab = self.options, np.arange(logits.shape[1])
        times = (prefixes[..., None] == vocab).cumsum(1)
        seen, in_prompt = times[:, -1], times[:, self.prompt - 1]
        penalised = np.where(
            logits > 0, logits / o.repetition_penalty, logits * o.repetition_penalty
        )
        logits = np.where((seen > 0) & (o.repetition_penalty != 1), penalised, logits)
        generated = seen - in_prompt
        logits = logits - o.frequency_penalty * generated - o.presence_penalty * (generated > 0)
        if self.end is not None and prefixes.shape[1] - self.prompt < o.min_new_tokens:
            logits[:, self.end] = -np.inf
        probs = cut_softmax(logits, o)
        if self.end is not None:
            probs = np.where(generated[:, [self.end]] > 0, vocab == self.end, probs)
        return probs


def cut_softmax(logits: Logits, options: Sampling) -> Logits:
    """Temperature, then top-k, top-p and min-p: each keeps tokens of a least probability."""
    o, vocab = options, logits.shape[1]
    logits = logits - logits.max(1, keepdims=True)
    if o.temperature == 0:
        return np.eye(vocab)[logits.argmax(1)]

    def top_p(probs: np.ndarray) -> np.ndarray:
        """The smallest probability among the first tokens that together have `top_p`."""
        ordered = -np.sort(-probs, 1)
        count = ((np.cumsum(ordered, 1) - ordered < o.top_p) | (o.top_p == 1)).sum(1)
        return np.take_along_axis(ordered, count[:, None] - 1, 1)

    probs = np.exp(logits / o.temperature)
    for least in (
        lambda probs: -np.sort(-probs, 1)[:, [min(o.top_k or vocab, vocab) - 1]],
        top_p,
        lambda probs: o.min_p * probs.max(1, keepdims=True),
    ):
        probs = probs / probs.sum(1, keepdims=True)
        probs = np.where(probs >= least(probs), probs, 0)
    return probs / probs.sum(1, keepdims=True)


def joint_law(
    model: SmallModel,
    prompt: list[int],
    new: int,
    probs: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Float[np.ndarray, "..."]:
    """The target's joint distribution of the first `new` tokens, with one axis per token.

    `probs`: of prefixes and their logits.
    """
    law = np.ones(1)
    for n in range(new):
        tails = itertools.product(range(model.vocab), repeat=n)
        prefixes = np.array([[*prompt, *tail] for tail in tails], dtype=np.int64)
        law = (law[:, None] * probs(prefixes, model.oracle("target", prefixes))).reshape(-1)
    return law.reshape((model.vocab,) * new)
