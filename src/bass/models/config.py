"""The fields of config.json that families share, how they are read and written, and what follows
from them.
"""

from collections import ChainMap
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np

from bass.errors import CheckpointError, counted
from bass.models.fields import Act, Positive, Range, Size, read
from bass.models.rope import RopeScaling, pair_order
from bass.models.sources import head_rows
from bass.records import AttentionRule, DecoderShape

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers in `layer_types`
Kind = Annotated[str, (FULL, SLIDING)]
Base = Annotated[float, Range(1, above=True)]  # of rotary frequencies, which fall from pair to pair
Assumed = dict[str, tuple[Any, ...]]
CAUSAL: Assumed = {"is_causal": (True, None)}  # embedding models have false
Config = TypeVar("Config", bound="FamilyConfig")


@dataclass(frozen=True)
class FamilyConfig:
    """The fields of a config.json that decide what a family computes, named as in `transformers`,
    with its defaults, and with types and ranges (`bass.models.fields`).

    `assumes` maps fields that the decoder does not vary to their supported values, the default
    first; another value is an error, as with the fields that a base class assumes. `attribute_map`
    maps Llama's names of fields to the family's. `writes`: fields of a written config.json alone.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    assumes: ClassVar[Assumed] = CAUSAL
    attribute_map: ClassVar[dict[str, str]] = {}
    writes: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        heads, kv_heads, dim = self.heads
        if not (heads and kv_heads and dim) or heads % kv_heads or dim % 2:
            raise CheckpointError(
                f"config.json has {heads} heads over {kv_heads} key-value heads of {dim} "
                "dimensions: they do not divide evenly."
            )

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read a parsed config.json. A `CheckpointError` names a field that is missing, invalid or
        not supported.
        """
        assumes = ChainMap(*(vars(base).get("assumes", {}) for base in cls.__mro__))
        for name, allowed in assumes.items():
            if config.get(name, allowed[0]) not in allowed:
                raise CheckpointError(
                    f"The checkpoint has `{name}={config[name]!r:.100}`; for {cls.model_type} "
                    f"`bass` supports: {', '.join(map(str, dict.fromkeys(allowed)))}."
                )
        return read(cls, config)

    def to_json(self) -> dict[str, Any]:
        """A config.json for `transformers` and `from_json`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        names = {"architectures": [self.architecture], "model_type": self.model_type}
        return names | own | self.writes

    def common(self, name: str) -> Any:
        """The value of a field by Llama's name of it."""
        return getattr(self, self.attribute_map.get(name, name))

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, dimensions of each."""
        count, kv_count = map(self.common, ("num_attention_heads", "num_key_value_heads"))
        return count, kv_count, self.common("head_dim")

    @property
    def embedding_size(self) -> int:
        """The size of an embedding, and of what the head reads."""
        return self.common("hidden_size")

    @property
    def context(self) -> int:
        """The number of usable positions."""
        return self.common("max_position_embeddings")

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        """The attention rule of each layer: scale, window, soft cap."""
        return (AttentionRule(self.heads[2] ** -0.5),) * self.common("num_hidden_layers")

    @cached_property
    def shape(self) -> DecoderShape:
        """Sizes and attention rules, as caches, backends and reports use them."""
        return DecoderShape(self.common("vocab_size"), *self.heads, self.context, self.rules)

    @property
    def qkv_rows(self) -> np.ndarray | None:
        """The rows of the checkpoint's stack [q, k, v] in our order: int [rows]; None if the orders
        are equal.
        """
        return None


@dataclass(frozen=True)
class RotaryConfig(FamilyConfig):
    """Fields that all families with rotary positions and separate key-value heads share.

    interleaved: the checkpoint rotates dimensions 2i and 2i + 1 together.
    """

    interleaved: ClassVar[bool] = False
    vocab_size: Size
    hidden_size: Size
    intermediate_size: int
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: int = 0  # 0: as many as there are heads
    head_dim: int = 0  # 0: hidden_size / heads
    max_position_embeddings: Size = 2048
    rope_theta: Base = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        kv_heads = self.num_key_value_heads or self.num_attention_heads
        object.__setattr__(self, "num_key_value_heads", kv_heads)
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        object.__setattr__(self, "head_dim", head_dim)
        super().__post_init__()
        check_rotary(self.rotary_dim, self.head_dim)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read config.json. Rotary fields may be in `rope_parameters`, in `rope_scaling`, or next
        to the other fields.
        """
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise CheckpointError(
                f"config.json has the rope parameters {rope!r:.100}: they must be an object."
            )
        derived = {n: 0 for n in ("num_key_value_heads", "head_dim") if config.get(n, 0) is None}
        rotary = {k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")}
        scaling = RopeScaling.from_json(with_original(rope, config))
        return super().from_json(config | derived | rotary | {"rope_scaling": scaling})

    def to_json(self) -> dict[str, Any]:
        scaling = self.rope_scaling
        return super().to_json() | {"rope_scaling": None if scaling is None else scaling.to_json()}

    @property
    def context(self) -> int:
        trained = self.max_position_embeddings
        return trained if self.rope_scaling is None else self.rope_scaling.context(trained)

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of each head."""
        return self.head_dim

    @property
    def qkv_rows(self) -> np.ndarray | None:
        if self.rotary_dim == self.head_dim and not self.interleaved:
            return None
        order = pair_order(self.head_dim, self.rotary_dim, self.interleaved)
        return head_rows(order, self.num_attention_heads, self.num_key_value_heads)


@dataclass(frozen=True)
class PartialRotaryConfig(RotaryConfig):
    """`partial_rotary_factor`: the share of a head's dimensions that are rotated."""

    partial_rotary_factor: float = 0.5

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)


