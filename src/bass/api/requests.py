"""Converts the prompts and options of a call into the engine's requests."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from bass.api.loading import Models
from bass.api.options import RequestOptions
from bass.api.results import Result
from bass.engine.requests import Request
from bass.errors import OptionError, RequestError, check_integer
from bass.ops.noise import row_key
from bass.sampling import Sampling

Tokens = Sequence[int] | np.ndarray | torch.Tensor
Prompt = str | Tokens | Mapping[str, Any]
Prompts = Prompt | Iterable[Prompt]
MOST_SEQUENCES = 1_000_000  # per call, which holds all results until its end
_MOST_STOPS = 1_000_000
_MOST_STOP_TOKENS = 1000
_BYTES = bytes | bytearray | memoryview
_UNORDERED = set | frozenset


def requests_for(
    models: Models, prompts: Prompts, options: RequestOptions, first_sample: int = 0
) -> list[Request]:
    """One request per sample, prompt by prompt, each with the options of its prompt.

    A request's noise depends on its prompt and sample index. Occurrence j of a repeated prompt (the
    same token ids) has the sample indices j * n to j * n + n - 1, where n is
    `num_return_sequences`; all count from `first_sample`.

    Raises `RequestError` or `OptionError`.
    """
    samples = options.num_return_sequences
    check_integer("num_return_sequences", samples, 1)
    check_integer("seed", options.seed)
    if not isinstance(options.ignore_eos, bool):
        raise OptionError(
            f"`ignore_eos={options.ignore_eos!r:.60}` must be True or False, for all prompts."
        )
    eos = () if options.ignore_eos else tuple(models.eos)
    end_tokens = tuple(dict.fromkeys((*eos, *_stop_token_ids(models, options.stop_token_ids))))
    listed = _listed(prompts)
    if samples * len(listed) > MOST_SEQUENCES:
        raise RequestError(
            f"`num_return_sequences={samples}` for {len(listed)} prompts is more than "
            f"{MOST_SEQUENCES} sequences: make several calls."
        )
    ids = [_ids(models, prompt, i) for i, prompt in enumerate(listed)]
    positions = context(models)
    requests: list[Request] = []
    seen: Counter[tuple[int, ...]] = Counter()
    limits = _per_prompt("max_new_tokens", options.max_new_tokens, len(ids))
    sampling = _samplings(options, len(ids))
    for i, (prompt, limit, own) in enumerate(zip(ids, limits, sampling, strict=True)):
        check_integer("max_new_tokens", limit, 1)
        if own.min_new_tokens > limit:
            raise OptionError(
                f"`min_new_tokens={own.min_new_tokens}` is more than "
                f"`max_new_tokens={limit}`: lower it, or raise `max_new_tokens`."
            )
        if len(prompt) + limit > positions:
            remedy = (
                f"lower `max_new_tokens` to {positions - len(prompt)}"
                if len(prompt) < positions
                else "shorten it"
            )
            raise RequestError(
                f"Prompt {i} has {len(prompt)} tokens, which with {limit} new ones exceeds the "
                f"context of {positions}: {remedy}."
            )
        first = first_sample + seen[tuple(prompt)]
        seen[tuple(prompt)] += samples
        row = tuple(map(float, vars(own).values()))
        for sample in range(first, first + samples):
            key = row_key(options.seed, prompt, sample)
            requests.append(Request(prompt, len(prompt) + limit, key, i, sample, end_tokens, row))
    return requests


def _samplings(options: RequestOptions, count: int) -> list[Sampling]:
    """The sampling options of each prompt. Raises `RequestError` or `OptionError`."""
    names = [f.name for f in fields(Sampling)]
    columns = [_per_prompt(name, getattr(options, name), count) for name in names]
    return [Sampling(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _stop_token_ids(models: Models, ids: Any) -> list[int]:
    """The stop token ids, checked. Raises `OptionError`."""
    ids = _plain(() if ids is None else ids)
    if isinstance(ids, str | _BYTES | Mapping) or not isinstance(ids, Iterable):
        raise OptionError(f"`stop_token_ids={ids!r:.100}` must be a list of token ids.")
    listed = list(itertools.islice(ids, _MOST_STOP_TOKENS + 1))
    if len(listed) > _MOST_STOP_TOKENS:
        raise OptionError(f"`stop_token_ids` has more than {_MOST_STOP_TOKENS} ids: give fewer.")
    vocabulary = models.target.shape.vocab_size
    for one in listed:
        if not _is_integer(one) or not 0 <= one < vocabulary:
            raise OptionError(
                f"`stop_token_ids` holds {one!r:.60}: give token ids, integers from 0 to "
                f"{vocabulary - 1}."
            )
    return [int(one) for one in listed]


def stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """The stop strings, checked. Raises `OptionError`."""
    stop = _plain(stop)
    if stop is None:
        return ()
    single = isinstance(stop, str | _BYTES | Mapping) or not isinstance(stop, Iterable)
    stops = (stop,) if single else tuple(itertools.islice(stop, _MOST_STOPS + 1))
    if not all(isinstance(s, str) for s in stops):
        raise OptionError(f"`stop={stop!r:.100}` must be a string or a list of strings.")
    if len(stops) > _MOST_STOPS:
        raise OptionError(f"`stop` has more than {_MOST_STOPS} strings: give fewer.")
    if not all(stops):
        raise OptionError(
            "A stop string is empty, so every text would end at once: give strings of one "
            "character or more."
        )
    return tuple(map(str, stops))


def _listed(prompts: Any) -> list[Any]:
    """The prompts of a call."""
    prompts = _plain(prompts)
    if isinstance(prompts, Result):
        raise RequestError(
            "A `Result` is not a prompt: `LLM.chat` returns the generated turn, and "
            "`LLM.apply_chat_template` the token ids of a conversation."
        )
    if isinstance(prompts, _UNORDERED):
        raise RequestError("The prompts are in a set, which has no order: give a list.")
    if isinstance(prompts, str | _BYTES | Mapping) or not isinstance(prompts, Iterable):
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


def _per_prompt(name: str, given: Any, count: int) -> list[Any]:
    """The option's value for each prompt, unchecked."""
    values = _plain(given)
    if isinstance(values, str | _BYTES) or not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise RequestError(
            f"`{name}` has {len(values)} values for {count} prompts: give one for all, or one "
            "per prompt."
        )
    return list(values)


