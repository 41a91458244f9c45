"""LoRA adapters in the form of PEFT, merged into the weights of a checkpoint while it loads.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. For a matrix W
[out, in] it has A [r, in] and B [out, r], and the merged matrix is W + s B A, with s = alpha / r
or, by `use_rslora`, alpha / sqrt(r) (Hu et al., 2021; Kalajdzievski, 2023). It is computed in
float32 and rounded once, to the type of the loaded weights.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor

from bass.checkpoints.folder import (
    ADAPTER,
    ADAPTER_CONFIG,
    PICKLES,
    file_names,
    pickles_only,
    read_json,
    some,
)
from bass.checkpoints.shards import FLOATS, Stored, TensorFiles, TensorReader, read_header
from bass.errors import CheckpointError, is_finite
from bass.models.decoder import CausalDecoder
from bass.models.sources import WeightSource

_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.\w+)?\.weight")
_SIMPLE = re.compile(r"\^?[\w.]+\$?")  # a pattern of module names that is a name or its end
# fields that change the computation, unless empty
_UNSUPPORTED = (
    "use_dora", "layer_replication", "trainable_token_indices", "target_parameters", "lora_bias",
    "alora_invocation_tokens", "use_qalora", "arrow_config", "megatron_config",
)  # fmt: skip
# other ways to start training change the weights of the base model, which the adapter lacks
_STARTS = (True, False, None, "true", "false", "gaussian", "eva", "orthogonal")


class Base(Protocol):
    """What an adapter needs to know of a checkpoint; a `CheckpointIndex`."""

    @property
    def folder(self) -> Path: ...
    @property
    def decoder(self) -> CausalDecoder: ...
    @property
    def files(self) -> TensorFiles: ...
    @property
    def sources(self) -> dict[str, WeightSource]: ...


@final
@dataclass(frozen=True)
class Update:
    """What happens to one tensor: it is replaced by `whole`, or `scale` B A is added.

    a, b, whole: names of tensors of the adapter. transposed: the tensor is stored [in, out].
    """

    a: str = ""
    b: str = ""
    scale: float = 0.0
    whole: str = ""
    transposed: bool = False


@final
@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter whose config and header have been read.

    updates: by the names of the base model's tensors, as the adapter has them, or, after `checked`,
    as the checkpoint has them.
    """

    folder: Path
    files: TensorFiles
    updates: dict[str, Update]

    @classmethod
    def read(cls, folder: Path) -> "Adapter":
        """Read an adapter's folder, without values. Raises `CheckpointError`."""
        if not (folder / ADAPTER_CONFIG).is_file():
            raise CheckpointError(
                f"`{folder}` has no {ADAPTER_CONFIG}: give a folder of a LoRA adapter as "
                "`peft` saves it."
            )
        config = read_json(folder / ADAPTER_CONFIG)
        _check_config(folder, config)
        if not (folder / ADAPTER).is_file():
            if pickles := [n for n in file_names(folder) if n.endswith(PICKLES)]:
                raise pickles_only(f"`{folder}`", pickles, folder)
            raise CheckpointError(f"`{folder}` has no {ADAPTER}: download the adapter again.")
        stored = read_header(folder / ADAPTER)[0]
        files = TensorFiles(folder, (folder / ADAPTER,), stored)
        return cls(folder, files, _updates(folder, config, stored))

    def checked(self, base: Base) -> "Adapter":
        """The adapter by the names of a checkpoint. Raises `CheckpointError` unless every tensor
        fits.
        """
        transposed = {t: s.transposed for s in base.sources.values() for t in s.tensors}
        found: dict[str, Update] = {}
        strange: list[str] = []
        for name, update in self.updates.items():
            own = next((n for n in _spellings(name, base.decoder.prefix) if n in transposed), None)
            if own is None:
                strange.append(name)
                continue
            found[own] = replace(update, transposed=transposed[own])
            self._check_shape(own, found[own], base)
        if strange:
            raise CheckpointError(
                f"`{self.folder}` adapts {len(strange)} tensors that `{base.folder}` does not have "
                f"({some(sorted(strange))}): give the adapter of this model; a head that is tied "
                "to the embedding cannot be adapted alone."
            )
        embedding = base.sources["embed"].tensors[0]
        if base.decoder.head is None and embedding in found:
            raise CheckpointError(
                f"`{self.folder}` replaces `{embedding}`, to which the head of `{base.folder}` is "
                "tied: merge it with `peft` and give the merged folder."
            )
        return replace(self, updates=found)

    def merged(self, name: str, part: Tensor) -> Tensor:
        """The base model's tensor `name`, whose value is `part`, with its update in float32."""
        update = self.updates.get(name)
        if update is None:
            return part
        reader = TensorReader(self.files, torch.device("cpu"))

        def value(own: str) -> Tensor:
            return reader[own].to(part.device, torch.float32)

        if update.whole:
            return value(update.whole)
        product = value(update.b) @ value(update.a)
        return part.float() + update.scale * (product.T if update.transposed else product)

    def _check_shape(self, name: str, update: Update, base: Base) -> None:
        wanted, stored = base.files.stored[name].shape, self.files.stored
        if update.whole:
            has = stored[update.whole].shape
        else:
            has = (stored[update.b].shape[0], stored[update.a].shape[1])
            has = has[::-1] if update.transposed else has
        if has != wanted:
            raise CheckpointError(
                f"`{self.folder}` has {list(has)} for `{some([name])}`, which is {list(wanted)} in "
                f"`{base.folder}`: give the adapter of this model."
            )


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    """Raise `CheckpointError` for a kind of adapter that is not merged."""
    kind = config.get("peft_type", "LORA")
    wrong = [f"{name}={config[name]!r:.60}" for name in _UNSUPPORTED if config.get(name)]
    if kind != "LORA":
        wrong.append(f"peft_type={kind!r:.60}")
    if config.get("bias", "none") != "none":
        wrong.append(f"bias={config['bias']!r:.60}")
    start = config.get("init_lora_weights", True)
    if not any(start is one or (isinstance(start, str) and start == one) for one in _STARTS):
        wrong.append(f"init_lora_weights={start!r:.60}")
    if wrong:
        raise CheckpointError(
            f"`{folder}` is an adapter with `{'`, `'.join(wrong)}`, which `bass` does not merge: "
            "merge it with `peft` and give the merged folder."
        )


