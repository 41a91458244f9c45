"""An entry of a file of prompts: a prompt as it is, or a conversation of one or several turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from bass.prompts import forms

ROLES = ("system", "user", "assistant")
LONGEST_CATEGORY = 100  # characters
MOST_TURNS = 1000
# of SPEED-Bench, in place of a text whose licence does not allow a copy
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
KEYS = (
    "`prompt`, `token_ids`, `turns`, `messages`, `question`, `document`, `article` or `text`"
)  # fmt: skip


@final
@dataclass(frozen=True)
class Message:
    """A message of a conversation; its role is one of `ROLES`."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"the role {self.role!r:.60} is none of {', '.join(ROLES)}")


@final
@dataclass(frozen=True)
class Entry:
    """A prompt, or the messages of a conversation; and a category, which may be empty.

    The model answers each user message that no assistant message follows: each is a turn.
    """

    prompt: str | tuple[int, ...] | None
    messages: tuple[Message, ...] = ()
    category: str = ""

    def __post_init__(self) -> None:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("it has neither a prompt nor messages, or both")
        if self.messages and not self._asked:
            raise ValueError("its messages leave nothing to answer: the last must be a user's")
        if self.messages and self._asked[-1] != len(self.messages) - 1:
            raise ValueError("its last message must be a user's")
        if len(self._asked) > MOST_TURNS:
            raise ValueError(f"it has {len(self._asked):,} turns, and {MOST_TURNS:,} are the most")

    @property
    def _asked(self) -> list[int]:
        """The places of the messages that the model answers."""
        roles = [message.role for message in self.messages]
        return [
            i
            for i, role in enumerate(roles)
            if role == "user" and roles[i + 1 : i + 2] != ["assistant"]
        ]

    @property
    def turns(self) -> int:
        """How many answers the model gives; 1 for a prompt."""
        return len(self._asked) if self.messages else 1

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for equal prompts, of any category."""
        return self.prompt, self.messages

    def data(self) -> str | list[int] | dict[str, Any]:
        """The entry as a config has it."""
        if self.messages:
            messages = [{"role": one.role, "content": one.content} for one in self.messages]
            return {"messages": messages, "category": self.category}
        prompt = self.prompt if isinstance(self.prompt, str) else [*(self.prompt or ())]
        if not self.category:
            return prompt
        key = "prompt" if isinstance(prompt, str) else "token_ids"
        return {key: prompt, "category": self.category}

    def first_turn(self) -> "Entry":
        """The entry without later turns."""
        kept = self.messages[: self._asked[0] + 1] if self.messages else ()
        return replace(self, messages=kept)

    def conversation(self, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
        """The messages up to the user's of a turn, from 0, with the answers of the turns before;
        none of a prompt.
        """
        if not self.messages:
            return []
        asked, given = self._asked, iter(answers)
        found: list[dict[str, str]] = []
        for i, message in enumerate(self.messages[: asked[turn] + 1]):
            found.append({"role": message.role, "content": message.content})
            if i in asked[:turn]:
                found.append({"role": "assistant", "content": next(given)})
        return found


def entry_of(record: Any) -> Entry:
    """The entry of a record of a file or of a config: a text, token ids, or a mapping with one of
    `KEYS`, and perhaps a `category`. Raises `ValueError`.
    """
    if isinstance(record, Entry):
        return record
    if not isinstance(record, Mapping):
        return Entry(_prompt(record))
    category = record.get("category") or ""
    if not isinstance(category, str) or len(category) > LONGEST_CATEGORY:
        raise ValueError(
            f"its `category` is {category!r:.60}, and must be a text of at most "
            f"{LONGEST_CATEGORY} characters"
        )
    found = replace(_entry(record), category=" ".join(category.split()))
    texts = [found.prompt, *(message.content for message in found.messages)]
    if any(isinstance(text, str) and text.startswith(PLACEHOLDER) for text in texts):
        raise ValueError(
            "its text is a placeholder of SPEED-Bench: make the whole file with prepare_data.py of "
            "examples/specdec_bench in NVIDIA's Model-Optimizer"
        )
    return found


def _entry(record: Mapping[str, Any]) -> Entry:
    """The entry of a mapping, without its category."""
    if "token_ids" in record:
        return Entry(_prompt(record["token_ids"]))
    if {"code", "test_list"} <= record.keys():  # of MBPP
        text = _text(record, "text" if "text" in record else "prompt")
        tests = record["test_list"]
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise ValueError("its `test_list` is no list of texts")
        return Entry(_prompt(forms.mbpp(text, [forms.whole(test) for test in tests])))
    if "prompt" in record:
        return Entry(_prompt(record["prompt"]))
    if "turns" in record:
        turns = record["turns"]
        turns = [turns] if isinstance(turns, str) else turns
        if not isinstance(turns, list) or not all(isinstance(t, str) and t for t in turns):
            raise ValueError("its `turns` are no list of texts")
        if not turns:
            raise ValueError("its `turns` are empty")
        return Entry(None, tuple(Message("user", turn) for turn in turns))
    if "messages" in record:
        return Entry(None, _messages(record["messages"]))
    if "question" in record:
        return Entry(forms.question(_text(record, "question")))
    for name in ("document", "article"):
        if name in record:
            return Entry(forms.document(_text(record, name)))
    if "text" in record:
        return Entry(_text(record, "text"))
    raise ValueError(f"it has none of {KEYS}")


def _messages(given: Any) -> tuple[Message, ...]:
    if given == []:
        raise ValueError("its `messages` are empty")
    if not isinstance(given, list) or not all(
        isinstance(one, Mapping) and {"role", "content"} == one.keys() for one in given
    ):
        raise ValueError("its `messages` are no list of mappings of `role` and `content` alone")
    if not all(isinstance(one["content"], str) and isinstance(one["role"], str) for one in given):
        raise ValueError("a `role` or `content` of its `messages` is no text")
    return tuple(Message(one["role"], one["content"]) for one in given)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return value
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
    ):
        return tuple(value)
    raise ValueError(
        f"{value!r:.60} is no prompt, which is a text or a list of token ids and not empty"
    )


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"its `{name}` is {value!r:.60}, and must be a text")
    return value


def turned(entries: Sequence[Entry]) -> int:
    """The most turns of an entry."""
    return max((entry.turns for entry in entries), default=1)
