"""What is trained: the contract of a draft in training, and its loss and acceptance."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from bass.drafters.heads import over_vocabulary
from bass.drafters.whole_texts import states_of_texts
from bass.models.decoder import FINAL, CausalDecoder
from bass.records import Features
from bass.training.data import Rows, sent
from bass.training.options import TrainOptions

TEMPERATURES = (0.2, 1.0)  # at which the acceptance is trained
ETA = 3.0  # how fast the loss turns from the cross-entropy to the acceptance
LATER = 0.9  # the weight of a draft, as a share of that of the draft before


@dataclass(frozen=True)
class Trainee(ABC):
    """A draft that is trained from states of the target.

    From each position t of a text it drafts the tokens t + `first`, t + `first` + 1 ..., `unroll`
    of them, each as if those before it were the text's. head: its module. feature_ids: of
    the states that it reads (`DraftMethod.target_features`). rounds: how many of the drafts are
    trained; None: all.
    """

    first: ClassVar[int]
    rounds: ClassVar[int | None] = None
    head: Any
    unroll: int
    feature_ids: tuple[int, ...]

    @classmethod
    @abstractmethod
    def new(
        cls, target: CausalDecoder, options: TrainOptions, counts: Int[Tensor, " vocab"]
    ) -> "Trainee":
        """A new one for a target, on its device; counts: how often each token id is trained."""

    @property
    def token_ids(self) -> Tensor | None:
        """The target's ids of its own token ids; None: they are equal."""
        return None

    @abstractmethod
    def drafts(self, lesson: "Lesson") -> Iterator[Float[Tensor, "batch anchors ids"]]:
        """The logits of each of the successive drafts, from the anchors."""

    def judged(
        self, lesson: "Lesson"
    ) -> Iterator[tuple[Float[Tensor, "batch anchors ids"], Float[Tensor, "batch anchors"] | None]]:
        """The same, with the logits of the acceptance that a confidence head expects, if any."""
        return ((own, None) for own in self.drafts(lesson))

    @abstractmethod
    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        """Write the folder that `draft=` loads; name: of the target."""


def at(x: Tensor, places: Int[Tensor, "batch some"]) -> Tensor:
    """What x [batch, length, ...] has at some places of each row, or behind its end at its last."""
    index = places.clamp(max=x.shape[1] - 1)
    return x.take_along_dim(index if x.ndim == 2 else index[..., None], 1)


@final
@dataclass(frozen=True)
class Lesson:
    """A batch of texts with the target's states and logits of them, and the drafts of a trainee.

    anchors: positions that are drafted from. logits: of the token after each of `rows.tokens`.
    """

    trainee: Trainee
    target: CausalDecoder
    rows: Rows
    anchors: Int[Tensor, "batch anchors"]
    features: Features
    logits: Float[Tensor, "batch length vocab"]

    @classmethod
    @torch.no_grad()
    def of(
        cls, trainee: Trainee, target: CausalDecoder, rows: Rows, most: int = 0,
        random: torch.Generator | None = None,
    ) -> "Lesson":  # fmt: skip
        """By one pass of the target. rows: on the CPU. most: anchors of a text, drawn by `random`;
        0: all positions.
        """
        places = torch.arange(rows.tokens.shape[1]).expand_as(rows.tokens)
        if most:  # chosen on the CPU, which need not wait for a GPU
            able = rows.trained(places, trainee.first, trainee.first - 1)
            drawn = torch.rand(able.shape, generator=random) + able
            places = drawn.topk(max(1, min(most, int(able.sum(1).max())))).indices
        rows, anchors = rows.to(target.embed.device), sent(places, target.embed.device)
        *features, final = states_of_texts(target, rows.tokens, (*trainee.feature_ids, FINAL))
        wide = tuple(state.float() for state in features)
        return cls(trainee, target, rows, anchors, wide, target.unembed(final))

    def drafts(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Of each draft: how far the logits that decide the same token are behind its anchor,
        its own logits, and those of its expected acceptance. On a GPU, products are in bfloat16.
        """
        kind, first = self.logits.device.type, self.trainee.first
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            for behind, (own, expected) in enumerate(self.trainee.judged(self), first - 1):
                yield behind, own.float(), None if expected is None else expected.float()

    def probs(self, temperature: float) -> Float[Tensor, "batch length ids"]:
        """The target's probabilities of the trainee's token ids, after each token."""
        ids, logits = self.trainee.token_ids, self.logits.float() / temperature
        own = logits if ids is None else logits.index_select(-1, ids)
        return (own - logits.logsumexp(-1, keepdim=True)).exp()

    def loss(self) -> Float[Tensor, ""]:
        """For each draft, s · cross-entropy + (1 - s) · (1 - acceptance), with s = exp(-ETA ·
        acceptance) (Samarin et al., 2026, arXiv 2602.23881).

            acceptance = Σ_x min(p(x), q(x)),  cross-entropy = -Σ_x p(x) log q(x)

        p: the target's distribution; q: the trainee's. The cross-entropy is at temperature 1, the
        acceptance the mean over `TEMPERATURES`. A confidence head learns the acceptance of each
        draft by its cross-entropy, as in DSpark (2026); the draft gets no gradient of it.
        """
        probs = {temperature: self.probs(temperature) for temperature in {*TEMPERATURES, 1.0}}
        total, weights = self.logits.new_zeros((), dtype=torch.float32), 0.0
        for behind, own, expected in islice(self.drafts(), self.trainee.rounds):
            p = {t: at(x, self.anchors + behind) for t, x in probs.items()}
            counts = self.rows.trained(self.anchors, self.trainee.first, behind).float()
            counts = counts / counts.sum().clamp(min=1)  # a batch of short texts may have none
            cross_entropy = -((p[1.0] * own.log_softmax(-1)).sum(-1) * counts).sum()
            common = [torch.minimum(p[t], (own / t).softmax(-1)).sum(-1) for t in TEMPERATURES]
            each = torch.stack(common).mean(0)
            accepted = (each * counts).sum()
            share = (-ETA * accepted.detach()).exp()
            own_weight = LATER ** (behind + 1 - self.trainee.first)
            total = total + own_weight * (share * cross_entropy + (1 - share) * (1 - accepted))
            weights += own_weight
            if expected is not None:
                aim = each.detach().clamp(max=1.0)  # sums may round up
                apart = binary_cross_entropy_with_logits(expected, aim, reduction="none")
                total = total + own_weight * (apart * counts).sum()
        return total / weights

    @torch.no_grad()
    def survival(self) -> tuple[Bool[Tensor, "batch anchors"], Tensor]:
        """Anchors from which all drafts count, and [2, drafts, batch, anchors]: whether the draft
        and all before it are the target's greedy tokens; and the product of Σ min(p, q) of these
        drafts at temperature 1, each after the tokens of the text. It is the probability that all
        are accepted but for the tokens, which are the text's and not those of the draft.
        """
        probs, best = self.logits.float().softmax(-1), self.logits.argmax(-1)
        found, greedy, sampled, behind = list[Tensor](), 1.0, 1.0, 0
        for behind, logits, _ in self.drafts():
            logits = over_vocabulary(logits, self.trainee.token_ids, probs.shape[-1])
            decided = self.anchors + behind
            greedy = greedy * (logits.argmax(-1) == at(best, decided)).float()
            common = torch.minimum(at(probs, decided), logits.softmax(-1)).sum(-1)
            sampled = sampled * common
            found.append(torch.stack((greedy, sampled)))
        counted = self.rows.trained(self.anchors, self.trainee.first, behind)
        return counted, torch.stack(found, 1)
