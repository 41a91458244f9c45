"""What the engine must do, in the plainest way: recompute everything for every token, in
float64.
"""

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

from bass.sampling_params import Sampling
from bass.testing import small_models
from bass.testing.small_models import SmallModel, greedy

__all__ = ["HuggingFace", "greedy", "joint_law"]


@dataclass(frozen=True)
class HuggingFace:
    """The warp as `transformers` does it, in float64: the oracle of `Sampling`. What it has not,
    penalties on generated tokens, is here: those of prefixes from `prompt` tokens on.
    """

    options: Sampling
    prompt: int = 0
    end_tokens: tuple[int, ...] = ()

    def probs(self, prefixes: np.ndarray, logits: np.ndarray) -> Float[np.ndarray, "rows vocab"]:
        o, processors = self.options, LogitsProcessorList()
        if o.repetition_penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(o.repetition_penalty))
        logits = np.array(logits, dtype=np.float64)
        first = torch.as_tensor(logits)
        for processor in processors:
            first = processor(torch.as_tensor(prefixes), first)
        logits, processors = first.numpy().copy(), LogitsProcessorList()
        for row, prefix in enumerate(np.asarray(prefixes)):
            for token in prefix[self.prompt :]:
                logits[row, token] -= o.frequency_penalty
            for token in set(prefix[self.prompt :].tolist()):
                logits[row, token] -= o.presence_penalty
            if len(prefix) - self.prompt < o.min_new_tokens:
                logits[row, list(self.end_tokens)] = -np.inf
        if o.temperature not in (0, 1):
            processors.append(TemperatureLogitsWarper(o.temperature))
        if o.top_k > 0:
            processors.append(TopKLogitsWarper(o.top_k))
        if o.top_p < 1:
            processors.append(TopPLogitsWarper(o.top_p))
        if o.min_p > 0:
            processors.append(MinPLogitsWarper(o.min_p))
        scores = processors(
            torch.as_tensor(prefixes), torch.as_tensor(logits, dtype=torch.float64).clone()
        )
        if o.temperature == 0:
            return np.eye(scores.shape[1])[scores.argmax(-1).numpy()]
        return scores.softmax(-1).numpy()


def joint_law(
    world: SmallModel, prompt: list[int], new: int, options: Sampling
) -> Float[np.ndarray, "..."]:
    """The target's law of the first `new` tokens, an array with one axis per token."""
    probs, law = HuggingFace(options, len(prompt)).probs, np.zeros((world.vocab,) * new)
    tokens, law_of_tokens = small_models.sequence_law(world, prompt, new, probs)
    law[tuple(tokens.T)] = law_of_tokens
    return law
