"""Defects of the GPU kernels."""

from support.mutants.killers import ABOVE, ATTENTION, KERNELS, READS, ROWS_TEST, TWINS, WRONG
from support.mutants.mutant import Mutant

GROUPS = (
    "kernels/test_group_quantized_gemm.py::test_a_product_equals_that_of_what_the_codes_stand_for"
)
MUTANTS = (
    Mutant(
        "a query of the split layout sees its whole window",
        "ops.attention.attend",
        "hidden = place > own",
        "hidden = place > own.amax(1, keepdim=True).expand_as(own)",
        (WRONG,),
        trap=2,
    ),
    Mutant(
        "a window of the split layout is one position too short",
        "ops.attention.attend",
        "place <= own - rule.window",
        "place <= own - rule.window + 1",
        (ATTENTION,),
    ),
    Mutant(
        "a soft cap bends nothing in the split layout",
        "ops.attention.attend",
        "softcap * torch.tanh(scores / softcap)",
        "scores.clamp(-softcap, softcap)",
        (ATTENTION,),
    ),
    Mutant(
        "grouped heads meet the wrong keys in the split layout",
        "ops.attention.attend",
        "q.unflatten(2, (kv_heads, -1))",
        "q.unflatten(2, (-1, kv_heads)).transpose(2, 3)",
        (ATTENTION,),
    ),
    Mutant(
        "a kernel's query sees one stale key",
        "triton.attention._more",
        "key[None, :] <= own[:, None]",
        "key[None, :] <= own[:, None] + 1",
        (ABOVE,),
    ),
    Mutant(
        "a kernel reads one key beyond a row's last",
        "triton.attention._attend",
        "tl.max(own, 0) + 1",
        "tl.max(own, 0) + 2",
        (READS,),
    ),
    Mutant(
        "a kernel's window is one position too long",
        "triton.attention._more",
        "key[None, :] > own[:, None] - WINDOW",
        "key[None, :] >= own[:, None] - WINDOW",
        (TWINS,),
    ),
    Mutant(
        "a kernel's splits miss the keys that fill no block",
        "triton.attention._attend",
        "stop - start + KEYS - 1",
        "stop - start",
        (TWINS,),
    ),
    Mutant(
        "a kernel's splits overlap by one key",
        "triton.attention._attend",
        "tl.minimum(begin + share, stop)",
        "tl.minimum(begin + share + 1, stop)",
        (TWINS,),
    ),
    Mutant(
        "a kernel finds the next block of the table",
        "triton.attention._more",
        "key // PAGE * place_entry",
        "(key + 1) // PAGE * place_entry",
        (TWINS,),
    ),
    Mutant(
        "a kernel lays grouped heads along the wrong keys",
        "triton.attention._attend",
        "head * GROUPS + each % GROUPS",
        "head + each % GROUPS * tl.num_programs(1)",
        (TWINS,),
    ),
    Mutant(
        "the splits are combined without their maximum",
        "triton.attention._attend",
        "sums * tl.exp(tops_of_splits - level[None, :])",
        "sums",
        (TWINS,),
    ),
    Mutant(
        "the first split to end puts them together",
        "triton.attention._attend",
        "came == splits - 1",
        "came == 0",
        (TWINS,),
    ),
    Mutant(
        "the splits are not counted again",
        "triton.attention._attend",
        "tl.store(place_of_count, 0)",
        "tl.store(place_of_count, 1)",
        (TWINS,),
    ),
    Mutant(
        "a kernel's key is written at -1",
        "_rotate_and_store",
        "live & (position >= 0)",
        "live",
        ("kernels/test_rotary.py::test_completing_and_storing_at_once_equals_one_after_the_other",),
        trap=5,
    ),
    Mutant(
        "a kernel's splits of a product overlap",
        "small_m_gemm._linear",
        (
            "_product(x, x_scale, w_rows, rows, k_size, split * SIZE, SIZE, BM, BN, BK, STAGES, "
            "EVEN, "
            "X_SCALED, SUM, OPERAND, PDL)"
        ),
        (
            "_product(x, x_scale, w_rows, rows, k_size, split * SIZE // 2, SIZE, BM, BN, BK, "
            "STAGES, "
            "EVEN, X_SCALED, SUM, OPERAND, PDL)"
        ),
        (
            "kernels/test_small_m_gemm.py::test_a_product_of_few_rows_equals_its_twin_however_it_is_divided",
        ),
    ),
    Mutant(
        "a kernel rotates heads the other way",
        "_rotate_and_store",
        "low * low_cos[None, :] + high * low_sin[None, :]",
        "low * low_cos[None, :] - high * low_sin[None, :]",
        ("kernels/test_rotary.py::test_completing_and_storing_at_once_equals_one_after_the_other",),
    ),
    Mutant(
        "a kernel commits what follows an end of sequence",
        "triton.batch_state._commit",
        "tl.minimum(tl.load(accepted + row), first_end)",
        "tl.minimum(tl.load(accepted + row), WIDTH)",
        (f"{ROWS_TEST}::test_a_committed_verdict_and_its_report_equal_their_twins",),
    ),
    Mutant(
        "a kernel cuts a verdict's count to what was emitted",
        "_pack_report",
        "tl.load(accepted + row)",
        "tl.minimum(tl.load(accepted + row), tl.load(emitted + row))",
        (f"{ROWS_TEST}::test_a_committed_verdict_and_its_report_equal_their_twins",),
    ),
    Mutant(
        "a kernel feeds the target tokens beyond a row's own length",
        "triton.batch_state._window",
        "tl.load(lengths + row)",
        "k",
        (f"{ROWS_TEST}::test_what_is_fed_equals_its_twin",),
    ),
    Mutant(
        "a kernel keeps what follows a rejected token",
        "_leading",
        "tl.min(tl.where(own, WIDTH, i), 0)",
        "tl.sum(own.to(tl.int32), 0)",
        (f"{ROWS_TEST}::test_what_is_kept_equals_its_twin",),
    ),
    Mutant(
        "a kernel takes a drafted token of probability 0",
        "validity._valid_part",
        "chance == 0",
        "chance < 0",
        (f"{ROWS_TEST}::test_invalid_drafts_have_the_flags_of_the_twin",),
    ),
    Mutant(
        "a kernel flags distributions of the target that decide nothing",
        "validity._with_target_flags",
        "i < tl.minimum(tl.load(counted + row), k)",
        "i < k",
        (f"{ROWS_TEST}::test_the_targets_distributions_have_the_flags_of_the_twin",),
    ),
    Mutant(
        "a kernel's flags of the target hide those of the draft",
        "validity._with_target_flags",
        "tl.load(flags + row) + TARGET * flag.to(tl.int64)",
        "TARGET * flag.to(tl.int64)",
        (f"{ROWS_TEST}::test_the_targets_distributions_have_the_flags_of_the_twin",),
    ),
    Mutant(
        "a kernel's top-p leaves out the token that reaches it",
        "floor_of",
        "tl.sum(enough.to(tl.int32), 0) - 1",
        "tl.sum(enough.to(tl.int32), 0)",
        ("kernels/test_sampling_kernels.py::test_a_warp_equals_its_twin",),
    ),
    Mutant(
        "a kernel's top-p is a share of the whole, not of top-k's tokens",
        "_search",
        "need = top_p * mass_of(listed, size, above, 0.0, top, inverse, TILE, UNROLL)",
        "",
        ("kernels/test_sampling_kernels.py::test_a_warp_equals_its_twin",),
    ),
    Mutant(
        "a kernel's top-p overlooks tokens that are improbable",
        "_search",
        "0.999 * need * (1 - top_p) / top_p / vocab",
        "need * (1 - top_p) / top_p",
        ("kernels/test_sampling_kernels.py::test_a_warp_equals_its_twin",),
    ),
    Mutant(
        "a kernel's frequency penalty counts the prompt",
        "triton.sampling.edit",
        'tl.atomic_or(scratch + token, 1, mask=inside & (place < prompt), sem="relaxed")',
        'tl.atomic_add(scratch + token, 2, mask=inside & (place < prompt), sem="relaxed")',
        ("kernels/test_sampling_kernels.py::test_rows_with_options_of_their_own_equal_their_twin",),
    ),
    Mutant(
        "a kernel's penalties count a window's later tokens",
        "_tops",
        "columns - window + 1 + row % window",
        "columns",
        ("kernels/test_sampling_kernels.py::test_rows_with_options_of_their_own_equal_their_twin",),
    ),
    Mutant(
        "a kernel reads the options of the first row",
        "options_of",
        "tl.load(sampling + sequence * 8)",
        "tl.load(sampling)",
        ("kernels/test_sampling_kernels.py::test_rows_with_options_of_their_own_equal_their_twin",),
    ),
    Mutant(
        "a kernel draws from the residual at a row's own length",
        "triton.rejection_sampling._accepted",
        "accepted < length",
        "accepted < k",
        (
            "kernels/test_rejection_kernels.py::test_a_verdict_equals_its_twin",
            "kernels/test_rejection_kernels.py::test_the_output_law_of_the_kernel_is_the_targets",
        ),
        trap=13,
    ),
    Mutant(
        "a kernel's draw may be a token of probability zero",
        "_pass",
        "(tl.cumsum(values, 0) > threshold) & (values > 0)",
        "tl.cumsum(values, 0) >= threshold",
        (
            "kernels/test_rejection_kernels.py::test_a_draw_at_the_edge_of_a_cell_belongs_to_the_cell_above",
        ),
    ),
    Mutant(
        "splits are not counted as programs",
        "triton.attention.cut_for",
        "programs * splits",
        "programs",
        (
            f"{KERNELS}::test_what_is_in_flight_hangs_on_how_many_programs_share_a_multiprocessor_and_changes_nothing",
        ),
    ),
    Mutant(
        "zero points stay in the sums of quantized groups",
        "kernels.triton.group_quantized_gemm._products",
        '(z + OFFSET)[:, None] * tl.dot(ones, x, input_precision="ieee")',
        "(OFFSET * z)[:, None]",
        (GROUPS,),
    ),
    Mutant(
        "a tile has the zero point of the first",
        "kernels.triton.group_quantized_gemm._group_linear",
        "s, z = s_next, z_next",
        "s = s_next",
        (GROUPS,),
    ),
    Mutant(
        "a gate is that of the first partial sum",
        "small_m_gemm._gate",
        "tl.static_range(PARTS)",
        "tl.static_range(1)",
        ("kernels/test_small_m_gemm.py::test_the_gate_after_a_librarys_product_equals_its_twin",),
    ),
)
