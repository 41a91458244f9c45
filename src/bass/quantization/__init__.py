"""Linear layers in fewer bytes: weights in 8 bits with a scale for each output channel, and
activations with one for each token.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])
    y[m, n]  = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

with L the largest number of the type, 127 (int8) or 448 (e4m3).

A token's scale is its own, found as it is read, so that its result hangs neither on its batch mates
nor on calibration. The matrices of the blocks are quantized. Embedding, head (often the embedding
again), norms and biases stay as they are; but a draft's head, whose errors cost acceptance alone,
is quantized too (`quantize_head`).
"""

from bass.interfaces import Quantization
from bass.quantization.apply import (
    quantizable,
    quantize,
    quantize_head,
    quantize_layer,
    unfilled,
)
from bass.quantization.methods import Fp8, Int8, Int8Weight, NoQuantization

QUANTIZATIONS: dict[str, type[Quantization]] = {
    "none": NoQuantization,
    "int8": Int8,
    "fp8": Fp8,
    "int8-weight": Int8Weight,
}

__all__ = [
    "QUANTIZATIONS",
    "Fp8",
    "Int8",
    "Int8Weight",
    "NoQuantization",
    "quantizable",
    "quantize",
    "quantize_head",
    "quantize_layer",
    "unfilled",
]
