"""A drafter observes the states of every committed token once, in prefills, steps and graphs."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor

from bass.caches import PaddedCache
from bass.drafters import Ensemble, ModelDraft, Ngram
from bass.engine.run import EngineRun
from bass.engine.scorer import ModelScorer
from bass.errors import PairingError
from bass.interfaces import Drafter, DrafterContext, DraftMethod, ForwardingRowStore, RowStore
from bass.models.decoder import FirstLayers
from bass.policies import Fixed
from bass.records import CacheBudget, Draft, Noise, Observation, RowAssignment, Sequences, Window
from bass.sampling_params import Sampling
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama
from support.doubles import Cycle
from support.engines import FIRST_PAIRING, By, Setup, mixed_requests

CPU = torch.device("cpu")
LAYERS = 3
WORLD = SmallLlama(layers=LAYERS)


@final
@dataclass(frozen=True)
class Reading(DraftMethod):
    """Drafts with a model, and keeps the states of `layers`."""

    layers: tuple[int, ...]
    made: list["Reader"] = field(default_factory=list, compare=False)

    @property
    def needs_draft(self) -> bool:
        return True

    @property
    def target_features(self) -> tuple[int, ...]:
        return self.layers

    def build(self, context: DrafterContext) -> Drafter:
        inner = ModelDraft().build(context)
        shape = context.batch, context.capacity + 1  # the last place is nobody's
        counts = torch.zeros(shape, dtype=torch.int64, device=context.device)
        self.made.append(Reader(inner, counts))
        return self.made[-1]


@final
@dataclass(frozen=True)
class Reader(ForwardingRowStore, Drafter):
    inner: Drafter
    counts: Tensor  # how often each position was observed
    tokens: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    @property
    def store(self) -> RowStore:
        return self.inner

    def kept(self) -> list[Tensor]:
        return [self.counts, *self.tokens, *self.states]

    def reserve(self, assignment: RowAssignment) -> None:
        super().reserve(assignment)
        for row in np.flatnonzero(~assignment.continuing):
            self.counts[row] = 0

    def copy_rows(self, assignment: RowAssignment) -> None:
        super().copy_rows(assignment)
        for row in assignment.followers:
            source, shared = assignment.source[row], assignment.shared[row]
            for x in self.kept():
                x[row, :shared] = x[source, :shared]

    def observe(self, seen: Observation) -> None:
        window, features = seen.window, seen.features
        if not self.states:
            shape, like = self.counts.shape, features[0]
            self.tokens.extend(torch.full(shape, -1, device=like.device) for _ in range(2))
            self.states.extend(like.new_full((*shape, like.shape[-1]), 1e4) for _ in features)
        rows = torch.arange(len(window.positions), device=self.counts.device)[:, None]
        at = rows + window.start, window.positions
        self.counts.index_put_(at, torch.ones_like(window.positions), accumulate=True)
        self.tokens[0][at] = window.tokens
        self.tokens[1][at] = seen.following
        for states, feature in zip(self.states, features, strict=True):
            states[at] = feature

    def propose(self, *arguments: Any) -> Draft:
        return self.inner.propose(*arguments)


def expected(tokens: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """By a pass over the tokens alone."""
    target = WORLD.models["target"]
    cache = PaddedCache.allocate(
        target.shape, CacheBudget.of(np.array([len(tokens)])), tokens.device, torch.float32
    )
    scorer = ModelScorer(target, cache, FIRST_PAIRING[1](), 1, layers)
    place = torch.arange(len(tokens), device=tokens.device)[None]
    with torch.inference_mode():
        return [x[0] for x in scorer(Window(tokens[None], place, len(tokens))).features]


def check(run: EngineRun, reader: Reader, layers: tuple[int, ...]) -> int:
    """Of every row under way: all committed tokens but the last, each observed once."""
    s, seen = run.sequences, 0
    lens, active = s.lens.tolist(), s.active.tolist()
    for row in range(len(lens)):
        count = lens[row] - 1
        if not active[row] or not count:
            continue
        assert reader.counts[row, :count].tolist() == [1] * count
        assert not reader.counts[row, count:-1].any()
        tokens = s.tokens[row, :count]
        assert torch.equal(reader.tokens[0][row, :count], tokens)
        assert torch.equal(reader.tokens[1][row, :count], s.tokens[row, 1 : count + 1])
        for mine, own in zip(reader.states, expected(tokens, layers), strict=True):
            torch.testing.assert_close(mine[row, :count], own, rtol=1e-3, atol=1e-3)
        seen += count
    return seen


@pytest.mark.parametrize("policy", [Fixed(0), Fixed(3), Cycle(), ByRow(4)], ids=str)
@pytest.mark.parametrize("layers", [(0, 2), (LAYERS,), (1, -1, LAYERS, 0)], ids=str)
def test_a_drafter_observes_each_committed_token_once(
    layers: tuple[int, ...], policy: Any, device: torch.device
) -> None:
    """Shared prompts, rows that serve several requests, limits and ends of sequence among them."""
    method = Reading(layers)
    setup = Setup(WORLD, device, policy=policy, drafter=By(method), warp=Sampling(1.0), eos=(3,))
    run = setup.engine(mixed_requests(WORLD, count=9, longest=12))
    seen = sum(check(run, method.made[0], layers) for _ in run)
    assert seen > 50


def test_states_are_what_leaves_the_layers_before(device: torch.device) -> None:
    """Number i is the residual stream that enters layer i; LAYERS, that which leaves the last one;
    -1, what the head reads.
    """
    target = WORLD.models["target"].to(device)
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6], device=device)
    *states, final = expected(tokens, (*range(LAYERS + 1), -1))
    torch.testing.assert_close(target.norm(states[LAYERS]), final)
    torch.testing.assert_close(states[0], target.embed[tokens])
    for count in range(1, LAYERS):
        cut = FirstLayers(target, count)
        budget = CacheBudget.of(np.array([8]))
        cache = PaddedCache.allocate(cut.shape, budget, device, torch.float32)
        scorer = ModelScorer(cut, cache, FIRST_PAIRING[1](), 1)
        place = torch.arange(8, device=device)[None]
        logits = scorer(Window(tokens[None], place, 8)).logits[0]
        torch.testing.assert_close(target.unembed(target.norm(states[count])), logits)
    truth = torch.as_tensor(WORLD.oracle("target", tokens[None].cpu().numpy())[0])
    found = target.unembed(final)[-1].double().cpu()
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4)


def test_parts_of_an_ensemble_observe_their_own_layers(device: torch.device) -> None:
    one, other = Reading((2, 0)), Reading((1,))
    method = Ensemble((Ngram(), one, other))
    assert method.target_features == (0, 1, 2)
    setup = Setup(WORLD, device, policy=Cycle(), drafter=By(method), warp=Sampling(1.0))
    run = setup.engine(mixed_requests(WORLD, count=5, longest=9))
    for _ in run:
        assert check(run, one.made[0], (2, 0)) == check(run, other.made[0], (1,))


@pytest.mark.parametrize("layer", [-2, 99])
def test_a_state_that_the_target_does_not_have_is_an_error(layer: Any) -> None:
    setup = Setup(WORLD, CPU, drafter=By(Reading((0, layer))))
    with pytest.raises(PairingError, match=r"`Reading` reads state .* target has 3 layers"):
        setup.engine(mixed_requests(WORLD))


@dataclass(frozen=True)
class Shapes(Drafter):
    """Drafts one token for each row, and keeps the shapes of what it observes."""

    seen: list[Any] = field(default_factory=list, compare=False)

    @property
    def target_features(self) -> tuple[int, ...]:
        return (LAYERS, 0)

    def propose(
        self, sequences: Sequences, lengths: Tensor, k: int, noise: Noise, span: int
    ) -> Draft:
        return Draft(lengths.new_ones(len(lengths), k), None, lengths)

    def observe(self, seen: Observation) -> None:
        shapes, window = [list(state.shape) for state in seen.features], seen.window
        assert seen.following.shape == window.tokens.shape
        self.seen.append((list(window.tokens.shape), window.start, shapes, seen.accepted))


def test_shapes_of_what_a_drafter_observes(device: torch.device) -> None:
    """As `Drafter.observe` says."""
    method = Shapes()
    setup = Setup(WORLD, device, policy=Fixed(2), drafter=By(method))
    for _ in setup.engine(mixed_requests(WORLD, count=3, longest=9)):
        pass
    width = WORLD.models["target"].embed.shape[1]
    kinds = set()
    for window, start, shapes, accepted in method.seen:
        assert shapes == [[*window, width]] * 2
        kinds.add(accepted is None)
        if accepted is not None:
            assert (window[0], start) == (3, 0)
            assert list(accepted.shape) == [3]
            assert accepted.dtype == torch.int64
            assert ((accepted >= 0) & (accepted < window[1])).all()
    assert kinds == {True, False}
