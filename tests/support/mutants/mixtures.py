"""Defects of mixtures of experts."""

from support.mutants.mutant import Mutant

KERNELS = "kernels/test_experts.py"
CHOSEN = f"{KERNELS}::test_each_row_chooses_its_largest_logits"
SORTED = f"{KERNELS}::test_a_block_has_pairs_of_one_expert_and_every_pair_is_in_one"
OUTPUTS = f"{KERNELS}::test_the_experts_outputs_equal_those_of_torch"
ADDED = f"{KERNELS}::test_a_mixture_is_partial_sums_that_the_residual_stream_adds"
COST = "unit/test_cost.py"
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
        "the rank of a pair counts its chunk alone",
        "kernels.triton.experts._align",
        "before[:, None] + tl.cumsum(here, 1) - 1",
        "tl.cumsum(here, 1) - 1",
        (SORTED,),
    ),
    Mutant(
        "a block that no expert needs has the last one",
        "kernels.triton.experts._align",
        "tl.where(owner < EXPERTS, owner, -1)",
        "tl.minimum(owner, EXPERTS - 1)",
        (SORTED,),
    ),
    Mutant(
        "an expert's last block is left out",
        "kernels.triton.experts.align",
        "min(count, pairs) + pairs // size",
        "max(1, pairs // size)",
        (SORTED,),
    ),
    Mutant(
        "a prefill's pairs are not sorted by expert",
        "kernels.triton.experts._aligned_by_torch",
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
        "(pair % CHOSEN).to(tl.int64) * rows + pair // CHOSEN",
        "pair.to(tl.int64) // CHOSEN",
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
        "_product(inner, down[expert], down_bias[expert]) * weights[row, choice, None]",
        "_product(inner, down[expert], down_bias[expert])",
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
)
