"""A drafter whose `target_features` or `observe` cannot be used gets one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import bass
from bass.caches import PaddedCache
from bass.drafters import Ensemble, Ngram
from bass.engine.scorer import ModelScorer
from bass.errors import OptionError, PairingError, StrategyError
from bass.interfaces import Attend, Decoder, Drafter
from bass.models.decoder import CausalDecoder
from bass.records import CacheBudget, DecoderShape, Draft, Features, Noise, Sequences, Window
from bass.testing import check_drafter
from bass.testing.engine import By
from bass.testing.small_models import SmallLlama, SmallTable
from support.engines import FIRST_PAIRING, Setup, mixed_requests
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
@pytest.mark.parametrize(
    "layers", [1, None, "0", (0, 1.5), (True,), [0, "1"], (1, 0, 1), {0: 1}], ids=repr
)
def test_features_that_are_no_layers_are_an_error(pair: Pair, layers: Any) -> None:
    words = r"`Reads.target_features` is .*: give a tuple of layers of the target, integers, each"
    for method in (Reads(layers), Ensemble((Ngram(), Reads(layers)))):
        with pytest.raises(StrategyError, match=words):
            Setup(WORLD, CPU, drafter=By(method)).engine(mixed_requests(WORLD))
        with pytest.raises(StrategyError, match=words):
            bass.load(pair.target, drafter=method)
    with pytest.raises(StrategyError, match=words):
        check_drafter(Reads(layers))


@dataclass(frozen=True)
class Runs(Reads):
    """Claims to run the first layers of the target."""

    first: Any = 1

    @property
    def target_features(self) -> tuple[int, ...]:
        return ()

    @property
    def target_layers(self) -> Any:
        return self.first


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("first", [None, "1", 1.0, True, -1, (1,)], ids=repr)
def test_a_number_of_layers_that_is_none_is_an_error(pair: Pair, first: Any) -> None:
    words = r"`Runs.target_layers` is .*: give a number of layers of the target, an integer of 0"
    method = Runs(first=first)
    for one in (method, Ensemble((Ngram(), method))):
        with pytest.raises(StrategyError, match=words):
            bass.load(pair.target, drafter=one)
    with pytest.raises(StrategyError, match=words):
        check_drafter(method)


def test_a_layer_that_the_target_lacks_is_an_error_at_load(pair: Pair) -> None:
    words = "`Reads` reads state `99` of the target"
    with pytest.raises(PairingError, match=words):
        bass.load(pair.target, drafter=Reads())


def test_a_world_without_hidden_states_says_so() -> None:
    setup = Setup(SmallTable(), CPU, drafter=By(Reads((0,))))
    with pytest.raises(PairingError, match=r"`Reads` reads hidden states .* use `SmallLlama`"):
        setup.engine(mixed_requests(setup.model))


@dataclass(frozen=True)
class Mute(Decoder):
    """Returns no states of its layers."""

    decoder: CausalDecoder

    @property
    def shape(self) -> DecoderShape:
        return self.decoder.shape

    def hidden(
        self, window: Window, attend: Attend, layers: tuple[int, ...] = ()
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


def test_an_observe_with_other_parameters_is_an_error_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"`Old.observe` has other parameters: .*accepted\)`\.$"):

        class Old(Reads):  # pyright: ignore[reportUnusedClass]
            def observe(self, window: Window, features: Features) -> None: ...

    class Flexible(Reads):
        paper: ClassVar[str] = ""

        def observe(self, *given: Any) -> None: ...

    assert Flexible().observes


OLD = """
from bass.interfaces import Drafter

class Old(Drafter):
    def propose(self, *given): ...
    def observe(self, features, positions): ...
"""


def test_a_module_with_an_old_observe_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    (tmp_path / "old_observe.py").write_text(OLD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=r"old_observe.*`Old.observe` has other parameters"):
        bass.load(pair.target, drafter="old_observe:Old")
