"""Texts for training: files of text, chats, and prompts that the target answers.

| source | what is trained |
|---|---|
| a file of text; a record with a `text` alone | the text, in pieces of `max_length` tokens |
| a record whose `messages` end with the assistant's | the conversation, by the chat template |
| any other record or set of prompts (`bass.experiments.prompts`) | the target's answers |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from bass.api.llm import LLM
from bass.api.requests import needed, prompt_ids
from bass.errors import OptionError
from bass.experiments import prompts as sets
from bass.files import reason
from bass.text import Tokenizer
from bass.text.conversation import plain_text
from bass.training.options import TrainOptions

SHORTEST = 4  # tokens of a text
Text = str | list[dict[str, Any]]


@final
@dataclass(frozen=True)
class Rows:
    """Texts of equal length, on the CPU: row b is `tokens[b, : lens[b]]`, and what follows is
    padding. Its tokens from `starts[b]` on are trained; those before are a prompt.
    """

    tokens: Int[Tensor, "rows length"]
    lens: Int[Tensor, " rows"]
    starts: Int[Tensor, " rows"]

    @classmethod
    def of(cls, texts: Iterable[tuple[int, list[int]]]) -> "Rows":
        """Of texts, each with the index of its first token that is trained."""
        found = [(start, ids) for start, ids in texts if len(ids) >= max(SHORTEST, start + 1)]
        if not found:
            raise OptionError("`data` has no text of 4 tokens: give more.")
        lens = torch.tensor([len(ids) for _, ids in found])
        tokens = torch.zeros(len(found), int(lens.max()), dtype=torch.int64)
        for row, (_, ids) in zip(tokens, found, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return cls(tokens, lens, torch.tensor([start for start, _ in found]))

    def __getitem__(self, index: Int[Tensor, " some"]) -> "Rows":
        lens = self.lens[index]
        return Rows(self.tokens[index, : int(lens.max())], lens, self.starts[index])

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


def read_rows(options: TrainOptions, llm: LLM, progress: bool = False) -> Rows:
    """The texts of `options.data`; the target answers prompts. Raises `OptionError`."""
    texts, prompts = list[Text](), list[sets.Entry]()
    for name in options.data:
        try:
            _read(name, texts, prompts)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"`data: {name}` cannot be read ({reason(error)}): give a file of text, of JSON "
                "lines with `text`, `messages` or `prompt`, or the name of a set of prompts."
            ) from error
    most, tokenizer = min(options.max_length, llm.max_model_len), llm.models.tokenizer
    encoded = [_encoded(needed(tokenizer, "A text is"), text) for text in texts]
    pieces = [(0, ids[at : at + most]) for ids in encoded for at in range(0, len(ids), most)]
    return Rows.of([*pieces, *_answered(prompts, options, llm, most, progress)])


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
    prompts: list[sets.Entry], options: TrainOptions, llm: LLM, most: int, progress: bool
) -> Iterable[tuple[int, list[int]]]:
    """Each turn of each prompt with the target's answer; long prompts lose their beginning."""
    new, known = min(options.max_new_tokens, most // 2), llm.models.tokenizer
    vocabulary, temperatures = llm.models.target.shape.vocab_size, options.temperature or [1.0]
    under_way = [(one, list[str]()) for one in prompts for _ in range(options.num_return_sequences)]
    for turn in range(max((one.turns for one in prompts), default=0)):
        under_way = [(one, answers) for one, answers in under_way if turn < one.turns]
        texts = [sets.rendered(known, one, turn, answers) for one, answers in under_way]
        ids = [prompt_ids(known, vocabulary, text, i) for i, text in enumerate(texts)]
        given = [one[-(most - new) :] for one in ids]
        by_row = [temperatures[i % len(temperatures)] for i in range(len(given))]
        result = llm.generate(
            given, max_new_tokens=new, temperature=by_row, seed=options.seed + turn,
            progress=progress,
        )  # fmt: skip
        for (_, answers), ids, one in zip(under_way, given, result.completions, strict=True):
            answers.append(one.text or "")
            yield len(ids), [*ids, *one.token_ids]
