"""The fields of GPT-2's kind of config.json."""

from dataclasses import dataclass
from typing import Any, ClassVar

from bass.models.config import FamilyConfig, check_heads, check_rotary
from bass.ops.activation import ACTIVATIONS
from bass.records import AttentionRule, DecoderShape


@dataclass(frozen=True)
class GPTConfig(FamilyConfig):
    """Fields that GPT-2 has named, and its successors have kept."""

    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "activation_function": ("gelu_new", *ACTIVATIONS),
        "add_cross_attention": (False,),
    }
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        check_heads(self.n_head, self.kv_heads, self.head_dim)

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

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        """How each layer attends."""
        return (AttentionRule(self.head_dim**-0.5),) * self.n_layer

    @property
    def shape(self) -> DecoderShape:
        return DecoderShape(
            self.vocab_size, self.n_head, self.kv_heads, self.head_dim, self.n_positions, self.rules
        )


@dataclass(frozen=True)
class SharedNormConfig(GPTConfig):
    """Fields of GPT-J and CodeGen. `rotary_dim`: rotated dimensions of each head."""

    vocab_size: int = 50400
    n_positions: int = 2048
    n_embd: int = 4096
    n_layer: int = 28
    n_head: int = 16
    rotary_dim: int = 64
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rotary(self.rotary_dim, self.head_dim)
