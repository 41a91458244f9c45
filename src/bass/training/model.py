"""A small model in training: a new decoder of the Llama family that learns the target's
distributions, and its ordinary folder, with the target's tokenizer.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bass.checkpoints.folder import read_config
from bass.checkpoints.hub import resolve
from bass.checkpoints.weights import save_decoder
from bass.drafters.whole_texts import WholeTexts, window_of
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama, LlamaConfig
from bass.models.sources import fill_all_with_random
from bass.training.heads import Counts, shared_fields
from bass.training.options import TrainOptions
from bass.training.trainee import Lesson, Trainee, at

# of the target's folder: what the draft's has too
COPIED = ("generation_config.json", "tokenizer*", "vocab.json", "merges.txt", "chat_template*",
          "special_tokens_map.json", "added_tokens.json")  # fmt: skip
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@final
class SmallModel(Trainee):
    """A decoder with the target's size of heads. A later draft is the first one of a later
    position, so the first ones alone are trained.
    """

    first, rounds = 1, 1

    @classmethod
    def new(cls, target: CausalDecoder, options: TrainOptions, counts: Counts) -> "SmallModel":
        fields = shared_fields(target, options)
        tied = target.config.tie_word_embeddings
        model = Llama(LlamaConfig(**fields, tie_word_embeddings=tied))
        fill_all_with_random(model, torch.Generator().manual_seed(options.seed))
        return cls(model.to(target.embed.device), options.unroll, ())

    def drafts(self, lesson: Lesson) -> Iterator[Float[Tensor, "batch anchors ids"]]:
        attend = WholeTexts(self.head.shape.rules)
        hidden, _ = self.head.hidden(window_of(lesson.rows.tokens), attend)
        for i in range(self.unroll):
            yield self.head.unembed(at(hidden, lesson.anchors + i))

    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        source = resolve(name, weights=False)
        raw = read_config(source)
        save_decoder(self.head, folder, **{field: raw[field] for field in ENDS if field in raw})
        for path in (path for pattern in COPIED for path in source.glob(pattern)):
            shutil.copyfile(path, folder / path.name)
