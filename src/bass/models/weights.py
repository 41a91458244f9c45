"""Between a decoder and a Hugging Face folder: config.json and one safetensors file."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bass.errors import CheckpointError
from bass.models.llama import Llama, LlamaConfig, part_rows, weight_names

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a checkpoint folder."""
    if not folder.is_dir():
        raise CheckpointError(f"No checkpoint folder at `{folder}`: give the path of a folder with config.json and model.safetensors.")
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"`{folder}` has no config.json: give a Hugging Face checkpoint folder.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is not readable as JSON ({error}): download the checkpoint again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"`{path}` holds no JSON object: download the checkpoint again.")
    return config


def eos_ids(folder: Path) -> list[int]:
    """The end-of-sequence tokens that config.json and generation_config.json name together."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            try:
                ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            except (ValueError, AttributeError) as error:
                raise CheckpointError(f"`{path}` is not readable as JSON ({error}): download it again.") from error
            ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
            if not all(isinstance(token, int) and 0 <= token < 2**31 for token in ids):
                raise CheckpointError(f"`{path}` has the eos_token_id {ids}, which is no token id: correct it, or download it again.")
            found += ids
    return sorted(set(found))


def load_decoder(folder: Path, device: torch.device, dtype: torch.dtype) -> Llama:
    """Build the decoder that `folder` describes and fill it, tensor by tensor, on `device` in `dtype`."""
    config = read_config(folder)
    family = config.get("model_type")
    if family != "llama":
        raise CheckpointError(f"`{folder}` is of model_type `{family}`; `bass` reads: llama.")
    try:
        parsed = LlamaConfig.from_json(config)
        decoder = Llama(parsed, device, dtype)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"`{folder / 'config.json'}` lacks or garbles a field ({error}): download the checkpoint again.") from error
    _fill(decoder, folder / "model.safetensors")
    return decoder.requires_grad_(False).eval()


@torch.no_grad()
def _fill(decoder: Llama, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"`{path.parent}` has no model.safetensors: give a folder whose weights are in one safetensors file.")
    wanted = weight_names(decoder.config)
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            _account(path, wanted, present)
            for name, parameter in decoder.named_parameters():
                parts = [file.get_tensor(part) for part in wanted[name]]
                rows = [len(part) for part in parts]
                widths = {tuple(part.shape[1:]) for part in parts}
                if sum(rows) != len(parameter) or widths != {tuple(parameter.shape[1:])}:
                    shapes = ", ".join(f"{part} {list(t.shape)}" for part, t in zip(wanted[name], parts, strict=True))
                    raise CheckpointError(
                        f"`{path}`: {shapes} do not make up `{name}` {list(parameter.shape)} of config.json: they do not belong together."
                    )
                for target, part in zip(parameter.split(rows), parts, strict=True):
                    target.copy_(part)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"`{path}` is damaged or truncated ({error}): download it again.") from error


def _account(path: Path, wanted: dict[str, tuple[str, ...]], present: set[str]) -> None:
    """Every tensor is either used or refused."""
    needed = {part for parts in wanted.values() for part in parts}
    redundant = {"lm_head.weight"} if "head.weight" not in wanted else set()
    missing, unexpected = sorted(needed - present), sorted(present - needed - redundant)
    if missing or unexpected:
        says = [
            f"{len(names)} {kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for kind, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise CheckpointError(
            f"`{path}` does not hold the tensors that its config.json calls for: {' and '.join(says)}: the files do not belong together."
        )


def checkpoint_tensors(decoder: Llama, dtype: torch.dtype) -> dict[str, Tensor]:
    """The decoder's parameters under the checkpoint's names, fused ones split again."""
    tensors: dict[str, Tensor] = {}
    names = weight_names(decoder.config)
    for name, parameter in decoder.named_parameters():
        parts = names[name]
        rows = part_rows(decoder.config, name) if len(parts) > 1 else (len(parameter),)
        for part, tensor in zip(parts, parameter.detach().split(rows), strict=True):
            tensors[part] = tensor.to("cpu", dtype).contiguous().clone()
    return tensors


def save_decoder(decoder: Llama, folder: Path, dtype: torch.dtype = torch.bfloat16, **extra: Any) -> None:
    """Write `config.json` (with `extra` fields such as `eos_token_id`) and `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = str(dtype).removeprefix("torch.")
    config = decoder.config.to_json() | {"dtype": kind, "torch_dtype": kind} | extra
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(checkpoint_tensors(decoder, dtype), folder / "model.safetensors", metadata={"format": "pt"})
