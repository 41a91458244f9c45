"""The first steps of a warm-up, which compile the kernels that later prefills use."""

from collections.abc import Callable

from bass.api.generation import Generation

# Tokens of the prompts. Products and attention of other numbers of tokens use other kernels; the
# last one is fed in rows whose products are torch's.
LENGTHS = (2, 10, 25, 40, 100, 300)


def first_step(generation: Generation) -> None:
    """Take the first step of a generation, and end it."""
    try:
        next(iter(generation))
    finally:
        generation.close()


def prefill(stream: Callable[..., Generation], rows: int, different: int, most: int) -> None:
    """Prefill batches of `rows` prompts of each of the lengths below `most`, with tokens 0 to
    `different` - 1: equal rows are fed once.
    """
    for length in LENGTHS:
        if length < most:
            prompts = [[row % different] * length for row in range(rows)]
            first_step(stream(prompts, max_new_tokens=1, ignore_eos=True))