def _ids(models: Models, prompt: Any, index: int) -> list[int]:
    """Token ids of one prompt, within the vocabulary."""
    if isinstance(prompt, Mapping):
        prompt = _from_mapping(prompt, index)
    if isinstance(prompt, str):
        if models.tokenizer is None:
            raise RequestError(
                f"Prompt {index} is text, and the target's folder has no tokenizer: give token "
                "ids, or add the tokenizer's files."
            )
        ids = models.tokenizer.encode(prompt, most=context(models))
    else:
        ids = _token_ids(prompt, index)
    if not ids:
        raise RequestError(f"Prompt {index} is empty: give at least one token to continue from.")
    vocabulary = models.target.shape.vocab_size
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise RequestError(
            f"Prompt {index} has the token id {wrong[0]}, which is outside the vocabulary: ids go "
            f"from 0 to {vocabulary - 1}."
        )
    return ids


def context(models: Models) -> int:
    """The longest row in tokens: the smaller context of target and draft."""
    both = (models.target, models.draft)
    return min(model.shape.max_positions for model in both if model is not None)


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
    prompt = _plain(prompt)
    if isinstance(prompt, _UNORDERED):
        raise RequestError(
            f"Prompt {index} is a set of token ids, which has no order: give a list."
        )
    if isinstance(prompt, _BYTES | torch.Tensor) or not isinstance(prompt, Iterable):
        raise RequestError(
            f"Prompt {index} is {type(prompt).__name__}: give a string or a list of token ids."
        )
    ids = list(prompt)
    for token in ids:
        if not _is_integer(token):
            raise RequestError(
                f"Prompt {index} holds {token!r:.60}, which is not a token id: give a string or a "
                "list of integers."
            )
    return [int(token) for token in ids]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Convert arrays and tensors to lists."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return value  # the caller reports the wrong type
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value
