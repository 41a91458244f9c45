"""How attention is divided: splits of a row's keys, and what is in flight of a program."""

from bass.kernels.support import MOST_SHARED

PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
SPLIT_KEYS = 256  # a split of fewer keys costs more when splits are put together than it saves
LONGEST_SPLIT = 2048
MOST_SPLITS = 32
LEAST_ROWS = 16  # of a block: what a product of blocks wants
# Of a block at a time: most keys, their bytes, tiles in flight (keys and values each); see
# `in_flight`.
ALONE, SHARED, CROWDED = (128, 32768, 3), (64, 16384, 4), (128, 16384, 2)


def splits_for(programs: int, keys: int) -> int:
    """Into how many splits to divide `keys` keys, when there are `programs` programs without
    splitting.

    Enough to fill the chip, and for one long row among short ones to be shared out.
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

    A multiprocessor that has one program holds its memory busy by large tiles. Where it has
    several, they do that for each other; where it has more than two of few queries, as many as
    possible are to fit on it together.
    """
    if rows <= 32 and programs <= PROGRAMS and shared == MOST_SHARED:
        return ALONE
    return CROWDED if rows == LEAST_ROWS and programs > 2 * PROGRAMS else SHARED
