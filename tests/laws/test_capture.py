"""Between the lengths and the verdict the host is not needed: the whole step is one CUDA graph, and
its replay is the step.
"""

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bass
from bass.attention import SDPA
from bass.caches import CACHES, PaddedCache
from bass.drafters import Ensemble, ModelDraft, ModelDrafter, Ngram, Replay, SelfDraft, Suffix
from bass.engine.assembly import own_draw
from bass.engine.cost import NO_WORK
from bass.engine.graphs import GraphedStep
from bass.engine.prefill import FED_SEGMENTS, SEGMENTS
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShape
from bass.engine.step import SpeculativeStep
from bass.engine.step_times import StepTimes
from bass.errors import BassError, CheckpointError, RequestError
from bass.interfaces import DraftTrim, Verifier
from bass.models.llama import Llama, LlamaConfig
from bass.policies import Auto, Fixed
from bass.records import CacheBudget, Sequences
from bass.sampling import RowSampling
from bass.sampling_params import Sampling
from bass.testing.doubles import OwnPast
from bass.testing.small_models import SmallLlama
from bass.trims import Survival, Tetris, Threshold
from bass.verifiers import VERIFIERS
from support.doubles import Cycle, Scripted, Turns
from support.engines import DRAFTER_MAKERS, EVERY_PAIRING, Setup, mixed_requests
from support.heads import eagle
from unit.checkpoints import write_checkpoint

pytestmark = pytest.mark.gpu
BATCH, SPAN, K, STEPS = 3, 64, 3, 6
NUMBERS = ("drafted", "trimmed")
MEASURED = StepTimes.measured  # other tests take a formula


def random_model(seed: int, device: torch.device) -> Llama:
    model = Llama(
        LlamaConfig(53, 32, 48, 2, 4, 2, 8, max_position_embeddings=SPAN, tie_word_embeddings=True),
        device,
    )
    for i, parameter in enumerate(model.parameters()):
        values = torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(100 * seed + i)
        )
        parameter.data.copy_(0.3 * values + (parameter.dim() == 1))
    return model.requires_grad_(False)


def fresh(
    device: torch.device, options: Sampling, verifier: Verifier
) -> tuple[SpeculativeStep, Sequences]:
    """A step over empty caches, and three rows with prompts of one token."""
    capacities = np.full(BATCH, SPAN)
    scorers = [
        ModelScorer(
            model,
            PaddedCache.allocate(model.shape, CacheBudget.of(capacities), device, torch.float32),
            SDPA(),
            BATCH,
        )
        for model in (random_model(1, device), random_model(2, device))
    ]
    sequences = Sequences.empty(BATCH, SPAN, [0], device)
    sequences.tokens[:, 0] = torch.arange(5, 5 + BATCH, device=device)
    sequences.lens.fill_(1)
    sequences.limits.fill_(SPAN)
    sequences.keys.copy_(torch.arange(BATCH, device=device))
    sequences.active.fill_(True)
    sequences.sampling.copy_(torch.tensor([options] * BATCH))
    warp = RowSampling()
    drafter = ModelDrafter(scorers[1], warp, own_draw)
    return SpeculativeStep(
        scorers[0], drafter, verifier, warp, scorers[0].decoder.shape.vocab_size
    ), sequences


@pytest.mark.parametrize(
    "warp",
    [Sampling(0.0), Sampling(1.0), Sampling(0.8, 20, 0.9, 0.01, 1.2)],
    ids=["greedy", "plain", "all warps"],
)
@pytest.mark.parametrize("verifier", VERIFIERS)
@torch.inference_mode()
def test_a_replayed_graph_of_the_step_gives_the_tokens_of_the_step(
    verifier: str, warp: Sampling
) -> None:
    device = torch.device("cuda")
    lengths = torch.tensor([K, 0, 2], device=device)
    step, eager = fresh(device, warp, VERIFIERS[verifier]())
    for _ in range(STEPS):
        step.on_device(eager, lengths, StepShape(K, SPAN))

    step, captured = fresh(device, warp, VERIFIERS[verifier]())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step.on_device(captured, lengths, StepShape(K, SPAN))  # the first step warms up
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.on_device(captured, lengths, StepShape(K, SPAN))
    for _ in range(STEPS - 1):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.lens, eager.lens)
    assert torch.equal(captured.tokens, eager.tokens)
    assert (eager.lens > 1).all()


