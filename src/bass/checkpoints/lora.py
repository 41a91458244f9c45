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
from typing import Protocol, final, runtime_checkable

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
from bass.checkpoints.lora_targets import lacking, respelling
from bass.checkpoints.names import of_tower, without_wrappers
from bass.checkpoints.shards import FLOATS, Stored, TensorFiles, TensorReader, read_header
from bass.errors import CheckpointError, counted
from bass.models.decoder import CausalDecoder
from bass.models.sources import WeightSource

_START, _BASE = "base_model.model.", ".base_layer.weight"
_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.\w+)?\.weight")
LARGEST = 1e38  # below it no product overflows float32, however it is rounded
# matrices that `peft` saves by itself, where they may have been resized, or next to their update
_EMBEDDING = re.compile(
    r"(.*\.)?(embed_tokens|wte|embed_in|word_embeddings|lm_head|embed_out)\.weight"
)


@runtime_checkable
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
    @property
    def ends(self) -> tuple[str, str]: ...


@final
@dataclass(frozen=True)
class Update:
    """What happens to one tensor: it is replaced by `whole`, if there is one, and then `scale` B A
    is added, if there are these.

    a, b, whole: names of tensors of the adapter. transposed: the tensor is stored [in, out]. equal:
    the name of a tensor of the adapter that must equal `whole`: the head that is tied to it.
    """

    a: str = ""
    b: str = ""
    scale: float = 0.0
    whole: str = ""
    equal: str = ""
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
    config: LoraConfig

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
        return cls(folder, files, _updates(config, stored), config)

    def checked(self, base: Base) -> "Adapter":
        """The adapter by the names of a checkpoint. Raises `CheckpointError` unless every tensor
        fits, and all are there that its config names.
        """
        transposed = {t: s.transposed for s in base.sources.values() for t in s.tensors}
        tied = _tied(base)
        found: dict[str, Update] = {}
        names: dict[str, str] = {}  # of the adapter
        strange: list[str] = []
        towers: list[str] = []  # left out, as those of the checkpoint are
        doubled: list[str] = []
        for name, update in self.updates.items():
            spelled = _spellings(name, base.decoder.prefix)
            own = next((tied.get(n, n) for n in spelled if n in tied or n in transposed), None)
            if own is None:
                (towers if of_tower(name) else strange).append(name)
                continue
            if own in found:
                doubled += [name, names[own]]
            names[own] = name
            found[own] = replace(update, transposed=transposed.get(own, False))
        if doubled:
            raise _doubled(self.folder, doubled)
        embedding, head = base.sources["embed"].tensors[0], tied.get(base.ends[1], "")
        if tied:
            self._tie(base, found, embedding, head)
        if strange or not found or (tied and head in found and embedding not in found):
            raise _unknown(self.folder, base, strange or towers or [names[head]])
        for own, update in found.items():
            self._check_shape(embedding if tied and own == head else own, update, base)
        self._check_complete(base, names)
        return replace(self, updates=found)

    def merged(self, name: str, part: Tensor) -> Tensor:
        """The base model's tensor `name`, whose value is `part`, with its update in float32.

        Raises `CheckpointError` for an update that is not finite.
        """
        update = self.updates.get(name)
        if update is None:
            return part
        reader = TensorReader(self.files, torch.device("cpu"))

        def value(own: str) -> Tensor:
            return reader[own].to(part.device, torch.float32)

        start = part
        if update.whole:
            start = value(update.whole)
            self._check_finite(start, [update.whole])
        if update.equal and not torch.equal(value(update.whole), value(update.equal)):
            raise CheckpointError(
                f"`{self.folder}` has other values in `{some([update.equal])}` than in "
                f"`{some([update.whole])}`, and the config.json of its base model ties them: merge "
                "it with `peft`, and set tie_word_embeddings to false in the merged config.json."
            )
        if not update.a:
            return start
        a, b = value(update.a), value(update.b)
        product = b @ a
        product = update.scale * (product.T if update.transposed else product)
        largest = abs(update.scale) * len(a) * a.abs().max().item() * b.abs().max().item()
        if not largest < LARGEST:  # or NaN: look at all of it, which takes as long as the product
            self._check_finite(product, [update.a, update.b])
        return start.float() + product

    def _check_finite(self, value: Tensor, names: list[str]) -> None:
        """Raise `CheckpointError` for a value with NaN or infinity, made of the named tensors."""
        if value.numel() and not torch.stack(value.aminmax()).isfinite().all():
            reader = TensorReader(self.files, torch.device("cpu"))
            wrong = [name for name in names if not reader[name].isfinite().all()]
            what = (
                f"NaN or infinity in `{some(wrong[:1])}`"
                if wrong
                else f"an infinite product of `{some(names)}` and their factor"
            )
            raise CheckpointError(f"`{self.folder}` has {what}: download the adapter again.")

    def _tie(self, base: Base, found: dict[str, Update], embedding: str, head: str) -> None:
        """Let an embedding and the head that is tied to it be replaced together.

        Raises `CheckpointError` for an embedding alone, unless it was saved as the tied matrix.
        """
        ours, theirs = found.get(embedding), found.get(head)
        if ours is None:
            return
        if ours.whole and not ours.a and theirs is not None and theirs.whole and not theirs.a:
            found[embedding] = replace(ours, equal=theirs.whole)
        elif theirs is not None or ours.a or _is_within(self.config.saved, ours.whole):
            raise CheckpointError(
                f"`{self.folder}` changes `{embedding}`, to which the head of `{base.folder}` is "
                "tied, and the head not likewise: merge it with `peft` and give the merged folder."
            )

    def _check_complete(self, base: Base, names: Mapping[str, str]) -> None:
        """Raise `CheckpointError` unless there is an update of each module that the config names.

        names: of the updated tensors, as the adapter spells them.
        """
        stored = base.files.stored
        matrices = {
            tensor.removesuffix(".weight"): ours
            for ours, source in base.sources.items()
            for tensor in source.tensors
            if tensor.endswith(".weight") and len(stored[tensor].shape) == 2
        }
        inner = {own: theirs for own, theirs in names.items() if own not in base.ends}
        own, theirs = next(iter(inner.items()), ("", ""))
        respelled = respelling(own, theirs, _raw(self.updates[theirs].a) if theirs else "")
        spelled = {
            module: (module,) if f"{module}.weight" in base.ends else respelled(module)
            for module in matrices
        }
        linear = {m for m, ours in matrices.items() if "." in ours and ours != "head.weight"}
        adapted = {name.removesuffix(".weight") for name in names}
        if absent := lacking(self.config, spelled, linear, adapted):
            end = "lora_A.weight" if "." in matrices[absent[0]] else "lora_embedding_A"
            first = f"{_START}{spelled[absent[0]][-1]}.{end}"
            raise CheckpointError(
                f"`{self.folder}` lacks the matrices of {counted(len(absent), 'module')} that its "
                f"target_modules names, first `{some([first])}`: download the adapter again, or "
                "save it again with `peft`."
            )

    def _check_shape(self, name: str, update: Update, base: Base) -> None:
        wanted, stored = base.files.stored[name].shape, self.files.stored
        shapes = [stored[update.whole].shape] if update.whole else []
        if update.a:
            product = (stored[update.b].shape[0], stored[update.a].shape[1])
            shapes.append(product[::-1] if update.transposed else product)
        for has in shapes:
            if has != wanted:
                raise CheckpointError(
                    f"`{self.folder}` has {list(has)} for `{some([name])}`, which is "
                    f"{list(wanted)} in `{base.folder}`: give the adapter of this model."
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
            short = _bare(name)
            match = _PART.fullmatch(short)
            if tensor.kind not in FLOATS:
                found.wrong.append(f"{name} {tensor.kind}")
            elif match is not None and len(tensor.shape) == 2:
                parts = found.pairs.setdefault(match["module"], {"A": [], "B": []})
                parts[match["part"]].append(name)
            elif _is_saved(saved, short) or _EMBEDDING.fullmatch(short):
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
            and not self.whole[name][0].endswith(_BASE)  # that of the matrix before its update
        ]
        return [name for names in several for name in names]


