"""Bounds on a config.json from the files next to it, which limit the work of building a decoder."""

import sys
from pathlib import Path
from typing import Any

from bass.errors import CheckpointError

# Names of fields that count layers, and of fields that are, or divide, an axis of some tensor.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # of a layer
WIDTHS = (
    *HEADS, *EXPERTS, "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
    "head_dim", "num_key_value_heads", "num_kv_heads", "rotary_dim",
    "n_embd", "n_inner", "d_model", "ffn_dim", "ffn_hidden_size", "word_embed_proj_dim",
)  # fmt: skip
# absolute limits, since a sparse file can claim any size
MOST_LAYERS, WIDEST = 1000, 1 << 24
MOST_EXPERTS = 100_000  # of all layers
# several axes may be stored as one; the accounting of tensors finds smaller errors
SLACK = 16


def check_bounds(
    folder: Path, config: dict[str, Any], stored: tuple[int, int] | None = None
) -> None:
    """Raise `CheckpointError` for a parsed config.json with sizes above the limits, or far above
    its files. stored: the number of tensors in these and their longest axis; None without files.
    """
    tensors, widest = (sys.maxsize, sys.maxsize) if stored is None else stored

    def given(names: tuple[str, ...]) -> dict[str, int]:
        return {name: value for name in names if type(value := config.get(name)) is int}

    requested = [
        (f"{name}={value}", value, tensors, MOST_LAYERS) for name, value in given(LAYERS).items()
    ]
    requested += [
        (f"{name}={value}", value, SLACK * widest, WIDEST) for name, value in given(WIDTHS).items()
    ]
    for heads, count in given(HEADS).items():
        requested += [
            (f"{heads}={count}` and `head_dim={dim}", count * dim, SLACK * widest, WIDEST)
            for dim in given(("head_dim",)).values()
        ]
    for experts, count in given(EXPERTS).items():
        requested += [
            (
                f"{layers}={number}` and `{experts}={count}",
                number * count,
                sys.maxsize,
                MOST_EXPERTS,
            )
            for layers, number in given(LAYERS).items()
        ]
    for field, value, held, most in requested:
        if value > held:
            raise CheckpointError(
                f"`{folder}` has `{field[:100]}` in its config.json, but its weights are {tensors} "
                f"tensors of at most {widest} "
                "in any direction: the files do not belong together."
            )
        if value > most:
            raise CheckpointError(
                f"`{folder}` has `{field[:100]}` in its config.json, and the limit is {most:,}: "
                "use another checkpoint."
            )
