"""Quantized checkpoints, read as they are.

    config.json ──> `described`: the method, and a layout of each module's matrix
    headers     ──> the tensors of a quantized matrix (codes, scales, zero points) become one
                    `Stored` under the matrix's own name, with its own shape
    name maps, prefixes and the accounting of tensors see matrices only
    load        ──> `keep_quantized`: the parts of a `WeightSource` are unpacked to codes
                    [out, in], stacked and permuted along the rows, packed again as a
                    `GroupQuantizedLinear`, or as a `QuantizedLinear` (8 bits, a scale for each row)
                ──> `keep_in_four_bits`: the codes of experts in MXFP4 are packed again, and stay
    elsewhere   ──> a parameter that is not the matrix of a linear layer of the blocks (head,
                    other experts), or whose parts are quantized differently, is dequantized as it
                    is read

What is quantized follows from the tensors themselves, so layers that config.json excludes
(`ignore`, `modules_to_not_convert`) stay as they are. Activations are quantized only where a
method quantizes both operands with a scale for each row or for the whole matrix: always with a
dynamic scale for each token, also where the checkpoint has a static one.
"""
