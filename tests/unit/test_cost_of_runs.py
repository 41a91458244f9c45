"""What a run is counted to move and compute, compared with what a spy of every forward pass
sees.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import bass
from bass.api import generation
from bass.drafters import Ensemble, ModelDraft, Ngram, NoDrafter, Replay, SelfDraft
from bass.engine.cost import Peaks
from bass.engine.schedule import Schedule
from bass.models.decoder import CausalDecoder, FirstLayers
from bass.policies import Fixed
from bass.stop_rules import Confidence, Svip
from bass.testing.doubles import ByRow, OwnPast
from support.doubles import Cycle
from unit.checkpoints import Pair

PROMPTS = [[5, 6, 7, 5, 6], [9], [30, 2, 4, 8, 30, 2], [11, 12, 11, 12]]
SCRIPT = Replay([[5, 6, 7, 5, 6, 1, 2, 3, 4, 5], [9, 9, 9, 9]])
INNER = Ensemble((Ngram(longest=2), SelfDraft(1)))
DRAFTERS = {
    "model": ModelDraft(),
    "self": SelfDraft(1),
    "ngram": Ngram(),
    "replay": SCRIPT,
    "ngram, then model": Ensemble(),
    "replay, then ngram, then model": Ensemble((SCRIPT, Ngram(), ModelDraft())),
    "self, then model": Ensemble((SelfDraft(1), ModelDraft())),
    "(ngram, then self), then model": Ensemble((INNER, ModelDraft())),
}


@dataclass
class Spy:
    """Bytes and FLOPs of every forward pass in steps, from the positions that its decoder was given
    and its own weights.
    """

    bytes: int = 0
    flops: int = 0
    passes: int = 0
    prefilling: bool = field(default=False, repr=False)

    def see(self, decoder: Any, positions: torch.Tensor, fills: bool) -> None:
        used = positions >= 0
        if self.prefilling or not bool(used.any()):
            return
        whole, layers = (
            (decoder.decoder, decoder.count)
            if isinstance(decoder, FirstLayers)
            else (decoder, decoder.shape.layers)
        )
        layers -= fills  # a pass that only writes keys and values ends in its last layer
        blocks = tuple(f"blocks.{i}." for i in range(layers))
        read = [
            p
            for name, p in whole.named_parameters()
            if name.startswith(blocks) or not (fills or name.startswith("blocks."))
        ]
        shape, ends = whole.shape, positions.amax(1) + 1
        self.passes += 1
        self.bytes += (
            sum(p.nbytes for p in read)
            + int(ends.sum()) * 2 * layers * shape.kv_heads * shape.head_dim * 4
        )
        self.flops += int(used.sum()) * 2 * sum(p.numel() for p in read)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Watches every decoder there is, in runs without graphs: it reads each pass's positions.

    Peaks are 1, so that seconds are bytes and shares are FLOPs per second.
    """
    watching = Spy()
    monkeypatch.setattr(generation, "measure_peaks", lambda *_: Peaks(1.0, 1.0))
    admit = Schedule.admit

    def admitted(*arguments: Any) -> Any:
        watching.prefilling = True
        try:
            return admit(*arguments)
        finally:
            watching.prefilling = False

    monkeypatch.setattr(Schedule, "admit", admitted)
    for kind, name in ((FirstLayers, "hidden"), (CausalDecoder, "hidden"), (CausalDecoder, "fill")):
        plain: Any = getattr(kind, name)

        def seen(self: Any, window: Any, *rest: Any, plain: Any = plain, name: str = name) -> Any:
            watching.see(self, window.positions, name == "fill")
            return plain(self, window, *rest)

        monkeypatch.setattr(kind, name, seen)
    return watching


CASES = [
    pytest.param(method, rule, policy, id=f"{name}-{type(rule).__name__}-{type(policy).__name__}")
    for name, method in DRAFTERS.items()
    for rule, policy in (
        (None, OwnPast()),
        (None, Cycle()),
        (Confidence(0.2), ByRow(4)),
        (Svip(), Cycle()),
    )
    if rule is None or method.obeys_stop_rules
] + [pytest.param(NoDrafter(), None, Fixed(0), id="none")]


@pytest.mark.parametrize(("method", "rule", "policy"), CASES)
def test_bytes_and_flops_are_those_of_the_passes_that_ran(
    method: Any, rule: Any, policy: Any, spy: Spy, silent_pair: Pair
) -> None:
    # of two layers: one that only fills runs the first
    draft = str(silent_pair.target) if method.needs_draft else None
    llm = bass.load(
        str(silent_pair.target),
        draft,
        drafter=method,
        policy=policy,
        stop_rule=rule,
        max_batch_size=3,
        cuda_graphs=False,
    )
    result = llm.generate(PROMPTS, temperature=0.8, max_new_tokens=[14, 9, 1, 12], ignore_eos=True)
    stats = result.stats
    seconds = sum(step.seconds for step in result.trace)
    assert (spy.passes > stats.steps) == (method.needs_draft or method.target_layers > 0)
    if isinstance(method, Ensemble):  # counts rows that another part has drafted for
        assert stats.bound_seconds == pytest.approx(spy.bytes, rel=0.1)
        return
    assert stats.bound_seconds == spy.bytes
    assert stats.mfu * seconds == pytest.approx(spy.flops)
    assert 0 < stats.mfu_kept <= stats.mfu
    assert stats.mbu == pytest.approx(spy.bytes / seconds)


def test_the_positions_of_a_step_are_by_the_lengths_drafted(silent_pair: Pair) -> None:
    """A look-up that finds nothing drafts nothing, whatever the policy requests."""
    llm = bass.load(str(silent_pair.target), drafter=Ngram(shortest=3), policy=Fixed(4))
    result = llm.generate([[1, 2, 3, 4]], temperature=1.0, max_new_tokens=6, ignore_eos=True)
    assert result.stats.drafted == 0
    assert [step.positions for step in result.trace] == [4, 5, 6, 7, 8, 9]
