"""Minimal autoregressive decoding: oracle of the tests and baseline of the benchmarks."""

import torch

from bass.interfaces import Scorer
from bass.ops import batch_state
from bass.ops.noise import step_noise
from bass.ops.sampling import draw
from bass.records import Sequences, Verdict, Window
from bass.sampling_params import Sampling
from support.doubles import warped


@torch.inference_mode()
def plain_loop(
    target: Scorer, options: Sampling, sequences: Sequences, prompts: list[list[int]], span: int
) -> list[list[int]]:
    """Decode every row of `sequences` and return the new tokens of each.

    prompts: already stored in `sequences`, not yet in the target's cache. Each pass feeds the last
    committed token of each row and commits one, until every row reaches its limit or an end token.
    span: covers the longest limit.
    """
    longest = max(len(prompt) for prompt in prompts)
    if longest > 1:
        positions = torch.arange(longest - 1, device=sequences.lens.device).expand(len(prompts), -1)
        positions = torch.where(positions < sequences.lens[:, None] - 1, positions, -1)
        target.fill(Window(sequences.tokens[:, : longest - 1], positions, span))
    while sequences.active.any():  # sync: the loop ends when all rows have
        last, position = batch_state.last(sequences, 1)
        logits = target(Window(last, position, span)).logits
        probs = warped(options, logits, sequences.history(last[:, :0]))
        noise = step_noise(sequences.keys, sequences.steps, sequences.lens, 0)
        tokens = draw(probs[:, 0], noise.residual[:, 0])[:, None]
        verdict = Verdict(tokens, torch.zeros_like(sequences.lens))
        batch_state.commit(sequences, verdict, logits.shape[2])
    lens = sequences.lens.tolist()
    return [
        row[len(prompt) : n]
        for row, prompt, n in zip(sequences.tokens.tolist(), prompts, lens, strict=True)
    ]
