"""Small target and draft models with an oracle: the next-token logits after any prefix, recomputed
from scratch in float64.

The engine uses a world's scorers, the test its oracle. The oracle shares no code with the tested
engine: no cache, no positions, no backend.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.engine.scorer import ModelScorer, WidenedScorer
from bass.interfaces import AttentionBackend, Scorer
from bass.models.llama import Llama, LlamaConfig
from bass.ops.linear import Linear
from bass.records import CacheBudget, Features, RowAssignment, Scored, Window
from bass.testing.dense import dense_logits

# A cache class, and a callable that makes a backend for its view.
Pairing = tuple[type, Callable[[], AttentionBackend[Any, Any]]]
POISON = 1e4  # finite, because NaN * 0 fails correct masked attention too


@runtime_checkable
class World(Protocol):
    """A target and a draft over `vocab` tokens."""

    vocab: int

    @abstractmethod
    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        """The scorer of the "target" or the "draft", its storage poisoned."""
        ...

    @abstractmethod
    def oracle(
        self, role: str, prefixes: Int[np.ndarray, "rows length"]
    ) -> Float[np.ndarray, "rows vocab"]:
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
        part = self.memory[window.start : window.start + len(window.tokens)]
        # -1 is the last slot, the spare one
        rows = torch.arange(len(part), device=part.device)[:, None]
        part[rows, window.positions] = window.tokens
        return ()

    def copy_rows(self, assignment: RowAssignment) -> None:
        rows = assignment.followers
        ours, theirs, shared = (
            torch.as_tensor(of, device=self.memory.device)
            for of in (rows, assignment.source[rows], assignment.shared[rows])
        )
        copied = torch.arange(self.memory.shape[1], device=self.memory.device) < shared[:, None]
        self.memory[ours] = torch.where(copied, self.memory[theirs], self.memory[ours])

    def __call__(self, window: Window) -> Scored:
        self.fill(window)
        sums = hash_sums(self.memory[:, :-1])
        at = window.positions.clamp(min=0)
        ends = sums.gather(1, at + 1) - sums.gather(1, (at + 1 - self.order).clamp(min=0))
        return Scored(self.table[ends % len(self.table)])


def hash_sums(tokens: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length_and_one"]:
    """Running sums of (token + 1) times a pseudo-random number of its position, from 0."""
    place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    weights = (place * 2654435761) % 1000003
    sums = ((tokens + 1) * weights).cumsum(1)
    return torch.cat((sums.new_zeros(len(tokens), 1), sums), 1)


@final
@dataclass(frozen=True)
class TableWorld(World):
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
        random = torch.Generator().manual_seed(self.seed + 1)
        garbage = torch.randint(
            0, self.vocab, (budget.batch, int(budget.limits.max()) + 1), generator=random
        )
        known = self.known(role)
        table = self.table(role)[:, :known].to(device, torch.float32)
        scorer = TableScorer(table, self.order, garbage.to(device))
        return scorer if known == self.vocab else WidenedScorer(scorer, known, self.vocab)

    def oracle(
        self, role: str, prefixes: Int[np.ndarray, "rows length"]
    ) -> Float[np.ndarray, "rows vocab"]:
        known = self.known(role)
        if known < self.vocab:
            prefixes = prefixes.clip(max=known - 1)
        place = np.arange(1, prefixes.shape[1] + 1)[-self.order :]
        index = ((prefixes[:, -self.order :] + 1) * ((place * 2654435761) % 1000003)).sum(
            1
        ) % self.entries
        logits = self.table(role).float().double().numpy()[index]
        return np.where(np.arange(self.vocab) < known, logits, -np.inf)


@final
@dataclass(frozen=True)
class CountingWorld(World):
    """Target and draft predict token + 1 after every token, so no token of an output repeats."""

    vocab: int = 40

    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        return _Counting(20 * torch.eye(self.vocab, device=device).roll(1, 1))

    def oracle(
        self, role: str, prefixes: Int[np.ndarray, "rows length"]
    ) -> Float[np.ndarray, "rows vocab"]:
        return 20.0 * np.eye(self.vocab)[(prefixes[:, -1] + 1) % self.vocab]


@final
@dataclass
class _Counting(Scorer):
    """Without memory: the next token follows from the last."""

    table: Float[Tensor, "vocab vocab"]

    def __call__(self, window: Window) -> Scored:
        return Scored(self.table[window.tokens])


@final
@dataclass(frozen=True)
class LlamaWorld(World):
    """Random tiny Llamas with grouped-query attention, in the caches and backends of the library.

    The draft is the target with noise added to its weights: `unlikeness` 0 makes them equal.
    """

    vocab: int = 13
    seed: int = 0
    unlikeness: float = 0.25
    sharpness: float = 0.6
    layers: int = 2
    dtype: torch.dtype = torch.float32
    models: dict[str, Llama] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        config = LlamaConfig(self.vocab, 32, 48, self.layers, 4, 2, 8, max_position_embeddings=128)
        target, draft = Llama(config, "cpu", self.dtype), Llama(config, "cpu", self.dtype)
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), draft.parameters(), strict=True):
                drawn, noise = (
                    torch.randn(ours.shape, generator=random, dtype=torch.float64) for _ in range(2)
                )
                scale = 1.5 / ours.shape[-1] ** 0.5 if ours.ndim == 2 else 0.1
                base = drawn * scale + (ours.ndim == 1)
                ours.copy_(base)
                theirs.copy_(base + noise * scale * self.unlikeness)
            for model in (target, draft):
                assert isinstance(model.head, Linear)
                model.head.weight.mul_(self.sharpness * 2)
        self.models.update(target=target.requires_grad_(False), draft=draft.requires_grad_(False))

    def scorer(
        self, role: str, pairing: Pairing, budget: CacheBudget, device: torch.device
    ) -> Scorer:
        cache_type, make_backend = pairing
        model = self.models[role].to(device)
        cache = cache_type.allocate(model.shape, budget, device, self.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        return ModelScorer(model, poisoned(cache), make_backend(), budget.batch)

    def oracle(
        self, role: str, prefixes: Int[np.ndarray, "rows length"]
    ) -> Float[np.ndarray, "rows vocab"]:
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
    """The tensors in a value, and in the lists, tuples and dictionaries in it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
