"""Defects of models and of pairing them."""

from support.mutants.killers import BY_KERNELS, DECODERS, FIRST, IN_FIVE, PAIRS
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a product that is added by itself leaves its norm as the stream",
        "Residual.rows",
        "left.stream.view(shape)",
        "left.weighted.view(shape)",
        (*IN_FIVE,),
    ),
    Mutant(
        "a pending product is added again by the next reader",
        "Residual.rows",
        "self._base, self._pending = stream.view(shape), ()",
        "self._base = stream.view(shape)",
        (BY_KERNELS,),
    ),
    Mutant(
        "what is pending is forgotten by the kernel of the next norm",
        "Residual._summands",
        "parts[0] if parts else None",
        "None",
        (BY_KERNELS,),
    ),
    Mutant(
        "a parallel block's second product is forgotten by the kernel of the next norm",
        "Residual._summands",
        "parts[1] if len(parts) == 2 else None",
        "None",
        (DECODERS,),
    ),
    Mutant(
        "a kernel adds a product without the norm that it goes through",
        "Residual._summands",
        "None if through is None else _numbers(through)",
        "None",
        (DECODERS,),
    ),
    Mutant(
        "a kernel's norm of heads reaches over the values",
        "_rotate_and_store",
        "tl.where(rotates, low * unit * low_by, low)",
        "low * unit * low_by",
        ("kernels/test_rotary.py::test_completing_and_storing_at_once_equals_one_after_the_other",),
    ),
    Mutant(
        "what was pending is added again",
        "Residual.tensor",
        "self._pending = ()",
        "",
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
    ),
    Mutant(
        "a stream that is read as a tensor is left without what a kernel adds",
        "Residual.tensor",
        "stream.view(self._base.shape), ()",
        "self._base, ()",
        (DECODERS,),
    ),
    Mutant(
        "a norm over all heads of queries and keys is forgotten",
        "linear.project_qkv",
        "qk_norm(y)[None], None",
        "y[None], None",
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
    ),
    Mutant(
        "a layer without rotary embedding rotates",
        "SmolLM3.rotations",
        "rotation if rotated else None",
        "rotation",
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
    ),
    Mutant(
        "sliding layers have the scaled rotary embedding of the others",
        "Olmo3.rotations",
        "self.local_rotary(positions)",
        "self.rotary(positions)",
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
    ),
    Mutant(
        "a target drafts for itself without its norm",
        "FirstLayers.hidden",
        "x.normed(self.decoder.norm).tensor()",
        "x.tensor()",
        (FIRST,),
    ),
    Mutant(
        "a target drafts for itself with a layer less",
        "FirstLayers.hidden",
        "itertools.islice(self.decoder.streams(window, attend), self.count, None)",
        "itertools.islice(self.decoder.streams(window, attend), self.count - 1, None)",
        (FIRST,),
    ),
    Mutant(
        "a quantized product by a kernel forgets its scales",
        "linear._scale",
        "layer.scale if isinstance(layer, QuantizedLinear) else None",
        "None",
        ("kernels/test_models.py::test_a_quantized_decoder_by_kernels_gives_the_logits_of_torch",),
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
        ("unit/test_quantized_models.py::test_a_quantization_may_overwrite_what_it_is_given",),
    ),
)
