"""Renders conversations as text with the checkpoint's chat template."""

import json
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, final

from bass.errors import CheckpointError, RequestError
from bass.files import read_regular
from bass.processes import answered
from bass.text import template_process
from bass.text.conversation import (
    checked_entries,
    checked_messages,
    checked_variables,
    continued_field,
    marked,
    unmarked,
)
from bass.text.special import optional_json

T = TypeVar("T")
LONGEST = 10_000_000  # characters of a conversation: beyond any context, and small for memory
# characters that a template may write: in addition, and per character of the messages
ADDED, TIMES = 200_000, 10
LARGEST_FILE, MOST_FILES = 1 << 20, 100  # bytes of a template; the largest known has 20 kB
AT_ONCE = 64  # conversations of one process
_TOOL = "JSON schemas, each a mapping, and not a function"
_DOCUMENT = 'mappings, such as {"title": "...", "text": "..."}'
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
        tokenizer_config.json, or else that of chat_template.json.
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
        if given is None:  # of a processor
            given = optional_json(folder / "chat_template.json").get("chat_template")
        if given is None:
            return cls({}, special)
        listed = {"default": given} if isinstance(given, str) else _by_name(given)
        if not all(isinstance(text, str) for text in (*listed, *listed.values())):
            raise CheckpointError(
                f"`{folder / 'tokenizer_config.json'}` (or chat_template.json) has a "
                "`chat_template` that is neither a text nor a list of named ones: download it "
                "again."
            )
        return cls(listed, special)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        name: str | None = None,
        *,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        enable_thinking: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one text, including special tokens.

        name: of a template; None: `tool_use` for a conversation with tools, if there is one, or
        else `default`. add_generation_prompt: open the assistant's turn; None: unless the final
        message is continued. continue_final_message: end the text with the last message's content,
        or with the named field of it. chat_template_kwargs: further variables of the template.

        Templates come with checkpoints and are not trusted: each runs in Jinja's sandbox, in a
        separate process, for at most a second of processor time (a tenth of a second slower than in
        this process).
        """
        listed = checked_messages(messages)
        tools = checked_entries("tools", tools, _TOOL)
        documents = checked_entries("documents", documents, _DOCUMENT)
        variables = checked_variables(chat_template_kwargs, enable_thinking)
        field = continued_field(continue_final_message, add_generation_prompt)
        name, template = self._chosen(name, tools is not None)
        given, mark, text = listed, "", None
        if field is not None:
            if field not in template:
                raise RequestError(
                    f"The chat template `{name}` reads no field {field!r:.60}, so "
                    "`continue_final_message` cannot continue it: give `True`, for the content."
                )
            listed, mark, text = marked(listed, field)
        opened = field is None if add_generation_prompt is None else add_generation_prompt
        values = {
            **self.special,
            **variables,
            "messages": listed,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": opened,
        }
        rendered = _rendered(name, template, values)
        if text is None:
            return rendered
        return unmarked(
            rendered, mark, text, lambda: _rendered(name, template, values | {"messages": given})
        )

    def render_all(self, conversations: Sequence[Iterable[Mapping[str, Any]]]) -> list[str]:
        """Each conversation up to the assistant's turn, as `render` without options.

        Many are rendered in one process.
        """
        texts: list[str] = []
        for some in batched(conversations, AT_ONCE):
            listed = [checked_messages(messages) for messages in some]
            _, template = self._chosen(None, False)
            replies = _in_a_process(template, [self._values(messages) for messages in listed])
            if all("text" in reply for reply in replies):
                texts += [reply["text"] for reply in replies]
            else:  # with the error of one of them, or with more time for each
                texts += [self.render(messages) for messages in listed]
        return texts

    def _values(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The variables of a template without options."""
        return {
            **self.special,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }

    def _chosen(self, name: str | None, with_tools: bool) -> tuple[str, str]:
        """The name and the text of a template. Raises `RequestError` or `CheckpointError`."""
        check_template_name(name)
        if name is None:
            name = "tool_use" if with_tools and "tool_use" in self.templates else "default"
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
        return name, self.templates[name]


def batched(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The values in groups of at most this size."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def check_template_name(name: Any) -> None:
    """Raise `RequestError` unless it can be the name of a chat template, or None."""
    if name is None:
        return
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


def _rendered(name: str, template: str, values: Mapping[str, Any]) -> str:
    """The text that the template writes. Raises `CheckpointError` or `RequestError`."""
    [reply] = _in_a_process(template, [values])
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


def _in_a_process(template: str, values: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The result of `template_process` for the template with each of these values, or that it
    exceeded its limits.
    """
    where = [find_spec(name) for name in ("jinja2", "markupsafe")]
    path = [
        str(Path(spec.origin).parents[1])
        for spec in where
        if spec is not None and spec.origin is not None
    ]
    try:
        longest = min(LONGEST, ADDED + TIMES * max(len(json.dumps(one)) for one in values))
        requested = json.dumps(
            {"path": path, "template": template, "values": values, "longest": longest}
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            "The messages, or other variables of the chat template, hold a value that JSON cannot "
            f"represent ({error}): give texts, numbers, lists and mappings."
        ) from error
    ended = answered(template_process.__file__, requested, "TZ")
    if ended is None or ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return [{"refused": TOO_LONG}] * len(values)
    if ended.returncode:
        why = (
            f"signal {-ended.returncode}"
            if ended.returncode < 0
            else (ended.stderr.strip().splitlines() or ["an error"])[-1]
        )
        return [{"refused": f"its process ended with {why}"}] * len(values)
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
