"""An independent Llama: the whole sequence at once in float64, dense causal attention, rotation by
complex numbers.
"""

import numpy as np
import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int

from bass.models.llama import Llama
from bass.records import AttentionRule


@torch.no_grad()
def dense_logits(
    model: Llama, tokens: Int[np.ndarray, "rows length"]
) -> Float[np.ndarray, "rows length vocab"]:
    """Logits after every prefix of every row.

    Weights are taken from `model`; no other code of it is used.
    """
    c = model.config
    weights = {name: value.detach().double().cpu() for name, value in model.named_parameters()}
    x = weights["embed"][torch.as_tensor(tokens)]
    length = tokens.shape[1]
    frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
    rotation = torch.polar(
        torch.ones(length, len(frequency), dtype=torch.float64),
        torch.arange(length)[:, None] * frequency,
    )

    def norm(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return value / (value.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * weight

    def rotated(value: torch.Tensor) -> torch.Tensor:  # [rows, length, heads, dim]
        pairs = torch.complex(*value.chunk(2, -1)) * rotation[:, None]
        return torch.cat((pairs.real, pairs.imag), -1)

    for i in range(c.num_hidden_layers):
        block = {
            name.removeprefix(f"blocks.{i}."): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{i}.")
        }
        sizes = (
            c.num_attention_heads * c.head_dim,
            c.num_key_value_heads * c.head_dim,
            c.num_key_value_heads * c.head_dim,
        )
        projected = norm(x, block["attention_norm.weight"]) @ block["attention.qkv.weight"].T
        q, k, v = (
            rearrange(part, "rows length (heads dim) -> rows length heads dim", dim=c.head_dim)
            for part in projected.split(sizes, -1)
        )
        out = dense_attention(rotated(q), rotated(k), v, AttentionRule(c.head_dim**-0.5))
        x = (
            x
            + rearrange(out, "rows length heads dim -> rows length (heads dim)")
            @ block["attention.out.weight"].T
        )
        gate, up = (norm(x, block["mlp_norm.weight"]) @ block["mlp.gate_up.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ block["mlp.down.weight"].T
    head = weights["embed"] if c.tie_word_embeddings else weights["head.weight"]
    return (norm(x, weights["norm.weight"]) @ head.T).numpy()


def dense_attention(
    q: Float[torch.Tensor, "rows queries heads dim"],
    k: Float[torch.Tensor, "rows length kv_heads dim"],
    v: Float[torch.Tensor, "rows length kv_heads dim"],
    rule: AttentionRule,
    sinks: Float[torch.Tensor, " heads"] | None = None,
) -> Float[torch.Tensor, "rows queries heads dim"]:
    """softmax(cap(scale q kᵀ)) v, query by query, for the queries of the last positions: the one at
    position i has only the keys up to i within its window. A head's sink is one score more, without
    a value.
    """
    out = torch.zeros_like(q)
    groups = q.shape[2] // k.shape[2]
    k, v = (repeat(part, "r l heads d -> r l (heads groups) d", groups=groups) for part in (k, v))
    past = k.shape[1] - q.shape[1]
    for query in range(q.shape[1]):
        end = past + query + 1
        first = 0 if rule.window is None else max(end - rule.window, 0)
        scores = einsum(
            q[:, query], k[:, first:end], "rows heads dim, rows keys heads dim -> rows heads keys"
        )
        scores = scores * rule.scale
        if rule.softcap is not None:
            scores = rule.softcap * (scores / rule.softcap).tanh()
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None].expand(len(scores), -1, 1)), -1)
        out[:, query] = einsum(
            scores.softmax(-1)[..., : end - first],
            v[:, first:end],
            "rows heads keys, rows keys heads dim -> rows heads dim",
        )
    return out
