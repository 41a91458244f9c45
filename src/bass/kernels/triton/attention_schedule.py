"""How attention is divided: splits of a row's keys, and the tiles in flight of a program."""

from bass.kernels.support import MOST_SHARED

PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
SPLIT_KEYS = 256  # with fewer keys per split, combining the splits costs more than it saves
LONGEST_SPLIT = 2048
MOST_SPLITS = 32
LEAST_ROWS = 16  # of a block: what a product of blocks wants
# Of a block at a time: most keys, their bytes, tiles in flight (keys and values each); see
# `in_flight`.
ALONE, SHARED, CROWDED = (128, 32768, 3), (64, 16384, 4), (128, 16384, 2)


def splits_for(programs: int, keys: int) -> int:
    """The number of splits of `keys` keys, for `programs` programs without splits.

    Enough splits to fill the GPU, also for one long row among short ones.
    """
    return max(
        1,
        min(
            max(PROGRAMS // programs, -(-keys // LONGEST_SPLIT)),
            -(-keys // SPLIT_KEYS),
            MOST_SPLITS,
        ),
    )


def in_flight(programs: int, rows: int, shared: int) -> tuple[int, int, int]:
    """ALONE, SHARED or CROWDED, for blocks of `rows` queries on multiprocessors of `shared` bytes
    of memory.

    A single program on a multiprocessor needs large tiles to keep the memory busy. Several programs
    do that together; with more than two programs of few queries, the most possible should fit.
    """
    if rows <= 32 and programs <= PROGRAMS and shared == MOST_SHARED:
        return ALONE
    return CROWDED if rows == LEAST_ROWS and programs > 2 * PROGRAMS else SHARED
