"""Conversations as text: their messages, and the chat templates of a checkpoint."""

import contextlib
import difflib
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from bass.checkpoints.folder import read_json
from bass.errors import CheckpointError, RequestError

Message = dict[str, Any]
MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # as `transformers` has it
_PLAIN = {"system": "{}\n\n", "user": "User: {}\n", "assistant": "Assistant: {}\n"}
# tags around the assistant's text, for training; the text is unchanged
_GENERATION = re.compile(r"({%[-+]?\s*)(end)?generation(\s*[-+]?%})")
MEDIA = ("image", "video", "audio", "input_image", "input_video", "input_audio")


def conversations(messages: Any) -> list[list[Message]]:
    """The conversations of a call: one, an iterable of messages, or each of an iterable of several.

    Raises `RequestError`, which names the conversation if there are several.
    """
    listed = list(messages) if _is_several(messages) else []
    if not listed or not all(map(_is_several, listed)):
        return [checked_messages(listed or messages)]
    return [checked_messages(one, f"Conversation {i}: ") for i, one in enumerate(listed)]


def checked_messages(messages: Any, where: str = "") -> list[Message]:
    """The messages of a conversation, each a mapping, of which the template decides what it needs.

    where: the beginning of an error's sentence. Raises `RequestError`.
    """
    listed = list(messages) if _is_several(messages) else []
    if not listed or not all(isinstance(message, Mapping) for message in listed):
        raise RequestError(
            f"{where}A conversation is a list of messages, not {messages!r:.100}: give at least "
            'one {"role": "user", "content": "..."}.'
        )
    for i, message in enumerate(listed):
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and str(part.get("type")).startswith(MEDIA):
                raise RequestError(
                    f"{where}Message {i} has a part of the type {part['type']!r:.60}, and models "
                    "are used with text alone: leave it out."
                )
    return list(map(dict, listed))


def plain_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """A conversation up to the assistant's turn, for a checkpoint without a template:

    CONTENT OF A SYSTEM MESSAGE

    User: CONTENT
    Assistant: CONTENT
    User: CONTENT
    Assistant:
    """
    written = (_PLAIN[one["role"]].format(one["content"].strip()) for one in messages)
    return "".join(written) + "Assistant:"


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
        tokenizer_config.json (`settings`), or else that of chat_template.json.
        """
        files = {p.stem: p for p in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
        if (folder / "chat_template.jinja").exists():
            files = {"default": folder / "chat_template.jinja"} | files
        if files:
            return cls({n: path.read_text(encoding="utf-8") for n, path in files.items()}, special)
        given, of_processor = settings.get("chat_template"), folder / "chat_template.json"
        if given is None and of_processor.exists():
            given = read_json(of_processor).get("chat_template")
        if isinstance(given, list):
            given = {entry["name"]: entry["template"] for entry in given}
        return cls({"default": given} if isinstance(given, str) else given or {}, special)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        name: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
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

        Templates run in Jinja's sandbox, as in `transformers`. Raises `RequestError` for what the
        template refuses, and for variables, tool calls and answers of tools that it leaves out.
        """
        listed = checked_messages(messages)
        name, template = self._chosen(name, with_tools=tools is not None)
        compiled, reads = _compiled(name, template)
        variables: dict[str, Any] = {
            "tools": tools,
            "documents": documents,
            **({} if enable_thinking is None else {"enable_thinking": enable_thinking}),
            **(chat_template_kwargs or {}),
        }
        for variable, value in variables.items():
            if variable not in reads and value not in (None, []):
                near = difflib.get_close_matches(variable, sorted(reads), n=1)
                raise RequestError(
                    f"The chat template `{name}` never reads `{variable}`, so it would change "
                    f"nothing: {f'did you mean `{near[0]}`?' if near else 'leave it out.'}"
                )
        text = None
        if continue_final_message:
            if add_generation_prompt:
                raise RequestError(
                    "`add_generation_prompt` opens a new message, and `continue_final_message` "
                    "continues the last one: give one of them."
                )
            field = "content" if continue_final_message is True else continue_final_message
            listed, text = _marked(listed, field)
        opens = add_generation_prompt
        opens = not continue_final_message if opens is None else opens
        values = {**self.special, "add_generation_prompt": opens, **variables}
        try:
            rendered = compiled.render(values, messages=listed)
        except Exception as error:  # a template may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RequestError(
                f"The chat template refuses the conversation ({reason}): change the messages, or "
                "write the prompt as text."
            ) from error
        if what := _left_out(rendered, listed, partial(compiled.render, values)):
            raise RequestError(
                f"The chat template `{name}` does not show {what}, so the model would not see "
                "them: write them into the content of a message, or use another template."
            )
        return rendered if text is None else _unmarked(rendered, text)

    def _chosen(self, name: str | None, with_tools: bool) -> tuple[str, str]:
        """The name and the text of a template. Raises `RequestError` or `CheckpointError`."""
        if name is None:
            name = "tool_use" if with_tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            known = ", ".join(self.templates) or "none"
            raise CheckpointError(
                f"The checkpoint has no chat template `{name!s:.60}` (it has {known}): write the "
                "prompt as text, or add chat_template.jinja."
            )
        return name, self.templates[name]


