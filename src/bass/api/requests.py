"""Converts the prompts and options of a call into the engine's requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

from bass.api.loading import Models
from bass.api.options import RequestOptions
from bass.engine.requests import Request
from bass.errors import RequestError, check_number
from bass.ops.noise import row_key
from bass.sampling_params import listed
from bass.text import Tokenizer

Tokens = Sequence[int] | np.ndarray | torch.Tensor
Prompt = str | Tokens | Mapping[str, Any]
Prompts = Prompt | Iterable[Prompt]


def requests_for(
    models: Models,
    prompts: Prompts,
    options: RequestOptions,
    first_sample: int,
    positions: int,
    first_prompt: int = 0,
) -> list[Request]:
    """One request per sample, prompt by prompt, each with the options of its prompt.

    A request's noise depends on its prompt and sample index. Occurrence j of a repeated prompt (the
    same token ids) has the sample indices j * n to j * n + n - 1, where n is
    `num_return_sequences`; all count from `first_sample`. positions: of the longest row.
    first_prompt: the index of the first prompt.

    Raises `RequestError` or `OptionError`.
    """
    vocabulary = models.target.shape.vocab_size
    each = prompts_of(prompts)
    own = options.of_prompts(len(each))
    eos = () if options.ignore_eos else tuple(models.eos)
    stops = [*(listed(options.stop_token_ids) or ())]
    for one in stops:
        check_number("stop_token_ids", one, f"[0, {vocabulary})")
    end_tokens = tuple(dict.fromkeys((*eos, *map(int, stops))))
    numbered = [*enumerate(each, first_prompt)]
    ids = [prompt_ids(models.tokenizer, vocabulary, prompt, i) for i, prompt in numbered]
    requests: list[Request] = []
    seen: Counter[tuple[int, ...]] = Counter()
    samples = options.num_return_sequences
    for (i, _), prompt, params in zip(numbered, ids, own, strict=True):
        limit: Any = params.max_new_tokens
        check_context(i, len(prompt), limit, positions)
        first = first_sample + seen[tuple(prompt)]
        seen[tuple(prompt)] += samples
        for sample in range(first, first + samples):
            key = row_key(options.seed, prompt, sample)
            limits, longest = len(prompt) + limit, listed(params.max_draft_length)
            own_row = i, sample, end_tokens, params.row, longest
            requests.append(Request(prompt, limits, key, *own_row))
    return requests


def check_context(index: int, length: int, limit: int, positions: int) -> None:
    """Raise `RequestError` for a prompt that exceeds the context with its new tokens."""
    if length + limit > positions:
        remedy = (
            f"lower `max_new_tokens` to {positions - length}"
            if length < positions
            else "shorten it"
        )
        raise RequestError(
            f"Prompt {index} has {length} tokens, which with {limit} new ones exceeds the "
            f"context of {positions}: {remedy}."
        )


def prompts_of(prompts: Any) -> list[Any]:
    """The prompts of a call, which may be one alone. Raises `RequestError` if there is none."""
    prompts = listed(prompts)
    if isinstance(prompts, str | bytes | Mapping | Set) or not isinstance(prompts, Iterable):
        return [prompts]
    if not (found := list(prompts)):
        raise RequestError(
            "There is no prompt: give a string, a list of token ids, or a list of either."
        )
    return [found] if all(isinstance(one, int | np.integer) for one in found) else found


def prompt_ids(tokenizer: Tokenizer | None, vocabulary: int, prompt: Any, index: int) -> list[int]:
    """Token ids of one prompt, within a vocabulary of this size. Raises `RequestError`."""
    if isinstance(prompt, Mapping):
        prompt = _from_mapping(prompt, index)
    if isinstance(prompt, str):
        ids = needed(tokenizer, f"Prompt {index} is").encode(prompt)
    else:
        ids = listed(prompt)
        if not isinstance(ids, Sequence) or isinstance(ids, bytes):
            raise RequestError(
                f"Prompt {index} is of {type(ids).__name__}: give a string or a list of token ids."
            )
    if not ids:
        raise RequestError(f"Prompt {index} is empty: give at least one token to continue from.")
    for token in ids:
        whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
        if not (whole and 0 <= token < vocabulary):
            raise RequestError(
                f"Prompt {index} holds {token!r:.60}: give a string, or token ids, integers from 0 "
                f"to {vocabulary - 1}."
            )
    return [int(token) for token in ids]


def needed(tokenizer: Tokenizer | None, what: str, instead: str = "token ids") -> Tokenizer:
    """The tokenizer. Raises `RequestError` without one; what: "A conversation is", for example."""
    if tokenizer is None:
        raise RequestError(
            f"{what} text, and the target's folder has no tokenizer: give {instead}, or add the "
            "tokenizer's files."
        )
    return tokenizer


def _from_mapping(prompt: Mapping[Any, Any], index: int) -> Any:
    """The text or the token ids of a mapping; `prompt_token_ids` is vLLM's name."""
    [*keys] = prompt
    if keys not in (["prompt"], ["token_ids"], ["prompt_token_ids"]):
        raise RequestError(
            f"Prompt {index} has the keys {keys!r:.60}: give `prompt`, a text, or `token_ids`, a "
            "list, and nothing else."
        )
    return prompt[keys[0]]
