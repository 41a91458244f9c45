"""Block drafters in training: a new head for a target, its drafts, and its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from bass.checkpoints.heads import save_head
from bass.drafters.block import BlockConfig, BlockHead
from bass.drafters.whole_texts import blocks_of
from bass.models.config import SLIDING
from bass.models.decoder import CausalDecoder
from bass.ops.residual import embedding
from bass.records import Features
from bass.training.heads import fields_for, speculators_config, started
from bass.training.options import TrainOptions
from bass.training.trainee import Trainee, at


@final
@dataclass(frozen=True)
class Blocks(Trainee):
    """A head of DSpark, or without a Markov head of DFlash in DSpark's layout: each of the `unroll`
    slots drafts, the last committed token's included.

    Its layers are causal, so that a block of fewer slots drafts the same. The mask is the target's
    rarest token; all ids: embedding and matrix of logits are the target's.
    """

    first: ClassVar[int] = 1
    head: BlockHead
    unroll: int

    @classmethod
    def new(
        cls, target: CausalDecoder, options: TrainOptions, counts: Int[Tensor, " vocab"]
    ) -> "Blocks":
        """With first weights by `started`."""
        fields = fields_for(target, options, len(counts))
        config = BlockConfig(
            **fields, block_size=options.unroll, sample_from_anchor=True,
            causal=(True,) * options.layers, mask_token_id=int(counts.argmin()),
            windows=(fields["max_position_embeddings"],) * options.layers,
            has_head=fields["draft_vocab_size"] > 0, markov_rank=options.markov_rank,
        )  # fmt: skip
        return cls(started(BlockHead(config), target, options, counts), options.unroll)

    @property
    def layers(self) -> tuple[int, ...]:
        return self.head.config.features

    def drafts(
        self, target: CausalDecoder, tokens: Int[Tensor, "batch length"], features: Features,
        anchors: Int[Tensor, "batch anchors"],
    ) -> Iterator[Float[Tensor, "batch anchors ids"]]:  # fmt: skip
        head: Any = self.head
        states = blocks_of(head, target.embed, tokens, features, anchors)
        for i, x in enumerate(states.unbind(2)):
            shared = head.head is None
            own = target.unembed(x.to(target.embed.dtype)) if shared else head.head(x)
            if head.markov_in is not None:
                own = own + head.markov_out(embedding(at(tokens, anchors + i), head.markov_in))
            yield own

    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        c, kind = self.head.config, "dspark" if self.head.config.markov_rank else "dflash"
        architecture = "DSparkDraftModel" if c.markov_rank else "DFlashDraftModel"
        raw = speculators_config(kind, architecture, c, self.unroll, target, name)
        causal = {"layer_types": [SLIDING] * c.num_hidden_layers, "sliding_window": c.windows[0]}
        layer = raw["transformer_layer_config"] | causal
        layer |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
        markov = {"markov_rank": c.markov_rank, "markov_head_type": "vanilla"}
        own = {
            "transformer_layer_config": layer, "sliding_window_non_causal": False,
            "block_size": c.block_size, "sample_from_anchor": True,
            "mask_token_id": c.mask_token_id, "aux_hidden_state_layer_ids": [*c.features],
            "enable_confidence_head": False,
        }  # fmt: skip
        save_head(self.head, folder, raw | own | (markov if c.markov_rank else {}))
