"""Small target and draft models with a reference: the next-token logits after any prefix,
recomputed from scratch in float64.

The engine uses the scorers of a small model, the test its reference. The reference shares no code
with the tested engine: no cache, no positions, no backend.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from bass.caches import PaddedCache
from bass.engine.scorer import ModelScorer
from bass.interfaces import Attend, AttentionBackend
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama, LlamaConfig
from bass.ops.linear import Linear
from bass.records import (
    AttentionRule,
    CacheBudget,
    DecoderShape,
    Features,
    PaddedView,
    Projection,
    RowAssignment,
    Window,
)
from bass.sampling_params import Sampling

# A cache class, and a callable that makes a backend for its view.
Pairing = tuple[Any, Callable[[], AttentionBackend[Any, Any]]]
Prefixes = Int[np.ndarray, "rows length"]
Logits = Float[np.ndarray, "rows vocab"]
# the weights of a block of Llama
BLOCK = (
    "attention.qkv", "attention.out", "mlp.gate_up", "mlp.down", "attention_norm", "mlp_norm",
)  # fmt: skip
POISON = 1e4  # finite, because NaN * 0 fails correct masked attention too


class SmallModel:
    """A target and a draft over `vocab` tokens, by role ("target", "draft"), with a reference: here
    one pass over each whole prefix, in the precision of the weights.

    `dtype`: of caches. `pairing`: its own cache and backend, which take the place of the test's.
    """

    vocab: int
    models: dict[str, CausalDecoder]
    dtype: torch.dtype = torch.float32
    pairing: ClassVar[Pairing | None] = None

    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> ModelScorer:
        """The scorer of this role, its storage poisoned."""
        cache_type, make_backend = self.pairing or pairing
        decoder = self.models[role].to(device)
        cache = cache_type.allocate(decoder.shape, budget, device, self.dtype)
        cache.reserve(RowAssignment.of(budget.longest))
        return ModelScorer(decoder, poisoned(cache), make_backend(), budget.batch)

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        """float64 logits of the token after each prefix."""
        return whole_logits(self.models[role], prefixes)[:, -1]


@dataclass(frozen=True, eq=False)
class DecoderPair(SmallModel):
    """A target and a draft of any family."""

    vocab: int
    models: dict[str, CausalDecoder]


@dataclass(frozen=True)
class TableConfig:
    """`table`: logits [entries, vocab]. `order`: tokens that the next one depends on."""

    table: Float[Tensor, "entries vocab"]
    order: int

    @property
    def shape(self) -> DecoderShape:
        """One layer, whose keys and values are tokens, with a window of `order`."""
        rule = AttentionRule(1.0, window=self.order)
        return DecoderShape(self.table.shape[1], 1, 1, 1, 2**20, (rule,))


class TableDecoder(CausalDecoder):
    """Looks up logits by a hash of the last `order` tokens in its cache (see `TokenHash`)."""

    replayable: ClassVar[bool] = False

    def __init__(
        self,
        config: TableConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.config, self.head = config, None
        self.register_buffer("embed", config.table.to(device, dtype))

    def block(self, c: Any, make: Any, layer: int) -> Any:
        raise NotImplementedError

    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Tensor, Features]:
        hashes = attend(0, self._projection(window))[..., 0, 0].long()
        return self.embed[hashes % len(self.embed)], ()

    def fill(self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()) -> Features:
        attend.store(0, self._projection(window))
        return ()

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden

    @staticmethod
    def _projection(window: Window) -> Projection:
        """Keys and values: the token ids plus 1, [batch, window, 1, 1]."""
        tokens = (window.tokens + 1).double()[..., None, None]
        return Projection.of(tokens, tokens, tokens)


@final
class TokenHash(AttentionBackend[PaddedView, Tensor]):
    """The "attention" of a table: sums a hash of each token and its position over the window.

    One wrong, missing or stale token in it changes the result. The sums are whole numbers below
    2^53, exact in float64: windows and single tokens give the same bits.
    """

    view_type: ClassVar[type] = PaddedView
    capturable: ClassVar[bool] = True

    def plan(self, positions: Tensor, span: int) -> Tensor:
        return positions

    def run(
        self, q: Tensor, view: PaddedView, plan: Tensor, rule: AttentionRule, sinks: Any = None
    ) -> Tensor:
        tokens, at = view.k[..., 0, 0].long(), plan.clamp(min=0) + 1
        sums = (tokens * hash_weights(tokens.shape[1], tokens.device)).cumsum(1)
        sums = torch.cat((sums.new_zeros(len(tokens), 1), sums), 1)
        assert rule.window is not None
        hashes = sums.gather(1, at) - sums.gather(1, (at - rule.window).clamp(min=0))
        return hashes.to(q.dtype)[..., None, None]


def hash_weights(length: int, device: torch.device) -> Int[Tensor, " length"]:
    """A pseudo-random number for each position."""
    return torch.arange(1, length + 1, device=device) * 2654435761 % 1000003


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
    dtype: ClassVar[torch.dtype] = torch.float64  # pyright: ignore[reportIncompatibleVariableOverride]
    pairing: ClassVar[Pairing | None] = PaddedCache, TokenHash

    @functools.cached_property
    def models(self) -> dict[str, CausalDecoder]:  # pyright: ignore[reportIncompatibleVariableOverride]
        random = torch.Generator().manual_seed(self.seed)
        target, other = (
            torch.randn(self.entries, self.vocab, generator=random, dtype=torch.float64)
            for _ in range(2)
        )
        draft = (self.likeness * target + (1 - self.likeness) * other)[:, : self.draft_vocab]
        return {
            role: TableDecoder(TableConfig(self.sharpness * logits, self.order))
            for role, logits in (("target", target), ("draft", draft))
        }

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        table = self.models[role].embed.double().cpu().numpy()
        known = table.shape[1]
        weights = hash_weights(prefixes.shape[1], torch.device("cpu")).numpy()
        tokens = prefixes if known == self.vocab else prefixes.clip(max=known - 1)
        hashes = (tokens + 1) * weights
        logits = table[hashes[:, -self.order :].sum(1) % self.entries]
        missing = (0, 0), (0, self.vocab - known)
        return np.pad(logits, missing, constant_values=-np.inf)


@final
@dataclass(frozen=True)
class SmallLlama(SmallModel):
    """Random tiny Llamas with grouped-query attention, and the reference `dense_logits`.

    The draft is the target with noise added to its weights: `unlikeness` 0 makes them equal.
    """

    vocab: int = 13
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    seed: int = 0
    unlikeness: float = 0.25
    sharpness: float = 0.6
    layers: int = 2

    @functools.cached_property
    def models(self) -> dict[str, CausalDecoder]:  # pyright: ignore[reportIncompatibleVariableOverride]
        random = torch.Generator().manual_seed(self.seed)
        config = LlamaConfig(self.vocab, 32, 48, self.layers, 4, 2, 8, max_position_embeddings=128)
        target, draft = Llama(config, "cpu", self.dtype), Llama(config, "cpu", self.dtype)
        with torch.no_grad():
            for of_target, of_draft in zip(target.parameters(), draft.parameters(), strict=True):
                drawn = scaled_noise(of_target, random) + (of_target.ndim == 1)
                of_target.copy_(drawn)
                of_draft.copy_(drawn + self.unlikeness * scaled_noise(of_target, random))
            for model in (target, draft):
                assert isinstance(model.head, Linear)
                model.head.weight.mul_(self.sharpness * 2)
        return {"target": target.requires_grad_(False), "draft": draft.requires_grad_(False)}

    def oracle(self, role: str, prefixes: Prefixes) -> Logits:
        return dense_logits(self.models[role], prefixes)[:, -1]


def scaled_noise(parameter: Tensor, random: torch.Generator) -> Float64[Tensor, "..."]:
    """Random weights of this shape: matrices that keep the scale of their input, all else small."""
    scale = 1.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1
    return scale * torch.randn(parameter.shape, generator=random, dtype=torch.float64)


def poisoned(cache: Any) -> Any:
    """The cache with a large finite value in all its storage: unwritten values have no effect."""
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


# minimum gap of the two largest logits: float32 could flip a nearer tie
SMALLEST_GAP = 1e-4


class NearTie(AssertionError):
    """In the test's model, rounding decides the most probable token."""


