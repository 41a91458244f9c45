"""The options of `bass train-draft`; they load no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

from bass.errors import OptionError, unknown_name
from bass.option import check_options, option

METHODS = ("eagle3", "mtp", "block", "model")
HEADS = ("eagle3", "block")
OF_METHODS = {  # options that the other methods do not read
    "layers": (*HEADS, "model"), "hidden_size": (*HEADS, "model"), "features": HEADS,
    "draft_vocab_size": HEADS, "markov_rank": ("block",), "confidence": ("block",),
    "intermediate_size": (*HEADS, "model"),
}  # fmt: skip
_COUNT = "[1, inf)"


@final
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is trained, on which texts, and for how long."""

    data: Sequence[str] = option((), "texts, chats or prompts, by `bass.training.data`")
    output: str = option("", "folder of the draft; the same command continues a training in it")
    method: str = option("eagle3", f"of {', '.join(METHODS)}")
    steps: int = option(2000, "updates of the weights", within=_COUNT)
    batch_size: int = option(16, "texts of each step", within=_COUNT)
    learning_rate: float = option(4e-4, "of AdamW at its highest", within="(0, inf)")
    unroll: int = option(5, "successive drafts that are trained, slots of a block", within=_COUNT)
    anchors: int = option(
        256, "positions of each text from which a step trains drafts", within=_COUNT
    )
    max_length: int = option(512, "tokens of a text, which is cut there", within="[8, inf)")
    draft_vocab_size: int = option(
        32_000,
        "token ids that EAGLE-3 and block drafters draft, the most frequent of the data",
        within=_COUNT,
    )
    layers: int = option(1, "of the draft; of an MTP layer, 1", within=_COUNT)
    hidden_size: int | None = option(
        None, "of the draft, by default the target's; an MTP layer has the target's", within=_COUNT
    )
    intermediate_size: int | None = option(
        None, "of the draft's MLPs, by default in proportion as the target's", within=_COUNT
    )
    markov_rank: int = option(64, "of a block's Markov head; 0: without", within="[0, inf)")
    confidence: bool = option(False, "train a block's confidence head too")
    features: list[int] | None = option(
        None, "states of the target that the head reads, the inputs of these layers"
    )
    max_new_tokens: int = option(256, "tokens of the target's answer to a prompt", within=_COUNT)
    num_return_sequences: int = option(1, "answers to each prompt", within=_COUNT)
    temperature: list[float] | None = option(
        None, "of a prompt's answers, one after the other; by default 1"
    )
    save_every: int = option(100, "steps between checkpoints of the folder", within=_COUNT)
    seed: int = option(0, "of answers, order and first weights")

    def __post_init__(self) -> None:
        check_options(self)
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        default = {field.name: field.default for field in fields(self)}
        for name, methods in OF_METHODS.items():
            if self.method not in methods and getattr(self, name) != default[name]:
                raise OptionError(
                    f"`{name}` has no effect on `method={self.method}`: leave it out, or train "
                    f"{' or '.join(methods)}."
                )
