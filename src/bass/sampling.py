"""The warp of a run: logits to probabilities, by the sampling options of each row."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Warp
from bass.ops import sampling
from bass.records import History


@final
@dataclass(frozen=True)
class RowSampling(Warp):
    """Applies `Sequences.sampling`, in this order: penalties, temperature, top_k, top_p, min_p.

    Options mean what they mean in Hugging Face's `generate`, or in vLLM where only vLLM has them.
    repetition_penalty: over the row's prompt and output (Keskar et al., 2019). frequency_penalty,
    presence_penalty: subtracted once for each occurrence among the generated tokens, and once for
    any. temperature: 0 = the most probable token, as a one-hot distribution. top_k: 0 or -1 = off.
    top_p: 1 = off (Holtzman et al., 2020). min_p: 0 = off (Nguyen et al., 2024). min_new_tokens:
    end tokens have probability 0 before this many tokens.

    Logits that contain NaN or +infinity, or no finite value, give NaN at every temperature.
    """

    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]:
        return sampling.warp(logits, history)
