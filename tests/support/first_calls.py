"""What calls compile and capture after a load: run in a process of its own, since compiled kernels
live as long as a process.

    python -m support.first_calls [--target FOLDER --draft FOLDER --load_format dummy]
        [--policy bass] [--batch 8] [--cuda_graphs auto]
"""

import argparse
import json
import random
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import knobs

import bass

LENGTHS = (1, 2, 3, 5, 9, 16, 17, 31, 33, 48, 64, 65, 90, 128, 129, 200, 256, 300, 450, 513, 700)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 1.0, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2, "min_new_tokens": 4},
    {"num_return_sequences": 3, "stop_token_ids": [7, 11]},
)


@contextmanager
def compiled(names: list[str]) -> Iterator[None]:
    """Within it, `names` gets the name and the constants of each kernel that is compiled."""

    def note(*, repr: str, **_: Any) -> None:
        names.append(repr)

    runtime: Any = knobs.runtime
    before, runtime.jit_cache_hook = runtime.jit_cache_hook, note
    try:
        yield
    finally:
        runtime.jit_cache_hook = before


def calls(batch: int, most: int, seed: int = 0) -> Iterator[tuple[list[list[int]], dict[str, Any]]]:
    """Prompts of mixed lengths below `most`, also more than rows and equal ones, with options."""
    draws = random.Random(seed)
    lengths = [length for length in LENGTHS if length < most - 24]
    for length in lengths:
        yield [[draws.randrange(1, 200) for _ in range(length)]], {"max_new_tokens": 3}
    for turn, options in enumerate(OPTIONS * 3):
        count = (batch, 2 * batch + 3, max(1, batch // 2))[turn // len(OPTIONS)]
        prompts = [
            [draws.randrange(1, 200) for _ in range(draws.choice(lengths))] for _ in range(count)
        ]
        least = options.get("min_new_tokens", 1)
        yield prompts, options | {"max_new_tokens": [least + (5 * i) % 23 for i in range(count)]}


def main() -> None:
    """Load, call, and print what was compiled and captured as one line of JSON."""
    parser = argparse.ArgumentParser()
    for name, value in (
        ("target", None), ("draft", None), ("load_format", "auto"), ("policy", "bass"),
        ("max_model_len", None), ("quantization", None), ("batch", 8), ("cache", "auto"),
    ):  # fmt: skip
        number = name in ("batch", "max_model_len")
        parser.add_argument(f"--{name}", default=value, type=int if number else str)
    options = vars(parser.parse_args())
    batch, at_load, later = options.pop("batch"), list[str](), list[str]()
    start, captures, slowest = time.perf_counter(), 0.0, 0.0
    tokens: list[list[int]] = []
    with compiled(at_load):
        llm = bass.load(device="cuda", max_batch_size=batch, **options)
    loading = time.perf_counter() - start
    with compiled(later):
        for seed, (prompts, more) in enumerate(calls(batch, llm.max_model_len)):
            result = llm.generate(prompts, seed=seed, ignore_eos=True, **more)
            tokens += [one.token_ids for one in result.completions]
            captures += result.stats.capture_seconds
            slowest = max(slowest, *(step.seconds for step in result.trace[1:]), 0.0)
    print(
        json.dumps(
            {"at load": len(at_load), "load_seconds": loading, "compiled": later,
             "capture_seconds": captures, "slowest_step": slowest,
             "tokens": zlib.crc32(json.dumps(tokens).encode())}
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