def _updates(config: LoraConfig, stored: Mapping[str, Stored]) -> dict[str, Update]:
    """The updates by the names of the base model's tensors."""
    folder, names = config.folder, _Sorted.of(stored, config.saved)
    if names.wrong:
        raise CheckpointError(
            f"`{folder}` has {counted(len(names.wrong), 'tensor')} in no pair of LoRA matrices "
            f"({some(sorted(names.wrong))}): merge it with `peft` and give the merged folder."
        )
    if names.doubled:
        raise _doubled(folder, names.doubled)
    if absent := [m for m in config.saved if not any(_is_saved([m], n) for n in names.whole)]:
        raise CheckpointError(
            f"`{folder}` has no tensor of {some(absent)}, which its modules_to_save names: "
            "download the adapter again, or save it again with `peft`."
        )
    found = {short: Update(whole=whole[0]) for short, whole in names.whole.items()}
    for module, parts in names.pairs.items():
        a, b = parts["A"][0], parts["B"][0]
        if (rank := stored[a].shape[0]) != (wanted := config.rank(_raw(a))):
            raise CheckpointError(
                f"`{folder}` has matrices of rank {rank} for `{some([module])}`, and its "
                f"{ADAPTER_CONFIG} says {wanted} (`r` or `rank_pattern`), so the scale is unknown: "
                "download the adapter again."
            )
        name = f"{module}.weight"
        whole = found[name].whole if name in found else ""
        found[name] = Update(a, b, config.scale(_raw(a)), whole)
    if not found:
        raise CheckpointError(f"`{folder}` adapts no tensor: download the adapter again.")
    return found


