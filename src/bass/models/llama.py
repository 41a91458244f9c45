"""The Llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP (Touvron et al., 2023)."""

from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.interfaces import Attend, Decoder
from bass.models.layers import GatedMLP, Linear, RMSNorm, Rotary, rotate
from bass.records import DecoderShape


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of a Hugging Face `config.json` of `model_type: llama` that decide what is computed."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "LlamaConfig":
        """Read a config in either of the forms that `transformers` writes (`rope_theta` or `rope_parameters`)."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise CheckpointError(
                f"The checkpoint asks for rope scaling `{kind}`; `bass` has plain rotary positions: use another checkpoint."
            )
        if config.get("hidden_act", "silu") != "silu" or config.get("attention_bias") or config.get("mlp_bias"):
            raise CheckpointError("The checkpoint asks for a bias or an activation other than silu; `bass` has neither for llama.")
        heads = config["num_attention_heads"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
        )

    def to_json(self) -> dict[str, Any]:
        """The `config.json` that `transformers` and `from_json` both read."""
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **vars(self)}


@final
class Llama(nn.Module, Decoder):
    """A decoder of the Llama family. Its parameters start empty."""

    def __init__(self, config: LlamaConfig, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        device = torch.device(device)
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size, device=device, dtype=dtype))
        self.blocks = nn.ModuleList(Block(config, device, dtype) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size, device, dtype)
        self.rotary = Rotary(config.head_dim, config.max_position_embeddings, config.rope_theta, device, dtype)

    @property
    def shape(self) -> DecoderShape:
        c = self.config
        return DecoderShape(
            vocab_size=c.vocab_size,
            layers=c.num_hidden_layers,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            max_positions=c.max_position_embeddings,
        )

    def hidden(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], attend: Attend
    ) -> Float[Tensor, "batch window hidden"]:
        x = F.embedding(tokens, self.embed)
        angles = self.rotary(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, angles, attend, layer)
        return self.norm(x)

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return F.linear(hidden, self.embed) if self.head is None else self.head(hidden)


class Block(nn.Module):
    """One layer: attention, then the gated MLP, each added to the stream it read."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)
        self.qkv = Linear(c.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim, device, dtype)
        self.out = Linear(self.heads * self.head_dim, c.hidden_size, device, dtype)
        self.mlp_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, device, dtype)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, device, dtype)

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor], attend: Attend, layer: int) -> Tensor:
        batch, window, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, window, -1, self.head_dim)
        qk, v = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), -2)
        q, k = rotate(qk, angles).split_with_sizes((self.heads, self.kv_heads), -2)
        x = x + self.out(attend(layer, q, k, v).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


def weight_names(config: LlamaConfig) -> dict[str, tuple[str, ...]]:
    """Our parameter -> the checkpoint's tensors it is made of, stacked along their first axis."""
    names: dict[str, tuple[str, ...]] = {"embed": ("model.embed_tokens.weight",), "norm.weight": ("model.norm.weight",)}
    if not config.tie_word_embeddings:
        names["head.weight"] = ("lm_head.weight",)
    for i in range(config.num_hidden_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        names |= {
            f"{ours}.attention_norm.weight": (f"{theirs}.input_layernorm.weight",),
            f"{ours}.qkv.weight": tuple(f"{theirs}.self_attn.{p}_proj.weight" for p in "qkv"),
            f"{ours}.out.weight": (f"{theirs}.self_attn.o_proj.weight",),
            f"{ours}.mlp_norm.weight": (f"{theirs}.post_attention_layernorm.weight",),
            f"{ours}.mlp.gate_up.weight": tuple(f"{theirs}.mlp.{p}_proj.weight" for p in ("gate", "up")),
            f"{ours}.mlp.down.weight": (f"{theirs}.mlp.down_proj.weight",),
        }
    return names


def part_rows(config: LlamaConfig, parameter: str) -> tuple[int, ...]:
    """Rows of each checkpoint tensor inside a fused parameter of ours, in the order of `weight_names`."""
    if parameter.endswith("qkv.weight"):
        kv = config.num_key_value_heads * config.head_dim
        return (config.num_attention_heads * config.head_dim, kv, kv)
    if parameter.endswith("gate_up.weight"):
        return (config.intermediate_size,) * 2
    raise KeyError(parameter)
