"""Fields of a family's config.json, validated on reading."""

import types
import typing
from abc import abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from bass.errors import CheckpointError, counted
from bass.models.rope import RopeScaling
from bass.ops.activation import ACTIVATIONS
from bass.records import AttentionRule, DecoderShape

LARGEST = 2**31 - 1  # of any size in a config
LARGEST_FLOAT = 1e30  # of any other number; neither infinity nor NaN is below it
FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers in `layer_types`
CAUSAL: dict[str, tuple[Any, ...]] = {"is_causal": (True, None)}  # embedding models have false
Config = TypeVar("Config", bound="FamilyConfig")


@dataclass(frozen=True)
class FamilyConfig:
    """The fields of a config.json that decide what a family computes, named as in `transformers`.

    `assumes` maps fields that the decoder does not vary to their supported values; another value is
    an error. An absent field has the default of `transformers`.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read a parsed config.json. A `CheckpointError` names a field that is missing, invalid or
        not supported.
        """
        for name, allowed in (CAUSAL | cls.assumes).items():
            if config.get(name, allowed[0]) not in allowed:
                raise CheckpointError(
                    f"The checkpoint has `{name}={config[name]!r}`; for {cls.model_type} "
                    "`bass` supports: "
                    f"{', '.join(map(str, dict.fromkeys(allowed)))}."
                )
        return cls(
            **{
                field.name: value
                for field in fields(cls)
                if (value := _value(field, config)) is not MISSING
            }
        )

    @property
    @abstractmethod
    def shape(self) -> DecoderShape:
        """Sizes and attention rules, as caches, backends and reports use them."""
        ...

    def to_json(self) -> dict[str, Any]:
        """A config.json for `transformers` and `from_json`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"architectures": [self.architecture], "model_type": self.model_type, **own}


@dataclass(frozen=True)
class RotaryConfig(FamilyConfig):
    """Fields that all families with rotary positions and separate key-value heads share."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0  # 0: as many as there are heads
    head_dim: int = 0  # 0: hidden_size / heads
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "num_key_value_heads", self.num_key_value_heads or self.num_attention_heads
        )
        object.__setattr__(
            self, "head_dim", self.head_dim or self.hidden_size // max(self.num_attention_heads, 1)
        )
        check_theta(self.rope_theta)
        check_heads(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read config.json. Rotary fields may be in `rope_parameters`, in `rope_scaling`, or next
        to the other fields.
        """
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise CheckpointError(
                f"config.json has the rope parameters {rope!r}: they must be an object."
            )
        derived = {n: 0 for n in ("num_key_value_heads", "head_dim") if config.get(n, 0) is None}
        merged = {
            **config,
            **derived,
            **{k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")},
        }
        rope = with_original(rope, config)
        return super().from_json(merged | {"rope_scaling": RopeScaling.from_json(rope)})

    @property
    def context(self) -> int:
        """The number of usable positions."""
        trained = self.max_position_embeddings
        return trained if self.rope_scaling is None else self.rope_scaling.context(trained)

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        """The attention rule of each layer: scale, window, soft cap."""
        return (AttentionRule(self.head_dim**-0.5),) * self.num_hidden_layers

    @property
    def shape(self) -> DecoderShape:
        return DecoderShape(
            self.vocab_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.context,
            self.rules,
        )

    def to_json(self) -> dict[str, Any]:
        scaling = self.rope_scaling
        return super().to_json() | {"rope_scaling": None if scaling is None else scaling.to_json()}


@dataclass(frozen=True)
class GatedConfig(RotaryConfig):
    """Fields of the families with Llama's block: RMSNorm and a gated MLP."""

    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {"hidden_act": ("silu", *ACTIVATIONS)}
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"


@dataclass(frozen=True)
class SlidingConfig(RotaryConfig):
    """The field of families with one window in all layers.

    `sliding_window`: the number of positions that a query attends to, its own included.
    """

    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.sliding_window)

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return (
            AttentionRule(self.head_dim**-0.5, window=self.sliding_window),
        ) * self.num_hidden_layers


@dataclass(frozen=True)
class WindowedConfig(GatedConfig):
    """Fields of the Qwen families: windows in the layers from `max_window_layers` on, or in those
    of `layer_types`.
    """

    num_key_value_heads: int = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.kinds, self.num_hidden_layers, self.window)

    @property
    def window(self) -> int | None:
        """The window of sliding layers."""
        return self.sliding_window if self.use_sliding_window else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        first = self.num_hidden_layers if self.window is None else self.max_window_layers
        return self.layer_types or tuple(
            SLIDING if layer >= first else FULL for layer in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        return layer_rules(self.kinds, AttentionRule(self.head_dim**-0.5, self.window))


@dataclass(frozen=True)
class GemmaConfig(RotaryConfig):
    """Fields of the Gemma families: their own scale of scores, soft caps, and windows in most
    layers.
    """

    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_activation": ("gelu_pytorch_tanh", *ACTIVATIONS),
        "use_bidirectional_attention": (False, None),
    }
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: int = 256
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise CheckpointError(
                    f"config.json has `{name}={value}`, which must be positive: download the "
                    "checkpoint again."
                )
        check_kinds(self.kinds, self.num_hidden_layers, self.sliding_window)

    @property
    def period(self) -> int:
        """Without `layer_types`, every `period`-th layer has no window."""
        return 2

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        return self.layer_types or tuple(
            SLIDING if (i + 1) % self.period else FULL for i in range(self.num_hidden_layers)
        )

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        rule = AttentionRule(
            self.query_pre_attn_scalar**-0.5, self.sliding_window, self.attn_logit_softcapping
        )
        return layer_rules(self.kinds, rule)


