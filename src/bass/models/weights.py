"""Between a decoder and a Hugging Face folder: building, filling and saving it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.checkpoint import SINGLE, TensorFiles, read_config
from bass.models.config import FamilyConfig
from bass.models.decoder import CausalDecoder
from bass.models.sources import Source

Family = type[CausalDecoder]


def load_decoder(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalDecoder:
    """Build the decoder that `folder` describes and fill it, tensor by tensor, on `device` in `dtype`.

    Every tensor is accounted for before any memory is taken: those that are missing, unexpected or wrongly shaped are
    named together in one `CheckpointError`.
    """
    family, config = read_family(folder)
    with TensorFiles(folder) as files:
        sources = _named_as_stored(family, family.sources(config), files.shapes)
        outline = family(config, torch.device("meta"), dtype)  # pyright: ignore[reportCallIssue]
        _account(folder, family, dict(outline.named_parameters()), sources, files.shapes)
        decoder = family(config, device, dtype)  # pyright: ignore[reportCallIssue]
        _fill(decoder, sources, files)
    return decoder.requires_grad_(False).eval()


def read_family(folder: Path) -> tuple[Family, FamilyConfig]:
    """The family that config.json names, and its fields."""
    raw = read_config(folder)
    name = raw.get("model_type")
    if name not in FAMILIES:
        raise CheckpointError(f"`{folder}` is of model_type `{name}`; `bass` reads: {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[name], FAMILIES[name].config_type.from_json(raw)


@torch.no_grad()
def _fill(decoder: CausalDecoder, sources: dict[str, Source], files: TensorFiles) -> None:
    for name, parameter in decoder.named_parameters():
        sources[name].fill(parameter, [files[tensor] for tensor in sources[name].tensors])


def _named_as_stored(family: Family, sources: dict[str, Source], stored: Iterable[str]) -> dict[str, Source]:
    """Checkpoints of the bare model lack the prefix."""
    if any(name.startswith(family.prefix) for name in stored):
        return sources
    return {
        ours: Source(tuple(name.removeprefix(family.prefix) for name in s.tensors), s.sizes, s.rows, s.transposed)
        for ours, s in sources.items()
    }


def _account(
    folder: Path, family: Family, parameters: dict[str, Tensor], sources: dict[str, Source], stored: dict[str, tuple[int, ...]]
) -> None:
    """Every tensor is either used or refused."""
    wanted = {
        tensor: shape
        for name, parameter in parameters.items()
        for tensor, shape in zip(sources[name].tensors, sources[name].shapes(parameter.shape), strict=True)
    }
    redundant = {"lm_head.weight"} if "head.weight" not in parameters else set()
    unexpected = [n for n in stored if n not in wanted and n not in redundant and not n.endswith(family.buffers)]
    wrong = [f"{n} {list(stored[n])} instead of {list(wanted[n])}" for n in wanted if n in stored and stored[n] != wanted[n]]
    findings = {"missing": [n for n in wanted if n not in stored], "unexpected": unexpected, "wrongly shaped": wrong}
    if any(findings.values()):
        says = [f"{len(names)} {kind} ({_some(sorted(names))})" for kind, names in findings.items() if names]
        raise CheckpointError(
            f"`{folder}` does not hold the tensors that its config.json calls for: {', '.join(says)}: the files do not belong together."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def checkpoint_tensors(decoder: CausalDecoder, dtype: torch.dtype) -> dict[str, Tensor]:
    """The decoder's parameters under the checkpoint's names, fused ones split again."""
    sources = decoder.sources(decoder.config)
    return {
        tensor: part.to("cpu", dtype).contiguous().clone()
        for name, parameter in decoder.named_parameters()
        for tensor, part in zip(sources[name].tensors, sources[name].split(parameter.detach()), strict=True)
    }


def save_decoder(decoder: CausalDecoder, folder: Path, dtype: torch.dtype = torch.bfloat16, **extra: Any) -> None:
    """Write `config.json` (with `extra` fields such as `eos_token_id`) and `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = str(dtype).removeprefix("torch.")
    config = decoder.config.to_json() | {"dtype": kind, "torch_dtype": kind} | extra
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(checkpoint_tensors(decoder, dtype), folder / SINGLE, metadata={"format": "pt"})
