"""Small target and draft models with a reference: the next-token logits after any prefix,
recomputed from scratch in float64.

The engine uses the scorers of a small model, the test its reference. The reference shares no code
with the tested engine: no cache, no positions, no backend.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from bass.engine.scorer import ModelScorer, WidenedScorer
from bass.interfaces import Attend, AttentionBackend, Scorer
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama, LlamaConfig
from bass.ops.linear import Linear
from bass.records import (
    AttentionRule,
    CacheBudget,
    Features,
    Projection,
    RowAssignment,
    Scored,
    Window,
)

# A cache class, and a callable that makes a backend for its view.
Pairing = tuple[Any, Callable[[], AttentionBackend[Any, Any]]]
Prefixes = Int[np.ndarray, "rows length"]
Logits = Float[np.ndarray, "rows vocab"]
# the weights of a block of Llama
BLOCK = (
    "attention.qkv", "attention.out", "mlp.gate_up", "mlp.down", "attention_norm", "mlp_norm",
)  # fmt: skip
POISON = 1e4  # finite, because NaN * 0 fails correct masked attention too


@runtime_checkable
class SmallModel(Protocol):
    """A target and a draft over `vocab` tokens; a role is "target" or "draft"."""

    vocab: int

    @abstractmethod
    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        """The scorer of this role, its storage poisoned."""
        ...

    @abstractmethod
    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        """float64 logits of the token after each prefix."""
        ...


@final
@dataclass
class TableScorer(Scorer):
    """Looks up logits in a table by a hash of the last `order` tokens of its memory, instead of
    attention.

    Its memory is addressed by (row, position) like a cache, so one wrong, missing or stale token in
    the last `order` positions changes the result. It sums no floats: windows and single tokens give
    the same bits.
    """

    table: Float[Tensor, "entries vocab"]
    order: int
    memory: Int[Tensor, "batch extent"]

    def fill(self, window: Window) -> Features:
        memory = self.memory[window.start : window.start + len(window.tokens)]
        # -1 is the last slot, the spare one
        rows = torch.arange(len(memory), device=memory.device)[:, None]
        memory[rows, window.positions] = window.tokens
        return ()

    def copy_rows(self, assignment: RowAssignment) -> None:
        before = self.memory.clone()
        for row in assignment.followers:
            shared = assignment.shared[row]
            self.memory[row, :shared] = before[assignment.source[row], :shared]

    def __call__(self, window: Window) -> Scored:
        self.fill(window)
        tokens = self.memory[:, :-1]
        sums = ((tokens + 1) * hash_weights(tokens.shape[1]).to(tokens.device)).cumsum(1)
        sums = torch.cat((sums.new_zeros(len(tokens), 1), sums), 1)
        at = window.positions.clamp(min=0) + 1
        ends = sums.gather(1, at) - sums.gather(1, (at - self.order).clamp(min=0))
        return Scored(self.table[ends % len(self.table)])


def hash_weights(length: int) -> Int[Tensor, " length"]:
    """A pseudo-random number for each position."""
    return torch.arange(1, length + 1) * 2654435761 % 1000003


@final
@dataclass(frozen=True)
class SmallTable(SmallModel):
    """Random tables.

    `likeness` 1 makes draft and target equal, 0 unrelated; `sharpness` is the scale of the logits.
    `draft_vocab`: the number of token ids that the draft knows, if not all. As in a run, it draws
    no other, and reads another as the last one that it knows.
    """

    vocab: int = 7
    order: int = 100
    seed: int = 0
    sharpness: float = 2.0
    likeness: float = 0.6
    entries: int = 499
    draft_vocab: int | None = None

    def known(self, role: str) -> int:
        """The number of token ids that the model of this role knows."""
        return self.vocab if role == "target" else self.draft_vocab or self.vocab

    def table(self, role: str) -> Float[Tensor, "entries vocab"]:
        """The logits of each entry."""
        random = torch.Generator().manual_seed(self.seed)
        target, other = (
            torch.randn(self.entries, self.vocab, generator=random, dtype=torch.float64)
            for _ in range(2)
        )
        mixed = target if role == "target" else self.likeness * target + (1 - self.likeness) * other
        return self.sharpness * mixed

    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        random, known = torch.Generator().manual_seed(self.seed + 1), self.known(role)
        size = budget.batch, int(budget.limits.max()) + 1
        garbage = torch.randint(0, self.vocab, size, generator=random)
        table = self.table(role)[:, :known].to(device, torch.float32)
        scorer = TableScorer(table, self.order, garbage.to(device))
        return scorer if known == self.vocab else WidenedScorer(scorer, known, self.vocab)

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        known = self.known(role)
        tokens = prefixes if known == self.vocab else prefixes.clip(max=known - 1)
        weights = hash_weights(tokens.shape[1]).numpy()
        index = ((tokens + 1) * weights)[:, -self.order :].sum(1) % self.entries
        logits = self.table(role).float().double().numpy()[index]
        return np.where(np.arange(self.vocab) < known, logits, -np.inf)


@dataclass(frozen=True, eq=False)
class DecoderPair(SmallModel):
    """A target and a draft of any family, in the caches and backends of the library. Its reference
    is one pass over each whole prefix, in the precision of the weights.
    """

    vocab: int
    models: dict[str, CausalDecoder]
    dtype: torch.dtype = torch.float32

    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        cache_type, make_backend = pairing
        decoder = self.models[role].to(device)
        cache = cache_type.allocate(decoder.shape, budget, device, self.dtype)
        scorer = ModelScorer(decoder, poisoned(cache), make_backend(), budget.batch)
        known = decoder.shape.vocab_size
        return scorer if known == self.vocab else WidenedScorer(scorer, known, self.vocab)

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        return whole_logits(self.models[role], prefixes)[:, -1]


@final
@dataclass(frozen=True)
class SmallLlama(DecoderPair):
    """Random tiny Llamas with grouped-query attention, and the reference `dense_logits`.

    The draft is the target with noise added to its weights: `unlikeness` 0 makes them equal.
    """

    vocab: int = 13
    models: dict[str, CausalDecoder] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    seed: int = 0
    unlikeness: float = 0.25
    sharpness: float = 0.6
    layers: int = 2

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        config = LlamaConfig(self.vocab, 32, 48, self.layers, 4, 2, 8, max_position_embeddings=128)
        target, draft = Llama(config, "cpu", self.dtype), Llama(config, "cpu", self.dtype)
        with torch.no_grad():
            for of_target, of_draft in zip(target.parameters(), draft.parameters(), strict=True):
                drawn, noise = (
                    torch.randn(of_target.shape, generator=random, dtype=torch.float64)
                    for _ in range(2)
                )
                scale = 1.5 / of_target.shape[-1] ** 0.5 if of_target.ndim == 2 else 0.1
                base = drawn * scale + (of_target.ndim == 1)
                of_target.copy_(base)
                of_draft.copy_(base + noise * scale * self.unlikeness)
            for model in (target, draft):
                assert isinstance(model.head, Linear)
                model.head.weight.mul_(self.sharpness * 2)
        self.models.update(target=target.requires_grad_(False), draft=draft.requires_grad_(False))

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        return dense_logits(self.models[role], prefixes)[:, -1]


def poisoned(cache: Any) -> Any:
    """The cache with a large finite value in all of its storage: unwritten values must have no
    effect.
    """
    for value in tensors_of(vars(cache)):
        if value.is_floating_point():
            value.fill_(POISON)
    return cache


def tensors_of(value: object) -> Iterator[Tensor]:
    """The tensors in a value, and in the lists, tuples, dictionaries and dataclasses in it."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) or isinstance(value, dict):
        yield from tensors_of(list((value if isinstance(value, dict) else vars(value)).values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


@torch.no_grad()
def dense_logits(model: Any, tokens: Prefixes) -> Float[np.ndarray, "rows length vocab"]:
    """Logits after every prefix of every row, by an independent Llama: the whole sequence at once
    in float64, dense causal attention, rotation by complex numbers.

    Weights are taken from `model`; no other code of it is used.
    """
    c = model.config
    weights = {name: value.detach().double().cpu() for name, value in model.named_parameters()}
    x = weights["embed"][torch.as_tensor(tokens)]
    frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
    angles = torch.arange(tokens.shape[1])[:, None] * frequency
    rotation = torch.polar(torch.ones_like(angles), angles)

    def norm(value: Tensor, weight: Tensor) -> Tensor:
        return value / (value.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * weight

    def rotated(value: Tensor) -> Tensor:  # [rows, length, heads, dim]
        pairs = torch.complex(*value.chunk(2, -1)) * rotation[:, None]
        return torch.cat((pairs.real, pairs.imag), -1)

    heads = c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads
    for i in range(c.num_hidden_layers):
        block = [weights[f"blocks.{i}.{name}.weight"] for name in BLOCK]
        qkv, out, gate_up, down, attention_norm, mlp_norm = block
        projected = norm(x, attention_norm) @ qkv.T
        q, k, v = (
            rearrange(part, "rows length (heads dim) -> rows length heads dim", dim=c.head_dim)
            for part in projected.split([count * c.head_dim for count in heads], -1)
        )
        mixed = dense_attention(rotated(q), rotated(k), v, AttentionRule(c.head_dim**-0.5))
        x = x + rearrange(mixed, "rows length heads dim -> rows length (heads dim)") @ out.T
        gate, up = (norm(x, mlp_norm) @ gate_up.T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ down.T
    head = weights["embed"] if c.tie_word_embeddings else weights["head.weight"]
    return (norm(x, weights["norm.weight"]) @ head.T).numpy()


def dense_attention(
    q: Float[Tensor, "rows queries heads dim"],
    k: Float[Tensor, "rows length kv_heads dim"],
    v: Float[Tensor, "rows length kv_heads dim"],
    rule: AttentionRule,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "rows queries heads dim"]:
    """softmax(cap(scale q kᵀ)) v for the queries of the last positions: the one at position i has
    only the keys up to i within its window. A head's sink is one score more, without a value.
    """
    groups, length = q.shape[2] // k.shape[2], k.shape[1]
    k, v = (repeat(part, "r l heads d -> r l (heads groups) d", groups=groups) for part in (k, v))
    scores = rule.scale * einsum(q, k, "rows q heads dim, rows k heads dim -> rows heads q k")
    if rule.softcap is not None:
        scores = rule.softcap * (scores / rule.softcap).tanh()
    behind = torch.arange(length - q.shape[1], length)[:, None] - torch.arange(length)
    hidden = behind < 0 if rule.window is None else (behind < 0) | (behind >= rule.window)
    scores = scores.masked_fill(hidden.to(q.device), -torch.inf)
    if sinks is not None:
        own = repeat(sinks, "heads -> rows heads q 1", rows=len(q), q=q.shape[1])
        scores = torch.cat((scores, own), -1)
    weights = scores.softmax(-1)[..., :length]
    return einsum(weights, v, "rows heads q k, rows k heads dim -> rows q heads dim")


@final
@dataclass(frozen=True)
class Uncached(Attend):
    """Attends within one window that begins at position 0 in every row, without a cache."""

    rules: tuple[AttentionRule, ...]

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        q, k, v = projection.rotated()
        return dense_attention(q, k, v, self.rules[layer], projection.sinks)

    def store(self, layer: int, projection: Projection) -> None:
        """Nothing reads it later."""


@torch.no_grad()
def whole_logits(
    decoder: CausalDecoder, tokens: Prefixes
) -> Float[np.ndarray, "rows length vocab"]:
    """Logits after every prefix of every row: one pass over whole rows, without a cache."""
    ids = torch.as_tensor(tokens, device=decoder.embed.device)
    window = Window(ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids), ids.shape[1])
    hidden, _ = decoder.hidden(window, Uncached(decoder.shape.rules))
    return decoder.unembed(hidden).double().cpu().numpy()
