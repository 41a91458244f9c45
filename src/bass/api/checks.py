"""Checks of a request's options, the same for `LLM.generate`, configs and command lines."""

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from bass.api.options import RequestOptions, for_one_prompt
from bass.errors import OptionError, RequestError, check_flag, check_integer, is_finite
from bass.records import SAMPLING_OPTIONS
from bass.sampling import check_sampling

MOST_SEQUENCES = 1_000_000  # of one call, which holds all results until its end
_MOST_STOPS = 1_000_000
_MOST_STOP_TOKENS = 1000
BYTES = bytes | bytearray | memoryview
PER_PROMPT = tuple(f.name for f in fields(RequestOptions) if for_one_prompt(f.type) is not f.type)


def check_value(name: str, value: Any) -> None:
    """Raise `OptionError` for a value of one option that no prompt and no model allows."""
    _CHECKS[name](value)


def per_prompt(name: str, given: Any, count: int) -> list[Any]:
    """The checked value of an option for each of `count` prompts.

    Raises an `OptionError` or a `RequestError`, which names the prompt if a list was given.
    """
    values = plain(given)
    if not is_listed(values):
        check_value(name, values)
        return [values] * count
    if len(values) != count:
        which = (
            f"prompt {len(values)} has none"
            if len(values) < count
            else f"value {count} has no prompt"
        )
        raise RequestError(
            f"`{name}` has {len(values)} values for {count} prompts ({which}): give one for all, "
            "or one per prompt."
        )
    for i, value in enumerate(values):
        with of_prompt(i):
            check_value(name, value)
    return list(values)


def is_listed(value: Any) -> bool:
    """Whether an option's value, an array converted by `plain`, has one value per prompt."""
    return isinstance(value, Sequence) and not isinstance(value, str | BYTES)


@contextmanager
def of_prompt(index: int | None) -> Iterator[None]:
    """Name the prompt in an `OptionError` raised within; None for options of all prompts."""
    try:
        yield
    except OptionError as error:
        if index is None:
            raise
        raise OptionError(f"Prompt {index}: {error}") from error


def check_lengths(least: int, most: int) -> None:
    """Raise `OptionError` for a smallest number of new tokens above the largest."""
    if least > most:
        raise OptionError(
            f"`min_new_tokens={least}` is more than `max_new_tokens={most}`: lower it, or raise "
            "`max_new_tokens`."
        )


def check_end_tokens(least: int, ends: Collection[int], vocabulary: str, size: int) -> None:
    """Raise `OptionError` if a smallest number of new tokens leaves no token of a vocabulary of
    this size, since all end a text.
    """
    if least and len(ends) >= size and {*range(size)} <= {*ends}:
        raise OptionError(
            f"`min_new_tokens={least}` needs a token that ends no text, and all {size} of "
            f"{vocabulary} end a text: give fewer `stop_token_ids`, or `min_new_tokens=0`."
        )


def check_sequences(name: str, samples: int, prompts: int) -> None:
    """Raise `RequestError` for too many sequences. name: of the option with the samples of each
    prompt.
    """
    if samples * prompts > MOST_SEQUENCES:
        raise RequestError(
            f"`{name}={samples}` for {prompts} prompts is more than {MOST_SEQUENCES} sequences: "
            "make several calls."
        )


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


def stop_token_ids(ids: Any, vocabulary: int | None = None) -> list[int]:
    """The stop token ids, checked. vocabulary: its size, if it is known. Raises `OptionError`."""
    ids = plain(() if ids is None else ids)
    if isinstance(ids, str | BYTES | Mapping) or not isinstance(ids, Iterable):
        raise OptionError(f"`stop_token_ids={ids!r:.100}` must be a list of token ids.")
    listed = list(itertools.islice(ids, _MOST_STOP_TOKENS + 1))
    if len(listed) > _MOST_STOP_TOKENS:
        raise OptionError(f"`stop_token_ids` has more than {_MOST_STOP_TOKENS} ids: give fewer.")
    for one in listed:
        if not is_integer(one) or one < 0 or (vocabulary is not None and one >= vocabulary):
            last = "" if vocabulary is None else f" to {vocabulary - 1}"
            raise OptionError(
                f"`stop_token_ids` holds {one!r:.60}: give token ids, integers from 0"
                f"{last or ' on'}."
            )
    return [int(one) for one in listed]


def stop_strings(stop: Any) -> tuple[str, ...]:
    """The stop strings, checked. Raises `OptionError`."""
    stop = plain(stop)
    if stop is None:
        return ()
    single = isinstance(stop, str | BYTES | Mapping) or not isinstance(stop, Iterable)
    stops = (stop,) if single else tuple(itertools.islice(stop, _MOST_STOPS + 1))
    if not all(isinstance(s, str) for s in stops):
        raise OptionError(f"`stop={stop!r:.100}` must be a string or a list of strings.")
    if len(stops) > _MOST_STOPS:
        raise OptionError(f"`stop` has more than {_MOST_STOPS} strings: give fewer.")
    if not all(stops):
        raise OptionError(
            "A stop string is empty, so that every text would end at once: give strings of one "
            "character or more."
        )
    return tuple(map(str, stops))


def check_stops(stops: Sequence[str], has_tokenizer: bool) -> None:
    """Raise `OptionError` for stop strings without a tokenizer."""
    if stops and not has_tokenizer:
        raise OptionError(
            "`stop` needs text, and the target's folder has no tokenizer: add one, or use "
            "`stop_token_ids`."
        )


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Convert arrays and tensors to lists."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return value  # the caller reports its type
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


def _check_time_budget(value: Any) -> None:
    if value is not None and not (is_finite(value) and value > 0):
        raise OptionError(
            f"`time_budget={value!r}` must be more than 0 seconds, or None for no limit."
        )


def _check_ignore_eos(value: Any) -> None:
    check_flag("ignore_eos", value, ", for all prompts")


# of every option of a request
_CHECKS: dict[str, Callable[[Any], object]] = {
    "max_new_tokens": lambda value: check_integer("max_new_tokens", value, 1),
    **{name: functools.partial(check_sampling, name) for name in SAMPLING_OPTIONS},
    "seed": lambda value: check_integer("seed", value),
    "stop": stop_strings,
    "stop_token_ids": stop_token_ids,
    "ignore_eos": _check_ignore_eos,
    "time_budget": _check_time_budget,
    "num_return_sequences": lambda value: check_integer("num_return_sequences", value, 1),
}
