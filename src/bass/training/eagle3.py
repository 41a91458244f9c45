"""EAGLE-3 in training: a new head for a target, its drafts, and its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.checkpoints.heads import save_head
from bass.drafters.eagle import EagleConfig, EagleHead
from bass.drafters.whole_texts import unrolled
from bass.models.decoder import CausalDecoder
from bass.ops.linear import Linear
from bass.ops.norms import RMSNorm
from bass.records import Features
from bass.training.options import TrainOptions
from bass.training.trainee import Trainee

# fields of the target's config that the head takes over
SHARED = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
          "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
          "rope_theta", "rope_scaling")  # fmt: skip


def default_features(layers: int) -> tuple[int, ...]:
    """The states that a new head reads: those of EAGLE-3, at depths 2, L / 2 and L - 3, or for a
    target of few layers, where these are no three, a third, half and the last.
    """
    usual = 2, layers // 2, layers - 3
    few = layers // 3, layers // 2 + (layers > 4), layers - 1
    return usual if usual[0] < usual[1] < usual[2] else tuple(sorted({*few}))


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
        """With random weights by `options.seed`, on the target's device, in float32; its head
        begins as the target's. counts: how often each token id is trained.
        """
        shared = {name: value for name, value in vars(target.config).items() if name in SHARED}
        shared["intermediate_size"] = options.intermediate_size or shared["intermediate_size"]
        features = tuple(options.features or default_features(target.shape.layers))
        ids = min(options.draft_vocab_size, len(counts))
        config = EagleConfig(
            **shared, num_hidden_layers=options.layers, layer_ids=features, states=len(features),
            target_hidden_size=target.config.hidden_size,
            draft_vocab_size=ids if ids < len(counts) else 0,
        )  # fmt: skip
        head = EagleHead(config)
        head.fill_with_random(torch.Generator().manual_seed(options.seed))
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if name.endswith(("attention.out.weight", "mlp.down.weight")):
                    parameter.zero_()  # at first, each layer passes its input on
            if head.token_ids is not None:
                head.token_ids.copy_(counts.topk(ids).indices.sort()[0])
            rows = slice(None) if head.token_ids is None else head.token_ids
            of_target = target.embed if target.head is None else target.head
            weight = of_target.weight if type(of_target) is Linear else of_target
            if isinstance(weight, Tensor) and isinstance(head.head, Linear):
                head.head.weight.copy_(weight.cpu()[rows])
            if type(target.norm) is RMSNorm and isinstance(head.norm, RMSNorm):
                head.norm.weight.copy_(target.norm.weight)
        return cls(head.to(target.embed.device), options.unroll)

    def drafts(
        self, embed: Tensor, tokens: Int[Tensor, "batch length"], features: Features
    ) -> Iterator[Float[Tensor, "batch length ids"]]:
        head: Any = self.head
        for u in unrolled(self.head, embed, tokens, features, self.unroll):
            yield head.head(head.read(u))

    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        raw = speculators_config(self.head.config, self.unroll, target, name)
        save_head(self.head, folder, raw)


def speculators_config(
    c: EagleConfig, drafts: int, target: CausalDecoder, name: str
) -> dict[str, Any]:
    """The config.json of a head in the format of `speculators`, which vLLM reads, with every field
    that readers have other defaults for. name: of the target.
    """
    verifier = {"name_or_path": name, "architectures": [target.config.architecture]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": drafts}
    rope = {} if c.rope_scaling is None else {"rope_scaling": c.rope_scaling.to_json()}
    layer = {field: getattr(c, field) for field in SHARED if field != "rope_scaling"} | rope | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": c.hidden_act,
        "num_hidden_layers": c.num_hidden_layers, "tie_word_embeddings": False,
        "attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias,
    }  # fmt: skip
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [proposal], "verifier": verifier,
        },
        "transformer_layer_config": layer,
        "eagle_aux_hidden_state_layer_ids": [*c.layer_ids],
        "draft_vocab_size": c.draft_vocab_size or c.vocab_size,
        "target_hidden_size": c.target_hidden_size,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "norm_output": c.norm_output,
    }  # fmt: skip
