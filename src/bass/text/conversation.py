"""Conversations as chat templates read them: their checks, and a final message that the model
continues.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import count, islice
from typing import Any

from bass.errors import RequestError, check_flag

MOST_MESSAGES = 100_000
MEDIA = ("image", "video", "audio", "input_image", "input_video", "input_audio")
# the variables of every template, which have arguments of their own
VARIABLES = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
)  # fmt: skip


def conversations(messages: Any) -> list[list[dict[str, Any]]]:
    """The conversations of a call: one, an iterable of messages, or each of an iterable of several.

    Raises `RequestError`, which names the conversation if there are several.
    """
    listed = _listed(messages)
    if not listed or not all(map(_is_several, listed)):
        return [checked_messages(messages if listed is None else listed)]
    return [checked_messages(one, f"Conversation {i}: ") for i, one in enumerate(listed)]


def checked_messages(messages: Any, where: str = "") -> list[dict[str, Any]]:
    """The messages of a conversation, each a mapping, of which the template decides what it needs.

    where: the beginning of an error's sentence. Raises `RequestError`.
    """
    listed = _listed(messages)
    if not listed:
        raise RequestError(
            f"{where}A conversation is a list of messages: give at least one "
            '{"role": "user", "content": "..."}.'
        )
    for i, message in enumerate(listed):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"{where}Message {i} is {message!r:.100}: give a mapping, such as "
                '{"role": "user", "content": "..."}.'
            )
        medium = next(filter(None, map(_medium, _parts(message))), None)
        if medium is not None:
            raise RequestError(
                f"{where}Message {i} has a part of the type {medium!r:.60}, and models are used "
                "with text alone: leave it out."
            )
    return list(map(dict, listed))


def checked_entries(name: str, entries: Any, form: str) -> list[dict[str, Any]] | None:
    """The tools or documents of a conversation: a list of mappings, or None.

    Raises `RequestError`, which describes an entry as `form`.
    """
    if entries is None:
        return None
    whole = isinstance(entries, list | tuple)
    wrong = [one for one in entries if not isinstance(one, Mapping)] if whole else [entries]
    if wrong:
        raise RequestError(f"`{name}` has {wrong[0]!r:.100}: give a list of {form}.")
    return list(map(dict, entries))


def checked_variables(given: Any, enable_thinking: bool | None) -> dict[str, Any]:
    """The further variables of a template. Raises `RequestError`."""
    if given is not None and not (
        isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
    ):
        raise RequestError(
            f"`chat_template_kwargs={given!r:.60}` must be a mapping of names to values."
        )
    variables = dict(given or {})
    for name in VARIABLES:
        if name in variables:
            raise RequestError(
                f"`{name}` is an argument of its own: leave it out of `chat_template_kwargs`."
            )
    if enable_thinking is not None:
        check_flag("enable_thinking", enable_thinking)
        variables["enable_thinking"] = enable_thinking
    return variables


def continued_field(continue_final_message: Any, add_generation_prompt: Any) -> str | None:
    """The field of the final message that the model continues; None: it writes a new message.

    Raises `RequestError`.
    """
    if add_generation_prompt is not None:
        check_flag("add_generation_prompt", add_generation_prompt)
    if isinstance(continue_final_message, str):
        field = continue_final_message
    else:
        check_flag("continue_final_message", continue_final_message)
        field = "content" if continue_final_message else None
    if field is not None and add_generation_prompt:
        raise RequestError(
            "`add_generation_prompt` opens a new message, and `continue_final_message` continues "
            "the last one: give one of them."
        )
    return field


def marked(messages: list[dict[str, Any]], field: str) -> tuple[list[dict[str, Any]], str, str]:
    """The messages with a mark and a space at the end of the final message's field, the mark, which
    is in no message, and the field's text.

    Raises `RequestError` if it is no text.
    """
    said = str(messages).upper()
    mark = next(m for i in count() if (m := f"END_OF_CONTINUED_MESSAGE_{i}") not in said)
    final = messages[-1]
    value = final.get(field)
    text, changed = None, value
    if isinstance(value, str):
        text, changed = value, f"{value}{mark} "
    elif isinstance(value, list | tuple):
        last = next((i for i in reversed(range(len(value))) if _has_text(value[i])), None)
        if last is not None:
            text = value[last]["text"]
            changed = [*value]
            changed[last] = {**value[last], "text": f"{text}{mark} "}
    if text is None:
        raise RequestError(
            f"`continue_final_message` needs a text in the field {field!r:.60} of the last "
            f"message, which has {value!r:.60}."
        )
    return [*messages[:-1], {**final, field: changed}], mark, text


def unmarked(rendered: str, mark: str, text: str, plain: Callable[[], str]) -> str:
    """The rendered text up to the last mark. Raises `RequestError` if the template left it out, or
    uses the message several times and not as it is.

    plain: renders the messages without the mark.
    """
    at = rendered.rfind(mark)
    if at < 0 or text.strip() not in rendered:
        raise _changed("leaves out or changes the last message")
    # a template that strips the space strips the end of the message, too
    kept = rendered[:at] if rendered.startswith(f"{mark} ", at) else rendered[:at].rstrip()
    if mark not in kept.upper():
        return kept
    kept = re.sub(rf"{mark} |\s*{mark}(?! )", "", kept)
    if not plain().startswith(kept):
        raise _changed("uses the last message several times and changes it")
    return kept


def _changed(what: str) -> RequestError:
    return RequestError(
        f"The chat template {what}, so that it cannot be continued: give another last message, or "
        "`continue_final_message=False`."
    )


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, list | tuple) else [content]


def _medium(part: Any) -> str | None:
    """The type of a part that is an image, a video or a sound."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) and kind.startswith(MEDIA) else None


def _has_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def _is_several(value: Any) -> bool:
    """Whether it is an iterable of values, and neither a text nor a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)


def _listed(values: Any) -> list[Any] | None:
    """The values of an iterable; None for anything else."""
    if not _is_several(values):
        return None
    listed = list(islice(values, MOST_MESSAGES + 1))
    if len(listed) > MOST_MESSAGES:
        raise RequestError(
            f"There are more than {MOST_MESSAGES} messages, or conversations, in one call: make "
            "several calls."
        )
    return listed
