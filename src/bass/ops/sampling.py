"""Logits to probabilities (warps), the draw of a token, and log-probabilities.

edited          y = x / r where x > 0, else x r, for tokens of the row (repetition penalty r);
                y - f n - p [n > 0] for n occurrences among the generated tokens (frequency and
                presence penalties f and p); -inf for end tokens of a row that is too short
warp            p = e / Σ e over the remaining tokens, else 0;  e = exp((y - max y) / T)
draw            the token at which the running sum of p passes u Σ p (inverse transform)
token_logprobs  x[token] - log Σ exp(x)
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.records import History
from bass.sampling_params import SAMPLING_OPTIONS

OFF = np.array(list(SAMPLING_OPTIONS.values()))  # the values without effect


@dataclass(frozen=True)
class Columns:
    """The options of each row, as columns that broadcast over windows and vocabulary.

    used: the names of the options that some row may use, with "greedy" and "sampled" for
    temperatures of 0 and above.
    """

    temperature: Float[Tensor, "batch 1 1"]
    top_k: Float[Tensor, "batch 1 1"]
    top_p: Float[Tensor, "batch 1 1"]
    min_p: Float[Tensor, "batch 1 1"]
    repetition_penalty: Float[Tensor, "batch 1 1"]
    presence_penalty: Float[Tensor, "batch 1 1"]
    frequency_penalty: Float[Tensor, "batch 1 1"]
    min_new_tokens: Float[Tensor, "batch 1 1"]
    used: frozenset[str]
    most: int | None  # the largest `top_k`; None where it is not on the host

    @classmethod
    def of(cls, sampling: Float64[Tensor, "batch options"], dtype: torch.dtype) -> "Columns":
        """The columns of `sampling` in `dtype`.

        On a CPU, where reading values does not synchronise, `used` omits the options that no row
        uses; elsewhere it has all names.
        """
        columns = sampling.to(dtype)[:, None, None, :].unbind(-1)
        own = dict(zip(SAMPLING_OPTIONS, columns, strict=True))
        if sampling.device.type != "cpu":
            used = frozenset((*SAMPLING_OPTIONS, "greedy", "sampled"))
            return cls(**own, used=used, most=None)
        values = sampling.numpy()
        in_use = ((values != OFF) & (values != 0)).any(0)
        used = set(itertools.compress(SAMPLING_OPTIONS, in_use))
        greedy = values[:, 0] == 0
        used |= {"greedy"} if greedy.any() else set()
        used |= set() if greedy.all() else {"sampled"}
        return cls(**own, used=frozenset(used), most=int(values[:, 1].max()))


def warp(
    logits: Float[Tensor, "batch window vocab"], history: History
) -> Float[Tensor, "batch window vocab"]:
    """The distribution of each row by its own options (`history.sampling`): penalties, then
    temperature (0: one-hot), then top-k, top-p and min-p.

    In float32, or float64 for logits in float64; logits that penalties change keep their own
    precision. A row's result does not depend on the options of others. Logits that contain NaN or
    +infinity, or no finite value, give NaN.
    """
    assert history.sampling is not None
    assert history.prompt_lens is not None
    assert history.end_tokens is not None
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
    cpu = dispatch.cpu_kernels(logits)
    if cpu is not None and without_penalties(history.sampling):
        return cpu.step.warp(logits, history.sampling)
    options = Columns.of(history.sampling, wide)
    logits = edited(logits, history, options).to(wide)
    if "sampled" not in options.used:
        return most_probable_token(logits)
    greedy, scaled = options.temperature == 0, logits
    if "temperature" in options.used:
        # x / T itself could overflow
        scaled = logits - logits.amax(-1, keepdim=True)
        scaled = scaled / torch.where(greedy, 1, options.temperature)
    probs = restricted(scaled.softmax(-1), options)
    if "greedy" in options.used:
        probs = torch.where(greedy, most_probable_token(logits), probs)
    return probs


def without_penalties(sampling: Float64[Tensor, "batch options"]) -> bool:
    """Whether no row changes its logits. Rows are on a CPU."""
    return bool((sampling.numpy()[:, 4:] == OFF[4:]).all())


def most_probable_token(
    logits: Float[Tensor, "batch window vocab"],
) -> Float[Tensor, "batch window vocab"]:
    """The one-hot distribution of the largest logit; NaN where that is not finite."""
    if logits.is_cpu:  # where the host reads values without waiting
        index = logits.argmax(-1, keepdim=True)
        if bool(logits.gather(-1, index).isfinite().all()):
            return torch.zeros_like(logits).scatter_(-1, index, 1)
    chosen = F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return torch.where(logits.amax(-1, keepdim=True).isfinite(), chosen, torch.nan)


def restricted(
    probs: Float[Tensor, "batch window vocab"], options: Columns
) -> Float[Tensor, "batch window vocab"]:
    """Apply top-k, top-p and min-p, in rows that use them."""
    vocab = probs.shape[-1]
    if "top_k" in options.used:
        most = vocab if options.most is None else min(options.most, vocab)
        used, place = (options.top_k > 0) & (options.top_k < vocab), options.top_k.long() - 1
        place = place.clamp(0, most - 1).expand(*probs.shape[:2], 1)
        floor = probs.topk(most, -1).values.gather(-1, place)
        probs = torch.where(used, keep_from(probs, floor), probs)
    if "top_p" in options.used:
        floor = top_p_floor(probs, options.top_p)
        probs = torch.where(options.top_p < 1, keep_from(probs, floor), probs)
    if "min_p" in options.used:
        floor = options.min_p * probs.amax(-1, keepdim=True)
        probs = torch.where(options.min_p > 0, keep_from(probs, floor), probs)
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
    logits: Float[Tensor, "batch window vocab"], tokens: Int[Tensor, "batch window"]
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
    ordered, sums = most_probable(probs, top_p)
    before = sums[..., :-1]  # the sum before each token but the first, which always stays
    return ordered.gather(-1, (before < top_p).sum(-1, keepdim=True))


def most_probable(
    probs: Float[Tensor, "*rows vocab"], mass: Float[Tensor, "*#rows 1"]
) -> tuple[Float[Tensor, "*rows most"], Float[Tensor, "*rows most"]]:
    """The largest probabilities in descending order, enough to hold `mass` in every row, and their
    running sums.

    Where `mass` is 1 or more the count does not matter, since all tokens stay. On a CPU a partial
    selection of 32 or 512 tokens nearly always suffices, at a tenth of the time of a sort. The
    check needs a host read, which is free there and is not made on other devices.
    """
    if probs.device.type == "cpu":
        for count in (32, 512):
            if count < probs.shape[-1]:
                head = probs.topk(count, -1).values
                sums = head.cumsum(-1)
                if bool(((sums[..., -1:] >= mass) | (mass >= 1)).all()):
                    return head, sums
    ordered = probs.sort(-1, descending=True).values
    return ordered, ordered.cumsum(-1)


def edited(
    logits: Float[Tensor, "batch window vocab"], history: History, options: Columns
) -> Float[Tensor, "batch window vocab"]:
    """Apply the penalties, and exclude end tokens where a row may not end yet.

    The result is rounded to the precision of the logits.
    """
    kind, logits = logits.dtype, logits.to(options.temperature.dtype)
    used, prompt_lens, end_tokens = options.used, history.prompt_lens, history.end_tokens
    assert prompt_lens is not None
    assert end_tokens is not None
    if "repetition_penalty" in used:
        repeated = counts(logits, history, torch.zeros_like(history.lens)) > 0
        logits = penalized(logits, repeated, options.repetition_penalty)
    if not used.isdisjoint(("presence_penalty", "frequency_penalty")):
        generated = counts(logits, history, prompt_lens)
        less = options.frequency_penalty * generated + options.presence_penalty * (generated > 0)
        logits = logits - less
    if "min_new_tokens" in used:
        window, columns = logits.shape[1], history.drafted.shape[1]
        before = torch.arange(columns + 1 - window, columns + 1, device=logits.device)
        generated = (history.lens - prompt_lens)[:, None] + before
        early = generated[..., None] < options.min_new_tokens
        ends = torch.zeros(len(logits), logits.shape[2] + 1, dtype=torch.bool, device=logits.device)
        ends = ends.scatter(1, end_tokens % ends.shape[1], True)[:, None, :-1]
        logits = torch.where(early & ends, -torch.inf, logits)
    return logits.to(kind)


def counts(
    logits: Float[Tensor, "batch window vocab"], history: History, first: Int[Tensor, " batch"]
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
    earlier = torch.cat(
        (torch.zeros(batch, 1, vocab, device=device, dtype=torch.int64), drafted), 1
    )
    return found[:, None] + earlier[:, columns + 1 - window :]


def penalized(
    logits: Float[Tensor, "batch window vocab"],
    repeated: Bool[Tensor, "batch window vocab"],
    penalty: Float[Tensor, "batch 1 1"],
) -> Float[Tensor, "batch window vocab"]:
    """Divide the positive and multiply the negative logits of repeated tokens by `penalty`."""
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(repeated, changed, logits)
