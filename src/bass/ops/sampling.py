"""Logits to probabilities (warps), the draw of a token, and log-probabilities.

edited          y = x / r where x > 0, else x r, for tokens of the row (repetition penalty r);
                y - f n - p [n > 0] for n occurrences among the generated tokens (frequency and
                presence penalties f and p); -inf for end tokens of a row that is too short
warp            p = e / Σ e over the remaining tokens, else 0;  e = exp((y - max y) / T)
draw            the token at which the running sum of p passes u Σ p (inverse transform)
token_logprobs  x[token] - log Σ exp(x)
"""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.kernels.values import RowNumbers, Scores
from bass.ops import dispatch
from bass.records import History
from bass.sampling_params import Sampling

Options = dict[str, Float[Tensor, "batch 1 1"]]  # by name; those without effect may lack
OFF = np.array(Sampling())  # the values without effect


def used_options(sampling: Float64[Tensor, "batch options"], dtype: torch.dtype) -> Options:
    """The options of the rows, as columns that broadcast over windows and vocabulary.

    On a CPU, where reading values does not synchronise, those that no row uses are left out, but
    for the temperature.
    """
    columns = sampling.to(dtype)[:, None, None, :].unbind(-1)
    used = [True] * len(columns)
    if sampling.is_cpu:
        used = [True, *(sampling.numpy() != OFF).any(0)[1:].tolist()]
    options = zip(Sampling._fields, columns, used, strict=True)
    return {name: column for name, column, some in options if some}


def warp(logits: Scores, history: History) -> Scores:
    """The distribution of each row by its own options (`history.sampling`): penalties, then
    temperature (0: one-hot), then top-k, top-p and min-p.

    In float32, or float64 for logits in float64; logits that penalties change keep their own
    precision. A row's result does not depend on the options of others. Logits that contain NaN or
    +infinity, or no finite value, give NaN.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if wide == torch.float32 and dispatch.use_kernels(logits):
        return kernels.sampling.warp(
            logits,
            history.sampling,
            history.tokens,
            history.lens,
            history.prompt_lens,
            history.end_tokens,
            history.drafted,
        )
    if (cpu := dispatch.cpu_kernels(logits, types=dispatch.DTYPES)) is not None:
        if (history.sampling.numpy()[:, 4:] != OFF[4:]).any():  # options that change logits
            logits = edited(logits, history, used_options(history.sampling, wide))
        return cpu.step.warp(logits.to(wide), history.sampling)
    options = used_options(history.sampling, wide)
    logits = edited(logits, history, options).to(wide)
    greedy = options["temperature"] == 0
    # x / T itself could overflow
    scaled = logits - logits.amax(-1, keepdim=True)
    scaled = scaled / torch.where(greedy, 1, options["temperature"])
    probs = restricted(scaled.softmax(-1), options)
    return torch.where(greedy, most_probable_token(logits), probs)


def most_probable_token(logits: Scores) -> Scores:
    """The one-hot distribution of the largest logit; NaN where that is not finite."""
    chosen = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
    return torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, torch.nan)


def restricted(probs: Scores, options: Options) -> Scores:
    """Apply top-k, top-p and min-p, in rows that use them."""
    vocab = probs.shape[-1]
    if (top_k := options.get("top_k")) is not None:
        used, place = (top_k > 0) & (top_k < vocab), top_k.long().clamp(1, vocab) - 1
        ordered = probs.sort(-1, descending=True).values
        floor = ordered.gather(-1, place.expand(*probs.shape[:2], 1))
        probs = torch.where(used, keep_from(probs, floor), probs)
    if (top_p := options.get("top_p")) is not None:
        floor = top_p_floor(probs, top_p)
        probs = torch.where(top_p < 1, keep_from(probs, floor), probs)
    if (min_p := options.get("min_p")) is not None:
        floor = min_p * probs.amax(-1, keepdim=True)
        probs = torch.where(min_p > 0, keep_from(probs, floor), probs)
    return probs


def draw(
    probs: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]
) -> Int[Tensor, "*rows"]:
    """Draw the token at which the running sum of `probs` exceeds `uniform` times its total (inverse
    transform).

    The sum is in float64, and a token of probability zero is never drawn. `probs` need not be
    normalised.
    """
    if dispatch.use_kernels(probs):
        return kernels.rejection_sampling.draw(probs, uniform)
    cpu = dispatch.cpu_kernels(probs) if uniform.dtype == torch.float64 else None
    if cpu is not None:
        return cpu.step.draw(probs, uniform)
    running = probs.to(torch.float64).cumsum(-1)
    threshold = uniform.to(torch.float64).unsqueeze(-1) * running[..., -1:]
    drawn = torch.searchsorted(running, threshold, right=True).squeeze(-1)
    # only NaN gives an index out of range; the engine rejects its log-probability
    return drawn.clamp(max=probs.shape[-1] - 1)


def token_logprobs(
    logits: Scores, tokens: Int[Tensor, "batch window"]
) -> Float[Tensor, "batch window"]:
    """log softmax(logits) at `tokens`: the model's own log-probability, before any warp.

    NaN for an id outside the vocabulary.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if wide == torch.float32 and dispatch.use_kernels(logits):
        return kernels.sampling.token_logprobs(logits, tokens)
    logprobs, known = logits.to(wide).log_softmax(-1), (tokens >= 0) & (tokens < logits.shape[2])
    at = torch.where(known, tokens, 0)[..., None]
    return torch.where(known, logprobs.gather(2, at)[..., 0], torch.nan)


