"""MTP layers as their producers write them, with random weights, and a reference in float64 that
is derived from the descriptions of the formats, and shares no code with the drafter.
"""

from typing import Any

import torch
from torch import Tensor

HEADS, KV_HEADS, DIM, INNER, THETA, EPS = 4, 2, 8, 40, 5000.0, 1e-5
LAYERS = 3  # of the targets
# Of each producer: model_type; the starts of the names of the layer and of its decoder block; the
# names of the norms of embedding and state, of their product, and of the last norm.
PRODUCERS = {
    "mimo": (
        "mimo", "model.mtp_layers.0", "model.mtp_layers.0",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    ),
    "speculators": (
        "qwen3", "mtp_layers.0", "mtp_layers.0",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    ),
    "deepseek": (
        "llama", f"model.layers.{LAYERS}", f"model.layers.{LAYERS}",
        ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    ),
    "qwen": (
        "qwen3", "mtp", "mtp.layers.0",
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    ),
}  # fmt: skip


def mtp(
    vocab: int, hidden: int, producer: str, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config.json and tensors of an MTP layer."""
    random = torch.Generator().manual_seed(seed)
    family, start, block, (embed_norm, hidden_norm, fc, last) = PRODUCERS[producer]

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 1.2 / shape[-1] ** 0.5

    def norm(size: int) -> Tensor:
        return (producer != "qwen") + 0.2 * torch.randn(size, generator=random)

    tensors = {f"{start}.{name}.weight": norm(hidden) for name in (embed_norm, hidden_norm, last)}
    tensors[f"{start}.{fc}.weight"] = matrix(hidden, 2 * hidden)
    for name, count in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}.items():
        tensors[f"{block}.self_attn.{name}_proj.weight"] = matrix(count * DIM, hidden)
        if family == "mimo":
            tensors[f"{block}.self_attn.{name}_proj.bias"] = norm(count * DIM) - 1
        elif family == "qwen3" and name != "v":
            tensors[f"{block}.self_attn.{name}_norm.weight"] = norm(DIM)
    tensors[f"{block}.self_attn.o_proj.weight"] = matrix(hidden, HEADS * DIM)
    for name in ("gate", "up"):
        tensors[f"{block}.mlp.{name}_proj.weight"] = matrix(INNER, hidden)
    tensors[f"{block}.mlp.down_proj.weight"] = matrix(hidden, INNER)
    for name in ("input", "post_attention"):
        tensors[f"{block}.{name}_layernorm.weight"] = norm(hidden)
    if producer == "deepseek":
        tensors[f"{start}.embed_tokens.weight"] = matrix(vocab, hidden) * hidden**0.5
        tensors[f"{start}.shared_head.head.weight"] = matrix(vocab, hidden)
    layer = {
        "model_type": family, "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": EPS,
        "rope_theta": THETA, "max_position_embeddings": 512,
    }  # fmt: skip
    if producer != "speculators":
        return layer | {"num_nextn_predict_layers": 1}, tensors
    outer = {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp"}
    return outer | {"model_type": "speculator_model", "transformer_layer_config": layer}, tensors


@torch.no_grad()
def mtp_states(
    producer: str, tensors: dict[str, Tensor], states: Tensor, tokens: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """Recurrent states [length, hidden] and logits [length, vocab] of the layer for the target's
    final states of positions 0, 1 ... and the tokens of a text, of which row t reads token t + 1.
    """
    w = {name: x.double() for name, x in tensors.items()}
    _, start, block, (embed_norm, hidden_norm, fc, last) = PRODUCERS[producer]

    def norm(x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        return x * scale * (w[f"{name}.weight"] + (producer == "qwen"))

    def product(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    embed = w.get(f"{start}.embed_tokens.weight", target.embed.cpu().double())
    embedded = embed[tokens[1 : len(states) + 1]]
    if producer in ("mimo", "deepseek"):
        embedded[0] = 0
    both = norm(embedded, f"{start}.{embed_norm}"), norm(states.double(), f"{start}.{hidden_norm}")
    x = product(torch.cat(both[::-1] if producer == "mimo" else both, -1), f"{start}.{fc}")
    length = len(x)
    angle = torch.arange(length)[:, None] * THETA ** (-torch.arange(0, DIM, 2).double() / DIM)

    def rotated(y: Tensor) -> Tensor:  # [length, heads, dim]
        first, second = y.chunk(2, -1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    read = norm(x, f"{block}.input_layernorm")
    q, k, v = (product(read, f"{block}.self_attn.{n}_proj").unflatten(-1, (-1, DIM)) for n in "qkv")
    if f"{block}.self_attn.q_norm.weight" in w:
        q, k = norm(q, f"{block}.self_attn.q_norm"), norm(k, f"{block}.self_attn.k_norm")
    q, k, v = rotated(q), *(y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (rotated(k), v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    future = torch.ones(length, length).triu(1).bool()
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
    x = x + product(mixed, f"{block}.self_attn.o_proj")
    y = norm(x, f"{block}.post_attention_layernorm")
    gate, up = (product(y, f"{block}.mlp.{name}_proj") for name in ("gate", "up"))
    x = x + product(gate * gate.sigmoid() * up, f"{block}.mlp.down_proj")
    u = norm(x, f"{start}.{last}")
    head = f"{start}.shared_head.head"
    whole = target.head.weight if target.head is not None else target.embed
    return u, product(u, head) if f"{head}.weight" in w else u @ whole.cpu().double().T
