"""The prompts of calls as a model reads them; a later turn continues the answers of the one before.

As in the evaluations of MT-bench and Spec-Bench, each turn is a generation: the conversation so
far, with the answers that this cell generated, is the prompt of the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from bass.api.generation import Generation
from bass.api.llm import LLM
from bass.api.options import RequestOptions
from bass.api.requests import prompt_ids
from bass.errors import BassError, RequestError
from bass.prompts.entries import Entry
from bass.runs.records import RequestLine
from bass.runs.settings import Call
from bass.text import Tokenizer
from bass.text.dialogue import has_template, prompts_of

Prompt = str | list[int]
# more tokens that an answer may have in the next prompt than when it was generated: its text is
# encoded again
SLACK = 16


class TooLongError(RequestError):
    """A prompt that cannot fit the context."""


def first_prompts(tokenizer: Tokenizer | None, entries: Sequence[Entry], most: int) -> list[Prompt]:
    """The prompt of the first turn of each entry. most: see `prompts_of`."""
    return _prompts(tokenizer, entries, [entry.conversation(0, []) for entry in entries], most)


def _prompts(
    tokenizer: Tokenizer | None,
    entries: Sequence[Entry],
    talks: Sequence[list[dict[str, str]]],
    most: int,
) -> list[Prompt]:
    asked = [talk for entry, talk in zip(entries, talks, strict=True) if entry.messages]
    rendered = iter(prompts_of(tokenizer, asked, most))
    return [
        entry.prompt
        if isinstance(entry.prompt, str)
        else next(rendered)
        if entry.prompt is None
        else [*entry.prompt]
        for entry in entries
    ]


def lengths(
    tokenizer: Tokenizer | None, vocabulary: int, entries: Sequence[Entry], most: int
) -> list[int | BassError]:
    """Tokens of the last prompt of each entry, with empty answers; or why it is no prompt, which is
    a `TooLongError` for a text that cannot fit into `most` tokens.
    """
    last = [entry.conversation(entry.turns - 1, [""] * entry.turns) for entry in entries]
    found: dict[int, int | BassError] = {}
    for i, (entry, talk) in enumerate(zip(entries, last, strict=True)):
        text = entry.prompt if isinstance(entry.prompt, str) else _content(talk)
        if tokenizer is not None and tokenizer.cannot_fit(text, most):
            found[i] = TooLongError(
                f"Prompt {i} has {len(text):,} characters, and the {most:,} tokens of the context "
                "hold fewer: shorten it."
            )
    kept = [i for i in range(len(entries)) if i not in found]
    # a template adds a few tokens to a text that may just fit
    prompts = _prompts(tokenizer, [entries[i] for i in kept], [last[i] for i in kept], 2 * most)
    for i, prompt in zip(kept, prompts, strict=True):
        try:
            found[i] = len(prompt_ids(tokenizer, vocabulary, 2 * most, prompt, i))
        except BassError as error:
            found[i] = error
    return [found[i] for i in range(len(entries))]


def _content(talk: Sequence[Mapping[str, str]]) -> str:
    return "".join(message["content"] for message in talk)


def answer_tokens(entry: Entry, max_new_tokens: int) -> int:
    """The most tokens that earlier answers add to the last prompt of an entry."""
    return (entry.turns - 1) * (max_new_tokens + SLACK)


@final
@dataclass
class Prompter:
    """Makes the prompts of a cell's calls.

    calls: all of the cell. answers: the texts of the calls that have ended, by number, one for each
    request.
    """

    llm: LLM
    calls: Sequence[Call]
    answers: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._first: dict[Entry, Prompt] = {}

    def prepare(self, calls: Sequence[Call]) -> None:
        """Make the prompts of the first turns of these calls, all at once."""
        entries = [*dict.fromkeys(e for call in calls if not call.turn for e in call.prompts)]
        made = first_prompts(self.llm.models.tokenizer, entries, self.llm.max_model_len)
        self._first |= dict(zip(entries, made, strict=True))

    def of(self, call: Call) -> list[Prompt]:
        """The prompts of a call; the answers that it continues are known."""
        if call.turn == 0:
            if any(entry not in self._first for entry in call.prompts):
                self.prepare([call])
            return [self._first[entry] for entry in call.prompts]
        rows = self._answered(call)
        entries = [entry for entry in call.prompts for _ in range(call.samples)]
        talks = [
            entry.conversation(call.turn, answers)
            for entry, answers in zip(entries, rows, strict=True)
        ]
        tokenizer, most = self.llm.models.tokenizer, self.llm.max_model_len
        return _prompts(tokenizer, entries, talks, most)

    def longest(self, call: Call, max_new_tokens: int) -> list[Prompt]:
        """Prompts as long as those of the call can be, for a warm-up."""
        if call.turn == 0:
            return self.of(call)
        tokenizer, vocabulary = self.llm.models.tokenizer, self.llm.models.target.shape.vocab_size
        room = self.llm.max_model_len - max_new_tokens
        own = lengths(tokenizer, vocabulary, call.prompts, self.llm.max_model_len)
        most = [
            room
            if isinstance(length, BassError)
            else min(length + answer_tokens(entry, max_new_tokens), room)
            for length, entry in zip(own, call.prompts, strict=True)
        ]
        return [[0] * length for length in most for _ in range(call.samples)]

    def start(self, call: Call, options: RequestOptions) -> Generation:
        """Start the call."""
        return self.llm.start(self.of(call), options, call.first_sample)

    def took(self, call: Call, texts: Sequence[str | None]) -> None:
        """Keep the answers of a call that has ended."""
        self.answers[call.number] = [(text or "").strip() for text in texts]

    def read(self, lines: Sequence[RequestLine]) -> None:
        """Keep the answers of recorded calls."""
        for line in sorted(lines, key=lambda line: line.request):
            self.answers.setdefault(line.repeat, []).append((line.text or "").strip())

    def _answered(self, call: Call) -> list[list[str]]:
        """The answers so far of each request of a later turn."""
        before = self.calls[call.number - 1]
        texts = self.answers[before.number]
        older = [[] for _ in texts] if before.turn == 0 else self._answered(before)
        places = [place * call.samples + i for place in call.places for i in range(call.samples)]
        return [[*older[place], texts[place]] for place in places]


def plain_turns(entries: Sequence[Entry], tokenizer: Tokenizer | None) -> bool:
    """Whether conversations are written as plain text, for want of a chat template."""
    return (
        tokenizer is not None
        and not has_template(tokenizer)
        and any(entry.messages for entry in entries)
    )
