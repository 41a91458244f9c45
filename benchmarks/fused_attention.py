"""Attention of a window in one kernel on Hopper, in a chain of such kernels, by number of keys.

    python benchmarks/fused_attention.py [--keys 64 256 500] [--repeats 5]

Prints us of a launch of `bass.kernels.hopper.attention` in a CUDA graph, in which each launch waits
for the one before: what a layer waits for. The window's queries, keys and values are partial sums,
as products of these shapes leave them.
"""

import argparse

import command_line as cli
import torch
from launches import microseconds

from bass.kernels.hopper import attention
from bass.kernels.values import Norm

LAUNCHES, CAPACITY = 60, 600
KEYS = cli.integer(1, CAPACITY - 8)  # of a row, with room for the window
# key heads, queries of each, dimensions, partial sums, norms of heads, rows, tokens of the window
SHAPES = {
    "Qwen3-0.6B": (8, 2, 128, 2, True, 1, 1),
    "Qwen3-0.6B, batch 8": (8, 2, 128, 2, True, 8, 1),
    "Qwen2.5 0.5B": (2, 7, 64, 4, False, 1, 1),
    "Llama 3.2 1B": (8, 4, 64, 2, False, 1, 1),
    "Llama 3.1 8B, k = 4": (8, 4, 128, 2, False, 1, 5),
}


def measure(shape: tuple[int, int, int, int, bool, int, int], keys: int, repeats: int) -> float:
    """The time of a launch with this number of old keys in each row."""
    kv_heads, groups, dim, parts, norm, batch, queries = shape
    every = kv_heads * (groups + 2)
    window = torch.randn(parts, batch, queries, every, dim, device="cuda")
    k, v = torch.randn(2, batch * CAPACITY, kv_heads, dim, device="cuda").bfloat16()
    weight = torch.rand(kv_heads * (groups + 1) * dim, device="cuda").bfloat16()
    angles = torch.rand(2, CAPACITY, dim, device="cuda")
    starts = torch.arange(batch, device="cuda") * CAPACITY
    positions = (keys + torch.arange(queries, device="cuda")).expand(batch, -1).contiguous()
    kept = []

    def chain() -> None:
        for _ in range(LAUNCHES):
            normed = Norm(weight, 1e-6) if norm else None
            out = attention.ragged(
                window, normed, (angles[0], angles[1]), k, v, starts, positions, dim**-0.5, None,
                None,
            )  # fmt: skip
            kept.append(out)

    return microseconds(chain, repeats) / LAUNCHES


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--keys", type=KEYS, nargs="+", default=[64, 256, 500])
    parser.add_argument("--repeats", type=cli.positive, default=5)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    args = parse(argv)
    if not (torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9):
        raise SystemExit("This needs a GPU of compute capability 9: there is none here.")
    print(torch.cuda.get_device_name())
    for name, shape in SHAPES.items():
        times = (f"{keys}: {measure(shape, keys, args.repeats):5.2f}" for keys in args.keys)
        print(f"{name:24}", *times, "us", flush=True)


if __name__ == "__main__":
    cli.run(main)
