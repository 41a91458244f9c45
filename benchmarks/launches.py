"""What separates dependent products: a launch that prefetches, or a barrier of a persistent kernel?

    python benchmarks/launches.py [--links 100] [--repeats 7]

A chain of products of one row with matrices of 1,024 rows, each with the result of the one before,
in a CUDA graph. Once every product is a kernel that loads its weights before it waits for the
previous kernel (programmatic dependent launch, compute capability 9); once all are one kernel, in
which each program loads its next weights before a barrier of the grid. Prints us of a product.
Needs a GPU.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import no_type_check

import command_line as cli
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS, EACH, WARPS = 1024, 8, 8  # rows of a matrix, of a program; warps of a program


@triton.jit
@no_type_check
def _link(w, x, y, K: tl.constexpr, N: tl.constexpr, EACH: tl.constexpr):
    n, k = tl.program_id(0) * EACH + tl.arange(0, EACH), tl.arange(0, K)
    tile = tl.load(w + n[:, None] * K + k[None, :])
    gdc_launch_dependents()
    gdc_wait()
    value = tl.load(x + k % N, cache_modifier=".cg")
    tl.store(y + n, tl.sum(tile.to(tl.float32) * value[None, :], 1) * 0.01)


@triton.jit
@no_type_check
def _chain(
    w, xs, arrived, links, K: tl.constexpr, N: tl.constexpr, EACH: tl.constexpr,
    BARRIERS: tl.constexpr,
):  # fmt: skip
    n, k = tl.program_id(0) * EACH + tl.arange(0, EACH), tl.arange(0, K)
    tile = tl.load(w + n[:, None] * K + k[None, :])
    for i in range(links):
        value = tl.load(xs + i * N + k % N, cache_modifier=".cg")
        tl.store(xs + (i + 1) * N + n, tl.sum(tile.to(tl.float32) * value[None, :], 1) * 0.01)
        after = tl.minimum(i + 1, links - 1).to(tl.int64)
        tile = tl.load(w + after * N * K + n[:, None] * K + k[None, :])
        if BARRIERS:
            tl.debug_barrier()
            tl.atomic_add(arrived, 1, sem="release", scope="gpu")
            while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < (i + 1) * N // EACH:
                pass
            tl.debug_barrier()


def microseconds(run: Callable[[], None], repeats: int) -> float:
    """The median time of a replay."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        run()
        with torch.cuda.graph(graph, stream=side):
            run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def measure(columns: int, links: int, repeats: int) -> str:
    """A line of the table."""
    w = torch.randn(links, ROWS, columns, device="cuda").bfloat16()
    xs = torch.randn(links + 1, ROWS, device="cuda")
    arrived = torch.zeros(1, dtype=torch.int32, device="cuda")
    programs = (ROWS // EACH,)

    def launches() -> None:
        for i in range(links):
            _link[programs](
                w[i], xs[i], xs[i + 1], columns, ROWS, EACH, num_warps=WARPS, launch_pdl=True
            )

    def persistent(barriers: bool) -> None:
        arrived.zero_()
        _chain[programs](w, xs, arrived, links, columns, ROWS, EACH, barriers, num_warps=WARPS)

    by_launches = microseconds(launches, repeats)
    result = xs[-1].clone()
    by_barriers = microseconds(lambda: persistent(True), repeats)
    assert torch.equal(result, xs[-1])
    without = microseconds(lambda: persistent(False), repeats)
    return (
        f"{ROWS * columns * 2 / 1e6:6.1f} MB   launches {by_launches / links:5.2f}   persistent "
        f"{by_barriers / links:5.2f}   without barriers {without / links:5.2f} us"
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--links", type=cli.positive, default=100)
    parser.add_argument("--repeats", type=cli.positive, default=7)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    args = parse(argv)
    if not (torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9):
        raise SystemExit("This needs a GPU of compute capability 9: there is none here.")
    print(torch.cuda.get_device_name())
    for columns in (256, 1024, 2048, 4096):
        print(measure(columns, args.links, args.repeats), flush=True)


if __name__ == "__main__":
    cli.run(main)