@dataclass(frozen=True)
class GatedConfig(RotaryConfig):
    """Fields of the families with Llama's block: RMSNorm and a gated MLP."""

    rms_norm_eps: float = 1e-6
    hidden_act: Act = "silu"


@dataclass(frozen=True)
class SlidingConfig(RotaryConfig):
    """The field of families with one window in all layers.

    `sliding_window`: the number of positions that a query attends to, its own included.
    """

    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds, layers = self.kinds, self.num_hidden_layers
        if len(kinds) != layers or (SLIDING in kinds and not self.window):
            raise CheckpointError(
                f"config.json has {counted(len(kinds), 'layer')} of the kinds "
                f"{', '.join(sorted({*kinds}))} for {counted(layers, 'layer')} and a window of "
                f"{self.window}: each layer must have a kind, and sliding ones a window."
            )

    @property
    def window(self) -> int | None:
        """The window of sliding layers."""
        return self.sliding_window

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        return (FULL if self.window is None else SLIDING,) * self.num_hidden_layers

    @property
    def rule(self) -> AttentionRule:
        """The rule of sliding layers; that of the others has no window."""
        return AttentionRule(self.head_dim**-0.5, self.window)

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        by_kind = {SLIDING: self.rule, FULL: replace(self.rule, window=None)}
        return tuple(by_kind[kind] for kind in self.kinds)


@dataclass(frozen=True)
class LayerTypesConfig(SlidingConfig):
    """Fields of families with a kind for each layer; without `layer_types`, every `period`-th layer
    has no window.
    """

    layer_types: tuple[Kind, ...] | None = None

    @property
    def period(self) -> int:
        """Every `period`-th layer has no window; 0: all have one."""
        return 2

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        period = self.period
        return self.layer_types or tuple(
            FULL if period and (layer + 1) % period == 0 else SLIDING
            for layer in range(self.num_hidden_layers)
        )


@dataclass(frozen=True)
class WindowedConfig(LayerTypesConfig, GatedConfig):
    """Fields of the Qwen families: windows in the layers from `max_window_layers` on, or in those
    of `layer_types`.
    """

    num_key_value_heads: int = 32
    max_position_embeddings: Size = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    @property
    def window(self) -> int | None:
        return self.sliding_window if self.use_sliding_window else None

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        first = self.num_hidden_layers if self.window is None else self.max_window_layers
        return self.layer_types or tuple(
            SLIDING if layer >= first else FULL for layer in range(self.num_hidden_layers)
        )


