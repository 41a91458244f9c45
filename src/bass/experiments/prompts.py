"""Prompts of every command: published sets by name, files, lists; and their form for a model.

An `Entry` is a prompt as it is, or a conversation. The model answers each user message that no
assistant message follows: each is a turn. As in the evaluations of MT-bench and Spec-Bench, a turn
is a generation of its own, whose prompt is the conversation so far with the generated answers.
"""

import functools
import gzip
import itertools
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from bass.errors import OptionError, RequestError, unknown_name
from bass.files import reason

if TYPE_CHECKING:
    from bass.text import Tokenizer

Prompt = str | list[int]
DATA = "BASS_DATA"  # environment variable: the folder of published sets
ROLES = ("system", "user", "assistant")
# fields with a prompt, of which the first that a record has counts
FORMS = (
    "token_ids", "prompt_token_ids", "prompt", "turns", "messages", "question", "document",
    "article", "text",
)  # fmt: skip
KINDS = ".jsonl, .json (both also with .gz), .csv or .parquet; any other file is one text"
# SPEED-Bench is published with this text where a licence does not allow a copy
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
SLACK = 16  # further tokens of an answer, which is encoded again in the next prompt

_DATA = tomllib.loads((files("bass.experiments") / "prompts.toml").read_text(encoding="utf-8"))
PYTHON: list[str] = _DATA.pop("python")  # the built-in prompts