DRAFTERS = {
    "model": "model",
    "ngram": "ngram",
    "suffix": Suffix(memory=2),
    "self": SelfDraft(1),
    "replay": Replay([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]]),
    "ensemble": Ensemble((Ngram(), SelfDraft(1), ModelDraft())),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_generating_with_graphs_gives_the_tokens_of_generating_without(
    drafter: str, cache: str, tmp_path: Path
) -> None:
    """More prompts than rows, mixed lengths, twice with one engine, then with options for which it
    has to make another one. A graph that feeds prompts has a row idle for one step more, so the
    work is compared where each request has a row at once, as is a drafter that reads other rows.
    """
    target = write_checkpoint(tmp_path / "target", None, 32, 3, 53, context=256)
    draft = (
        write_checkpoint(tmp_path / "draft", None, 16, 1, 53, context=256)
        if drafter in ("model", "ensemble")
        else None
    )
    rule = "confidence" if drafter not in ("ngram", "suffix", "replay") else None
    options = {
        "drafter": DRAFTERS[drafter],
        "cache": cache,
        "stop_rule": rule,
        "policy": OwnPast(),
        "max_batch_size": 10 if drafter == "suffix" else 3,
        "device": "cuda",
    }
    both = [
        bass.load(target, draft, cuda_graphs=graphs, dtype="float32", **options)
        for graphs in (True, False)
    ]
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], [9, 3], [2, 3, 8]]
    for count, request in (
        (5, {"temperature": 0}),
        (5, {"temperature": 0}),
        (1, {"temperature": 0}),
        (5, {"temperature": 1.0, "seed": 5}),
        (5, {"temperature": 1.0, "max_new_tokens": 90}),
        (1, {"temperature": 1.0, "max_new_tokens": 90}),
    ):
        options = {"max_new_tokens": 12, "num_return_sequences": 2} | request
        graphed, plain = (llm.generate(prompts[:count], **options) for llm in both)
        assert [c.token_ids for c in graphed.completions] == [
            c.token_ids for c in plain.completions
        ]
        assert all(c.token_ids for c in graphed.completions)
        # passes that no row needs are not counted
        ours, theirs = (sum((s.work for s in r.trace), NO_WORK) for r in (graphed, plain))
        assert ours == theirs or count > 1


@pytest.mark.parametrize("trim", [Threshold(), Survival(1.5, "confidence"), Tetris(1.5)], ids=str)
def test_a_trim_in_graphs_keeps_what_it_keeps_without(trim: DraftTrim, tmp_path: Path) -> None:
    """In later steps it reads the past of rows, which another request may have had before.

    Without end tokens: after one, a step that was launched ahead has an idle row, and another
    budget. A budget over all rows depends on when each begins, so each request has one at once.
    """
    models = [
        write_checkpoint(tmp_path / name, None, size, 2, 53, context=256)
        for name, size in (("target", 32), ("draft", 16))
    ]
    rows = 3 if trim.batch_invariant else 10
    options = {"trim": trim, "max_batch_size": rows, "device": "cuda", "dtype": "float32"}
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], [9, 3], [2, 3, 8]]
    for policy in (Fixed(4), OwnPast() if trim.batch_invariant else Cycle((4, 0, 2))):
        graphed, plain = (
            bass.load(*models, cuda_graphs=graphs, policy=policy, **options).generate(
                prompts,
                max_new_tokens=40,
                temperature=1.0,
                num_return_sequences=2,
                ignore_eos=True,
            )
            for graphs in (True, False)
        )
        for one, other in zip(graphed.completions, plain.completions, strict=True):
            assert one.token_ids == other.token_ids
        kept, taken = (sum(getattr(s, n).sum() for s in graphed.trace) for n in NUMBERS)
        assert kept > 0
        assert taken > 0
        assert [kept, taken] == [sum(getattr(s, n).sum() for s in plain.trace) for n in NUMBERS]


