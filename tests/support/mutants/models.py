"""Defects of models and of pairing them."""

from support.mutants.killers import FIRST, IN_FIVE, PAIRS
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a block takes what was left for another's norm",
        "FusedPreNorm._in_five",
        "isinstance(x, Carried) and x.weight is first.weight",
        "isinstance(x, Carried)",
        (*IN_FIVE,),
    ),
    Mutant(
        "a target drafts for itself without its norm",
        "FirstLayers.hidden",
        "self.decoder.norm(self.decoder.through(tokens, positions, attend, self.count))",
        "self.decoder.through(tokens, positions, attend, self.count)",
        (FIRST,),
    ),
    Mutant(
        "a target drafts for itself with a layer less",
        "FirstLayers.hidden",
        "self.decoder.through(tokens, positions, attend, self.count)",
        "self.decoder.through(tokens, positions, attend, self.count - 1)",
        (FIRST,),
    ),
    Mutant(
        "a fused block hands on its norm as the stream",
        "FusedPreNorm.__call__",
        (
            "Stream(stream, product(activations(inner, self.mlp.down), self.mlp.down, "
            "stream.dtype), "
            "shape)"
        ),
        (
            "Stream(normed.x, product(activations(inner, self.mlp.down), self.mlp.down, "
            "stream.dtype), shape)"
        ),
        ("kernels/test_small_m_gemm.py::test_fused_blocks_emit_the_oracles_tokens",),
    ),
    Mutant(
        "a fused draft's head forgets its scales",
        "fuse",
        (
            "if isinstance(decoder.head, Linear):\n    decoder.head = "
            "FusedHead(decoder.head.weight, decoder.head.bias)"
        ),
        "decoder.head = FusedHead(decoder.head.weight, decoder.head.bias)",
        ("models/test_fused.py::test_a_quantized_head_stays_as_it_is",),
    ),
    Mutant(
        "a draft's head is quantized with its padding",
        "_load_draft",
        "quantize_head(draft, quantization)",
        "narrow(quantize_head(index.load(device, dtype, quantization), quantization), size)",
        (f"{PAIRS}::test_a_quantized_draft_of_another_padding_drafts_as_one_of_the_same",),
    ),
    Mutant(
        "a tied head is quantized in its embedding's place",
        "quantize_head",
        "decoder.embed.clone",
        "decoder.embed.detach",
        ("unit/test_quantized.py::test_a_quantization_may_overwrite_what_it_is_given",),
    ),
)
