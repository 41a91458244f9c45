"""LoRA adapters in the form of PEFT, merged into the weights of a checkpoint while it loads.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. For a matrix W
[out, in] it has A [r, in] and B [out, r], and the merged matrix is W + s B A, with s = alpha / r
or, by `use_rslora`, alpha / sqrt(r) (Hu et al., 2021; Kalajdzievski, 2023). It is computed in
float32 and rounded once, to the type of the loaded weights.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, final

import torch
from torch import Tensor

from bass.checkpoints.folder import (
    ADAPTER,
    ADAPTER_CONFIG,
    PICKLES,
    file_names,
    pickles_only,
    some,
)
from bass.checkpoints.lora_config import LoraConfig
from bass.checkpoints.shards import FLOATS, Stored, TensorFiles, TensorReader, read_header
from bass.errors import CheckpointError
from bass.models.decoder import CausalDecoder
from bass.models.sources import WeightSource

_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.\w+)?\.weight")


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
        config = LoraConfig.read(folder)
        if not (folder / ADAPTER).is_file():
            if pickles := [n for n in file_names(folder) if n.endswith(PICKLES)]:
                raise pickles_only(f"`{folder}`", pickles, folder)
            raise CheckpointError(f"`{folder}` has no {ADAPTER}: download the adapter again.")
        stored = read_header(folder / ADAPTER)[0]
        files = TensorFiles(folder, (folder / ADAPTER,), stored)
        return cls(folder, files, _updates(config, stored))

    def checked(self, base: Base) -> "Adapter":
        """The adapter by the names of a checkpoint. Raises `CheckpointError` unless every tensor
        fits.
        """
        transposed = {t: s.transposed for s in base.sources.values() for t in s.tensors}
        found: dict[str, Update] = {}
        names: dict[str, str] = {}  # of the adapter
        strange: list[str] = []
        doubled: list[str] = []
        for name, update in self.updates.items():
            own = next((n for n in _spellings(name, base.decoder.prefix) if n in transposed), None)
            if own is None:
                strange.append(name)
                continue
            if own in found:
                doubled += [name, names[own]]
            names[own] = name
            found[own] = replace(update, transposed=transposed[own])
            self._check_shape(own, found[own], base)
        if doubled:
            raise _doubled(self.folder, doubled)
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


@final
@dataclass
class _Sorted:
    """The names of an adapter's tensors, by what they are."""

    pairs: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # module -> A, B
    whole: dict[str, list[str]] = field(default_factory=dict)  # by the base model's name
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, stored: Mapping[str, Stored], saved: list[str]) -> "_Sorted":
        found = cls()
        for name, tensor in stored.items():
            short = name.removeprefix("base_model.model.")
            match = _PART.fullmatch(short)
            if tensor.kind not in FLOATS:
                found.wrong.append(f"{name} {tensor.kind}")
            elif match is not None and len(tensor.shape) == 2:
                parts = found.pairs.setdefault(match["module"], {"A": [], "B": []})
                parts[match["part"]].append(name)
            elif any(f".{module}." in f".{short}" for module in saved):
                found.whole.setdefault(short, []).append(name)
            else:
                found.wrong.append(name)
        for module, parts in [*found.pairs.items()]:
            shapes = {part: stored[names[0]].shape for part, names in parts.items() if names}
            if {*shapes} != {"A", "B"} or shapes["A"][0] != shapes["B"][1]:
                found.wrong += [name for names in parts.values() for name in names]
                del found.pairs[module]
        return found

    @property
    def doubled(self) -> list[str]:
        """The names of tensors that are for the same part of the same module."""
        places = [names for parts in self.pairs.values() for names in parts.values()]
        several = [names for names in (*places, *self.whole.values()) if len(names) > 1]
        several += [
            [*self.whole[name], *parts["A"]]
            for module, parts in self.pairs.items()
            if (name := f"{module}.weight") in self.whole
        ]
        return [name for names in several for name in names]


def _updates(config: LoraConfig, stored: Mapping[str, Stored]) -> dict[str, Update]:
    """The updates by the names of the base model's tensors."""
    folder, names = config.folder, _Sorted.of(stored, config.saved)
    if names.wrong:
        raise CheckpointError(
            f"`{folder}` has {len(names.wrong)} tensors that are no pair of LoRA matrices "
            f"({some(sorted(names.wrong))}): merge it with `peft` and give the merged folder."
        )
    if names.doubled:
        raise _doubled(folder, names.doubled)
    if absent := [m for m in config.saved if not any(f".{m}." in f".{n}" for n in names.whole)]:
        raise CheckpointError(
            f"`{folder}` has no tensor of {some(absent)}, which its modules_to_save names: "
            "download the adapter again, or save it again with `peft`."
        )
    found = {short: Update(whole=whole[0]) for short, whole in names.whole.items()}
    for module, parts in names.pairs.items():
        a, b = parts["A"][0], parts["B"][0]
        if (rank := stored[a].shape[0]) != (wanted := config.rank(module)):
            raise CheckpointError(
                f"`{folder}` has matrices of rank {rank} for `{some([module])}`, and its "
                f"{ADAPTER_CONFIG} says {wanted} (`r` or `rank_pattern`), so the scale is unknown: "
                "download the adapter again."
            )
        found[f"{module}.weight"] = Update(a, b, config.scale(module))
    if not found:
        raise CheckpointError(f"`{folder}` adapts no tensor: download the adapter again.")
    return found


def _doubled(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"`{folder}` has several tensors for one place ({some(sorted(names))}), and only one of "
        "them can be merged: remove the others, or save the adapter again with `peft`."
    )


def _spellings(name: str, prefix: str) -> list[str]:
    """How a checkpoint may name a tensor: with the prefix of the family or without."""
    names = [name, name.replace("language_model.", "", 1)]
    return names + [n.removeprefix(prefix) for n in names] + [prefix + n for n in names]
