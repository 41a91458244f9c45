"""What a step must move and compute, against figures worked out by hand."""

from typing import Any

import numpy as np

from bass.engine.cost import Pass, PassCost, PassLog, Work, pass_cost, work_of
from bass.models.qwen3_moe import Qwen3Moe, Qwen3MoeConfig

TARGET = PassCost(1000, flops_per_token=100, kv_bytes_per_position=10, windows=(None, None))
DRAFT = PassCost(70, flops_per_token=7, kv_bytes_per_position=3, windows=(None,))
LENS, ACTIVE = np.array([16, 9, 12]), np.array([True, False, True])


# Two rows of three are active. One drafted 3 tokens and kept 2, the other drafted 1 and kept none.
DRAFTED, EMITTED = np.array([3, 0, 1]), np.array([3, 0, 1])


def passes_of(*columns: int) -> tuple[Pass, ...]:
    """Those of the draft."""
    log = PassLog()
    for count in columns:
        log.add(DRAFT, count)
    return log.take()


PASSES = passes_of(2, 1, 1)


def work(passes: tuple[Pass, ...], drafted: np.ndarray = DRAFTED, caught_up: Any = None) -> Work:
    return work_of(passes, caught_up, TARGET, LENS, drafted, EMITTED, ACTIVE)


def test_a_step_moves_the_weights_of_every_pass_and_the_keys_of_what_each_row_fed() -> None:
    # The target's windows end at positions 18 and 12: 19 + 13 positions. The draft's passes: 16 +
    # 12, 17, 18.
    assert work(PASSES).bytes == 1000 + 32 * 10 + 3 * 70 + (28 + 17 + 18) * 3


def test_the_flops_are_those_of_the_tokens_that_were_fed() -> None:
    # The target is fed 4 + 2 tokens, the draft 2 + 2, 1, 1.
    assert work(PASSES).flops == 6 * 100 + 6 * 7


def test_a_step_without_drafts_moves_the_targets_bytes_alone() -> None:
    nothing = np.zeros(3, dtype=np.int64)
    assert work((), nothing) == Work(1000 + 28 * 10, 200)


def test_a_pass_that_no_active_row_needs_costs_nothing() -> None:
    """So a graph, in which all k passes run, is counted as a loop that ends with the longest
    draft.
    """
    assert work(passes_of(2, 1, 1, 1, 1)) == work(PASSES)


def test_a_pass_in_which_a_drafter_caught_up_is_one_of_the_step() -> None:
    """The last token of a row is not fed."""
    alone = work(PASSES)
    for passes in (passes_of(3), passes_of(2, 1)):
        more = work(PASSES, caught_up=(passes, np.array([3, 0, 3])))
        assert more.bytes - alone.bytes == 70 * len(passes) + (15 + 11) * 3
        assert more.flops - alone.flops == 6 * 7
    one = work(PASSES, caught_up=(passes_of(3), np.array([14, 0, 0])))
    assert one.bytes - alone.bytes == 70 + 15 * 3
    assert one.flops - alone.flops == 14 * 7


def test_a_layer_with_a_window_reads_what_its_queries_see_and_no_more() -> None:
    # Of 5 positions a query sees: two tokens at 8 and 9 see 4 to 9; one at 2 all 3. The other layer
    # reads 10 and 3.
    sliding = PassCost(50, 1, 8, (5, None))
    moved = sliding.work(np.array([2, 1, 0]), np.array([10, 3, 7]), np.ones(3, bool)).bytes
    assert moved == 50 + (6 + 3) * 4 + (10 + 3) * 4


def test_a_pass_reads_the_experts_that_its_tokens_are_expected_to_choose() -> None:
    model = PassCost(100, 1, 8, (None,), expert_bytes=8000, experts=8, chosen_experts=2)
    assert model.bytes_read(1) == 100 + 2000
    assert model.bytes_read(2) == 100 + 3500  # a second token chooses 1.5 others
    assert model.bytes_read(1000) == 100 + 8000
    assert PassCost(100, 1, 8).bytes_read(5) == 100
    moved = model.work(np.array([2, 1, 0]), np.array([10, 3, 7]), np.ones(3, bool)).bytes
    assert moved == model.bytes_read(3) + (10 + 3) * 8


def test_a_mixtures_weights_are_those_of_every_pass_and_those_of_experts() -> None:
    config = Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=16, mlp_only_layers=(1,),
    )  # fmt: skip
    decoder = Qwen3Moe(config)
    one = 3 * 32 * 16  # the numbers of an expert
    found = pass_cost(decoder)
    assert found.expert_bytes == 4 * 2 * 6 * one
    assert (found.experts, found.chosen_experts) == (6, 2)
    every = sum(p.numel() for p in decoder.parameters()) - decoder.embed.numel()
    assert found.weight_bytes == 4 * (every - 2 * 6 * one)
    assert found.flops_per_token == 2 * (every - 2 * 4 * one)
    assert pass_cost(decoder, 1).expert_bytes == 4 * 6 * one