def test_steps_that_are_measured_leave_nothing_to_a_batch_wide_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a size measures them."""
    monkeypatch.setattr(StepTimes, "measured", MEASURED)
    monkeypatch.setenv("BASS_CACHE", str(tmp_path / "cache"))
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    options = {"drafter": Suffix(memory=2), "policy": Auto(max_length=4), "device": "cuda"}
    llm = bass.load(target, cuda_graphs=True, dtype="float32", max_batch_size=2, **options)
    request: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0, "ignore_eos": True}
    first, again = (llm.generate([[3, 1, 4], [9], [2, 6]], **request).trace for _ in range(2))
    assert [*(tmp_path / "cache").iterdir()]
    assert [s.drafted.tolist() for s in first] == [s.drafted.tolist() for s in again]


@torch.inference_mode()
def test_graphs_feed_a_draft_what_it_lacks_as_windows_do(tmp_path: Path) -> None:
    """After 1 to 200 steps without drafts, rows of mixed lengths; the target is its own draft, so
    that all of its tokens are accepted.
    """
    made = [write_checkpoint(tmp_path / name, None, 32, 2, 53, context=1024) for name in ("a", "b")]
    zeros = [0] * 200
    policy = Cycle((3, *zeros[:1], 2, *zeros[:5], 3, *zeros[:7], 3, *zeros[:45], 4, *zeros, 2))
    llm = bass.load(
        *made, policy=policy, cache="split", device="cuda", dtype="float32", max_batch_size=3
    )
    storage = llm._engines.storage
    assert storage is not None
    step = storage.engine(3).step
    assert isinstance(step, GraphedStep)
    assert step.prefills is not None
    [graphs], found = step.prefills.drafters, []
    captured = graphs.captured
    assert set(captured) == {*SEGMENTS}
    prompts = [[3, 1, 4] * 100, [9], [2, 6, 5, 3, 5], [7, 3]]
    request: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    for graphs.captured in (captured, {}):
        kept = storage._caches[1].k, storage._caches[1].v
        for tensor in kept:
            tensor.fill_(1e4)
        result = llm.generate(prompts, max_new_tokens=[400, 350, 60, 333], **request)
        catch_ups = [s for before, s in itertools.pairwise(result.trace) if s.k and not before.k]
        assert len(catch_ups) > 8
        assert all((s.accepted == s.drafted).all() for s in result.trace)
        tokens = [one.token_ids for one in result.completions]
        # the last slot is written and never read
        found.append((tokens, *(tensor[..., :-1, :, :].clone() for tensor in kept)))
    (tokens, *ours), (expected, *theirs) = found
    assert tokens == expected
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="a second GPU is asked for")
def test_graphs_are_made_on_the_rows_device_whichever_is_the_current_one(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    options = {"drafter": "ngram", "policy": OwnPast(), "cuda_graphs": True, "dtype": "float32"}
    first, second = (bass.load(target, device=device, **options) for device in ("cuda:0", "cuda:1"))
    ours, theirs = (
        llm.generate([[3, 1, 4], [9]], max_new_tokens=20, temperature=1.0).completions
        for llm in (first, second)
    )
    assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    assert torch.cuda.current_device() == 0


def test_a_drafter_that_reads_on_the_host_cannot_be_captured_and_says_so(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    with pytest.raises(
        BassError, match=r"cannot be captured as a CUDA graph .* give `cuda_graphs=False`"
    ):
        bass.load(
            target,
            drafter=Scripted({}, lambda *_: False, 53),
            num_speculative_tokens=2,
            device="cuda",
            cuda_graphs=True,
        )


def test_two_generations_at_once_have_engines_of_their_own(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 53, context=256)
    llm = bass.load(
        target, drafter="ngram", policy=OwnPast(), device="cuda", cuda_graphs=True, dtype="float32"
    )
    options = {"max_new_tokens": 20, "temperature": 1.0}
    alone = [
        llm.generate(prompt, **options).completions[0].token_ids for prompt in ([1, 2, 3], [4, 5])
    ]
    streams = [llm.stream(prompt, **options) for prompt in ([1, 2, 3], [4, 5])]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [stream.result().completions[0].token_ids for stream in streams] == alone


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_pair_by_kernels_generates_in_every_dtype(dtype: str, tmp_path: Path) -> None:
    """In float32 the tokens are those of torch on a CPU."""
    target, draft = (
        write_checkpoint(tmp_path / name, None, 32, layers, 53, context=256)
        for name, layers in (("a", 3), ("b", 2))
    )
    made = {
        device: bass.load(target, draft, device=device, dtype=dtype, policy=OwnPast())
        for device in ("cuda", "cpu")
    }
    results = {
        d: llm.generate([[3, 1, 4], [1, 5]], max_new_tokens=24, temperature=0).completions
        for d, llm in made.items()
    }
    assert all(c.finish_reason for c in results["cuda"])
    if dtype == "float32":
        assert [c.token_ids for c in results["cuda"]] == [c.token_ids for c in results["cpu"]]


@pytest.mark.parametrize("pairing", EVERY_PAIRING)
def test_the_laws_engines_are_captured_unless_something_reads_on_the_host(pairing: str) -> None:
    """With the switch on: all but what is named here would go through the laws without a graph and
    nobody would notice.
    """
    world = SmallLlama()
    for drafter in DRAFTER_MAKERS:
        step = (
            Setup(world, torch.device("cuda"), EVERY_PAIRING[pairing], drafter=drafter, graphs=True)
            .engine(mixed_requests(world))
            .step
        )
        reads = pairing.endswith("per-row") or drafter.startswith(
            ("always", "wrong now and then", "right and wrong")
        )
        assert isinstance(step, GraphedStep) != reads, drafter


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """A pair with a context for large caches, and a vocabulary for large buffers."""
    target = write_checkpoint(tmp_path / "target", None, 32, 2, 20000, context=32768)
    return target, write_checkpoint(tmp_path / "draft", None, 16, 1, 20000, context=32768)


def test_after_a_load_no_call_captures_anything(models: tuple[Path, Path]) -> None:
    """Whatever the prompts' number and lengths, limits, seeds, ends and sampling options."""
    options: dict[str, Any] = {
        "policy": OwnPast(),
        "device": "cuda",
        "max_batch_size": 3,
        "max_model_len": 1024,
    }
    llm = bass.load(*models, **options)
    storage = llm._engines.storage
    assert storage is not None
    sizes, lengths = (1, 2, 3), range(5)
    steps = [storage.engine(size).step for size in sizes]
    kinds = [(512, None, 0, 0), (1024, None, 0, 0)]
    feeding = [(1024, None, 0, segments) for segments in FED_SEGMENTS]
    for step in steps:  # requests wait for rows in the largest engine alone
        assert isinstance(step, GraphedStep)
        own = kinds + feeding * (step is steps[-1])
        assert set(step.captured) == {(k, *kind) for k, kind in itertools.product(lengths, own)}
        assert step.prefills is storage.prefills
        for graphs in storage.prefills.all:  # type: ignore[union-attr]
            assert set(graphs.captured) == {*SEGMENTS}
    alone = bass.load(*models, **options | {"cuda_graphs": False})
    calls: list[tuple[Any, dict[str, Any]]] = [
        ([3, 1, 4], {"num_return_sequences": 3, "temperature": 1.0}),
        ([3, 1, 4], {"temperature": 0, "stop_token_ids": [5, 6, 7]}),
        ([[5] * 600, [7, 3]], {"temperature": 0.4, "top_k": 9, "top_p": 0.8, "seed": 3}),
        ([[5, 6] * 200, [7, 3, 4] * 90, [8]], {"temperature": 1.0}),  # in several windows
        ([6, 2, 4] * 100, {"temperature": 1.0}),
        ([[3], [4], [5], [6, 2]], {"repetition_penalty": 1.2, "frequency_penalty": 0.3}),
        ([9] * 20, {"max_new_tokens": 1004, "min_p": 0.01, "min_new_tokens": 9}),
    ]
    for prompts, request in calls:
        request = {"max_new_tokens": 40, "ignore_eos": True} | request
        found, expected = (made.generate(prompts, **request) for made in (llm, alone))
        assert found.stats.capture_seconds == 0
        assert [c.token_ids for c in found.completions] == [
            c.token_ids for c in expected.completions
        ]
    assert steps == [llm._engines.storage.engine(size).step for size in sizes]  # type: ignore[union-attr]
    assert [len(step.captured) for step in steps] == [10, 10, 20]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("cache", "head"), [("split", False), ("split", True), ("paged", False)])
