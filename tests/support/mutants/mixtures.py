"""Defects of mixtures of experts."""

from support.mutants.mutant import Mutant

KERNELS = "kernels/test_experts.py"
CHOSEN = f"{KERNELS}::test_each_row_chooses_its_largest_logits"
SORTED = f"{KERNELS}::test_a_block_has_pairs_of_one_expert_and_every_pair_is_in_one"
OUTPUTS = f"{KERNELS}::test_the_experts_outputs_equal_those_of_torch"
NORM = f"{KERNELS}::test_the_experts_finish_the_norm_of_their_input"
COST = "unit/test_cost.py"
WIDENED = "kernels/test_mxfp4_experts.py::test_numbers_are_widened_to_the_last_bit"
BY_TORCH = (
    "kernels/test_mxfp4_experts.py::test_without_kernels_an_expert_is_dequantized_to_the_last_bit"
)
IN_FOUR_BITS = "models/test_mxfp4.py"
FAMILIES = "models/test_families.py::test_logits_equal_those_of_transformers"

MUTANTS = (
    Mutant(
        "weights of chosen experts always add up to one",
        "kernels.triton.experts._route",
        "total if NORMALISED else every",
        "total",
        (CHOSEN,),
    ),
    Mutant(
        "logits are those of the first partial sum",
        "kernels.triton.experts._route",
        "part * part_size + row * count + i",
        "row * count + i",
        (CHOSEN,),
    ),
    Mutant(
        "a row's unfinished norm has the squares of the first tile",
        "kernels.triton.experts._route",
        "tile * tl.num_programs(0) + row",
        "row + 0 * tile",
        (NORM,),
    ),
    Mutant(
        "the experts of an unfinished norm read it as it is",
        "kernels.triton.experts._gated_experts",
        "scale is not None",
        "False",
        (NORM,),
    ),
    Mutant(
        "a row that chose the expert second is left out",
        "kernels.triton.experts._owner",
        "which < PLACES",
        "which < 1",
        (OUTPUTS,),
    ),
    Mutant(
        "an expert has the rows of one part",
        "kernels.triton.experts._owner",
        "(tl.sum(member, 0) + BM - 1) // BM",
        "(tl.sum(member, 0) > 0).to(tl.int32)",
        (OUTPUTS,),
    ),
    Mutant(
        "each part has the rows of the first",
        "kernels.triton.experts._members",
        "part * BM + i",
        "i",
        (OUTPUTS,),
    ),
    Mutant(
        "a block that no expert needs has the last one",
        "kernels.triton.experts.align",
        "torch.where(owner < count, owner, -1)",
        "owner.clamp(max=count - 1)",
        (SORTED,),
    ),
    Mutant(
        "an expert's last block is left out",
        "kernels.triton.experts.align",
        "min(count, len(experts)) + len(experts) // size",
        "max(1, len(experts) // size)",
        (SORTED,),
    ),
    Mutant(
        "the rows of many are not sorted by expert",
        "kernels.triton.experts.align",
        "experts.argsort(stable=True)",
        "torch.arange(len(experts), device=experts.device)",
        (SORTED,),
    ),
    Mutant(
        "ups come from the next expert",
        "kernels.triton.experts._gated_experts",
        "(2 * expert + line // half) * inner + n",
        "(2 * expert + 2 * (line // half)) * inner + n",
        (OUTPUTS,),
    ),
    Mutant(
        "outputs are not weighted",
        "kernels.triton.experts._down_experts",
        "result *= tl.load(weights + pair, mask=live, other=0.0)[None, :]",
        "",
        (OUTPUTS,),
    ),
    Mutant(
        "choices of a row overwrite each other",
        "kernels.triton.experts._down_experts",
        "place.to(tl.int64) * rows + row",
        "row.to(tl.int64)",
        (OUTPUTS,),
    ),
    Mutant(
        "without kernels, weights are those of all experts",
        "ops.experts.choose",
        "best if normalised else wide",
        "wide",
        (CHOSEN, FAMILIES),
    ),
    Mutant(
        "without kernels, outputs are not weighted",
        "ops.experts.weighted_sum",
        "whole_product(inner, down, down_bias[expert]) * weights[row, choice, None]",
        "whole_product(inner, down, down_bias[expert])",
        (OUTPUTS,),
    ),
    Mutant(
        "an expert's bias is that of the first one",
        "kernels.triton.experts._down_experts",
        "tl.load(bias + w_row)",
        "tl.load(bias + w_row % n_size)",
        (OUTPUTS,),
    ),
    Mutant(
        "a sink has no weight",
        "kernels.triton.attention._attend",
        "tl.where(split == 0, 1.0, total)",
        "total",
        ("kernels/test_kernels.py::test_a_sink_takes_a_share_of_the_softmax",),
    ),
    Mutant(
        "attention in one kernel has no sinks",
        "kernels.hopper.attention_kernel.attend_projection",
        "total += gl.exp(sink - best)",
        "total = total",
        ("kernels/test_hopper_attention.py::test_one_kernel_rotates_stores_attends_as_three_do",),
    ),
    Mutant(
        "a pass reads all experts",
        "ModelCost.bytes_read",
        "self.expert_bytes * read / self.experts",
        "self.expert_bytes",
        (COST,),
    ),
    Mutant(
        "a token computes with all experts",
        "cost.model_cost",
        "sum(p.numel() for p in read(whole)) - unused",
        "sum(p.numel() for p in read(whole))",
        (COST,),
    ),
    Mutant(
        "all groups of a row in four bits have the scale of the first",
        "kernels.triton.mxfp4._factors",
        "tl.minimum(group, last) * lines",
        "0 * group",
        (WIDENED,),
    ),
    Mutant(
        "the second half of the inputs has the scales of the first",
        "kernels.triton.mxfp4.gathered",
        "low_scales + HALF // GROUP * lines",
        "low_scales",
        (WIDENED,),
    ),
    Mutant(
        "the high codes of bytes are multiplied with the first half of the inputs",
        "kernels.triton.mxfp4.gathered",
        "(HALF + at)[:, None]",
        "at[:, None]",
        (WIDENED,),
    ),
    Mutant(
        "a tile has the scales of the tile before",
        "kernels.triton.mxfp4.gathered",
        "(first + BK) // GROUP + g",
        "first // GROUP + g",
        (WIDENED,),
    ),
    Mutant(
        "without kernels, an expert has the scales of the first",
        "ops.experts._matrix",
        "scale[:, rows]",
        "scale[:, :size]",
        (BY_TORCH,),
    ),
    Mutant(
        "experts in four bits are left to torch",
        "ops.experts._by_kernel",
        "w.dtype == x.dtype or scale is not None",
        "w.dtype == x.dtype",
        ("kernels/test_mxfp4_experts.py::test_a_mixture_of_experts_in_four_bits_runs_by_kernels",),
    ),
    Mutant(
        "scales of gates and ups stay in the order of the checkpoint",
        "QuantizedStack.in_four_bits",
        "codes[index], scales[index]",
        "codes[index], scales",
        (IN_FOUR_BITS,),
    ),
    Mutant(
        "odd codes of a block change places with even ones",
        "QuantizedStack.in_four_bits",
        "torch.stack((even, odd), -1)",
        "torch.stack((odd, even), -1)",
        (IN_FOUR_BITS,),
    ),
    Mutant(
        "a group that both halves share stays in four bits",
        "layers.keep_in_four_bits",
        "getattr(module, own).shape[1] % WHOLE",
        "False",
        (IN_FOUR_BITS,),
    ),
    Mutant(
        "experts that stay in four bits are allocated in the model's type first",
        "quantization.apply.unfilled",
        "(Linear, Experts)",
        "(Linear,)",
        (
            "kernels/test_mxfp4_experts.py::test_while_a_checkpoint_is_loaded_experts_take_no_memory",
        ),
    ),
)
