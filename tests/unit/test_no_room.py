"""Out of memory, wherever it happens, is a sentence; nothing that was allocated stays; what is
smaller still runs. By fakes, on a CPU.
"""

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import bass
from bass.caches import PaddedCache
from bass.errors import RequestError, is_out_of_memory
from bass.interfaces import Verifier
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
    found = llm.generate([3, 4, 5], num_return_sequences=2, max_new_tokens=10, ignore_eos=True)
    assert len(found.completions[0].token_ids) == 10


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