def greedy(
    model: SmallModel, prompt: list[int], limit: int, eos: tuple[int, ...] = ()
) -> list[int]:
    """The greedy continuation, cut at `limit` tokens in all and after the first token of `eos`."""
    tokens = list(prompt)
    while len(tokens) < limit and not {*tokens[len(prompt) :]} & {*eos}:
        tokens.append(_most_probable(model, tuple(tokens)))
    return tokens[len(prompt) :]


@functools.lru_cache(maxsize=2**16)
def _most_probable(model: SmallModel, tokens: tuple[int, ...]) -> int:
    logits = model.oracle("target", np.array([tokens]))[0]
    second, first = np.sort(logits)[-2:]
    if first - second <= SMALLEST_GAP:
        raise NearTie(f"the model has a near tie after {tokens}: give it another seed")
    return int(logits.argmax())


@dataclass(frozen=True)
class SamplingReference:
    """The distribution with sampling options in float64, from whole prefixes: the reference of
    `bass.sampling.RowSampling`.

    `prompt`: tokens of the prompt. `end`: the token that ends a sequence; it follows itself, so an
    output that ended counts as filled with it.
    """

    options: Sampling
    prompt: int
    end: int | None = None

    def __call__(self, prefixes: Prefixes, logits: Logits) -> Logits:
        o, vocab = self.options, np.arange(logits.shape[1])
        times = (prefixes[..., None] == vocab).cumsum(1)
        seen, in_prompt = times[:, -1], times[:, self.prompt - 1]
        penalised = np.where(
            logits > 0, logits / o.repetition_penalty, logits * o.repetition_penalty
        )
        logits = np.where((seen > 0) & (o.repetition_penalty != 1), penalised, logits)
        generated = seen - in_prompt
        logits = logits - o.frequency_penalty * generated - o.presence_penalty * (generated > 0)
        if self.end is not None and prefixes.shape[1] - self.prompt < o.min_new_tokens:
            logits[:, self.end] = -np.inf
        probs = cut_softmax(logits, o)
        if self.end is not None:
            probs = np.where(generated[:, [self.end]] > 0, vocab == self.end, probs)
        return probs


