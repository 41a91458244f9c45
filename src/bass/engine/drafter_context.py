"""The context that a run passes to its drafter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from bass.engine.cost import LoggedScorer, PassLog, pass_cost
from bass.engine.scorer import ModelScorer, WidenedScorer
from bass.errors import PairingError
from bass.interfaces import DrafterContext, DraftMethod, Draw, Scorer, StopRule, Verifier, Warp
from bass.models.decoder import CausalDecoder
from bass.models.first_layers import FirstLayers
from bass.ops.noise import exponential_race
from bass.ops.sampling import draw
from bass.records import Noise


@final
@dataclass(frozen=True)
class OwnDraw(Draw):
    """Draws with the draft stream of the step's noise, which the verifier does not use."""

    def __call__(self, probs: Tensor, noise: Noise, i: int) -> Int[Tensor, " batch"]:
        return draw(probs, noise.draft[:, i])


@final
@dataclass(frozen=True)
class SharedDraw(Draw):
    """Draws with the noise of the token's position, which a coupled verifier shares (Daliri et al.,
    2025).
    """

    def __call__(self, probs: Tensor, noise: Noise, i: int) -> Int[Tensor, " batch"]:
        return exponential_race(probs[:, None], noise.keys, noise.first + i)[:, 0]


def draw_for(verifier: Verifier) -> Draw:
    """The draw that gives the verifier the highest acceptance rate."""
    return SharedDraw() if verifier.coupled else OwnDraw()


def check_features(method: DraftMethod, layers: int) -> tuple[int, ...]:
    """The target states that the drafter reads.

    Raises `PairingError` for a state that a target with `layers` layers does not have.
    """
    states = tuple(method.target_features)
    if bad := [i for i in states if i not in range(layers + 1)]:
        raise PairingError(
            f"`{type(method).__name__}` reads state `{bad[0]}` of the target "
            f"(`target_features`), and the target has {layers} layers: give 0 to {layers - 1} for "
            f"the input of a layer, or {layers} for the final state."
        )
    return states


@final
@dataclass(frozen=True)
class RunContext(DrafterContext):
    """The resources that one run of a loaded pair offers to its drafter.

    make_draft: allocates the draft model's cache; None without a draft model.
    """

    target: ModelScorer
    make_draft: Callable[[], ModelScorer] | None
    warp: Warp
    draw: Draw
    stop_rule: StopRule | None
    batch: int
    capacity: int
    log: PassLog = field(default_factory=PassLog)

    @property
    def device(self) -> torch.device:
        return self.decoder.embed.device

    @property
    def vocab_size(self) -> int:
        return self.decoder.shape.vocab_size

    @property
    def decoder(self) -> CausalDecoder:
        """The target's decoder."""
        assert isinstance(self.target.decoder, CausalDecoder)
        return self.target.decoder

    def draft(self) -> Scorer:
        if self.make_draft is None:
            raise PairingError(
                "The drafter requests a draft model, and none is loaded: declare "
                "`needs_draft = True` in its class."
            )
        scorer = self.make_draft()
        decoder = scorer.decoder
        assert isinstance(decoder, CausalDecoder)
        fill_cost = pass_cost(decoder, decoder.shape.layers - 1, has_head=False)
        logged = LoggedScorer(scorer, self.log, pass_cost(decoder), fill_cost)
        known = decoder.shape.vocab_size
        return logged if known == self.vocab_size else WidenedScorer(logged, known, self.vocab_size)

    def first_layers(self, count: int) -> Scorer:
        """A scorer of the target's first `count` layers, which shares the target's cache.

        The target overwrites its keys and values at drafted positions when it verifies them.
        """
        t = self.target
        own = ModelScorer(FirstLayers(self.decoder, count), t.cache, t.backend, t.batch)
        return LoggedScorer(own, self.log, pass_cost(self.decoder, count), None)
