"""The fields of config.json that families share, how they are read and written, and what follows
from them.
"""

from collections import ChainMap
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from bass.errors import CheckpointError, counted
from bass.models.fields import read
from bass.models.rope import RopeScaling, pair_order
from bass.models.sources import head_rows
from bass.ops.activation import ACTIVATIONS
from bass.records import AttentionRule, DecoderShape

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers in `layer_types`
GLOBAL, LOCAL = "rotary", "local_rotary"  # modules of a decoder
Assumed = dict[str, tuple[Any, ...]]
AttributeMap = dict[str, str | None]


@dataclass(frozen=True)
class FamilyConfig:
    """The fields of a config.json that decide what a family computes, named as in Llama's, with the
    defaults of `transformers`.

    `attribute_map`: what the family's config.json calls these fields; None: it has no such field.
    `assumes` maps fields that the decoder does not vary to their supported values, the default
    first; another value is an error, as with the fields that a base class assumes. A family that
    gives a default to some of the fields that have none here is `kw_only`.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    attribute_map: ClassVar[AttributeMap] = {}
    assumes: ClassVar[Assumed] = {"is_causal": (True, None)}  # embedding models have false
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0  # 0: as many as there are heads
    head_dim: int = 0  # 0: hidden_size / heads
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6  # of any norm
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        derived = {
            "num_key_value_heads": self.num_attention_heads,
            "head_dim": self.hidden_size // self.num_attention_heads,
            "intermediate_size": 4 * self.hidden_size,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, getattr(self, name) or value)
        if self.hidden_act not in ACTIVATIONS:
            raise CheckpointError(
                f"config.json has `hidden_act={self.hidden_act}`; `bass` supports: "
                f"{', '.join(ACTIVATIONS)}."
            )
        heads, kv_heads, dim = self.heads
        if not dim or heads % kv_heads or dim % 2:
            raise CheckpointError(
                f"config.json has {heads} heads over {kv_heads} key-value heads of {dim} "
                "dimensions: they do not divide evenly."
            )

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Read a parsed config.json. A `CheckpointError` names a field that is missing or not
        supported.
        """
        assumes = ChainMap(*(vars(base).get("assumes", {}) for base in cls.__mro__))
        for name, allowed in assumes.items():
            if config.get(name, allowed[0]) not in allowed:
                raise CheckpointError(
                    f"The checkpoint has `{name}={config[name]!r:.100}`; for {cls.model_type} "
                    f"`bass` supports: {', '.join(map(str, dict.fromkeys(allowed)))}."
                )
        return read(cls, config, cls.json_names())

    def to_json(self) -> dict[str, Any]:
        """A config.json for `transformers` and `from_json`."""
        own = {stored: getattr(self, name) for name, stored in self.json_names().items()}
        names = {"architectures": [self.architecture], "model_type": self.model_type}
        # a default of `transformers` may lie beyond the vocabulary
        return names | own | {"pad_token_id": None}

    @classmethod
    def json_names(cls) -> dict[str, str]:
        """The fields that config.json has, with their names there."""
        stored = {f.name: cls.attribute_map.get(f.name, f.name) for f in fields(cls)}
        return {name: own for name, own in stored.items() if own is not None}

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, dimensions of each."""
        return self.num_attention_heads, self.num_key_value_heads, self.head_dim

    @property
    def embedding_size(self) -> int:
        """The size of an embedding, and of what the head reads."""
        return self.hidden_size

    @property
    def context(self) -> int:
        """The number of usable positions."""
        return self.max_position_embeddings

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        """The attention rule of each layer: scale, window, soft cap."""
        return (AttentionRule(self.head_dim**-0.5),) * self.num_hidden_layers

    @cached_property
    def shape(self) -> DecoderShape:
        """Sizes and attention rules, as caches, backends and reports use them."""
        return DecoderShape(self.vocab_size, *self.heads, self.context, self.rules)

    @property
    def qkv_rows(self) -> np.ndarray | None:
        """The rows of the checkpoint's stack [q, k, v] in our order: int [rows]; None if the orders
        are equal.
        """
        return None


@dataclass(frozen=True)
class RotaryConfig(FamilyConfig):
    """Fields of the families with rotary positions.

    interleaved: the checkpoint rotates dimensions 2i and 2i + 1 together. default_rope: the rope
    parameters of a config.json without any.
    """

    interleaved: ClassVar[bool] = False
    default_rope: ClassVar[dict[str, Any]] = {}
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Read config.json. Rotary fields may be in `rope_parameters`, in `rope_scaling`, or next
        to the other fields.
        """
        rope = config.get("rope_scaling") or config.get("rope_parameters") or cls.default_rope
        derived = {n: 0 for n in ("num_key_value_heads", "head_dim") if config.get(n, 0) is None}
        names = cls.json_names()
        rotary = {names[name]: value for name, value in rope.items() if name in names}
        scaling = RopeScaling.from_json(with_original(rope, config))
        return super().from_json(config | derived | rotary | {"rope_scaling": scaling})

    def to_json(self) -> dict[str, Any]:
        scaling = self.rope_scaling
        found = super().to_json()
        return found if scaling is None else found | {"rope_scaling": scaling.to_json()}

    @property
    def context(self) -> int:
        trained = self.max_position_embeddings
        return trained if self.rope_scaling is None else self.rope_scaling.context(trained)

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of each head."""
        return self.head_dim

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        """The rotary embedding of each layer: `GLOBAL`, `LOCAL` or none."""
        return (GLOBAL,) * self.num_hidden_layers

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
class SlidingConfig(RotaryConfig):
    """The field of families with one window in all layers.

    `sliding_window`: the number of positions that a query attends to, its own included.
    """

    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds, layers = self.kinds, self.num_hidden_layers
        known = {FULL, SLIDING} if self.window else {FULL}
        if len(kinds) != layers or not {*kinds} <= known:
            raise CheckpointError(
                f"config.json has {counted(len(kinds), 'layer')} of the kinds "
                f"{', '.join(sorted({*kinds}))} for {counted(layers, 'layer')} and a window of "
                f"{self.window}: each layer must be `{FULL}` or, with a window, `{SLIDING}`."
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

    layer_types: tuple[str, ...] | None = None
    period = 2  # 0: all layers have a window

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        period = self.period
        return self.layer_types or tuple(
            FULL if period and (layer + 1) % period == 0 else SLIDING
            for layer in range(self.num_hidden_layers)
        )


@dataclass(frozen=True)
class LocalRotaryConfig(LayerTypesConfig):
    """Fields of families with a rotary embedding for each kind of layer: `rope_theta` and
    `rope_scaling` of those without a window, `rope_local_base_freq` of those with one. Newer files
    have both in `rope_parameters`, by the kind of layer.
    """

    rope_local_base_freq: float = 0.0  # 0: rope_theta

    def __post_init__(self) -> None:
        theta = self.rope_local_base_freq or self.rope_theta
        object.__setattr__(self, "rope_local_base_freq", theta)
        super().__post_init__()

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        by_kind, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
        full, sliding = (by_kind.get(kind) or {} for kind in (FULL, SLIDING))
        if not {*by_kind} <= {FULL, SLIDING} or RopeScaling.from_json(sliding) is not None:
            raise CheckpointError(
                f"config.json has the rope parameters {by_kind!r:.100}: {cls.model_type} has "
                f"objects for `{FULL}` and `{SLIDING}`, of which only the first may be scaled."
            )
        local = {"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {}
        rope = {"rope_parameters": None, "rope_scaling": full | scaling}
        return super().from_json(config | local | rope)

    @cached_property
    def rotations(self) -> tuple[str | None, ...]:
        return tuple(LOCAL if kind == SLIDING else GLOBAL for kind in self.kinds)


@dataclass(frozen=True)
class WindowedConfig(LayerTypesConfig):
    """Fields of the Qwen families: windows in the layers from `max_window_layers` on, or in those
    of `layer_types`.
    """

    num_key_value_heads: int = 32
    max_position_embeddings: int = 32768
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
