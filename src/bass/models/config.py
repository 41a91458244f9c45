"""From config.json to a family's own fields, each checked where it enters."""

import math
import types
import typing
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar

from bass.errors import CheckpointError
from bass.models.layers import ACTIVATIONS
from bass.models.rope import RopeScaling
from bass.records import AttentionRule

LARGEST = 2**31 - 1  # of any size in a config
Config = TypeVar("Config", bound="FamilyConfig")


@dataclass(frozen=True)
class FamilyConfig:
    """The fields of a config.json that decide what a family computes, under the names that `transformers` gives them.

    `assumes` names the fields that the family takes for granted, each with the values that mean what it computes; a
    checkpoint that asks for another value is refused. A field that is absent has the default of `transformers`.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read a parsed config.json; a `CheckpointError` names the field that is missing, garbled or not supported."""
        if config.get("quantization_config"):
            raise CheckpointError("The checkpoint holds quantized weights, which `bass` does not read: give the original one.")
        for name, allowed in cls.assumes.items():
            if config.get(name, allowed[0]) not in allowed:
                raise CheckpointError(
                    f"The checkpoint asks for `{name}={config[name]!r}`; for {cls.model_type} `bass` has: "
                    f"{', '.join(map(str, dict.fromkeys(allowed)))}."
                )
        return cls(**{field.name: value for field in fields(cls) if (value := _value(field, config)) is not MISSING})

    def to_json(self) -> dict[str, Any]:
        """The config.json that `transformers` and `from_json` both read."""
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
        object.__setattr__(self, "num_key_value_heads", self.num_key_value_heads or self.num_attention_heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_attention_heads)
        check_heads(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @classmethod
    def from_json(cls: type[Config], config: dict[str, Any]) -> Config:
        """As above; rotary fields may stand in `rope_parameters`, `rope_scaling`, or beside the others."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise CheckpointError(f"config.json has the rope parameters {rope!r}: they must be an object.")
        merged = {**config, **{k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")}}
        return super().from_json(merged | {"rope_scaling": RopeScaling.from_json(rope)})

    @property
    def context(self) -> int:
        """Positions that can be used."""
        trained = self.max_position_embeddings
        return trained if self.rope_scaling is None else self.rope_scaling.context(trained)

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        """How each layer attends; families with windows, caps or another scale say so here."""
        return (AttentionRule(self.head_dim**-0.5),) * self.num_hidden_layers

    def to_json(self) -> dict[str, Any]:
        scaling = self.rope_scaling
        return super().to_json() | {"rope_scaling": None if scaling is None else scaling.to_json()}


@dataclass(frozen=True)
class GatedConfig(RotaryConfig):
    """Fields of the families that have kept Llama's block: RMSNorm and a gated MLP."""

    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {"hidden_act": ("silu", *ACTIVATIONS)}
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Heads must share key-value heads evenly, and have an even number of dimensions."""
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise CheckpointError(
            f"config.json has {heads} heads over {kv_heads} key-value heads of {head_dim} dimensions: they do not divide evenly."
        )


def _value(field: Any, config: dict[str, Any]) -> Any:
    """The field's value in `config`, of the declared type; MISSING where the default holds."""
    options = typing.get_args(field.type) if isinstance(field.type, types.UnionType) else (field.type,)
    value = config.get(field.name)
    if value is None:
        if field.name in config and types.NoneType in options:
            return None
        if field.default is MISSING:
            raise CheckpointError(f"config.json has no `{field.name}`: download the checkpoint again.")
        return MISSING
    if float in options and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    for option in options:
        kind = typing.get_origin(option) or option
        # `bool` is an `int` to Python, and neither a size.
        if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            if kind is int and not 0 <= value <= LARGEST:
                break
            return value
        if kind is tuple and isinstance(value, list):
            return tuple(value)
    raise CheckpointError(f"config.json has `{field.name}={value!r}`, which is no valid value: download the checkpoint again.")
