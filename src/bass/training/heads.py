"""Heads in training: new ones for a target, their drafts, and their folders in the format of
`speculators`, which vLLM reads.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.checkpoints.shards import write_folder
from bass.drafters.block import BlockConfig, BlockHead
from bass.drafters.eagle import EagleHead
from bass.drafters.eagle_config import EagleConfig, usual_feature_ids
from bass.drafters.mtp import MtpHead
from bass.drafters.whole_texts import blocks_of, unrolled
from bass.models.config import SLIDING
from bass.models.decoder import FINAL, CausalDecoder
from bass.models.llama import LlamaConfig
from bass.models.sources import fill_all_with_random
from bass.ops.linear import Linear
from bass.ops.norms import RMSNorm
from bass.ops.residual import embedding
from bass.training.options import TrainOptions
from bass.training.trainee import Lesson, Trainee, at

# fields of the target's config that a draft takes over
SHARED = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
          "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
          "rope_theta", "rope_scaling")  # fmt: skip
Counts = Int[Tensor, " vocab"]  # how often each token id is trained


def default_features(layers: int) -> tuple[int, ...]:
    """The states that a new head reads: those of EAGLE-3, at depths 2, L / 2 and L - 3, or for a
    target of few layers, where these are no three, a third, half and the last.
    """
    usual = usual_feature_ids(layers)
    few = layers // 3, layers // 2 + (layers > 4), layers - 1
    return usual if usual[0] < usual[1] < usual[2] else tuple(sorted({*few}))


def shared_fields(target: CausalDecoder, options: TrainOptions) -> dict[str, Any]:
    """Fields of a decoder's config, as of the target, or in another width with as many heads of
    the same size as fit.
    """
    fields = {name: value for name, value in vars(target.config).items() if name in SHARED}
    of_target = fields["hidden_size"]
    width = options.hidden_size or of_target
    heads = max(1, fields["num_attention_heads"] * width // of_target)
    return fields | {
        "hidden_size": width, "num_hidden_layers": options.layers, "num_attention_heads": heads,
        "num_key_value_heads": math.gcd(heads, fields["num_key_value_heads"]),
        "intermediate_size":
            options.intermediate_size or fields["intermediate_size"] * width // of_target,
    }  # fmt: skip


def head_fields(target: CausalDecoder, options: TrainOptions) -> dict[str, Any]:
    """The same of a head's config, and `features`, the states that it reads. A head of the target's
    width with all token ids has the target's matrix of logits.
    """
    vocabulary, ids = target.shape.vocab_size, options.draft_vocab_size
    fields, of_target = shared_fields(target, options), target.config.hidden_size
    return fields | {
        "target_hidden_size": of_target, "has_embed": fields["hidden_size"] != of_target,
        "draft_vocab_size": ids if ids < vocabulary else 0,
        "has_head": fields["hidden_size"] != of_target or ids < vocabulary,
        "features": tuple(options.features or default_features(target.shape.layers)),
    }  # fmt: skip


@torch.no_grad()
def started(head: Any, target: CausalDecoder, options: TrainOptions, counts: Counts) -> Any:
    """The head with random weights by `options.seed`, on the target's device, in float32. Its
    matrix of logits and last norm begin as the target's; in another width its matrix, and its own
    embedding, as the best approximations.
    """
    fill_all_with_random(head, torch.Generator().manual_seed(options.seed))
    for name, parameter in head.named_parameters():
        if name.endswith(("mlp.down.weight", "markov_out.weight")):
            parameter.zero_()  # at first, a head is its attention alone
    if (ids := head.token_ids) is not None:
        ids.copy_(counts.topk(len(ids)).indices.sort()[0])
    rows: Any = slice(None) if ids is None else ids
    of_target = target.embed if target.head is None else target.head
    weight = of_target.weight if type(of_target) is Linear else of_target
    if isinstance(weight, Tensor):
        weight = weight.float().cpu()
        if head.embed is not None:
            base = torch.linalg.eigh(weight.T @ weight).eigenvectors[:, -head.embed.shape[1] :]
            head.embed.copy_(target.embed.float().cpu() @ base)
            weight = weight @ base
        if isinstance(head.head, Linear):
            head.head.weight.copy_(weight[rows])
    if type(target.norm) is RMSNorm and isinstance(head.norm, RMSNorm) and head.embed is None:
        head.norm.weight.copy_(target.norm.weight)
    return head.to(target.embed.device)


class HeadTrainee(Trainee):
    """A head, whose matrix of logits is its own or the target's."""

    @property
    def token_ids(self) -> Tensor | None:
        return self.head.token_ids

    def logits(self, target: CausalDecoder, x: Tensor) -> Float[Tensor, "batch anchors ids"]:
        """Of the states that the matrix reads."""
        own = self.head.head
        return target.unembed(x.to(target.embed.dtype)) if own is None else own(x)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The fields of config.json that are not the same for all heads."""

    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        own, greedy = self.config(), {"proposal_type": "greedy", "speculative_tokens": self.unroll}
        speculators = {
            "algorithm": own["speculators_model_type"], "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": name, "architectures": [target.config.architecture]},
        }  # fmt: skip
        raw = own | {"speculators_config": speculators}
        write_folder(folder, self.head.tensors(), raw, torch.bfloat16)


def config_of(kind: str, architecture: str, c: Any, **layer: Any) -> dict[str, Any]:
    """Fields of config.json of EAGLE-3 and block drafters; layer: more of their layers."""
    of_llama = {name: getattr(c, name) for name in (*SHARED, "num_hidden_layers")}
    return {
        "architectures": [architecture], "speculators_model_type": kind,
        "transformer_layer_config": LlamaConfig(**of_llama).to_json() | layer,
        "draft_vocab_size": c.draft_vocab_size or c.vocab_size,
        "target_hidden_size": c.target_hidden_size,
    }  # fmt: skip


class Unrolled(HeadTrainee):
    """A head that drafts from its own states, `unroll` tokens from each position of a text."""

    first = 2

    def drafts(self, lesson: Lesson) -> Iterator[Float[Tensor, "batch anchors ids"]]:
        given = lesson.target.embed, lesson.rows.tokens, lesson.features
        for u in unrolled(self.head, *given, self.unroll):
            yield self.logits(lesson.target, self.head.read(at(u, lesson.anchors)))


@final
class Eagle3(Unrolled):
    """A head of EAGLE-3, with the norms that `speculators` trains with: the target's states differ
    in scale, and a draft continues from a state after the last norm.
    """

    @classmethod
    def new(cls, target: CausalDecoder, options: TrainOptions, counts: Counts) -> "Eagle3":
        fields = head_fields(target, options)
        ids = fields.pop("features")
        config = EagleConfig(
            **fields, layer_ids=ids, feature_count=len(ids), norm_before_fc=True, norm_output=True
        )
        return cls(started(EagleHead(config), target, options, counts), options.unroll, ids)

    def config(self) -> dict[str, Any]:
        c = self.head.config
        return config_of("eagle3", "Eagle3DraftModel", c) | {
            "eagle_aux_hidden_state_layer_ids": [*c.layer_ids],
            "norm_before_residual": c.norm_before_residual,
            "norm_before_fc": c.norm_before_fc,
            "norm_output": c.norm_output,
        }


@final
class Mtp(Unrolled):
    """An MTP layer of the target's family, with the target's embedding and matrix of logits."""

    @classmethod
    def new(cls, target: CausalDecoder, options: TrainOptions, counts: Counts) -> "Mtp":
        raw = {"transformer_layer_config": target.config.to_json()}
        config = MtpHead.read_config(raw, {}, lambda _: type(target))
        head = MtpHead(replace(config, prefix="mtp_layers.0."))
        return cls(started(head, target, options, counts), options.unroll, (FINAL,))

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["MTPDraftModel"], "speculators_model_type": "mtp",
            "transformer_layer_config": self.head.config.layer.to_json(),
            "num_nextn_predict_layers": 1,
        }  # fmt: skip


@final
class Blocks(HeadTrainee):
    """A head of DSpark, or without a Markov head of DFlash in DSpark's layout: each of the `unroll`
    slots drafts, the last committed token's included.

    Its layers are causal, so that a block of fewer slots drafts the same: they have a window of the
    whole context, since readers take layers with a window as causal. The mask is the target's
    rarest token.
    """

    first = 1

    @classmethod
    def new(cls, target: CausalDecoder, options: TrainOptions, counts: Counts) -> "Blocks":
        fields, layers = head_fields(target, options), options.layers
        config = BlockConfig(
            **fields, block_size=options.unroll, sample_from_anchor=True,
            causal=(True,) * layers, windows=(target.config.context,) * layers,
            mask_token_id=int(counts.argmin()), markov_rank=options.markov_rank,
            confidence=(fields["hidden_size"] + options.markov_rank) * options.confidence,
        )  # fmt: skip
        head = started(BlockHead(config), target, options, counts)
        return cls(head, options.unroll, config.features)

    def drafts(self, lesson: Lesson) -> Iterator[Float[Tensor, "batch anchors ids"]]:
        return (own for own, _ in self.judged(lesson))

    def judged(
        self, lesson: Lesson
    ) -> Iterator[tuple[Float[Tensor, "batch anchors ids"], Float[Tensor, "batch anchors"] | None]]:
        head, tokens, anchors = self.head, lesson.rows.tokens, lesson.anchors
        states = blocks_of(head, lesson.target.embed, tokens, lesson.features, anchors)
        for i, x in enumerate(states.unbind(2)):
            own, known = self.logits(lesson.target, x), x
            if head.markov_in is not None:
                before = embedding(at(tokens, anchors + i), head.markov_in)
                own, known = own + head.markov_out(before), torch.cat((x, before), -1)
            sure = None if head.confidence is None else head.confidence(known.detach())[..., 0]
            yield own, sure

    def config(self) -> dict[str, Any]:
        c = self.head.config
        layer = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
            "layer_types": [SLIDING] * c.num_hidden_layers, "use_sliding_window": True,
            "sliding_window": c.windows[0],
        }  # fmt: skip
        kind = ("dspark", "DSparkDraftModel") if c.markov_rank else ("dflash", "DFlashDraftModel")
        markov = {"markov_rank": c.markov_rank, "markov_head_type": "vanilla"}
        has = {"enable_confidence_head": c.confidence > 0, "confidence_head_with_markov": True}
        return config_of(*kind, c, **layer) | (markov | has if c.markov_rank else {}) | {
            "block_size": c.block_size, "sample_from_anchor": True,
            "mask_token_id": c.mask_token_id, "aux_hidden_state_layer_ids": [*c.features],
            "sliding_window_non_causal": False,
        }  # fmt: skip
