"""How Hopper's products of few rows are cut into equal shares; the kernel is in `gemm.py`."""

import functools
from dataclasses import dataclass

TILE = 64  # rows of w: what one instruction multiplies
# bytes of a row of a tile per load; half as many for two tiles
BLOCK = 1024
LEAST_BLOCK = 256  # where there are blocks for less than a quarter of the multiprocessors
# bytes in flight of a program, or two blocks; with less memory is idle at times, with more the
# small kernels come late
ROOM = 150_000
EVEN = 0.95  # of all multiprocessors busy: enough not to cut tiles


@dataclass(frozen=True)
class ProductSchedule:
    """How a product is cut:

    `blocks` of a tile, of `width` numbers of each row, `stages` of them in flight; `pieces` of a
    tile at most.
    """

    block_rows: int  # of x, with those that are not there
    width: int
    blocks: int
    stages: int
    programs: int
    pieces: int


def rows_in_block(rows: int) -> int:
    """Rows of x with padding: a power of two, and at least 8, as the instructions require."""
    return max(8, 1 << (rows - 1).bit_length())


@functools.cache
def cut_for(
    n: int, k: int, rows: int, size: int, gated: bool, processors: int, whole: bool = False
) -> ProductSchedule:
    """How to cut a product of `rows` rows with a matrix of n rows (gated: twice n) of k numbers of
    `size` bytes. whole: no tile is divided into summands, as an activation function requires.
    """
    parts = 2 if gated else 1
    block, tiles = BLOCK // parts, -(-n // TILE)
    while block > LEAST_BLOCK and tiles * -(-k * size // block) < processors // 4:
        block //= 2
    width = block // size
    blocks = -(-k // width)
    stage, total = (parts * TILE + rows_in_block(rows)) * block, tiles * blocks
    splits = (1,) if gated or whole else (1, 2, 4, 8)
    even = [
        tiles * s for s in splits if EVEN * processors <= tiles * s <= processors and s <= blocks
    ]
    # no more than the largest share needs
    programs = even[0] if even else -(-total // -(-total // processors))
    # the program of a tile's first block, as below
    first = [((tile * blocks + 1) * programs - 1) // total for tile in range(tiles)]
    last = [((tile + 1) * blocks * programs - 1) // total for tile in range(tiles)]
    pieces = max(b - a + 1 for a, b in zip(first, last, strict=True))
    return ProductSchedule(
        rows_in_block(rows), width, blocks, max(2, ROOM // stage), programs, pieces
    )