def _updates(
    folder: Path, config: dict[str, Any], stored: Mapping[str, Stored]
) -> dict[str, Update]:
    """The updates by the names of the base model's tensors."""
    found: dict[str, Update] = {}
    parts: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    saved = config.get("modules_to_save") or []
    for name, tensor in stored.items():
        short = name.removeprefix("base_model.model.")
        match = _PART.fullmatch(short)
        if tensor.kind not in FLOATS:
            wrong.append(f"{name} {tensor.kind}")
        elif match is not None and len(tensor.shape) == 2:
            parts.setdefault(match["module"], {})[match["part"]] = name
        elif isinstance(saved, list) and any(f".{m}." in f".{short}" for m in saved):
            found[short] = Update(whole=name)
        else:
            wrong.append(name)
    for module, both in parts.items():
        if {*both} != {"A", "B"} or stored[both["A"]].shape[0] != stored[both["B"]].shape[1]:
            wrong += both.values()
            continue
        rank = stored[both["A"]].shape[0]
        scale = _alpha(folder, config, module) / (
            math.sqrt(max(rank, 1)) if config.get("use_rslora") else max(rank, 1)
        )
        found[f"{module}.weight"] = Update(both["A"], both["B"], scale)
    if wrong:
        raise CheckpointError(
            f"`{folder}` has {len(wrong)} tensors that are no pair of LoRA matrices "
            f"({some(sorted(wrong))}): merge it with `peft` and give the merged folder."
        )
    if not found:
        raise CheckpointError(f"`{folder}` adapts no tensor: download the adapter again.")
    return found


def _alpha(folder: Path, config: dict[str, Any], module: str) -> float:
    """The numerator of the scale of a module."""
    patterns = config.get("alpha_pattern") or {}
    alpha = config.get("lora_alpha", 8)
    for key, own in patterns.items() if isinstance(patterns, dict) else ():
        if not _SIMPLE.fullmatch(key):
            raise CheckpointError(
                f"`{folder}` has the alpha_pattern {key!r:.100}, and `bass` reads names of modules "
                "alone: merge it with `peft` and give the merged folder."
            )
        if f".{module}".endswith(f".{key.strip('^$')}"):
            alpha = own
            break
    if not is_finite(alpha):
        raise CheckpointError(
            f"`{folder}` has the lora_alpha {alpha!r:.60}, which is no number: download the "
            "adapter again."
        )
    return float(alpha)


def _spellings(name: str, prefix: str) -> list[str]:
    """How a checkpoint may name a tensor: with the prefix of the family or without."""
    names = [name, name.replace("language_model.", "", 1)]
    return names + [n.removeprefix(prefix) for n in names] + [prefix + n for n in names]
