"""Texts for training: files of text, chats, and prompts that the target answers.

| source | what is trained |
|---|---|
| a file of text; a record with a `text` alone | the text, in pieces of `max_length` tokens |
| a record whose `messages` end with the assistant's | the conversation, by the chat template |
| any other record or set of prompts (`bass.experiments.prompts`) | the target's answers |
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from bass.api.llm import LLM
from bass.api.requests import needed, prompt_ids
from bass.errors import OptionError
from bass.experiments import prompts as sets
from bass.files import reason, write_atomically
from bass.text import Tokenizer
from bass.text.conversation import plain_text
from bass.training.options import TrainOptions

SHORTEST = 4  # tokens of a text
OF_ANSWERS = ("temperature", "max_new_tokens", "num_return_sequences")  # options of prompts alone
Text = str | list[dict[str, Any]]
Watch = Callable[[str, int, int], object]  # receives a text, what is done, and of how many


@final
@dataclass(frozen=True)
class Rows:
    """Texts of equal length, on the CPU: row b is `tokens[b, : lens[b]]`, and what follows is
    padding. Its tokens from `starts[b]` on are trained; those before are a prompt. Rows of one of
    `records` are of one document, conversation or prompt.
    """

    tokens: Int[Tensor, "rows length"]
    lens: Int[Tensor, " rows"]
    starts: Int[Tensor, " rows"]
    records: Int[Tensor, " rows"]

    @classmethod
    def of(cls, texts: Iterable[tuple[int, int, list[int]]]) -> "Rows":
        """Of texts, each with its record and the index of its first token that is trained."""
        found = [one for one in texts if len(one[2]) >= max(SHORTEST, one[1] + 1)]
        if not found:
            raise OptionError("`data` has no text of 4 tokens: give more.")
        records, starts, ids = zip(*found, strict=True)
        lens = torch.tensor([*map(len, ids)])
        tokens = torch.zeros(len(ids), int(lens.max()), dtype=torch.int64)
        for row, own in zip(tokens, ids, strict=True):
            row[: len(own)] = torch.tensor(own)
        return cls(tokens, lens, torch.tensor(starts), torch.tensor(records))

    def __getitem__(self, index: Int[Tensor, " some"]) -> "Rows":
        lens = self.lens[index]
        of_rows = lens, self.starts[index], self.records[index]
        return Rows(self.tokens[index, : int(lens.max())], *of_rows)

    def to(self, device: torch.device) -> "Rows":
        return Rows(*(sent(x, device) for x in vars(self).values()))

    def counts(self, vocabulary: int) -> Int[Tensor, " vocabulary"]:
        """How often each token id is trained."""
        places = torch.arange(self.tokens.shape[1]).expand_as(self.tokens)
        return self.tokens[self.trained(places, 0, 0)].bincount(minlength=vocabulary)

    def trained(
        self, places: Int[Tensor, "rows some"], first: int, behind: int
    ) -> Bool[Tensor, "rows some"]:
        """Whether drafts from these places count, whose first token is `first` behind its place:
        the token `behind` the place, the last that the draft feeds, is there, and the first that it
        drafts belongs to what is trained.
        """
        return (places + behind < self.lens[:, None]) & (places + first >= self.starts[:, None])


def sent(x: Tensor, device: torch.device) -> Tensor:
    """On a device, to which the host sends it without waiting for the work before."""
    pinned = x.contiguous().pin_memory() if device.type == "cuda" else x
    return pinned.to(device, non_blocking=True)


def read_data(options: TrainOptions) -> tuple[list[Text], list[sets.Entry]]:
    """The texts and prompts of `options.data`. Raises `OptionError`."""
    texts, prompts = list[Text](), list[sets.Entry]()
    for name in options.data:
        try:
            _read(name, texts, prompts)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"`data: {name}` cannot be read ({reason(error)}): give a file of text, of JSON "
                "lines with `text`, `messages` or `prompt`, or the name of a set of prompts."
            ) from error
    default = {field.name: field.default for field in fields(options)}
    given = [name for name in OF_ANSWERS if getattr(options, name) != default[name]]
    if given and not prompts:
        raise OptionError(
            f"`{given[0]}` is of the target's answers, and `data` has no prompt: leave it out, or "
            "give prompts."
        )
    return texts, prompts


def rows_of(
    texts: list[Text], prompts: list[sets.Entry], options: TrainOptions, llm: LLM, answers: Path,
    watch: Watch,
) -> Rows:  # fmt: skip
    """The rows of the texts, and of the target's answers to the prompts, which are kept in the file
    `answers` as they end, and read from it. Raises `OptionError`.
    """
    most, tokenizer = min(options.max_length, llm.max_model_len), llm.models.tokenizer
    encoded = [_encoded(needed(tokenizer, "A text is"), text) for text in texts]
    pieces = [
        (record, 0, ids[at : at + most])
        for record, ids in enumerate(encoded)
        for at in range(0, len(ids), most)
    ]
    records = [len(texts) + own for own in sets.numbers(prompts)]
    numbered, count = zip(records, prompts, strict=True), options.num_return_sequences
    every = [one for one in numbered for _ in range(count)]
    return Rows.of([*pieces, *_answered(every, options, llm, most, answers, watch)])


def _read(name: str, texts: list[Text], prompts: list[sets.Entry]) -> None:
    """Add what a file, or a set of prompts, holds."""
    if sets.is_text(name):
        texts.append(Path(name).read_text(encoding="utf-8"))
    elif not Path(name).is_file():
        prompts += sets.read_prompts(name)
    else:
        for record in sets.read_records(Path(name)):
            given = record if isinstance(record, Mapping) else {}
            if (talk := given.get("messages")) and talk[-1]["role"] == "assistant":
                texts.append(talk)
            elif "text" in given and not given.keys() & {*sets.FORMS[:-1], "code"}:
                texts.append(given["text"])
            else:
                prompts.append(sets.entry_of(record))


def _encoded(tokenizer: Tokenizer, text: Text) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if not tokenizer.has_template:
        return tokenizer.encode(plain_text(text).removesuffix("\nAssistant:"))
    whole = tokenizer.chat.render(text, add_generation_prompt=False)
    return tokenizer.encode(whole, add_special_tokens=False)


def _answered(
    every: list[tuple[int, sets.Entry]], options: TrainOptions, llm: LLM, most: int, file: Path,
    watch: Watch,
) -> Iterator[tuple[int, int, list[int]]]:  # fmt: skip
    """Record, start and ids of each turn with its answer; long prompts lose their beginning."""
    new, known = min(options.max_new_tokens, most // 2), llm.models.tokenizer
    vocabulary, temperatures = llm.models.target.shape.vocab_size, options.temperature or [1.0]
    done = _kept(file)
    for turn in range(max((one.turns for _, one in every), default=0)):
        given: dict[int, list[int]] = {}
        for i, (_, one) in enumerate(every):
            if turn < one.turns:
                before = [done[earlier, i][1] for earlier in range(turn)]
                ids = prompt_ids(known, vocabulary, sets.rendered(known, one, turn, before), i)
                given[i] = ids[-(most - new) :]
        if left := [i for i in given if (turn, i) not in done]:
            running = llm.stream(
                [given[i] for i in left], max_new_tokens=new, seed=options.seed + len(done),
                temperature=[temperatures[i % len(temperatures)] for i in left],
            )  # fmt: skip
            with file.open("a", encoding="utf-8") as lines:
                for ended, one in enumerate(running.completions(), 1):
                    own = turn, left[one.prompt_index]
                    done[own] = one.token_ids, one.text or ""
                    lines.write(json.dumps([*own, *done[own]]) + "\n")
                    lines.flush()
                    watch("the target answers prompts", ended, len(left))
        for i, ids in given.items():
            yield every[i][0], len(ids), [*ids, *done[turn, i][0]]


def _kept(file: Path) -> dict[tuple[int, int], tuple[list[int], str]]:
    """The tokens and texts of the answers in a file, by turn and number. A last line that was not
    finished is removed.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write_atomically(file, whole)
    return {(t, i): (ids, text) for t, i, ids, text in map(json.loads, whole.splitlines())}