@final
@dataclass(frozen=True)
class Entry:
    """A prompt (text or token ids), or the messages of a conversation; and its category, if any.

    messages: of each its role, of `ROLES`, and its content. Raises `ValueError` if the last is not
    a user's.
    """

    prompt: str | tuple[int, ...] | None
    messages: tuple[tuple[str, str], ...] = ()
    category: str = ""

    def __post_init__(self) -> None:
        if self.prompt is None and (not self.messages or self.messages[-1][0] != "user"):
            raise ValueError("its last message must be a user's")

    @property
    def _answered(self) -> list[bool]:
        """Of each message, whether the model answers it."""
        pairs = itertools.pairwise([*(role for role, _ in self.messages), ""])
        return [role == "user" and then != "assistant" for role, then in pairs]

    @property
    def turns(self) -> int:
        """The number of answers of the model; 1 for a prompt."""
        return sum(self._answered) or 1

    def conversation(self, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
        """The messages up to a turn, from 0, with the answers before it; none of a prompt."""
        found, given = list[dict[str, str]](), iter(answers[:turn])
        for (role, content), answered in zip(self.messages, self._answered, strict=True):
            found.append({"role": role, "content": content})
            if answered:
                if (answer := next(given, None)) is None:
                    break
                found.append({"role": "assistant", "content": answer})
        return found


@final
@dataclass(frozen=True, eq=False)
class PromptSet:
    """A published file of prompts.

    files: the paths that it may have in the folder of published sets, the publisher's first.
    groups: categories that the publisher reports under another name.
    """

    name: str
    source: str
    files: Sequence[str]
    groups: Mapping[str, str] = field(default_factory=dict)

    def path(self, data: str | Path | None = None) -> Path:
        """Its file in `data`, by default in `BASS_DATA`. Raises `OptionError` with its source."""
        folder = data or os.environ.get(DATA)
        for file in self.files if folder else ():
            if (found := Path(folder or "", file)).exists():
                return found
        missing = f"`{folder}` does not hold them" if folder else "no folder is named"
        raise OptionError(
            f"The data of `{self.name}` are no part of `bass`, and {missing}: download "
            f"{self.source} as `{'` or `'.join(self.files)}` into a folder, and give "
            f"`--data FOLDER`, or set {DATA}."
        )


SETS: Mapping[str, PromptSet] = {
    name: PromptSet(
        name,
        one["source"].format(split=split),
        [file.format(split=split) for file in one["files"]],
        one.get("groups", {}),
    )
    for first, one in _DATA.items()
    for name, split in one.get("splits", {first: ""}).items()
}


def read_prompts(
    given: str | Path | Sequence[Any],
    data: str | Path | None = None,
    categories: str | Sequence[str] | None = None,
    most: int | None = None,
) -> list[Entry]:
    """The selected prompts, in their order.

    given: `python` (the built-in list), the name of a published set, whose folder is `data`, a
    file, or a list of texts, token ids, or mappings as in a file. Selected are those of the
    categories, of these the first `most`.

    Raises `OptionError`.
    """
    given, groups = PYTHON if given == "python" else given, {}
    if isinstance(given, str) and given in SETS:
        given, groups = SETS[given].path(data), SETS[given].groups
    elif isinstance(given, str) and not re.search("[./]", given) and not Path(given).exists():
        raise unknown_name("prompts", given, ["python", *SETS])
    try:
        if isinstance(given, str | Path):
            entries = _of_file(Path(given), Path(given).stat().st_mtime_ns)
        else:
            entries = _entries(given)
    except (OSError, EOFError, TypeError, ValueError, ImportError) as error:
        raise OptionError(
            f"`prompts: {given!s:.200}` cannot be read ({reason(error)}): "
            f"give `python`, the name of a set ({', '.join(SETS)}), a file ({KINDS}), or a list of "
            "texts, lists of token ids, or mappings as in a file."
        ) from error
    entries = [replace(one, category=groups.get(one.category, one.category)) for one in entries]
    named = [one.category for one in entries]
    wanted = [categories] if isinstance(categories, str) else categories
    wanted = named if wanted is None else wanted
    for name in wanted:
        if name not in named:
            raise unknown_name("category of the prompts", name, {*named} - {""})
    return [one for one in entries if one.category in wanted][:most]


@functools.lru_cache(maxsize=8)
def _of_file(path: Path, _: int) -> list[Entry]:
    """The entries of a file, read once while its time is the same. Raises `ValueError`."""
    if is_text(path):
        return [Entry(_prompt(path.read_text(encoding="utf-8-sig")))]
    return _entries([one if isinstance(one, Mapping) else {} for one in read_records(path)])


def _entries(given: Sequence[Any]) -> list[Entry]:
    found = []
    for number, one in enumerate(given, 1):
        try:
            found.append(entry_of(one))
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
    if not found:
        raise ValueError("it has no prompts")
    return found


def is_text(path: str | Path) -> bool:
    """Whether a file is one text; a name is none."""
    named = str(path) in ("python", *SETS)
    return not named and _form(Path(path)) not in (".jsonl", ".json", ".csv", ".parquet")


def _form(path: Path) -> str:
    """The extension of a file in lower case, without that of gzip."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_records(path: Path) -> list[Any]:
    """The records of a file of JSON lines, JSON, CSV or Parquet. Raises `OSError`, `ValueError`."""
    form = _form(path)
    if form in (".csv", ".parquet"):
        import pandas as pd  # for these files alone

        read_csv = functools.partial(pd.read_csv, dtype=str, keep_default_na=False)
        frame = (read_csv if form == ".csv" else pd.read_parquet)(path)
        return json.loads(frame.to_json(orient="records") or "[]")
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    text = content.decode("utf-8-sig")
    if form == ".jsonl":  # as one list, so that the line of an error is that of the record
        text = "[" + ",\n".join(filter(str.strip, text.split("\n"))) + "]"
    found = json.loads(text)
    return found if isinstance(found, list) else [found]


def entry_of(record: Any) -> Entry:
    """The entry of a text, token ids, or a mapping with one of `FORMS`. Raises `ValueError`."""
    if isinstance(record, Entry):
        return record
    record = record if isinstance(record, Mapping) else {"prompt": record}
    given = {name: value for name, value in record.items() if value is not None}
    if {"code", "test_list"} <= given.keys():  # of MBPP
        text = given["text" if "text" in given else "prompt"]
        given["prompt"] = mbpp_prompt(text, given["test_list"])
    name = next((name for name in FORMS if name in given), None)
    if name is None:
        hint = ": write `conversations` as `messages` of `role` and `content`"
        raise ValueError(f"it has none of {', '.join(FORMS)}{hint * ('conversations' in given)}")
    prompt, messages, value = None, (), given[name]
    match name:
        case "turns":
            turns = [value] if isinstance(value, str) else value
            messages = tuple(("user", _text(turn)) for turn in turns)
        case "messages":
            messages = tuple(map(_message, value))
        case "question":
            prompt = f"Question: {_text(value)}\nAnswer:"
        case "document" | "article":
            prompt = f"Document: {_text(value).strip()}\nSummary:"
        case _:
            prompt = _prompt(value)
    return Entry(prompt, messages, str(given.get("category") or ""))


def dedented(code: str) -> str:
    """Code of a file of MBPP without its indentation and carriage returns."""
    return textwrap.dedent(code.replace("\r\n", "\n"))


def mbpp_prompt(text: str, tests: Sequence[str]) -> str:
    """The text and the tests of a problem of MBPP as a docstring."""
    whole = "\n".join([_text(text), *map(dedented, tests)])
    return '"""\n' + whole.replace("\\", "\\\\").replace('"""', "'''") + '\n"""\n'


def _message(given: Any) -> tuple[str, str]:
    if not isinstance(given, Mapping) or not {"role", "content"} <= given.keys():
        raise ValueError("one of its `messages` has no `role` and `content`")
    if given["role"] not in ROLES:
        raise ValueError(f"the role {given['role']!r:.60} is none of {', '.join(ROLES)}")
    return given["role"], _text(given["content"])


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list | tuple) and value and all(type(token) is int for token in value):
        return tuple(value)
    return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.60} is no prompt: give a text or token ids, not empty")
    if value.startswith(PLACEHOLDER):
        raise ValueError(
            "its text is a placeholder of SPEED-Bench: complete the file with prepare_data.py of "
            "examples/specdec_bench in NVIDIA's Model-Optimizer"
        )
    return value


