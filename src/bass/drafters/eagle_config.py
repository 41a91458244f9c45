"""What published heads of EAGLE differ in, and how their producers write it.

Files rarely say which rule their ids of states follow. State i, as `target_features` means it, is
what enters layer i.

| producer, shown by | id X of a state is | default for L layers |
|---|---|---|
| speculators: `speculators_config` | state X, "input" | 2, L // 2, L - 3 |
| DeepSpec: `target_layer_ids` | what leaves layer X, state X + 1, "output" | none |
| SpecForge, NVIDIA: ids that begin with 1 | "output" | 1, L // 2 - 1, L - 4 |
| others, as vLLM reads them | "input" | 2, L // 2, L - 3 |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from bass.drafters.heads import HeadConfig, Shapes, flattened
from bass.errors import CheckpointError
from bass.models.config import Assumed
from bass.models.decoder import FINAL

CLASSES = ("architectures", "model_type", "layer_type", "speculators_model_type")
Ids = Literal["input", "output"]
# in names of classes: heads whose layers or passes are others than those of Llama or Qwen 3
OTHERS = r"deepseek|gemma|minicpm|llama4|eagle-?_?4"
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # of P-EAGLE, by some producer
# fields of eagle_config that NVIDIA's ModelOpt alone writes
OF_NVIDIA = {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm"}


def usual_feature_ids(layers: int) -> tuple[int, int, int]:
    """The states that most heads read of a target of this many layers."""
    return 2, layers // 2, layers - 3


@dataclass(frozen=True)
class EagleConfig(HeadConfig):
    """The form of a head.

    `producer`: "" if the file does not show it. `layer_ids`: of the states, as the file has them,
    and `ids`, what they mean; (): the default. `feature_count`: how many; `use_aux`: False if the
    only one is the final state. `version` 3: the first layer's attention reads [embedding,
    feature], of twice the width; 1 (and 2): `fc` makes one state of both. `norm_output`: the
    recurrent state is the one after the norm. `parallel`: P-EAGLE, with `mask_token_id` in the
    slots that draft in one pass.
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
    producer: str = ""
    ids: Ids = "input"
    layer_ids: tuple[int, ...] = ()
    feature_count: int = 3
    use_aux: bool = True
    version: int = 3
    fc_bias: bool = False
    has_fc: bool = True
    has_first_norm: bool = False
    has_norm: bool = True
    has_head: bool = True
    norm_before_fc: bool = False
    norms_of_states: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    parallel: bool = False
    mask_token_id: int = 0

    @classmethod
    def json_names(cls) -> dict[str, str]:
        names = super().json_names()
        return {n: own for n, own in names.items() if n not in ("ids", "layer_ids")}

    def feature_ids(self, layers: int, ids: Ids | None = None) -> tuple[int, ...]:
        """The states of a target of this many layers, as of `DraftMethod.target_features`.

        ids: instead of the file's.
        """
        if self.version != 3 or not self.use_aux:
            return (FINAL,)
        shift = int((ids or self.ids) == "output")
        return tuple(i + shift for i in self.layer_ids) or usual_feature_ids(layers)

    def known_ids(self, layers: int) -> bool:
        """Whether the file shows what its ids mean."""
        if not self.layer_ids or self.producer in ("speculators", "DeepSpec"):
            return True
        inputs = usual_feature_ids(layers)
        outputs = tuple(i - 1 for i in inputs)
        return self.layer_ids in (inputs, outputs) or max(self.layer_ids) >= layers

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
    raw = flattened(raw, "eagle_config")
    classes = [raw.get(name) for name in CLASSES]
    if other := re.search(OTHERS, str(classes).lower()):
        raise CheckpointError(
            f"its class ({', '.join(map(str, filter(None, classes)))}) has layers of another kind "
            f"(`{other[0]}`): `bass` reads heads of EAGLE with the layers of Llama or Qwen 3."
        )
    parallel = "mask_hidden" in shapes or "peagle" in str(classes).lower()
    masks = [raw[name] for name in MASKS if name in raw]
    if parallel and not masks:
        raise CheckpointError(f"config.json has none of {', '.join(MASKS)}: add the mask token.")
    three = bool(re.search(r"eagle-?_?3", str(classes).lower())) or (
        parallel or "layers.0.hidden_norm.weight" in shapes
    )
    producer, layer_ids, ids = producer_of(raw)
    use_aux = three and raw.get("use_aux_hidden_state") is not False
    count = raw.get("num_aux_hidden_states") or len(layer_ids) or 3
    if "fc.weight" in shapes:
        of_target = raw.get("target_hidden_size") or raw["hidden_size"]
        count = shapes["fc.weight"][1] // of_target
    of_states = raw.get("fc_norm") or raw.get("use_aux_norm") or "fc_norm.0.weight" in shapes
    own = {
        "producer": producer,
        "version": 3 if three else 1,
        "use_aux": use_aux,
        "feature_count": count if use_aux else 1,
        "fc_bias": "fc.bias" in shapes if shapes else bool(raw.get("bias")),
        "has_fc": not three or use_aux or "fc.weight" in shapes,
        "has_first_norm": "layers.0.input_layernorm.weight" in shapes,
        "has_norm": "norm.weight" in shapes if shapes else three,
        "has_head": three and not raw.get("tie_word_embeddings"),
        "norm_before_fc": raw.get("norm_before_fc", "input_norm.weight" in shapes),
        "norms_of_states": bool(of_states),
        "norm_before_residual": raw.get(
            "norm_before_residual", producer == "speculators" and not parallel
        ),
        "parallel": parallel,
        "mask_token_id": masks[0] if masks else 0,
    }
    return replace(EagleConfig.of_files(raw, shapes, own), ids=ids, layer_ids=layer_ids)


def producer_of(raw: Mapping[str, Any]) -> tuple[str, tuple[int, ...], Ids]:
    """The producer, its ids of states and what they mean, of a flattened config.json."""
    if "target_layer_ids" in raw:
        return "DeepSpec", tuple(raw["target_layer_ids"]), "output"
    layer_ids = tuple(raw.get("eagle_aux_hidden_state_layer_ids") or ())
    if "speculators_config" in raw or "speculators_model_type" in raw:
        return "speculators", layer_ids, "input"
    first = layer_ids[:1] == (1,)
    producer = "NVIDIA" if OF_NVIDIA & {*raw} else "SpecForge" if first else ""
    return producer, layer_ids, "output" if first else "input"