@dataclass(frozen=True)
class GemmaConfig(LayerTypesConfig):
    """Fields of the Gemma families: their own scale of scores, soft caps, and windows in most
    layers.
    """

    assumes: ClassVar[Assumed] = {"use_bidirectional_attention": (False, None)}
    attribute_map: ClassVar[dict[str, str]] = {"hidden_act": "hidden_activation"}
    hidden_size: Size = 2304
    intermediate_size: int = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: Act = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: Size = 256
    sliding_window: int | None = 4096
    final_logit_softcapping: Positive | None = None
    attn_logit_softcapping: Positive | None = None

    @property
    def rule(self) -> AttentionRule:
        scale = self.query_pre_attn_scalar**-0.5
        return AttentionRule(scale, self.sliding_window, self.attn_logit_softcapping)


@dataclass(frozen=True)
class GPTConfig(FamilyConfig):
    """Fields that GPT-2 has named, and its successors have kept."""

    assumes: ClassVar[Assumed] = {"add_cross_attention": (False,)}
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd", "intermediate_size": "inner", "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head", "num_key_value_heads": "kv_heads",
        "max_position_embeddings": "n_positions", "hidden_act": "activation_function",
        "rms_norm_eps": "layer_norm_epsilon",
    }  # fmt: skip
    vocab_size: Size = 50257
    n_positions: Size = 1024
    n_embd: Size = 768
    n_layer: Size = 12
    n_head: Size = 12
    n_inner: int | None = None
    activation_function: Act = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        """Dimensions of each head."""
        return self.n_embd // self.n_head

    @property
    def inner(self) -> int:
        """Width of the MLP."""
        return self.n_inner or 4 * self.n_embd


@dataclass(frozen=True)
class SharedNormConfig(GPTConfig):
    """Fields of GPT-J and CodeGen. `rotary_dim`: rotated dimensions of each head."""

    vocab_size: Size = 50400
    n_positions: Size = 2048
    n_embd: Size = 4096
    n_layer: Size = 28
    n_head: Size = 16
    rotary_dim: int = 64
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary(self.rotary_dim, self.head_dim)

    @property
    def qkv_rows(self) -> np.ndarray:
        order = pair_order(self.head_dim, self.rotary_dim, interleaved=True)
        return head_rows(order, self.n_head, self.n_head)


def check_rotary(rotary_dim: int, head_dim: int) -> None:
    """Raise `CheckpointError` unless the rotated dimensions are pairs within a head."""
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"config.json has {rotary_dim} rotary dimensions in heads of {head_dim}: the number "
            f"must be even, from 2 to {head_dim}."
        )


def with_original(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The rope object with the original context from the outer config, and with yarn's default
    factor, the ratio of the contexts.
    """
    kind, length = rope.get("rope_type", rope.get("type")), "original_max_position_embeddings"
    if kind in ("llama3", "yarn", "longrope") and config.get(length) is not None:
        rope = rope | {length: config[length]}
    original = rope.get(length)
    if isinstance(original, float) and original.is_integer():
        rope = rope | {length: int(original)}
    if kind == "yarn" and rope.get("factor") is None and original:
        rope = rope | {"factor": config.get("max_position_embeddings", 0) / original}
    return rope


def rope_by_kind(config: dict[str, Any], family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope parameters of full and of sliding layers; older files have `rope_scaling` of the
    former. Raises `CheckpointError` for others, and for scaled sliding layers.
    """
    by_kind, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    known = isinstance(by_kind, dict) and {*by_kind} <= {FULL, SLIDING}
    full, sliding = (by_kind.get(kind) or {} for kind in (FULL, SLIDING)) if known else ({}, {})
    objects = all(isinstance(rope, dict) for rope in (full, sliding, scaling))
    if not known or not objects or RopeScaling.from_json(sliding) is not None:
        raise CheckpointError(
            f"config.json has the rope parameters {by_kind!r:.100} and `rope_scaling="
            f"{scaling!r:.100}`: {family} has objects for `{FULL}` and `{SLIDING}`, of which only "
            "the first may be scaled."
        )
    return full | scaling, sliding
