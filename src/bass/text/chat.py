"""Renders conversations as text with the checkpoint's chat template."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, final

from bass.errors import CheckpointError, RequestError
from bass.files import read_regular
from bass.text import template_process

LONGEST = 10_000_000  # characters of a conversation: beyond any context, and small for memory
# characters that a template may write: in addition, and per character of the messages
ADDED, TIMES = 200_000, 10
MOST_MESSAGES = 100_000
LARGEST_FILE, MOST_FILES = 1 << 20, 100  # bytes of a template; the largest known has 20 kB
# wall time for a process that gets no processor time; processor time has its own limit
WAITING_SECONDS = 60
TOO_LONG = f"it takes more than {template_process.SECONDS} second of processor time"


@final
@dataclass(frozen=True)
class ChatTemplates:
    """The Jinja templates of a checkpoint by name, and the special tokens that they may write."""

    templates: Mapping[str, str] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls, folder: Path, settings: Mapping[str, Any], special: Mapping[str, str]
    ) -> "ChatTemplates":
        """The templates of chat_template.jinja and additional_chat_templates/, or else those of
        tokenizer_config.json.
        """
        more = islice((folder / "additional_chat_templates").glob("*.jinja"), MOST_FILES + 1)
        files = {path.stem: path for path in sorted(more)}
        if len(files) > MOST_FILES:
            raise CheckpointError(
                f"`{folder / 'additional_chat_templates'}` holds more than {MOST_FILES} templates: "
                "remove some."
            )
        if (folder / "chat_template.jinja").exists():
            files = {"default": folder / "chat_template.jinja"} | files
        if files:
            return cls({name: _text(path) for name, path in files.items()}, special)
        given = settings.get("chat_template")
        if given is None:
            return cls({}, special)
        listed = {"default": given} if isinstance(given, str) else _by_name(given)
        if not all(isinstance(text, str) for text in (*listed, *listed.values())):
            raise CheckpointError(
                f"`{folder / 'tokenizer_config.json'}` has a `chat_template` that is neither a "
                "text nor a list of named ones: "
                "download it again."
            )
        return cls(listed, special)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        name: str = "default",
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as one text, including special tokens; `add_generation_prompt` opens the
        assistant's turn.

        Templates come with checkpoints and are not trusted: each runs in Jinja's sandbox, in a
        separate process, for at most a second of processor time (a tenth of a second slower than in
        this process).
        """
        listed = checked_messages(messages)
        check_template_name(name)
        if name not in self.templates:
            known = (
                f"its templates are {', '.join(self.templates)}"
                if self.templates
                else "it has none"
            )
            raise CheckpointError(
                f"The checkpoint has no chat template `{name}` ({known}): write the prompt as "
                "text, or add chat_template.jinja."
            )
        values = {
            "messages": listed,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        reply = _in_a_process(self.templates[name], values | dict(self.special))
        if "invalid" in reply:
            raise CheckpointError(
                f"The checkpoint's chat template `{name}` is not valid Jinja ({reply['invalid']}): "
                "download it again."
            )
        if "refused" in reply:
            raise RequestError(
                f"The chat template refuses the conversation ({reply['refused']}): change the "
                "messages, or write the prompt as text."
            )
        return reply["text"]


def conversations(messages: Any) -> list[list[dict[str, Any]]]:
    """The conversations of a call: one, an iterable of messages, or each of an iterable of several.

    Raises `RequestError`, which names the conversation if there are several.
    """
    listed = _listed(messages)
    if not listed or not all(map(_is_several, listed)):
        return [checked_messages(messages if listed is None else listed)]
    return [checked_messages(one, f"Conversation {i}: ") for i, one in enumerate(listed)]


def checked_messages(messages: Any, where: str = "") -> list[dict[str, Any]]:
    """The messages of a conversation, each with a role and a content, both strings.

    where: the beginning of an error's sentence. Raises `RequestError`.
    """
    listed = _listed(messages)
    if not listed:
        raise RequestError(
            f"{where}A conversation is a list of messages: give at least one "
            '{"role": "user", "content": "..."}.'
        )
    for i, message in enumerate(listed):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise RequestError(
                f"{where}Message {i} is {message!r:.100}: give each a "
                '"role" and a "content", both texts.'
            )
    return list(map(dict, listed))


def check_template_name(name: Any) -> None:
    """Raise `RequestError` unless it can be the name of a chat template."""
    if not isinstance(name, str):
        raise RequestError(
            f"`template={name!r:.60}` must be the name of a chat template of the checkpoint; "
            "sampling options are keyword arguments, such as `temperature=0`."
        )
    if "{%" in name or "{{" in name:
        raise RequestError(
            "`template` is the name of a chat template of the checkpoint, and not its text: write "
            "the text to chat_template.jinja in the checkpoint's folder."
        )


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


def _in_a_process(template: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The result of `template_process` for the template, or that it exceeded its limits."""
    where = [find_spec(name) for name in ("jinja2", "markupsafe")]
    path = [
        str(Path(spec.origin).parents[1])
        for spec in where
        if spec is not None and spec.origin is not None
    ]
    try:
        longest = min(LONGEST, ADDED + TIMES * len(json.dumps(values)))
        requested = json.dumps(
            {"path": path, "template": template, "values": values, "longest": longest}
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"A message holds a value that JSON cannot represent ({error}): give texts, numbers, "
            "lists and mappings."
        ) from error
    command = [sys.executable, "-I", "-S", "-X", "utf8", template_process.__file__]
    kept = {name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        ended = subprocess.run(
            command,
            input=requested,
            capture_output=True,
            encoding="utf-8",
            env=kept,
            timeout=WAITING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"refused": TOO_LONG}
    if ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"refused": TOO_LONG}
    if ended.returncode:
        why = (
            f"signal {-ended.returncode}"
            if ended.returncode < 0
            else (ended.stderr.strip().splitlines() or ["an error"])[-1]
        )
        return {"refused": f"its process ended with {why}"}
    return json.loads(ended.stdout)


def _by_name(listed: Any) -> dict[Any, Any]:
    """Templates of a list of {name, template}; other values are checked later."""
    if isinstance(listed, Mapping):
        return dict(listed)
    if isinstance(listed, list) and all(isinstance(entry, Mapping) for entry in listed):
        return {entry.get("name"): entry.get("template") for entry in listed}
    return {"default": listed}


def _text(path: Path) -> str:
    try:
        return read_regular(path, LARGEST_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"`{path}` is not readable as text ({reason}): download it again."
        ) from error