def keep_from(
    probs: Float[Tensor, "*rows vocab"], floor: Float[Tensor, "*rows 1"]
) -> Float[Tensor, "*rows vocab"]:
    """Restrict the distribution to tokens of probability `floor` or more; ties stay together."""
    kept = torch.where(probs >= floor, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_floor(
    probs: Float[Tensor, "*rows vocab"], top_p: Float[Tensor, "*#rows 1"]
) -> Float[Tensor, "*rows 1"]:
    """The smallest probability among the most probable tokens whose sum first reaches `top_p`."""
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1)[..., :-1]  # each token but the first, which always stays
    return ordered.gather(-1, (before < top_p).sum(-1, keepdim=True))


def edited(logits: Scores, history: History, options: Options) -> Scores:
    """Apply the penalties, and exclude end tokens where a row may not end yet.

    The result is rounded to the precision of the logits.
    """
    kind, logits = logits.dtype, logits.to(options["temperature"].dtype)
    prompt_lens, end_tokens = history.prompt_lens, history.end_tokens
    if (penalty := options.get("repetition_penalty")) is not None:
        repeated = counts(logits, history, torch.zeros_like(history.lens)) > 0
        changed = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(repeated, changed, logits)
    if not options.keys().isdisjoint(("presence_penalty", "frequency_penalty")):
        generated = counts(logits, history, prompt_lens)
        less = options.get("frequency_penalty", 0) * generated
        logits = logits - (less + options.get("presence_penalty", 0) * (generated > 0))
    if (least := options.get("min_new_tokens")) is not None:
        window, columns = logits.shape[1], history.drafted.shape[1]
        before = torch.arange(columns + 1 - window, columns + 1, device=logits.device)
        generated = (history.lens - prompt_lens)[:, None] + before
        early = generated[..., None] < least
        ends = torch.zeros(len(logits), logits.shape[2] + 1, dtype=torch.bool, device=logits.device)
        ends = ends.scatter(1, end_tokens % ends.shape[1], True)[:, None, :-1]
        logits = torch.where(early & ends, -torch.inf, logits)
    return logits.to(kind)


def counts(
    logits: Scores, history: History, first: RowNumbers
) -> Int[Tensor, "batch window vocab"]:
    """Count how often each token precedes each logit in its own row, from position `first` on."""
    batch, window, vocab = logits.shape
    device, columns = logits.device, history.drafted.shape[1]
    index = torch.arange(history.tokens.shape[1], device=device)
    committed = (index < history.lens[:, None]) & (index >= first[:, None])
    found = torch.zeros(batch, vocab, device=device, dtype=torch.int64).scatter_add(
        1, history.tokens, committed.to(torch.int64)
    )
    drafted = F.one_hot(history.drafted, vocab).cumsum(1)
    earlier = F.pad(drafted, (0, 0, 1, 0))  # the first has none before it
    return found[:, None] + earlier[:, columns + 1 - window :]