def test_requests_that_arrive_have_the_tokens_of_steps_without_graphs(
    models: tuple[Path, Path],
    cache: str,
    head: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are refilled while others run, long prompts are fed in chunks, each request has options
    and a longest draft of its own, and steps are launched ahead, some in packed windows; nothing is
    captured meanwhile.
    """
    monkeypatch.setattr("bass.engine.shapes.PACKED", (2, 4, 6))
    shared: dict[str, Any] = {
        "device": "cuda", "max_batch_size": 3, "max_model_len": 1024, "cache": cache,
    }  # fmt: skip
    if head:
        written = eagle(20000, 32, version=1, max_position_embeddings=1024)
        models = models[0], written.write(tmp_path / "head")
    random = np.random.default_rng(3)
    arrivals = [
        bass.Arrival(
            random.integers(0, 20000, size).tolist(),
            0.01 * (i % 4),
            {"seed": i, "max_draft_length": (None, 0, 2)[i % 3], "temperature": (0.0, 1.0)[i % 2]},
        )
        for i, size in enumerate((3, 700, 1, 40, 900, 300, 5, 620, 2, 90))
    ]
    arrivals.sort(key=lambda one: one.at)
    for policy in (OwnPast(), Fixed(3)):
        llm, alone = (
            bass.load(*models, policy=policy, dtype="float32", cuda_graphs=graphs, **shared)
            for graphs in (True, False)
        )
        options = {"max_new_tokens": 60, "ignore_eos": True}
        generation = llm.arriving(arrivals, options)
        result = generation.result()
        assert result.stats.capture_seconds == 0
        storage: Any = llm._engines.storage
        assert any(shape.packed for shape in storage.engine(3).step.captured)
        assert max((step.requests >= 0).sum() for step in result.trace) == 3
        assert sum(step.fed for step in result.trace) > 300
        futures = [llm.submit(one.prompt, **options, **one.options) for one in arrivals]
        for arrival, served, future in zip(arrivals, result.completions, futures, strict=True):
            [expected] = alone.generate([arrival.prompt], **options, **arrival.options).completions
            assert served.token_ids == expected.token_ids
            assert future.result(60).token_ids == expected.token_ids


def test_drafters_that_a_policy_chooses_have_graphs_of_their_own(models: tuple[Path, Path]) -> None:
    """What one lacks after steps of the other is fed; requests wait, and are fed by steps. With
    `coupled` a request has the same tokens whoever drafts.
    """
    prompts = [[3, 1, 4] * n for n in (1, 90, 7, 200, 30, 2, 60)]
    options: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True, "temperature": 1.0}
    policy = Turns(((0, 2), (1, 3), (1, 2), (0, 0), (1, 3), (0, 3)))
    found = list[Any]()
    for graphs, verifier in ((True, "coupled"), (False, "coupled")):
        llm = bass.load(
            *models, drafter="choice", policy=policy, verifier=verifier, cuda_graphs=graphs,
            device="cuda", dtype="float32", max_batch_size=3, max_model_len=1024,
        )  # fmt: skip
        found.append(llm.generate(prompts, **options))
        assert found[-1].stats.capture_seconds == 0
    graphed, eager = found
    assert [c.token_ids for c in graphed.completions] == [c.token_ids for c in eager.completions]
    assert {step.drafter for step in graphed.trace if step.k} == {0, 1}
    assert sum(step.fed for step in graphed.trace) > 100


def test_a_lazy_call_captures_before_its_first_token(models: tuple[Path, Path]) -> None:
    llm = bass.load(*models, policy=OwnPast(), device="cuda", cuda_graphs="lazy")
    request: dict[str, Any] = {"max_new_tokens": 400, "temperature": 1.0, "ignore_eos": True}
    cold = llm.generate([3, 1, 4], **request)
    assert cold.stats.capture_seconds > 0
    assert sum(s.seconds for s in cold.trace) <= cold.trace[-1].at < cold.stats.seconds + 1e-3
    assert llm.generate([3, 1, 4], **request).stats.capture_seconds == 0


def test_garbage_that_is_collected_meanwhile_ends_no_capture(models: tuple[Path, Path]) -> None:
    """An engine in a cycle, as a traceback holds it, whose graphs are freed by the collector."""
    request: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True}
    threshold = gc.get_threshold()
    try:
        for _ in range(3):
            held: list[Any] = [bass.load(*models, device="cuda", cuda_graphs="lazy")]
            held[0].generate([3, 1, 4], **request)
            held.append(held)
            gc.set_threshold(1)
            del held
    finally:
        gc.set_threshold(*threshold)


@pytest.fixture
def narrow() -> Iterator[Any]:
    """Leaves the process so many bytes more than it has in use, for the time of a test."""
    total = torch.cuda.get_device_properties(0).total_memory

    def leave(more: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    yield leave
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_without_room_for_the_weights_loading_says_so(tmp_path: Path, narrow: Any) -> None:
    big = write_checkpoint(tmp_path / "big", None, 512, 6, 20000, context=256)  # some 100 MB
    narrow(20 * 2**20)
    with pytest.raises(
        CheckpointError,
        match=(
            r"big` needs 0\.1 GB in float32 on cuda, and there is not enough memory \(CUDA out of "
            r"memory.*is free\):"
        ),
    ):
        bass.load(big, num_speculative_tokens=0, device="cuda")
    narrow(600 * 2**20)
    assert (
        bass.load(big, num_speculative_tokens=0, device="cuda")
        .generate([3, 1, 4], max_new_tokens=4)
        .completions
    )


def test_without_room_for_the_caches_a_request_says_so_and_a_smaller_one_is_served(
    models: tuple[Path, Path], narrow: Any
) -> None:
    llm = bass.load(
        *models, device="cuda", cuda_graphs="lazy", max_batch_size=256, num_speculative_tokens=2
    )
    small: dict[str, Any] = {"num_return_sequences": 2, "max_new_tokens": 20}
    before = llm.generate([3, 1, 4], **small).completions
    narrow(1000 * 2**20)
    # 256 rows of 32,503 positions: 1 key head of 16, two layers, keys and values, float32, are 2.1
    # GB for the target alone.
    with pytest.raises(
        RequestError,
        match=(
            r"256 rows of 32503 positions need \d\.\d GB for keys and values .*\): lower "
            r"`max_batch_size`"
        ),
    ):
        llm.generate([3, 1, 4], num_return_sequences=256, max_new_tokens=32500)
    assert [c.token_ids for c in llm.generate([3, 1, 4], **small).completions] == [
        c.token_ids for c in before
    ]


def test_without_room_for_a_graph_a_request_says_so_and_a_smaller_one_is_served(
    models: tuple[Path, Path], narrow: Any
) -> None:
    llm = bass.load(
        *models, device="cuda", cuda_graphs="lazy", max_batch_size=256, num_speculative_tokens=16
    )
    small: dict[str, Any] = {"num_return_sequences": 2, "max_new_tokens": 20}
    before = llm.generate([3, 1, 4], **small).completions
    narrow(600 * 2**20)
    # Caches of 256 rows of 256 positions are 25 MB; the target's logits, 256 x 17 x 20000 in
    # float32, are 350 MB, and are copied.
    large: dict[str, Any] = {"num_return_sequences": 256, "max_new_tokens": 30, "ignore_eos": True}
    with pytest.raises(
        RequestError,
        match=(
            r"A pass of 256 rows of up to 256 positions, with up to 16 drafted .*is free\): "
            r"lower `max_batch"
        ),
    ):
        llm.generate([3, 1, 4], **large)
    assert [c.token_ids for c in llm.generate([3, 1, 4], **small).completions] == [
        c.token_ids for c in before
    ]
    narrow(20000 * 2**20)
    assert len(llm.generate([3, 1, 4], **large).completions) == 256
