"""What each layout takes, in the bytes of allocated tensors."""

import numpy as np
import pytest
import torch

from bass.caches import CACHES
from bass.caches.paged import BLOCK
from bass.engine.schedule import room_for
from bass.records import AttentionRule, CacheBudget, DecoderShape
from bass.testing.small_models import tensors_of
from support.engines import same_prompt

CPU = torch.device("cpu")
SHAPE = DecoderShape(
    vocab_size=5,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=2048,
    rules=(AttentionRule(1.0),) * 4,
)
POSITION = 2 * 4 * 2 * 16 * 2  # bytes: keys and values, layers, heads, dimensions, bfloat16
RAGGED = [
    [100, 1000],
    [100, 200, 300, 400, 500, 600, 800, 1000],
    [1000, 117, 101, 999, 450],
    [513] * 8,
    [1000],
]


def taken(name: str, budget: CacheBudget) -> int:
    """Bytes of the storages behind all of the cache's tensors, each of them once."""
    cache = CACHES[name].allocate(SHAPE, budget, CPU, torch.bfloat16)
    return sum(
        {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in tensors_of(vars(cache))
        }.values()
    )


@pytest.mark.parametrize("lengths", RAGGED, ids=str)
@pytest.mark.parametrize("name", [name for name in CACHES if name != "padded"])
def test_every_layout_but_the_padded_one_is_within_five_percent_of_what_ragged_rows_need(
    name: str, lengths: list[int]
) -> None:
    needs = sum(lengths) * POSITION
    assert needs <= taken(name, CacheBudget.of(np.array(lengths))) <= 1.05 * needs


@pytest.mark.parametrize("lengths", RAGGED, ids=str)
def test_the_padded_layout_takes_the_longest_for_every_row(lengths: list[int]) -> None:
    count, longest = len(lengths), max(lengths)
    assert (
        count * longest * POSITION
        <= taken("padded", CacheBudget.of(np.array(lengths)))
        <= count * (longest + 2) * POSITION
    )


@pytest.mark.parametrize(
    ("prompt", "new", "samples"),
    [(1000, 100, 8), (1000, 100, 1), (1025, 7, 8), (5, 100, 8), (2000, 40, 32)],
)
def test_samples_of_one_prompt_hold_it_once_in_the_paged_layout(
    prompt: int, new: int, samples: int
) -> None:
    """The prompt, and for each sample its new tokens and less than two blocks; the spare block, and
    the tables of eight bytes an entry.

    What a row shares are full blocks of all of the prompt but its last token; so its own blocks
    hold up to BLOCK prompt positions besides the new ones, and end in one that is filled in part.
    """
    size = taken("paged", room_for(same_prompt([1] * prompt, new, samples), samples))
    entries = -(-(prompt + new) // BLOCK)
    # block numbers, places to write, the rows' own index
    tables = 8 * samples * (2 * entries + 1 + 1)
    positions = (size - tables) / POSITION
    assert prompt + samples * new <= positions <= prompt + samples * (new + 2 * BLOCK - 1) + BLOCK
    alone = taken("split", room_for(same_prompt([1] * prompt, new, samples), samples))
    assert alone >= samples * (prompt + new) * POSITION
