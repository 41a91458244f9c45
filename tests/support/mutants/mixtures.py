"""Defects of mixtures of experts."""

from support.mutants.mutant import Mutant

KERNELS = "kernels/test_experts.py"
CHOSEN = f"{KERNELS}::test_each_row_chooses_its_largest_logits"
SORTED = f"{KERNELS}::test_a_block_has_pairs_of_one_expert_and_every_pair_is_in_one"
OUTPUTS = f"{KERNELS}::test_the_experts_outputs_equal_those_of_torch"
WIDENED = "kernels/test_mxfp4_experts.py::test_numbers_are_widened_to_the_last_bit"
IN_FOUR_BITS = "models/test_mxfp4.py"

MUTANTS = (
    Mutant(
        "weights of chosen experts always add up to one",
        "kernels.triton.experts._route",
        "total if NORMALISED else every",
        "total",
        (CHOSEN,),
    ),
    Mutant(
        "a row that chose the expert second is left out",
        "kernels.triton.experts._owner",
        "which < PLACES",
        "which < 1",
        (OUTPUTS,),
    ),
    Mutant(
        "an expert's last block is left out",
        "kernels.triton.experts.align",
        "min(count, len(experts)) + len(experts) // size",
        "max(1, len(experts) // size)",
        (SORTED,),
    ),
    Mutant(
        "choices of a row overwrite each other",
        "kernels.triton.experts._down_experts",
        "place.to(tl.int64) * rows + row",
        "row.to(tl.int64)",
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
        "the second half of the inputs has the scales of the first",
        "kernels.triton.mxfp4.gathered",
        "low_scales + HALF // GROUP * lines",
        "low_scales",
        (WIDENED,),
    ),
    Mutant(
        "scales of gates and ups stay in the order of the checkpoint",
        "QuantizedStack.in_four_bits",
        "codes[index], scales[index]",
        "codes[index], scales",
        (IN_FOUR_BITS,),
    ),
)
