"""What published heads of EAGLE differ in, and how their producers write it.

Files rarely say which rule their ids of states follow. Boundary i, which `target_features` means,
is what enters layer i.

| producer, shown by | id X of a state is | default for L layers |
|---|---|---|
| speculators: `speculators_config` | boundary X, "input" | 2, L // 2, L - 3 |
| DeepSpec: `target_layer_ids` | what leaves layer X, boundary X + 1, "output" | none |
| SpecForge, NVIDIA: ids that begin with 1 | "output" | 1, L // 2 - 1, L - 4 |
| others, as vLLM reads them | "input" | 2, L // 2, L - 3 |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from bass.errors import CheckpointError
from bass.models.config import FULL, Assumed, LayerTypesConfig
from bass.models.decoder import FINAL
from bass.models.fields import Positive

CLASSES = ("architectures", "model_type", "layer_type", "speculators_model_type")
Shapes = Mapping[str, tuple[int, ...]]
Ids = Literal["input", "output"]
# in names of classes: heads whose layers or passes are others than those of Llama or Qwen 3
OTHERS = r"deepseek|gemma|minicpm|llama4|eagle-?_?4|p-?eagle"
# fields of eagle_config that NVIDIA's ModelOpt alone writes
OF_NVIDIA = {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm"}


@dataclass(frozen=True)
class EagleConfig(LayerTypesConfig):
    """The form of a head.

    `producer`: "" if the file does not show it. `layer_ids`: of the states, as the file has them,
    and `ids`, what they mean; (): the default. `states`: their number; `use_aux`: False if the
    only one is the final state. `version` 3: the first layer's attention reads [embedding,
    feature], of twice the width; 1 (and 2): `fc` makes one state of both. `draft_vocab_size`: token
    ids of the head's table of them; 0: all, and no table. `norm_output`: the recurrent state is
    the one after the norm.
    """

    model_type = "eagle"
    architecture = "LlamaForCausalLMEagle3"
    assumes: ClassVar[Assumed] = {
        "next_layer_regular": (True, None),
        "partial_rotary_factor": (1, None),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "query_pre_attn_scalar": (None,),
    }
    period = 1  # without `layer_types` no layer has a window
    producer: str = ""
    ids: Ids = "input"
    layer_ids: tuple[int, ...] = ()
    states: int = 3
    use_aux: bool = True
    version: int = 3
    target_hidden_size: int = 0
    draft_vocab_size: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    has_fc: bool = True
    has_first_norm: bool = False
    has_norm: bool = True
    has_embed: bool = False
    has_head: bool = True
    qk_norm: bool = False
    norm_before_fc: bool = False
    norms_of_states: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    logit_scale: Positive = 1.0

    @classmethod
    def json_names(cls) -> dict[str, str]:
        names = super().json_names()
        return {n: own for n, own in names.items() if n not in ("ids", "layer_ids")}

    def for_target(self, target: Any) -> "EagleConfig":
        """The config with the positions of a target's config."""
        most = max(self.max_position_embeddings, target.max_position_embeddings)
        return replace(self, max_position_embeddings=most)

    def boundaries(self, layers: int, ids: Ids | None = None) -> tuple[int, ...]:
        """The states of a target of this many layers, as of `DraftMethod.target_features`.

        ids: instead of the file's.
        """
        if self.version != 3 or not self.use_aux:
            return (FINAL,)
        shift = int((ids or self.ids) == "output")
        return tuple(i + shift for i in self.layer_ids) or (2, layers // 2, layers - 3)

    def known_ids(self, layers: int) -> bool:
        """Whether the file shows what its ids mean."""
        if not self.layer_ids or self.producer in ("speculators", "DeepSpec"):
            return True
        defaults = (2, layers // 2, layers - 3), (1, layers // 2 - 1, layers - 4)
        return self.layer_ids in defaults or max(self.layer_ids) >= layers

    @property
    def known_norm_output(self) -> bool:
        """Whether the file shows what `norm_output` means: in SpecForge before September
        2026 it was the norm before the logits, and the recurrent state never normed.
        """
        return not self.norm_output or self.producer == "speculators" or self.norms_of_states


def read_eagle(raw: Mapping[str, Any], shapes: Shapes) -> EagleConfig:
    """The form of a head, by its config.json and the shapes of its tensors (none for random
    weights). Raises `CheckpointError` for a form that is not supported.
    """
    raw = flattened(raw)
    classes = [raw.get(name) for name in CLASSES]
    if other := re.search(OTHERS, str(classes).lower()):
        raise CheckpointError(
            f"its class ({', '.join(map(str, filter(None, classes)))}) has layers of another kind "
            f"(`{other[0]}`): `bass` reads heads of EAGLE with the layers of Llama or Qwen 3."
        )
    kinds, layers = raw.get("layer_types"), raw.get("num_hidden_layers") or 1
    if raw.get("use_sliding_window") and not kinds:
        raise CheckpointError("config.json has `use_sliding_window`, and no `layer_types`.")
    three = bool(re.search(r"eagle-?_?3", str(classes).lower())) or (
        "layers.0.hidden_norm.weight" in shapes
    )
    producer, layer_ids, ids = states_of(raw)
    found = {
        "num_hidden_layers": layers,
        "layer_types": list(kinds or [FULL] * layers),
        "producer": producer,
        "version": 3 if three else 1,
    }
    found |= _sizes(raw, shapes, len(layer_ids), three) | _tensors(raw, shapes, three)
    before = raw.get("norm_before_residual")
    found["norm_before_residual"] = producer == "speculators" if before is None else before
    if found["draft_vocab_size"] != raw["vocab_size"]:
        found["has_head"] = True
    elif "d2t" not in shapes:
        found["draft_vocab_size"] = 0
    return replace(EagleConfig.from_json(raw | found), ids=ids, layer_ids=layer_ids)


def flattened(raw: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with the fields of its nested objects; null is no value."""
    nested = (raw.get("transformer_layer_config") or {}, raw, raw.get("eagle_config") or {})
    found = {name: x for part in nested for name, x in part.items() if x is not None}
    rope = found.get("rope_scaling") or found.get("rope_parameters") or {}
    own = {n: rope[n] for n in ("partial_rotary_factor",) if n in rope}
    return found | own | {"layer_type": nested[0].get("model_type") or raw.get("model_type")}


def states_of(raw: Mapping[str, Any]) -> tuple[str, tuple[int, ...], Ids]:
    """The producer, its ids of states and what they mean, of a flattened config.json."""
    if "target_layer_ids" in raw:
        return "DeepSpec", tuple(raw["target_layer_ids"]), "output"
    layer_ids = tuple(raw.get("eagle_aux_hidden_state_layer_ids") or ())
    if "speculators_config" in raw or "speculators_model_type" in raw:
        return "speculators", layer_ids, "input"
    first = layer_ids[:1] == (1,)
    producer = "NVIDIA" if OF_NVIDIA & {*raw} else "SpecForge" if first else ""
    return producer, layer_ids, "output" if first else "input"


def _sizes(raw: Mapping[str, Any], shapes: Shapes, ids: int, three: bool) -> dict[str, Any]:
    of_target, use_aux = raw.get("target_hidden_size") or raw["hidden_size"], True
    states = raw.get("num_aux_hidden_states") or ids or 3
    if "fc.weight" in shapes:
        states = shapes["fc.weight"][1] // of_target
    if not three or raw.get("use_aux_hidden_state") is False:
        states, use_aux = 1, False
    stored = shapes.get("lm_head.weight", (raw["vocab_size"],))[0]
    drafts = raw.get("draft_vocab_size") or stored
    return {
        "target_hidden_size": of_target,
        "states": states,
        "use_aux": use_aux,
        "draft_vocab_size": drafts,
    }


def _tensors(raw: Mapping[str, Any], shapes: Shapes, three: bool) -> dict[str, Any]:
    """What the tensors show; of random weights what config.json says."""

    def has(name: str, otherwise: Any) -> bool:
        return name in shapes if shapes else bool(otherwise)

    own, bias = "layers.0.self_attn", raw.get("attention_bias")
    of_target = raw.get("target_hidden_size", raw["hidden_size"])
    return {
        "qkv_bias": has(f"{own}.q_proj.bias", bias or raw.get("qkv_bias")),
        "out_bias": has(f"{own}.o_proj.bias", bias),
        "mlp_bias": has("layers.0.mlp.gate_proj.bias", raw.get("mlp_bias")),
        "fc_bias": has("fc.bias", raw.get("bias")),
        "qk_norm": has(f"{own}.q_norm.weight", raw.get("layer_type") == "qwen3"),
        "has_fc": not three
        or raw.get("use_aux_hidden_state") is not False
        or "fc.weight" in shapes,
        "has_first_norm": "layers.0.input_layernorm.weight" in shapes,
        "has_norm": has("norm.weight", three),
        "has_embed": "embed_tokens.weight" in shapes or of_target != raw["hidden_size"],
        "has_head": has("lm_head.weight", three and not raw.get("tie_word_embeddings")),
        "norm_before_fc": raw.get("norm_before_fc", "input_norm.weight" in shapes),
        "norms_of_states": bool(
            raw.get("fc_norm") or raw.get("use_aux_norm") or "fc_norm.0.weight" in shapes
        ),
    }