def cut_softmax(logits: Logits, options: Sampling) -> Logits:
    """Temperature, then top-k, top-p and min-p: each keeps tokens of a least probability."""
    o, vocab = options, logits.shape[1]
    logits = logits - logits.max(1, keepdims=True)
    if o.temperature == 0:
        return np.eye(vocab)[logits.argmax(1)]

    def top_p(probs: np.ndarray) -> np.ndarray:
        """The smallest probability among the first tokens that together have `top_p`."""
        ordered = -np.sort(-probs, 1)
        count = ((np.cumsum(ordered, 1) - ordered < o.top_p) | (o.top_p == 1)).sum(1)
        return np.take_along_axis(ordered, count[:, None] - 1, 1)

    probs = np.exp(logits / o.temperature)
    for least in (
        lambda probs: -np.sort(-probs, 1)[:, [min(o.top_k or vocab, vocab) - 1]],
        top_p,
        lambda probs: o.min_p * probs.max(1, keepdims=True),
    ):
        probs = probs / probs.sum(1, keepdims=True)
        probs = np.where(probs >= least(probs), probs, 0)
    return probs / probs.sum(1, keepdims=True)


def sequence_law(
    model: SmallModel,
    prompt: Sequence[int],
    new: int,
    probs: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[Int[np.ndarray, "n new"], Float[np.ndarray, " n"]]:
    """The possible sequences of `new` tokens, with their probabilities by `probs` of prefixes."""
    tokens, law = np.zeros((1, 0), dtype=np.int64), np.ones(1)
    for _ in range(new):
        prefixes = np.hstack((np.tile(np.array(prompt), (len(tokens), 1)), tokens))
        following = law[:, None] * probs(prefixes, model.oracle("target", prefixes))
        row, token = following.nonzero()
        tokens, law = np.column_stack((tokens[row], token)), following[row, token]
    return tokens, law