def check_experts(count: int, chosen: int) -> None:
    """Raise `CheckpointError` unless a token has experts to choose, and chooses some."""
    if not 0 < chosen <= count:
        raise CheckpointError(
            f"config.json has {chosen} of {count} experts for each token: download the checkpoint "
            "again."
        )


def with_original(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The rope object with the original context from the outer config, and with yarn's default
    factor, the ratio of the contexts.
    """
    kind, length = rope.get("rope_type", rope.get("type")), "original_max_position_embeddings"
    if kind in ("llama3", "yarn", "longrope") and config.get(length) is not None:
        rope = rope | {length: config[length]}
    extended, original = config.get("max_position_embeddings"), rope.get(length)
    if (
        kind == "yarn"
        and rope.get("factor") is None
        and isinstance(extended, int)
        and isinstance(original, int | float)
        and original >= 1
    ):
        rope = rope | {"factor": min(extended, LARGEST) / original}
    return rope


def rope_by_kind(config: dict[str, Any], family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope parameters of full and of sliding layers; older files have `rope_scaling` of the
    former. Raises `CheckpointError` for others, and for scaled sliding layers.
    """
    by_kind = config.get("rope_parameters") or {}
    if not isinstance(by_kind, dict) or not {*by_kind} <= {FULL, SLIDING}:
        raise CheckpointError(
            f"config.json has the rope parameters {by_kind!r}: {family} names them by `{FULL}` and "
            f"`{SLIDING}`."
        )
    full, sliding = by_kind.get(FULL) or {}, by_kind.get(SLIDING) or {}
    if (
        not isinstance(full, dict)
        or not isinstance(sliding, dict)
        or RopeScaling.from_json(sliding) is not None
    ):
        raise CheckpointError(
            f"config.json has the rope parameters {by_kind!r}: only those of `{FULL}` can be "
            "scaled."
        )
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise CheckpointError(
            f"config.json has the rope parameters {scaling!r} in `rope_scaling`, which must be an "
            "object: download the checkpoint again."
        )
    return full | scaling, sliding


def check_theta(theta: float) -> None:
    """Raise `CheckpointError` unless the frequencies fall from pair to pair."""
    if theta <= 1:
        raise CheckpointError(
            f"config.json has the rope base {theta}, which must be larger than 1: download the "
            "checkpoint again."
        )


def check_window(window: int | None) -> None:
    """Raise `CheckpointError` for a window in which a query cannot see itself."""
    if window == 0:
        raise CheckpointError(
            "config.json has a window of 0 positions, in which no query sees a key: null means no "
            "window."
        )


def check_kinds(kinds: tuple[str, ...], layers: int, window: int | None) -> None:
    """Raise `CheckpointError` unless each layer has a known kind, and sliding layers a window."""
    if len(kinds) != layers or not {*kinds} <= {FULL, SLIDING} or (SLIDING in kinds and not window):
        raise CheckpointError(
            f"config.json has {counted(len(kinds), 'layer')} of the kinds "
            f"{', '.join(sorted(map(str, {*kinds})))} for {counted(layers, 'layer')} and a window "
            f"of {window}: `bass` supports `{FULL}`, and `{SLIDING}` with a window of at least 1."
        )


def layer_rules(kinds: tuple[str, ...], rule: AttentionRule) -> tuple[AttentionRule, ...]:
    """`rule` for sliding layers, and `rule` without its window for the others."""
    full = replace(rule, window=None)
    return tuple(rule if kind == SLIDING else full for kind in kinds)


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raise `CheckpointError` unless heads divide evenly and have an even number of dimensions."""
    if not (heads and kv_heads and head_dim) or heads % kv_heads or head_dim % 2:
        raise CheckpointError(
            f"config.json has {heads} heads over {kv_heads} key-value heads of {head_dim} "
            "dimensions: they do not divide evenly."
        )


def check_rotary(rotary_dim: int, head_dim: int) -> None:
    """Raise `CheckpointError` unless the rotated dimensions are pairs within a head."""
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"config.json has {rotary_dim} rotary dimensions in heads of {head_dim}: the number "
            f"must be even, from 2 to {head_dim}."
        )


def _value(field: Any, config: dict[str, Any]) -> Any:
    """The field's value in `config`, of the declared type; MISSING if the default applies."""
    options = (
        typing.get_args(field.type) if isinstance(field.type, types.UnionType) else (field.type,)
    )
    value = config.get(field.name)
    if value is None:
        if field.name in config and types.NoneType in options:
            return None
        if field.default is MISSING:
            raise CheckpointError(
                f"config.json has no `{field.name}`: download the checkpoint again."
            )
        return MISSING
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= LARGEST_FLOAT:
            return float(value)
        options = ()
    for option in options:
        kind = typing.get_origin(option) or option
        # In Python a `bool` is an `int`, but no valid size.
        if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            if kind is int and not 0 <= value <= LARGEST:
                break
            return value
        if kind is tuple and isinstance(value, list):
            if not all(isinstance(item, typing.get_args(option)[0]) for item in value):
                break
            return tuple(value)
    raise CheckpointError(
        f"config.json has `{field.name}={value!r}`, which is no valid value: download the "
        "checkpoint again."
    )
