"""Linear layers in fewer bytes: weights in 8 bits with a scale for each output channel, and
activations with a scale for each token.

    scale[r] = max |x[r]| / L ;  q[r] = round(x[r] / scale[r])
    y[m, n]  = (Σ_k q_x[m, k] q_w[n, k]) · scale_x[m] · scale_w[n] + b[n]

with L the largest number of the type, 127 (int8) or 448 (e4m3).

A token's scale is dynamic and its own, so its result depends neither on other rows nor on
calibration. The matrices of the blocks are quantized. Embedding, head (often tied to the
embedding), norms and biases are not; but a draft's head is quantized too, since its errors cost
only acceptance (`quantize_head`).
"""

from bass.interfaces import Quantization
from bass.quantization.methods import Fp8, Int8, Int8Weight

QUANTIZATIONS: dict[str, type[Quantization]] = {
    "int8": Int8,
    "fp8": Fp8,
    "int8-weight": Int8Weight,
}
__all__ = ["QUANTIZATIONS", "Fp8", "Int8", "Int8Weight"]
