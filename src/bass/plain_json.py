"""JSON within limits: the values in a text are counted before they are parsed."""

import json
import re
from typing import Any

# about twice those of the largest tokenizer.json known; reading them takes a second
MOST_VALUES = 4_000_000
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """The value of a JSON text (bytes: in UTF-8) of at most `MOST_VALUES` values. `options`: of
    `json.loads`.

    Raises `ValueError`, also for deep nesting.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    values = sum(map(text.count, ",[{"))
    if values > MOST_VALUES >= text.count('"') // 2:  # some may be characters of strings
        values = sum(map(_STRING.sub("", text).count, ",[{"))
    if values > MOST_VALUES:
        raise ValueError(f"it holds about {values:,} values, and the limit is {MOST_VALUES:,}")
    try:
        return json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
