"""Defects of models and of pairing them."""

from support.mutants.killers import BY_KERNELS, DECODERS, PAIRS
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a pending product is added again by the next reader",
        "Residual._complete",
        "self._base, self._pending = stream.view(self._base.shape), ()",
        "self._base = stream.view(self._base.shape)",
        (BY_KERNELS,),
    ),
    Mutant(
        "what is pending is forgotten by the kernel of the next norm",
        "Residual._summands",
        "parts[0]",
        "None",
        (BY_KERNELS,),
    ),
    Mutant(
        "a kernel adds a product without the norm that it goes through",
        "Residual._summands",
        "kernel_norm(first.through)",
        "None",
        (DECODERS,),
    ),
    Mutant(
        "what was pending is added again",
        "Residual.tensor",
        "self._pending = ()",
        "",
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
    ),
    Mutant(
        "a layer without rotary embedding rotates",
        "RotaryDecoder.rotations",
        "name and getattr(self, name)(positions)",
        'getattr(self, name or "rotary")(positions)',
        ("models/test_families.py::test_logits_equal_those_of_transformers",),
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
        "loading.Models.read",
        "quantize_head(drafting, draft.quantization)",
        "narrow(quantize_head(checkpoints[1].index.load(device, kind, draft.quantization), "
        "draft.quantization), first.index.decoder.shape.vocab_size)",
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