def _bare(name: str) -> str:
    """The base model's name of a tensor of the adapter, but for `.lora_A` and `.lora_B`: without
    the prefixes of `peft`, doubled or not, and without those of wrappers such as `_orig_mod.`.
    """
    while name.startswith(_START):
        name = without_wrappers(name.removeprefix(_START))
    name = without_wrappers(name)
    return name.removesuffix(_BASE) + ".weight" if name.endswith(_BASE) else name


def _raw(name: str) -> str:
    """The module of a lora_A, as the adapter's config knows it: with prefixes of wrappers."""
    match = _PART.fullmatch(name.removeprefix(_START))
    return "" if match is None else match["module"]


def _is_saved(modules: list[str], name: str) -> bool:
    """Whether `peft` saves a tensor: `norm` is every module whose name ends so."""
    return any(f"{module}." in f"{name}." for module in modules)


def _is_within(modules: list[str], name: str) -> bool:
    return any(f".{module}." in f".{name}" for module in modules)


def _tied(base: Base) -> dict[str, str]:
    """The names of an embedding and of the head that is tied to it, each with the name under which
    it is in `updates`: the embedding's is the stored one.

    Empty for a model with a head of its own.
    """
    if base.decoder.head is not None:
        return {}
    embedding, head = base.ends
    stored = base.sources["embed"].tensors[0]  # under either name
    return {embedding: stored, head: embedding if stored == head else head}


def _unknown(folder: Path, base: Base, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"`{folder}` adapts {counted(len(names), 'tensor')} that `{base.folder}` does not have "
        f"({some(sorted(names))}): give the adapter of this model; a head that is tied to the "
        "embedding cannot be adapted alone."
    )


def _doubled(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"`{folder}` has several tensors for one place ({some(sorted(names))}), and only one of "
        "them can be merged: remove the others, or save the adapter again with `peft`."
    )


def _spellings(name: str, prefix: str) -> list[str]:
    """How a checkpoint may name a tensor: with the prefix of the family or without."""
    names = [name, name.replace("language_model.", "", 1)]
    return names + [n.removeprefix(prefix) for n in names] + [prefix + n for n in names]
