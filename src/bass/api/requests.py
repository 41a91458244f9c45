"""Converts the prompts and options of a call into the engine's requests."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bass.api.checks import (
    BYTES,
    MOST_SEQUENCES,
    PER_PROMPT,
    check_context,
    check_end_tokens,
    check_lengths,
    check_sequences,
    check_value,
    is_integer,
    is_listed,
    of_prompt,
    per_prompt,
    plain,
    stop_token_ids,
)
from bass.api.loading import Models
from bass.api.options import RequestOptions
from bass.api.results import Result
from bass.engine.requests import Request
from bass.errors import RequestError
from bass.ops.noise import row_key
from bass.records import SAMPLING_OPTIONS
from bass.sampling import Sampling
from bass.text import Tokenizer

Tokens = Sequence[int] | np.ndarray | torch.Tensor
Prompt = str | Tokens | Mapping[str, Any]
Prompts = Prompt | Iterable[Prompt]
_UNORDERED = set | frozenset


def requests_for(
    models: Models,
    prompts: Prompts,
    options: RequestOptions,
    first_sample: int,
    positions: int,
) -> list[Request]:
    """One request per sample, prompt by prompt, each with the options of its prompt.

    A request's noise depends on its prompt and sample index. Occurrence j of a repeated prompt (the
    same token ids) has the sample indices j * n to j * n + n - 1, where n is
    `num_return_sequences`; all count from `first_sample`. positions: of the longest row.

    Raises `RequestError` or `OptionError`.
    """
    samples = options.num_return_sequences
    for name in ("num_return_sequences", "seed", "ignore_eos"):
        check_value(name, getattr(options, name))
    vocabulary = models.target.shape.vocab_size
    drafted = vocabulary if models.draft is None else models.draft.shape.vocab_size
    eos = () if options.ignore_eos else tuple(models.eos)
    end_tokens = tuple(dict.fromkeys((*eos, *stop_token_ids(options.stop_token_ids, vocabulary))))
    listed = _listed(prompts)
    check_sequences("num_return_sequences", samples, len(listed))
    ids = [
        prompt_ids(models.tokenizer, vocabulary, positions, prompt, i)
        for i, prompt in enumerate(listed)
    ]
    values = {name: per_prompt(name, getattr(options, name), len(ids)) for name in PER_PROMPT}
    requests: list[Request] = []
    seen: Counter[tuple[int, ...]] = Counter()
    limits, sampling = values["max_new_tokens"], _samplings(values)
    differ = any(is_listed(plain(getattr(options, f"{m}_new_tokens"))) for m in ("min", "max"))
    for i, (prompt, limit, own) in enumerate(zip(ids, limits, sampling, strict=True)):
        with of_prompt(i if differ else None):
            check_lengths(own.min_new_tokens, limit)
            check_end_tokens(own.min_new_tokens, end_tokens, "the vocabulary", vocabulary)
            check_end_tokens(own.min_new_tokens, end_tokens, "the draft's vocabulary", drafted)
        check_context(i, len(prompt), limit, positions)
        first = first_sample + seen[tuple(prompt)]
        seen[tuple(prompt)] += samples
        row = tuple(map(float, vars(own).values()))
        for sample in range(first, first + samples):
            key = row_key(options.seed, prompt, sample)
            requests.append(Request(prompt, len(prompt) + limit, key, i, sample, end_tokens, row))
    return requests


def _samplings(values: Mapping[str, list[Any]]) -> list[Sampling]:
    """The sampling options of each prompt, from the values of each option."""
    rows = zip(*(values[name] for name in SAMPLING_OPTIONS), strict=True)
    return [Sampling(**dict(zip(SAMPLING_OPTIONS, row, strict=True))) for row in rows]


def _listed(prompts: Any) -> list[Any]:
    """The prompts of a call."""
    prompts = plain(prompts)
    if isinstance(prompts, Result):
        raise RequestError(
            "A `Result` is not a prompt: `LLM.chat` returns the generated turn, and "
            "`LLM.apply_chat_template` the token ids of a conversation."
        )
    if isinstance(prompts, _UNORDERED):
        raise RequestError("The prompts are in a set, which has no order: give a list.")
    if isinstance(prompts, str | BYTES | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    listed = list(itertools.islice(prompts, MOST_SEQUENCES + 1))
    if not listed:
        raise RequestError(
            "There is no prompt: give a string, a list of token ids, or a list of either."
        )
    if len(listed) > MOST_SEQUENCES:
        raise RequestError(
            f"There are more than {MOST_SEQUENCES} prompts, or token ids, in one call: make "
            "several calls."
        )
    return [listed] if all(isinstance(one, int | np.integer) for one in listed) else listed


def prompt_ids(
    tokenizer: Tokenizer | None, vocabulary: int, positions: int, prompt: Any, index: int
) -> list[int]:
    """Token ids of one prompt, within a vocabulary of this size.

    positions: of the context, which the prompt need not fit. Raises `RequestError`.
    """
    if isinstance(prompt, Mapping):
        prompt = _from_mapping(prompt, index)
    if isinstance(prompt, str):
        if tokenizer is None:
            raise RequestError(
                f"Prompt {index} is text, and the target's folder has no tokenizer: give token "
                "ids, or add the tokenizer's files."
            )
        ids = tokenizer.encode(prompt, most=positions)
    else:
        ids = _token_ids(prompt, index)
    if not ids:
        raise RequestError(f"Prompt {index} is empty: give at least one token to continue from.")
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise RequestError(
            f"Prompt {index} has the token id {wrong[0]}, which is outside the vocabulary: ids go "
            f"from 0 to {vocabulary - 1}."
        )
    return ids


def _from_mapping(prompt: Mapping[Any, Any], index: int) -> Any:
    """The text or the token ids of a prompt in vLLM's mapping form."""
    for key in prompt:
        if key not in ("prompt", "prompt_token_ids"):
            raise RequestError(
                f"Prompt {index} has the key {key!r:.60}: give `prompt`, a text, or "
                "`prompt_token_ids`, and nothing else."
            )
    if len(prompt) > 1:
        raise RequestError(
            f"Prompt {index} has both `prompt` and `prompt_token_ids`: give one of them."
        )
    if not prompt:
        raise RequestError(
            f"Prompt {index} is a mapping without keys: give `prompt`, a text, or "
            "`prompt_token_ids`."
        )
    [(key, value)] = prompt.items()
    if isinstance(value, str) != (key == "prompt") or isinstance(value, Mapping):
        what = (
            "a text; token ids are `prompt_token_ids`"
            if key == "prompt"
            else "a list of token ids; a text is `prompt`"
        )
        raise RequestError(f"Prompt {index}: `{key}` is of {type(value).__name__}: give {what}.")
    return value


def _token_ids(prompt: Any, index: int) -> list[int]:
    prompt = plain(prompt)
    if isinstance(prompt, _UNORDERED):
        raise RequestError(
            f"Prompt {index} is a set of token ids, which has no order: give a list."
        )
    if isinstance(prompt, BYTES | torch.Tensor) or not isinstance(prompt, Iterable):
        raise RequestError(
            f"Prompt {index} is {type(prompt).__name__}: give a string or a list of token ids."
        )
    ids = list(prompt)
    for token in ids:
        if not is_integer(token):
            raise RequestError(
                f"Prompt {index} holds {token!r:.60}, which is not a token id: give a string or a "
                "list of integers."
            )
    return [int(token) for token in ids]
