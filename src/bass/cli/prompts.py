"""The prompts of `bass generate`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from bass.api.llm import LLM
from bass.api.options import TemplateOptions
from bass.cli.terminal import say
from bass.errors import OptionError, RequestError, check_integer, flag
from bass.experiments.prompting import first_prompts, plain_turns
from bass.files import read_regular, read_text
from bass.plain_json import parse_json
from bass.prompts.entries import Entry
from bass.prompts.published import check_data
from bass.prompts.reading import Selection
from bass.runs.prompts import read_prompts as stored_prompts
from bass.text.conversation import conversations

EXAMPLE = '''class Account:
    """A bank account with an owner and a balance."""

    def __init__(self, owner, balance=0):
'''
LARGEST_PROMPT = 1 << 28  # bytes of a file
# a class ends before the next top-level line
EXAMPLE_STOPS = ("\nclass ", "\ndef ", "\n@", "\nif ", "\n#")


def read_prompts(config: Namespace) -> list[Any]:
    """The prompts of the options, which must have exactly one source of them: texts, token ids,
    conversations (with `--messages`), or entries (with `--prompts`).
    """
    sources = {
        "a prompt": config.prompt,
        "`--file`": config.file is not None,
        "`--token-ids`": config.token_ids is not None,
        "`--example`": config.example,
        "`--messages`": config.messages is not None,
        "`--prompts`": config.prompts is not None,
    }
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise RequestError(f"Prompts come from {' and '.join(given)}: give one of them.")
    if config.chat and config.token_ids is not None:
        raise RequestError(
            "`--chat` needs texts, and `--token-ids` are not texts: give one of the two."
        )
    if config.system is not None and config.messages is not None:
        raise OptionError(
            "`--system` and `--messages` both give messages: write the system message into the "
            "file."
        )
    if config.system is not None and not config.chat:
        raise OptionError("`--system` is part of a conversation: give `--chat` with it.")
    for name in ("data", "categories", "num_prompts"):
        if config[name] is not None and config.prompts is None:
            raise OptionError(f"`{flag(name)}` is for a set of prompts: give `--prompts` with it.")
    for name in _template_options(config):
        if not (config.chat or config.messages is not None):
            raise OptionError(
                f"`{flag(name)}` is for a conversation: give `--chat` or `--messages` with it."
            )
    if config.messages is not None:
        return conversations(_messages(config.messages))
    if config.prompts is not None:
        return _of_a_set(config)
    if config.prompt:
        return list(config.prompt)
    if config.file is not None:
        return [_read(config.file)]
    if config.token_ids is not None:
        return [config.token_ids]
    if config.example:
        return [EXAMPLE]
    text = ""
    try:
        if sys.stdin is not None and not sys.stdin.isatty():
            text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"Standard input is not UTF-8 text ({error.reason} at byte {error.start}): convert it."
        ) from error
    if not text:
        raise RequestError(
            "There is no prompt: give one in quotes, `--file`, standard input, or `--example`."
        )
    return [text]


def _of_a_set(config: Namespace) -> list[Entry]:
    """The selected entries of `--prompts`."""
    if config.num_prompts is not None:
        check_integer("num_prompts", config.num_prompts, 1)
    selection = Selection.named(config.categories, most=config.num_prompts)
    entries = stored_prompts(config.prompts, config.data, selection)
    check_data(config.data, config.prompts)
    if config.num_prompts is not None and len(entries) < config.num_prompts:
        count = f"`--num-prompts` is {config.num_prompts}, and there are {len(entries)}"
        say(f"bass: {count}: all run.", stderr=True)
    if config.chat and any(isinstance(entry.prompt, tuple) for entry in entries):
        raise RequestError(
            f"`--chat` needs texts, and `--prompts {config.prompts}` has token ids: give one of "
            "the two."
        )
    if config.system is not None and any(entry.messages for entry in entries):
        raise OptionError(
            f"`--system` is for prompts of text, and `--prompts {config.prompts}` has "
            "conversations: leave it out, or write the system message into the file."
        )
    return entries


def asked(
    llm: LLM, given: Sequence[Any], config: Namespace, template_with: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    """The prompts for the model, and what is shown of each."""
    if config.chat or config.messages is not None:
        talks = [conversation(_first_turn(one), config.system) for one in given]
        prompts = [llm.apply_chat_template(talk, **template_with) for talk in talks]
        return prompts, [in_short(talk) for talk in talks]
    if config.prompts is None:
        return [*given], [*given]
    prompts = first_prompts(llm.models.tokenizer, given, llm.max_model_len)
    return prompts, [in_short(_first_turn(one)) if one.messages else one.prompt for one in given]


def notes(llm: LLM, given: Sequence[Any]) -> list[str]:
    """What is not obvious about the prompts of `--prompts`."""
    entries = [one for one in given if isinstance(one, Entry)]
    found = []
    if plain_turns(entries, llm.models.tokenizer):
        found.append(
            "NOTE: conversations are plain text with `User:` and `Assistant:`, since the target "
            "has no chat template."
        )
    if count := sum(entry.turns > 1 for entry in entries):
        found.append(
            f"NOTE: {count} of {len(entries)} prompts have several turns, of which only the first "
            "is answered here: `bass ablate` answers all."
        )
    return found


def _first_turn(one: Any) -> Any:
    """The first turn of an entry: messages, or its text; anything else as it is."""
    if not isinstance(one, Entry):
        return one
    return one.conversation(0, []) if one.messages else one.prompt


def read_template_options(config: Namespace) -> dict[str, Any]:
    """The given options of the chat template, with the content of their files."""
    options = {name: config[name] for name in _template_options(config)}
    return options | {
        name: read_json(name, options[name]) for name in ("tools", "documents") if name in options
    }


def conversation(prompt: Any, system: str | None) -> Any:
    """The messages of a prompt: a user message after the system message, or the prompt itself if it
    is a conversation.
    """
    if not isinstance(prompt, str):
        return prompt
    user = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def read_json(option: str, name: str) -> Any:
    """The content of the JSON file of an option."""
    try:
        return parse_json(read_regular(Path(name), LARGEST_PROMPT))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(
            f"`{name}` cannot be read ({reason}): give a JSON file to `--{option}`."
        ) from error


def _messages(name: str) -> Any:
    """The conversations of a JSON file, also as the `messages` of an object with nothing else."""
    value = read_json("messages", name)
    if not isinstance(value, dict) or "messages" not in value:
        return value
    if others := [key for key in value if key != "messages"]:
        raise RequestError(
            f"`{name}` holds a whole request, with {', '.join(others)[:100]} next to its "
            "`messages`: give a file of the list of messages alone, and the rest as options."
        )
    return value["messages"]


def in_short(prompt: Any) -> str:
    """A prompt, or the last message of a conversation, to show above its completion."""
    content = prompt if isinstance(prompt, str) else prompt[-1].get("content")
    return f"{content if isinstance(content, str) else json.dumps(content)}\n"


def _template_options(config: Namespace) -> list[str]:
    """The names of the given options of the chat template."""
    return [f.name for f in fields(TemplateOptions) if config[f.name] not in (f.default, None)]


def _read(name: str) -> str:
    try:
        return read_text(Path(name), LARGEST_PROMPT)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"`{name}` is not UTF-8 text ({error.reason} at byte {error.start}): convert it, or "
            "give another file."
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(
            f"`{name}` cannot be read ({reason}): give a readable text file."
        ) from error
