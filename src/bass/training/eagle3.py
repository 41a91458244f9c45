"""EAGLE-3 in training: a new head for a target, its drafts, and its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from bass.checkpoints.heads import save_head
from bass.drafters.eagle import EagleConfig, EagleHead
from bass.drafters.whole_texts import unrolled
from bass.models.decoder import CausalDecoder
from bass.records import Features
from bass.training.heads import fields_for, speculators_config, started
from bass.training.options import TrainOptions
from bass.training.trainee import Trainee, at


@final
@dataclass(frozen=True)
class Eagle3(Trainee):
    """A head of EAGLE-3 that drafts `unroll` tokens from each position of a text."""

    first: ClassVar[int] = 2
    head: EagleHead
    unroll: int

    @classmethod
    def new(
        cls, target: CausalDecoder, options: TrainOptions, counts: Int[Tensor, " vocab"]
    ) -> "Eagle3":
        """With first weights by `started`."""
        fields = fields_for(target, options, len(counts))
        layers = fields.pop("features")
        config = EagleConfig(**fields, layer_ids=layers, states=len(layers))
        return cls(started(EagleHead(config), target, options, counts), options.unroll)

    @property
    def layers(self) -> tuple[int, ...]:
        return self.head.config.layer_ids

    def drafts(
        self, target: CausalDecoder, tokens: Int[Tensor, "batch length"], features: Features,
        anchors: Int[Tensor, "batch anchors"],
    ) -> Iterator[Float[Tensor, "batch anchors ids"]]:  # fmt: skip
        head: Any = self.head
        for u in unrolled(self.head, target.embed, tokens, features, self.unroll):
            yield head.head(head.read(at(u, anchors)))

    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        c = self.head.config
        own = {
            "eagle_aux_hidden_state_layer_ids": [*c.layer_ids],
            "norm_before_residual": c.norm_before_residual,
            "norm_before_fc": c.norm_before_fc,
            "norm_output": c.norm_output,
        }
        raw = speculators_config("eagle3", "Eagle3DraftModel", c, self.unroll, target, name)
        save_head(self.head, folder, raw | own)
