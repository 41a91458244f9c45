"""Out of memory, wherever it happens, is a sentence; nothing that was allocated stays; what is
smaller still runs. By fakes, on a CPU.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import bass
from bass.caches import PaddedCache
from bass.checkpoints.weights import CheckpointIndex
from bass.cli import main
from bass.errors import CheckpointError, RequestError, is_out_of_memory
from bass.interfaces import Verifier
from bass.models.decoder import CausalDecoder
from bass.records import CacheBudget, DecoderShape, Draft, Noise, Verdict
from bass.verifiers import Rejection
from unit.checkpoints import Pair

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.20 GiB is free. Including "
    "non-PyTorch memory, this process has 77.9 GiB memory in use. Of the allocated memory ..."
)
TOLD = (
    r"\(CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    r"of which 1.20 GiB is free\)"
)


def full() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(SAID)


@final
@dataclass(frozen=True)
class Greedy(Verifier):
    """Rejection sampling that has no room for more than `most` rows, and leaves tensors behind in
    its frame when it fails.
    """

    lossless: ClassVar[bool] = True
    most: int = 2
    kept: list[weakref.ref[Tensor]] = field(default_factory=list)

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        buffer = torch.empty(1000)
        if len(target_probs) > self.most:
            self.kept.append(weakref.ref(buffer))
            raise full()
        return Rejection()(draft, target_probs, noise)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (full(), True),
        (MemoryError(), True),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 "
                "bytes"
            ),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            True,
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("Expected all tensors to be on the same memory format"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
    ids=str,
)
def test_no_room_is_told_from_other_errors(error: Exception | None, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_an_error_that_came_of_there_being_no_room_is_one_too() -> None:
    def capture() -> None:
        try:
            raise full()
        finally:
            # as the end of a capture says
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as caught:
        capture()
    assert is_out_of_memory(caught.value)


def test_a_step_without_room_says_what_to_lower_and_smaller_requests_go_on(pair: Pair) -> None:
    verifier = Greedy()
    llm = bass.load(
        pair.target, pair.draft, verifier=verifier, device="cpu", num_speculative_tokens=3
    )
    said = (
        r"A pass of 4 rows of up to 13 positions, with up to 3 drafted .* "
        + TOLD
        + ": lower `max_batch_size`"
    )
    with pytest.raises(RequestError, match=said) as caught:
        llm.generate([3, 4, 5], num_return_sequences=4, max_new_tokens=10)
    gc.collect()
    assert verifier.kept[0]() is None, "the error keeps what had been allocated"
    assert caught.value.__cause__ is not None
    assert (
        len(
            llm.generate([3, 4, 5], num_return_sequences=2, max_new_tokens=10, ignore_eos=True)
            .completions[0]
            .token_ids
        )
        == 10
    )


def test_a_cache_without_room_says_how_much_was_needed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = bass.load(pair.target, pair.draft, device="cpu")
    allocate = PaddedCache.allocate

    def limited(shape: DecoderShape, budget: CacheBudget, *rest: Any) -> PaddedCache:
        if budget.batch > 2:
            raise full()
        return allocate(shape, budget, *rest)

    monkeypatch.setattr(PaddedCache, "allocate", limited)
    said = (
        r"4 rows of 13 positions need \d+\.\d GB for keys and values .* "
        + TOLD
        + ": lower `max_batch_size`"
    )
    with pytest.raises(RequestError, match=said):
        llm.generate([3, 4, 5], num_return_sequences=4, max_new_tokens=10)
    assert llm.generate([3, 4, 5], num_return_sequences=2, max_new_tokens=10).completions


@pytest.mark.parametrize("at", ["made", "filled"])
def test_a_model_without_room_says_how_much_it_needs(
    at: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise full()

    where: tuple[Any, str] = (
        (CausalDecoder, "__init__") if at == "made" else (CheckpointIndex, "_fill")
    )
    made = where[0].__dict__[where[1]]

    def on_the_meta_device(self: Any, config: Any, device: Any, *rest: Any) -> None:
        return made(self, config, device, *rest) if torch.device(device).type == "meta" else fails()

    monkeypatch.setattr(*where, on_the_meta_device if at == "made" else fails)
    said = (
        r"needs 0\.0 GB in float32 on cpu, and there is not enough memory "
        + TOLD
        + ": choose a smaller `dtype`"
    )
    with pytest.raises(CheckpointError, match=said):
        bass.load(pair.target, pair.draft, device="cpu")


def test_a_drafts_head_without_room_says_what_to_choose(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise full()

    monkeypatch.setattr("bass.api.loading.quantize_head", fails)
    said = (
        r"needs 0\.0 GB on cpu with its head quantized, and more while it loads; there is not "
        r"enough memory " + TOLD + ": choose a smaller draft"
    )
    with pytest.raises(CheckpointError, match=said):
        bass.load(pair.target, pair.draft, device="cpu", quantization="int8")


def test_the_command_line_prints_a_sentence_whatever_has_no_room(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Callable[..., Any]:
        raise full()

    monkeypatch.setattr("bass.api.llm.serve", fails)
    assert main(["generate", "x", "--target", str(pair.target), "--draft", str(pair.draft)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bass: Out of memory (CUDA out of memory.")
    assert said.count("\n") == 1