@functools.lru_cache(maxsize=16)
def _compiled(name: str, template: str) -> tuple[Any, set[str]]:
    """The template, and the variables that it reads. Raises `CheckpointError`."""
    import jinja2.meta  # here, because not every run has a conversation
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    template = _GENERATION.sub(
        lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", template
    )
    try:
        reads = jinja2.meta.find_undeclared_variables(environment.parse(template))
        return environment.from_string(template), reads
    except jinja2.TemplateError as error:
        raise CheckpointError(
            f"The checkpoint's chat template `{name}` is not valid Jinja ({error.message}): "
            "download it again."
        ) from error


def _raise_exception(message: str) -> NoReturn:
    raise RequestError(message)


def _to_json(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Unlike Jinja's own filter, it escapes no HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _left_out(rendered: str, messages: list[Message], render: Callable[..., str]) -> str:
    """What of tool calls and their answers is not in the rendered text; empty for nothing."""
    calls = [{k: v for k, v in one.items() if k != "tool_calls" or not v} for one in messages]
    answers = [one for one in messages if one.get("role") != "tool"]
    for what, others in {"`tool_calls`": calls, "messages of the role `tool`": answers}.items():
        with contextlib.suppress(Exception):  # of a template that needs them
            if others != messages and render(messages=others) == rendered:
                return what
    return ""


def _marked(messages: list[Message], field: str) -> tuple[list[Message], str]:
    """The messages with `MARK` at the end of the final field, and its text, or `RequestError`."""
    *before, final = messages
    if isinstance(value := final.get(field), str):
        return [*before, {**final, field: value + MARK}], value
    parts = list(value) if isinstance(value, list | tuple) else []
    for i, part in reversed([*enumerate(parts)]):
        if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
            parts[i] = {**part, "text": text + MARK}
            return [*before, {**final, field: parts}], text
    raise RequestError(
        f"`continue_final_message` needs a text in the field {field!r} of the last message, which "
        f"has {value!r:.60}."
    )


def _unmarked(rendered: str, text: str) -> str:
    """The rendered text up to the last mark, without the marks of earlier uses of the message.

    Raises `RequestError` if the template leaves out the message, whose text is `text`.
    """
    mark = MARK.rstrip()
    at = rendered.rfind(mark)
    if at < 0 or text.strip() not in rendered:
        raise RequestError(
            "The chat template leaves out the last message, or the field of it that is continued: "
            "give another message, or `continue_final_message=False`."
        )
    # a template that strips the space strips the end of the message, too
    begun = rendered[:at] if rendered.startswith(MARK, at) else rendered[:at].rstrip()
    return re.sub(rf"{MARK}|\s*{mark}(?! )", "", begun)


def _is_several(value: Any) -> bool:
    """Whether it is an iterable of values, and neither a text nor a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
