"""How attention is divided: splits of a row's keys, and the tiles in flight of a program."""

from dataclasses import dataclass

from bass.kernels.support import MOST_SHARED

PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
SPLIT_KEYS = 256  # with fewer keys per split, combining the splits costs more than it saves
WIDE, WIDE_SPLIT_KEYS = 256, 128  # dimensions of a head, and the same of these
LONGEST_SPLIT = 2048
MOST_SPLITS = 32
LEAST_ROWS = 16  # of a block: what a product of blocks wants
# Of a block at a time: most keys, their bytes, tiles in flight (keys and values each); see
# `in_flight`.
ALONE, SHARED, CROWDED = (128, 32768, 3), (64, 16384, 4), (128, 16384, 2)
# the same of a prefill, which has at least MANY_ROWS queries times heads of a group
PREFILL, MANY_ROWS = (128, 32768, 3), 512
MOST_TILES = 65536  # of queries, heads and rows that share their keys
# of a block, by the bytes of a number: what fits in registers at 256 dimensions of a head
MOST_ROWS = {2: 64, 4: 32, 8: 16}
# bytes of shared memory next to the keys and values in flight: queries, scores, exchange
SCRATCH = 48 * 1024


@dataclass(frozen=True)
class AttentionSchedule:
    """Blocks of `rows` queries; `keys` keys at a time, `stages` of these in flight, by `warps`
    warps; a row's keys in `splits`. many: a prefill.
    """

    rows: int
    keys: int
    stages: int
    warps: int
    splits: int
    many: bool


def power_of_2(size: int) -> int:
    """The next power of two, at least `LEAST_ROWS`."""
    return max(LEAST_ROWS, 1 << (size - 1).bit_length())


def cut_for(
    queries: int, span: int, dim: int, size: int, heads: int, shared: int, splits: int | None
) -> AttentionSchedule:
    """How to cut the attention of `queries` queries times heads of a group over up to `span` keys
    of `dim` numbers of `size` bytes.

    heads: those of keys, times the rows of a launch. shared: bytes of a multiprocessor. splits:
    None for what fills the GPU.
    """
    width, rows, many = power_of_2(dim), min(power_of_2(queries), MOST_ROWS[size]), False
    if queries >= MANY_ROWS:
        many = True
        rows *= 2 if size == 2 and width <= 128 else 1
    programs = -(-queries // rows) * heads
    if splits is None:
        longest = span if not many else LONGEST_SPLIT  # its queries fill the GPU
        least = WIDE_SPLIT_KEYS if width >= WIDE else SPLIT_KEYS
        splits = splits_for(programs, min(span, longest), least) if programs <= MOST_TILES else 1
    queue = PREFILL if many else in_flight(programs * splits, rows, shared)
    most_keys, tile_bytes, stages = queue
    keys = min(most_keys, max(16, tile_bytes // (width * size)))
    while keys > 16 and 2 * keys * width * size > shared - SCRATCH:  # two stages do not fit
        keys //= 2
    stages = max(2, min(stages, 1 + (shared - SCRATCH) // (2 * keys * width * size)))
    alone = queue == ALONE and not many
    large = rows > 64 or (alone and (rows == 32 or width >= WIDE))
    return AttentionSchedule(rows, keys, stages, 8 if large else 4, splits, many)


def splits_for(programs: int, keys: int, least: int = SPLIT_KEYS) -> int:
    """The number of splits of `keys` keys, of at least `least` each, for `programs` programs
    without splits.

    Enough splits to fill the GPU, also for one long row among short ones.
    """
    return max(
        1,
        min(
            max(PROGRAMS // programs, -(-keys // LONGEST_SPLIT)),
            -(-keys // least),
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
