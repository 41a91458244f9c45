"""Quantizations that config.json does not declare, or declares elsewhere."""

from pathlib import Path
from typing import Any

from bass.checkpoints.folder import read_json, some
from bass.checkpoints.shards import TensorFiles
from bass.errors import CheckpointError, counted

# separate files of older exports -> method
SEPARATE = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# the end of a tensor's name -> method, the most specific first
SIGNS = {
    ".SCB": "bitsandbytes in 8 bits",
    ".quant_map": "bitsandbytes in 4 bits",
    ".absmax": "bitsandbytes in 4 bits",
    ".W_q": "HQQ",
    ".weight_scales": "EETQ",
    ".weight_global_scale": "NVFP4",
    ".weight_scale_2": "ModelOpt",
    ".qweight": "GPTQ or AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight_scale_inv": "fp8 in blocks",
    ".qscale_weight": "fp8 in Mistral's own format",
    ".weight_scale": "fp8 or compressed-tensors",
    "_blocks": "MXFP4",
}


def declared(folder: Path, raw: dict[str, Any]) -> dict[str, Any] | None:
    """The quantization_config of config.json, or of a separate file of GPTQ or AWQ."""
    text = raw.get("text_config")
    for config in (raw, text if isinstance(text, dict) else {}):
        for field in ("quantization_config", "compression_config"):
            if found := config.get(field):
                if not isinstance(found, dict):
                    raise CheckpointError(
                        f"`{folder}` has the {field} {found!r:.100} in its config.json, which is "
                        "no object: correct it, or download it again."
                    )
                return found
    for name, method in SEPARATE.items():
        if (folder / name).is_file():
            return {"quant_method": method} | read_json(folder / name)
    return None


def refuse_undeclared(folder: Path, raw: dict[str, Any], files: TensorFiles) -> None:
    """Raise `CheckpointError` for a checkpoint that is quantized without a quantization_config."""
    if raw.get("quantization"):
        raise _refused(folder, "MLX", "`quantization` in its config.json")
    if (other := folder / "hf_quant_config.json").is_file():
        inner = read_json(other).get("quantization")
        kind = inner.get("quant_algo", "") if isinstance(inner, dict) else ""
        raise _refused(folder, f"ModelOpt {kind!s:.40}".strip(), f"`{other.name}`")
    for end, method in SIGNS.items():
        if names := sorted(name for name in files.stored if name.endswith(end)):
            raise _refused(
                folder, method, f"{counted(len(names), 'tensor')} such as `{some(names[:1])}`"
            )


def _refused(folder: Path, method: str, sign: str) -> CheckpointError:
    return CheckpointError(
        f"`{folder}` is quantized by {method} ({sign}) and has no quantization_config, so `bass` "
        "does not read it: use the original checkpoint, or one whose config.json has it."
    )
