"""What heads in training share: sizes and first weights from the target, and their config.json."""

from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from bass.models.decoder import CausalDecoder
from bass.models.heads import MappedHead
from bass.ops.linear import Linear
from bass.ops.norms import RMSNorm
from bass.training.options import TrainOptions

H = TypeVar("H", bound=MappedHead)
# fields of the target's config that a head takes over
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


def fields_for(target: CausalDecoder, options: TrainOptions, vocabulary: int) -> dict[str, Any]:
    """Fields of the config of a new head, and `features`, the states that it reads."""
    fields = {name: value for name, value in vars(target.config).items() if name in SHARED}
    fields["intermediate_size"] = options.intermediate_size or fields["intermediate_size"]
    ids = options.draft_vocab_size
    return fields | {
        "num_hidden_layers": options.layers, "target_hidden_size": target.config.hidden_size,
        "draft_vocab_size": ids if ids < vocabulary else 0,
        "features": tuple(options.features or default_features(target.shape.layers)),
    }  # fmt: skip


@torch.no_grad()
def started(
    head: H, target: CausalDecoder, options: TrainOptions, counts: Int[Tensor, " vocab"]
) -> H:
    """The head with random weights by `options.seed`, on the target's device, in float32; its
    matrix of logits and last norm begin as the target's. counts: how often each token id is
    trained.
    """
    head.fill_with_random(torch.Generator().manual_seed(options.seed))
    for name, parameter in head.named_parameters():
        if name.endswith(("attention.out.weight", "mlp.down.weight", "markov_out.weight")):
            parameter.zero_()  # at first, each layer passes its input on
    if (ids := head.token_ids) is not None:
        ids.copy_(counts.topk(len(ids)).indices.sort()[0])
    rows: Any = slice(None) if ids is None else ids
    of_target = target.embed if target.head is None else target.head
    weight = of_target.weight if type(of_target) is Linear else of_target
    if isinstance(weight, Tensor) and isinstance(head.head, Linear):
        head.head.weight.copy_(weight.cpu()[rows])
    if type(target.norm) is RMSNorm and isinstance(head.norm, RMSNorm):
        head.norm.weight.copy_(target.norm.weight)
    return head.to(target.embed.device)


def speculators_config(
    kind: str, architecture: str, c: Any, drafts: int, target: CausalDecoder, name: str
) -> dict[str, Any]:
    """The config.json of a head in the format of `speculators`, which vLLM reads, with every field
    that readers have other defaults for. c: the head's config; name: of the target.
    """
    verifier = {"name_or_path": name, "architectures": [target.config.architecture]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": drafts}
    rope = {} if c.rope_scaling is None else {"rope_scaling": c.rope_scaling.to_json()}
    layer = {field: getattr(c, field) for field in SHARED if field != "rope_scaling"} | rope | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": c.hidden_act,
        "num_hidden_layers": c.num_hidden_layers, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy",
            "proposal_methods": [proposal], "verifier": verifier,
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": c.draft_vocab_size or c.vocab_size,
        "target_hidden_size": c.target_hidden_size,
    }  # fmt: skip
