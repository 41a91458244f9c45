"""Conversations as text, by the checkpoint's own template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from bass.errors import CheckpointError, RequestError

LONGEST = 10_000_000  # characters of a conversation: beyond any context, below what fills a machine


@final
@dataclass(frozen=True)
class ChatTemplates:
    """The Jinja templates of a checkpoint by name, and the special tokens that they may write."""

    templates: Mapping[str, str] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> "ChatTemplates":
        """Those of chat_template.jinja and additional_chat_templates/, or else those of tokenizer_config.json."""
        files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
        if (folder / "chat_template.jinja").is_file():
            files = {"default": folder / "chat_template.jinja"} | files
        if files:
            return cls({name: _text(path) for name, path in files.items()}, special)
        given = settings.get("chat_template")
        if given is None:
            return cls({}, special)
        listed = {"default": given} if isinstance(given, str) else _by_name(given)
        if not all(isinstance(text, str) for text in (*listed, *listed.values())):
            raise CheckpointError(
                f"`{folder / 'tokenizer_config.json'}` has a `chat_template` that is neither a text nor a list of named ones: "
                "download it again."
            )
        return cls(listed, special)

    def render(self, messages: Sequence[Mapping[str, Any]], name: str = "default", add_generation_prompt: bool = True) -> str:
        """The conversation as one text, special tokens included; `add_generation_prompt` opens the assistant's turn.

        Templates come with checkpoints and are not trusted: they run in a sandbox, and may not write without end.
        """
        check_messages(messages)
        if name not in self.templates:
            known = f"its templates are {', '.join(self.templates)}" if self.templates else "it has none"
            raise CheckpointError(
                f"The checkpoint has no chat template `{name}` ({known}): write the prompt as text, or add chat_template.jinja."
            )
        import jinja2  # here, because few runs need it

        try:
            template = _environment().from_string(self.templates[name])
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError(f"The checkpoint's chat template `{name}` is no valid Jinja ({error}): download it again.") from error
        written: list[str] = []
        size = 0
        values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            for text in template.generate(**values | dict(self.special)):
                written.append(text)
                size += len(text)
                if size > LONGEST:
                    raise OverflowError(f"it writes more than {LONGEST} characters")
        except Exception as error:  # whatever a template does, up to calling a number
            raise RequestError(
                f"The chat template refuses the conversation ({error}): change the messages, or write the prompt as text."
            ) from error
        return "".join(written)


def check_messages(messages: Any) -> None:
    """A conversation is a list of messages with a role and a content, both texts."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError('A conversation is a list of messages: give at least one {"role": "user", "content": "..."}.')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise RequestError(f'Message {i} is {message!r:.100}: give each a "role" and a "content", both texts.')


def _environment() -> Any:
    """The functions and tags that `transformers` gives to templates, in Jinja's sandbox."""
    from datetime import datetime

    import jinja2
    import jinja2.ext
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what the assistant says, for training; the text in it stays as it is."""

        tags = {"generation"}  # noqa: RUF012  (Jinja's)

        def parse(self, parser: Any) -> Any:
            """The statements between the tags, in a scope of their own."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Any) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment


def _by_name(listed: Any) -> dict[Any, Any]:
    """Templates of a list of {name, template}; anything else is left to be refused."""
    if isinstance(listed, Mapping):
        return dict(listed)
    if isinstance(listed, list) and all(isinstance(entry, Mapping) for entry in listed):
        return {entry.get("name"): entry.get("template") for entry in listed}
    return {"default": listed}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"`{path}` is not readable as text ({error}): download it again.") from error
