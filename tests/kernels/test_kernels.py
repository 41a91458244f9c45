"""Tier 3: every kernel equals its twin in plain torch and float64; interpreted on a CPU, compiled
on a GPU.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bass.kernels.triton import attention as schedule
from kernels.layouts import EXACT, LAYOUTS, Problem, Rule
from support.matrix import night

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
RULES: tuple[Rule, ...] = (
    (0.3, None, None),
    (0.4, 3, None),
    (0.5, None, 1.5),
    (0.2, 20, 30.0),
    (1.0, 1, 0.5),
)
# Positions of the queries, key heads, query heads of each, head dimension, rule, splits.
SHAPES = {
    "one query each": ([[17], [0], [5]], 2, 1, 8, RULES[0], 1),
    "a verify window": ([[5, 6, 7, 8], [69, 70, 71, -1]], 1, 3, 20, RULES[0], 2),
    "more splits than keys": ([[0, 1, -1], [3, 4, 5]], 1, 2, 5, RULES[2], 7),
    "a window over several blocks": ([[150], [60]], 1, 1, 128, RULES[3], 3),
    "a window of one": ([[9, 4, 70]], 2, 2, 48, RULES[4], 2),
    "an empty row": ([[-1, -1], [66, 67], [-1, -1]], 1, 1, 16, RULES[1], 2),
    "33 queries": ([list(range(40, 73))], 1, 2, 12, RULES[1], 2),
    "splits of whole tiles": ([[300, 299], [129, 128]], 1, 2, 8, RULES[0], 3),
    "33 queries that see two small tiles": ([list(range(60, 93))], 1, 2, 12, RULES[0], 2),
    "scores that differ by hundreds": ([[5, 70], [150, 151]], 1, 2, 16, (40.0, None, None), 3),
    "in no order": ([[9, 2, 31, -1, 9], [-1, 30, 0, 7, 7]], 1, 4, 7, RULES[0], 1),
}


def assert_equal(out: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_equal_their_twins(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    places, kv_heads, groups, dim, rule, splits = SHAPES[shape]
    problem = Problem.draw(places, kv_heads, groups, dim, dtype, device)
    for layout in LAYOUTS:
        out = problem.kernel(layout, rule, splits)
        assert out.dtype == dtype
        assert_equal(out, problem.twin(layout, rule))
        assert not out[problem.positions < 0].any()
        if layout != "split":  # a launch for each row
            assert_equal(problem.packed(layout, rule, splits), out)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [None, 3])
def test_a_sink_takes_a_share_of_the_softmax(
    splits: int, window: int | None, device: torch.device
) -> None:
    places = [[140, 141], [-1, 2], [-1, -1]]
    problem = Problem.draw(places, 2, 2, 16, torch.float32, device)
    sinks = torch.tensor([-3.0, 0.0, 2.0, 60.0], device=device)
    for layout in LAYOUTS:
        rule: Rule = (0.4, window, None, sinks)
        out = problem.kernel(layout, rule, splits)
        assert_equal(out, problem.twin(layout, rule))
        if layout != "split":
            assert_equal(problem.packed(layout, rule, splits), out)
        without = problem.twin(layout, rule[:3])
        assert out[0, :, 3].abs().max() < 1e-6 < without[0, :, 3].abs().max()
        assert not out[problem.positions < 0].any()


@pytest.mark.parametrize(
    ("processors", "queue"), [(132, schedule.ALONE), (3, schedule.SHARED), (2, schedule.CROWDED)]
)
def test_what_is_in_flight_hangs_on_how_many_programs_share_a_multiprocessor_and_changes_nothing(
    processors: int,
    queue: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
) -> None:
    monkeypatch.setattr(schedule, "PROGRAMS", processors)
    assert schedule.in_flight(6, 16, schedule.MOST_SHARED) == queue
    assert schedule.in_flight(7, 64, schedule.MOST_SHARED) == schedule.SHARED
    # 6 programs; tiles of 64 keys or of 128
    problem = Problem.draw([[140, 141], [8, -1], [-1, -1]], 2, 1, 64, torch.float16, device)
    asked, choose = [], schedule.in_flight
    monkeypatch.setattr(
        schedule, "in_flight", lambda *given: asked.append(given[:2]) or choose(*given)
    )
    for layout in LAYOUTS:
        assert_equal(problem.kernel(layout, RULES[0], 1), problem.twin(layout, RULES[0]))
        problem.kernel(layout, RULES[0], 3)
    assert set(asked) >= {(6, 16), (18, 16)}


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kernel_equals_its_twin_for_queries_anywhere(
    layout: str, data: st.DataObject, device: torch.device
) -> None:
    batch, window = data.draw(st.integers(1, 3)), data.draw(st.sampled_from((1, 2, 5, 9)))
    places = data.draw(
        st.lists(
            st.lists(st.integers(-1, 90), min_size=window, max_size=window),
            min_size=batch,
            max_size=batch,
        )
    )
    heads = data.draw(st.sampled_from(((1, 1), (2, 1), (1, 3))))
    dtype, rule = (
        data.draw(st.sampled_from(sorted(TOLERANCE, key=str))),
        data.draw(st.sampled_from(RULES)),
    )
    problem = Problem.draw(
        places, *heads, data.draw(st.integers(1, 40)), dtype, device, data.draw(st.integers(0, 99))
    )
    assert_equal(
        problem.kernel(layout, rule, data.draw(st.integers(1, 4))), problem.twin(layout, rule)
    )


@pytest.mark.parametrize("rule", [RULES[0], (0.2, 150, None), night((0.2, 500, 30.0))])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_prefill_window_equals_the_twin(
    layout: str, rule: Rule, device: torch.device
) -> None:
    """In which most keys are visible to all queries of a block, and are not masked."""
    places = [list(range(10, 266)), [*range(200), *[-1] * 56]]
    problem = Problem.draw(places, 1, 2, 16, torch.float16, device)
    assert schedule.cut_for(512, 266, 16, 2, 2, schedule.MOST_SHARED, None).many
    assert_equal(problem.kernel(layout, rule), problem.twin(layout, rule))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_lies_above_the_visible_positions_changes_no_bit(
    layout: str, splits: int, device: torch.device
) -> None:
    problem = Problem.draw([[70, 71, 72], [8, 9, -1], [-1, -1, -1]], 1, 2, 8, torch.float32, device)
    clean = problem.kernel(layout, RULES[0], splits, poison=0.0)
    for poison in (1e4, -3e3):
        assert torch.equal(problem.kernel(layout, RULES[0], splits, poison), clean)


@pytest.mark.parametrize("layout", EXACT)
def test_a_kernel_for_rows_of_any_length_reads_nothing_but_what_some_query_sees(
    layout: str, device: torch.device
) -> None:
    """All other numbers are not numbers: those above, of other rows, outside the storage, and those
    that left the window.
    """
    problem = Problem.draw([[70, 72], [9, -1], [-1, -1]], 1, 2, 8, torch.float32, device)
    problem.k[0, :60], problem.v[0, :60] = torch.nan, torch.nan
    out = problem.kernel(layout, (0.3, 11, None), 2, torch.nan)
    assert out.isfinite().all()
    problem.k[0, :60], problem.v[0, :60] = 0, 0
    assert_equal(out, problem.twin(layout, (0.3, 11, None)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_alone_and_among_others_gives_the_same_bits(
    layout: str, device: torch.device
) -> None:
    """With the same number of splits; without it, sums may round otherwise."""
    together = Problem.draw([[70, 71], [8, 9], [40, -1]], 2, 1, 8, torch.float32, device)
    out = together.kernel(layout, RULES[0], 2)
    for b in range(3):
        one = slice(b, b + 1)
        alone = Problem(
            together.q[one],
            together.k[one],
            together.v[one],
            together.positions[one],
            together.span,
        )
        expected = out[one]
        if layout == "padded":  # which divides the span, whatever the row
            assert torch.equal(alone.kernel(layout, RULES[0], 2), expected)
        else:
            short = Problem(
                alone.q, alone.k, alone.v, alone.positions, int(alone.positions.max()) + 1
            )
            assert torch.equal(short.kernel(layout, RULES[0], 2), expected)


def test_splitting_fills_the_chip_and_no_more() -> None:
    assert schedule.splits_for(1, 100_000) == schedule.MOST_SPLITS
    assert schedule.splits_for(1, 128) == 1
    assert schedule.splits_for(32, 400) == 2
    assert schedule.splits_for(32, 2000) == 4
    assert schedule.splits_for(66, 100_000) == schedule.MOST_SPLITS
    assert schedule.splits_for(256, 2048) == 1
    assert schedule.splits_for(256, 8192) == 4
