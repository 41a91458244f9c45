"""What is trained: the contract of a draft in training, and its loss and acceptance."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.drafters.whole_texts import states_of
from bass.models.decoder import FINAL, CausalDecoder
from bass.records import Features
from bass.training.data import Rows

TEMPERATURES = (0.2, 1.0)  # at which the acceptance is trained
ETA = 3.0  # how fast the loss turns from the cross-entropy to the acceptance
LATER = 0.9  # the weight of a draft, as a share of that of the draft before


class Trainee(ABC):
    """A draft that is trained from states of the target.

    From each position t of a text it drafts the tokens t + `first`, t + `first` + 1 ..., `unroll`
    of them, each as if those before it were the text's. head: its module, with the states that it
    reads in `config.layer_ids`; `token_ids`: the target's ids of its own ids, None: they are equal.
    """

    first: ClassVar[int]
    head: Any
    unroll: int

    @abstractmethod
    def drafts(
        self, embed: Tensor, tokens: Int[Tensor, "batch length"], features: Features
    ) -> Iterator[Float[Tensor, "batch length ids"]]:
        """The logits of each of the successive drafts, from every position."""

    @abstractmethod
    def save(self, folder: Path, target: CausalDecoder, name: str) -> None:
        """Write the folder that `draft=` loads; name: of the target."""


@final
@dataclass(frozen=True)
class Lesson:
    """A batch of texts with the target's states and logits of them, and the drafts of a trainee.

    logits: of the token after each of `rows.tokens`.
    """

    trainee: Trainee
    rows: Rows
    embed: Tensor
    features: Features
    logits: Float[Tensor, "batch length vocab"]

    @classmethod
    @torch.no_grad()
    def of(cls, trainee: Trainee, target: CausalDecoder, rows: Rows) -> "Lesson":
        """By one pass of the target. rows: on its device."""
        *features, final = states_of(target, rows.tokens, (*trainee.head.config.layer_ids, FINAL))
        wide = tuple(state.float() for state in features)
        return cls(trainee, rows, target.embed, wide, target.unembed(final))

    def drafts(self) -> Iterator[tuple[int, Tensor]]:
        """Of each draft: how far the logits that decide the same token are behind its position,
        and its own logits. On a GPU, products are in bfloat16.
        """
        kind, first = self.embed.device.type, self.trainee.first
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            drafts = self.trainee.drafts(self.embed, self.rows.tokens, self.features)
            for behind, own in enumerate(drafts, first - 1):
                yield behind, own.float()

    def trained(self, behind: int) -> Bool[Tensor, "batch length"]:
        """The positions from which a draft counts: all that it feeds are there, and all that is
        drafted there belongs to what is trained.
        """
        place, rows = torch.arange(self.rows.tokens.shape[1], device=self.embed.device), self.rows
        enough = place + behind < rows.lens[:, None]
        return enough & (place + self.trainee.first >= rows.starts[:, None])

    def probs(self, temperature: float) -> Float[Tensor, "batch length ids"]:
        """The target's probabilities of the trainee's token ids, after each token."""
        ids, logits = self.trainee.head.token_ids, self.logits.float() / temperature
        own = logits if ids is None else logits.index_select(-1, ids)
        return (own - logits.logsumexp(-1, keepdim=True)).exp()

    def loss(self) -> Float[Tensor, ""]:
        """For each draft, s · cross-entropy + (1 - s) · (1 - acceptance), with s = exp(-ETA ·
        acceptance) (Samarin et al., 2026, arXiv 2602.23881).

            acceptance = Σ_x min(p(x), q(x)),  cross-entropy = -Σ_x p(x) log q(x)

        p: the target's distribution; q: the trainee's. The cross-entropy is at temperature 1, the
        acceptance the mean over `TEMPERATURES`.
        """
        probs = {temperature: self.probs(temperature) for temperature in {*TEMPERATURES, 1.0}}
        total, weight = self.logits.new_zeros((), dtype=torch.float32), 1.0
        for behind, logits in self.drafts():
            places = self.trained(behind)
            own = logits[places]
            p = {t: x.roll(-behind, 1)[places] for t, x in probs.items()}
            most = max(len(own), 1)  # a batch of short texts may have none
            cross_entropy = -(p[1.0] * own.log_softmax(-1)).sum() / most
            common = [torch.minimum(p[t], (own / t).softmax(-1)).sum() for t in TEMPERATURES]
            accepted = torch.stack(common).mean() / most
            share = (-ETA * accepted.detach()).exp()
            total = total + weight * (share * cross_entropy + (1 - share) * (1 - accepted))
            weight *= LATER
        return total / sum(LATER**j for j in range(self.trainee.unroll))

    @torch.no_grad()
    def survival(self) -> tuple[Bool[Tensor, "batch length"], Tensor]:
        """Positions from which all drafts count, and [2, drafts, batch, length]: whether the draft
        and all before it are accepted at temperature 0 if the text is greedy; and an unbiased
        estimate of the probability at temperature 1 if the target sampled the text: the product of
        min(1, q / p) of the tokens before, times Σ min(p, q).
        """
        tokens, ids, probs = self.rows.tokens, self.trainee.head.token_ids, self.probs(1.0)
        vocab, best = self.logits.shape[-1], self.logits.argmax(-1)
        known = torch.arange(vocab, device=tokens.device) if ids is None else ids
        own_id = torch.full((vocab,), -1, device=tokens.device)
        own_id[known] = torch.arange(len(known), device=tokens.device)
        found, greedy, sampled, behind = list[Tensor](), 1.0, 1.0, 0
        for behind, logits in self.drafts():
            p, q = probs.roll(-behind, 1), logits.softmax(-1)
            hit = known[logits.argmax(-1)] == best.roll(-behind, 1)
            greedy = greedy * hit.float()
            found.append(torch.stack((greedy, sampled * torch.minimum(p, q).sum(-1))))
            drafted = own_id[tokens.roll(-behind - 1, 1)][..., None]
            of_text = (x.gather(-1, drafted.clamp(min=0)) for x in (q, p.clamp(min=1e-30)))
            ratio = torch.div(*of_text)
            sampled = sampled * torch.where(drafted < 0, 0, ratio.clamp(max=1))[..., 0]
        return self.trained(behind), torch.stack(found, 1)
