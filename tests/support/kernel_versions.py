"""The compiled versions of kernels that a warm-up and the prefills of any request launch, without a
GPU: `python -m support.kernel_versions [LAYOUT BATCH CAPACITY [FOLDER]]` prints them as JSON.

Triton compiles a kernel for each set of constants, types, and properties of integers and addresses.
Here every launch is noted by these and does nothing; the models are on the meta device. `missing`
are versions that a prefill or a catch-up of a drafter launches and that the warm-up does not.
"""

import json
import os
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.checkpoints.weights import dummy_index
from bass.engine.prefill import (
    CHUNK_TOKENS,
    caught_up_columns,
    equal_windows,
    prefill_window,
    segment_kinds,
)
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShapes, bucket, doubled
from bass.engine.warm_up import caught_up_shapes, prompt_shapes
from bass.kernels.hopper import attention, gemm, gemm_residual
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama
from bass.ops import dispatch
from bass.records import CacheBudget, Window

META, CUDA = torch.device("meta"), torch.device("cuda")
BACKEND = {"split": "ragged", "padded": "pad", "paged": "paged"}
PROCESSORS = 132
LLAMA = {
    "vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
Version = tuple[Any, ...]
launched: set[Version] = set()


def version(kernel: Any, arguments: dict[str, Any]) -> Version:
    """What Triton compiles a kernel for."""
    found: list[Any] = [kernel.fn.__name__]
    for one in kernel.params:
        value = arguments.pop(one.name)
        free = one.do_not_specialize
        if one.is_constexpr or value is None or isinstance(value, bool | float):
            found.append(str(value) if one.is_constexpr else type(value).__name__)
        elif isinstance(value, Tensor):
            aligned = value.storage_offset() * value.element_size() % 16 == 0
            free = free or one.do_not_specialize_on_alignment
            found.append((str(value.dtype), None if free else aligned))
        elif isinstance(value, int):
            kind = 1 if value == 1 else 16 if value % 16 == 0 else 0
            found.append((None if free else kind, abs(value) >= 1 << 31))
        else:  # a descriptor of a matrix
            found.append((str(value.layout), str(value.block_shape)))
    return (*found, str(sorted(arguments.items())))


def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In the place of a launch."""
    names = (one.name for one in kernel.params)
    launched.add(version(kernel, dict(zip(names, args, strict=False)) | kwargs))


def as_on_hopper() -> None:
    """Kernels are chosen as on an H200, and noted instead of launched."""
    JITFunction.run = note  # type: ignore[method-assign]
    dispatch.use_kernels = dispatch.hopper = lambda _: True
    for module in (attention, gemm, gemm_residual):
        module.multiprocessors = lambda _: PROCESSORS


def decoder_of(folder: Path | None) -> CausalDecoder:
    """A small Llama, or that of a folder's config with four layers."""
    if folder is None:
        return Llama(Llama.config_type.from_json(LLAMA), META, torch.bfloat16)
    known = dummy_index(folder, None).decoder
    made = type(known)(known.config, META, torch.bfloat16)  # pyright: ignore[reportCallIssue]
    made.blocks = torch.nn.ModuleList(list(made.blocks)[:4])
    return made


def lengths(capacity: int) -> list[int]:
    """Tokens of prompts that a prefill feeds: all short ones, and some of the others."""
    some = {*range(1, 20), *range(20, 70, 5), *range(70, 1100, 103), *range(1100, capacity, 391)}
    return sorted(one for one in {*some, capacity - 1} if one < capacity)


def needed(batch: int, capacity: int) -> set[tuple[int, int, int, int]]:
    """(rows, columns, span, first row) of the windows of prefills without graphs, as with a user's
    cache, and of catch-ups.
    """
    found = set[tuple[int, int, int, int]]()
    for rows in range(1, batch + 1):
        most = prefill_window(rows, CUDA)
        for tokens in lengths(capacity):
            size = equal_windows(tokens, most)
            for first in range(0, tokens, size):
                columns = min(first + size, tokens) - first
                for start in range(min(2, batch - rows + 1)):
                    found.add((rows, columns, bucket(first + columns, capacity), start))
        for before in range(1, capacity - CHUNK_TOKENS["cuda"], 61):  # in chunks
            for start in range(min(2, batch - rows + 1)):
                span = bucket(before + CHUNK_TOKENS["cuda"], capacity)
                found.add((rows, CHUNK_TOKENS["cuda"], span, start))
    for rows, start in product(range(1, batch + 1), range(2)):
        for lacking in (3, 5, 9, 17, 40, 100, 200, 300):
            columns = min(caught_up_columns(lacking, CUDA), 256)
            if rows + start <= batch:
                for span in StepShapes.of((0,), capacity, True).spans:
                    found.add((rows, columns, span, start))
    return found


def main(layout: str = "split", batch: str = "3", capacity: str = "1024", folder: str = "") -> None:
    """Print how many versions there are, and the missing ones by kernel."""
    rows, most = int(batch), int(capacity)
    as_on_hopper()
    decoder = decoder_of(Path(folder) if folder else None)
    budget = CacheBudget.of(np.full(rows, most))
    cache = CACHES[layout].allocate(decoder.shape, budget, META, torch.bfloat16)
    scorer = ModelScorer(decoder, cache, BACKENDS[BACKEND[layout]](), rows)

    def fill(rows: int, columns: int, span: int, start: int = 0) -> None:
        empty = torch.zeros(rows, columns, dtype=torch.int64, device=META)
        scorer.fill(Window(empty, empty, span, start))

    with torch.inference_mode():
        for prompts in segment_kinds(most, META):
            scorer.fill(prompts.window)
        for size in doubled(1, rows):
            for columns, span in (*prompt_shapes(size, most, CUDA), *caught_up_shapes(most)):
                fill(size, columns, span)
        warm = {*launched}
        launched.clear()
        for shape in needed(rows, most):
            fill(*shape)
    missing = Counter(one[0] for one in launched - warm)
    print(json.dumps({"warm": len(warm), "needed": len(launched), "missing": missing}))


if __name__ == "__main__":
    main(*sys.argv[1:])
