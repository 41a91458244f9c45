"""What a run is counted to move and compute, compared with what a spy of every forward pass
sees.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.api import generation
from bass.drafters import Ensemble, ModelDraft, Ngram, NoDrafter, Replay, SelfDraft
from bass.engine.cost import Peaks, pass_cost
from bass.engine.packing import Packing
from bass.engine.schedule import Schedule
from bass.engine.shapes import StepShapes
from bass.models.decoder import CausalDecoder, FirstLayers
from bass.policies import Fixed
from bass.stop_rules import Confidence, Entropy
from bass.testing.doubles import ByRow, OwnPast
from bass.testing.small_models import SmallLlama
from support import block_heads, heads
from support.doubles import Cycle
from support.engines import By, RunOutput, Setup, mixed_requests
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
    monkeypatch.setattr(Packing, "of", lambda window: None)  # a packed window has no rows
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
        (Entropy(), Cycle()),
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
    assert stats.mbu == pytest.approx(spy.bytes / seconds)


WORLD = SmallLlama(layers=3)
QKV, INNER = r"self_attn\.[qkv]_(proj|norm)\.", r"self_attn|mlp|layernorm"
Fed = tuple[str, Any, Any]  # tensors' names, tokens of each row, positions that they see


def of_chain(fusing: str, layer: str, logits: str) -> Any:
    """The passes of a head that drafts token by token."""

    def passes(lens: Any, drafted: Any, emitted: Any) -> Iterator[Fed]:
        for i in range(max(drafted)):
            yield logits, drafted > i, None
            if i:
                yield layer, drafted > i, lens - 1 + i
        yield fusing, emitted, None
        yield layer, emitted, lens - 1 + emitted

    return passes


def of_block(layers: str, unread: int, by_token: tuple[str, ...] = ()) -> Any:
    """The passes of a block drafter; by_token: what each token is drawn with."""

    def passes(lens: Any, drafted: Any, emitted: Any) -> Iterator[Fed]:
        yield layers, (drafted > 0) * (drafted + unread), lens - 1 + drafted + unread
        yield "lm_head", drafted, None
        for i in range(max(drafted)):
            yield from ((name, drafted > i, None) for name in by_token)
        yield rf"fc\.|hidden_norm|{QKV}", emitted, None

    return passes


def of_parallel(lens: Any, drafted: Any, emitted: Any) -> Iterator[Fed]:
    """The passes of P-EAGLE."""
    layer, masked = rf"{INNER}|hidden_norm|^norm", (drafted - 1).clip(0)
    yield "lm_head", drafted, None
    yield layer, masked, lens - 1 + masked
    yield r"fc\.", emitted, None
    yield layer, emitted, lens - 1 + emitted


def of_medusa(lens: Any, drafted: Any, emitted: Any) -> Iterator[Fed]:
    for i in range(max(drafted)):
        yield rf"{i}\.\d\.", drafted > i, None


MTP = of_chain("nothing", rf"{INNER}|input_proj|layernorm", "lm_head")
BLOCKS = rf"{INNER}|^norm"
# of each form, by the names that its producer gives to tensors
PASSES = {
    "eagle3, reduced vocabulary": of_chain(r"fc\.", rf"{INNER}|hidden_norm|^norm", "lm_head"),
    "eagle3, norms of states, two layers": of_chain(
        r"fc\.|fc_norm", rf"{INNER}|hidden_norm|^norm", "lm_head"
    ),
    "eagle": of_chain("nothing", rf"{INNER}|fc\.", "lm_head"),
    "mtp of speculators": MTP,
    "FasterDecoding": of_medusa,
    "z-lab": of_block(BLOCKS, 1),
    "DeepSpec, DSpark": of_block(BLOCKS, 0, ("markov_w2", "confidence")),
    "DeepSpec, gated": of_block(BLOCKS, 0, (r"markov_w2|markov_head\.gate_proj",)),
    "P-EAGLE": of_parallel,
}


@pytest.mark.parametrize("form", PASSES)
def test_a_heads_bytes_and_flops_are_those_of_its_passes(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a count of the stored tensors; where a head has no matrix of logits, of the target's. Of
    prompts that a step feeds, the products of the target's layers.
    """
    monkeypatch.setattr("bass.engine.prefill.SEGMENT", 2)
    module, method = (
        (heads, heads.Headed) if form in heads.FORMS else (block_heads, block_heads.WithHead)
    )
    target, requests = WORLD.models["target"], mixed_requests(WORLD, count=6, longest=12)
    tensors = dict(module.published(form, WORLD.vocab, 32).tensors)
    tensors.setdefault("lm_head.weight", target.head.weight)  # type: ignore[union-attr]
    for name, x in tensors.items():  # which all heads share in the file
        if found := re.search(r"([qk])_norm", name):
            tensors[name] = x.tile((heads.HEADS if found[1] == "q" else heads.KV_HEADS,))
    layers = len({name.split("self_attn")[0] for name in tensors if "q_proj" in name})
    setup = Setup(WORLD, torch.device("cpu"), policy=ByRow(4), drafter=By(method(form)), batch=3)
    run, done = setup.engine(requests), [0] * len(requests)
    object.__setattr__(run.step, "shapes", StepShapes(segments=(2,)))
    outcome, in_layers = RunOutput(replace(run)), sum(x.numel() for x in target.blocks.parameters())
    own, all_drafted, all_fed = pass_cost(target), 0, 0
    for step in outcome.steps:
        active = step.requests >= 0
        lens = np.array([len(requests[r].prompt) + done[r] for r in step.requests])
        moved, flops, kv = 0, 2 * step.fed * in_layers, 2 * layers * heads.KV_HEADS * heads.DIM * 4
        drafted, emitted = step.drafted * active, step.emitted * active
        for names, tokens, seen in PASSES[form](lens, drafted, emitted):
            used = [x for name, x in tensors.items() if re.search(names, name)]
            if count := int((tokens * active).sum()):
                moved += sum(4 * x.numel() for x in used)
                flops += 2 * count * sum(x.numel() for x in used if x.ndim > 1)
                moved += 0 if seen is None else kv * int((seen * active * (tokens > 0)).sum())
        for row in np.flatnonzero(active):
            done[step.requests[row]] += int(emitted[row])
        whole = own.work(drafted + 1, lens + drafted, active)
        assert (step.work.bytes, step.work.flops) == (whole.bytes + moved, whole.flops + flops)
        all_drafted, all_fed = all_drafted + int(drafted.sum()), all_fed + step.fed
    assert all_drafted > 20
    assert all_fed > 5