def rendered(
    tokenizer: "Tokenizer | None", entry: Entry, turn: int = 0, answers: Sequence[str] = ()
) -> Prompt:
    """What a model reads in a turn, after the answers before it: of a conversation the token ids of
    its chat template, or plain text (`User:`, `Assistant:`) for a tokenizer without one.

    Raises `RequestError` or `CheckpointError`.
    """
    if entry.prompt is not None:
        return entry.prompt if isinstance(entry.prompt, str) else [*entry.prompt]
    if tokenizer is None:
        raise RequestError(
            "The prompts are conversations, and the target's folder has no tokenizer: add the "
            "tokenizer's files, or give prompts of token ids."
        )
    return tokenizer.prompt_of(entry.conversation(turn, answers))


def longest_prompts(
    tokenizer: "Tokenizer | None", vocabulary: int, entries: Sequence[Entry], max_new_tokens: int
) -> list[int]:
    """The most tokens of each entry's last prompt, with earlier answers. Raises `RequestError`."""
    from bass.api.requests import prompt_ids

    found = []
    for i, entry in enumerate(entries):
        last = entry.turns - 1
        prompt = rendered(tokenizer, entry, last, [""] * last)
        own = len(prompt_ids(tokenizer, vocabulary, prompt, i))
        found.append(own + last * (max_new_tokens + SLACK))
    return found


def plain_turns(entries: Sequence[Entry], tokenizer: "Tokenizer | None") -> bool:
    """Whether conversations are written as plain text, since there is no chat template."""
    talks = any(entry.messages for entry in entries)
    return talks and tokenizer is not None and not tokenizer.has_template


def numbers(entries: Sequence[Entry]) -> list[int]:
    """For each entry, its number among the different ones (in anything but category), from 0."""
    seen: dict[Entry, int] = {}
    return [seen.setdefault(replace(entry, category=""), len(seen)) for entry in entries]
