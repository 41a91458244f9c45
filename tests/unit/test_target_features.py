"""A drafter whose `target_features` or `observe` cannot be used gets one sentence."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bass
from bass.caches import PaddedCache
from bass.drafters import Ensemble, Ngram
from bass.engine.scorer import ModelScorer
from bass.errors import PairingError
from bass.interfaces import Attend, Decoder, Drafter
from bass.models.decoder import CausalDecoder
from bass.records import CacheBudget, DecoderShape, Draft, Features, Noise, Sequences, Window
from bass.testing.small_models import SmallLlama
from support.engines import FIRST_PAIRING, By, Setup, mixed_requests
from unit.checkpoints import Pair

CPU = torch.device("cpu")
WORLD = SmallLlama(layers=3)


@dataclass(frozen=True)
class Reads(Drafter):
    """Drafts the token 0."""

    layers: Any = (0, 99)

    @property
    def target_features(self) -> Any:
        return self.layers

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        return Draft(lengths.new_zeros(len(lengths), k), None, lengths)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layers", [(0, 99), [0, -2], (0, 1.5)], ids=repr)
def test_features_that_are_no_layers_are_an_error(pair: Pair, layers: Any) -> None:
    words = "reads state `[-\\d.]+` of the target .*: give 0 to"
    for method in (Reads(layers), Ensemble((Ngram(), Reads(layers)))):
        with pytest.raises(PairingError, match=words):
            Setup(WORLD, CPU, drafter=By(method)).engine(mixed_requests(WORLD))
        with pytest.raises(PairingError, match=words):
            bass.load(pair.target, drafter=method)


@dataclass(frozen=True)
class Mute(Decoder):
    """Returns no states of its layers."""

    decoder: CausalDecoder

    @property
    def shape(self) -> DecoderShape:
        return self.decoder.shape

    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Tensor, Features]:
        return self.decoder.hidden(window, attend)

    def unembed(self, hidden: Tensor) -> Tensor:
        return self.decoder.unembed(hidden)


def test_a_target_that_returns_no_states_is_an_error() -> None:
    target = Mute(WORLD.models["target"])
    cache = PaddedCache.allocate(target.shape, CacheBudget.of(np.array([4])), CPU, torch.float32)
    window = Window(torch.tensor([[1, 2]]), torch.tensor([[0, 1]]), 2)
    ModelScorer(target, cache, FIRST_PAIRING[1](), 1)(window)
    scorer = ModelScorer(target, cache, FIRST_PAIRING[1](), 1, (0, 2))
    for call in (scorer, scorer.fill):
        with pytest.raises(PairingError, match=r"reads 2 hidden states .* `Mute` returned 0: ret"):
            call(window)
