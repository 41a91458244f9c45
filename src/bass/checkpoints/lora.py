"""LoRA adapters in the form of PEFT, merged into the weights of a checkpoint while it loads.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. For a matrix W
[out, in] it has A [r, in] and B [out, r], and the merged matrix is W + s B A, with s = alpha / r
or, by `use_rslora`, alpha / sqrt(r) (Hu et al., 2021; Kalajdzievski, 2023). It is computed in
float32 and rounded once, to the type of the loaded weights.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from bass.checkpoints.folder import ADAPTER, ADAPTER_CONFIG, read_json, some
from bass.checkpoints.names import OF_TOWERS
from bass.checkpoints.shards import TensorFiles, TensorReader, read_header
from bass.errors import CheckpointError, counted

# the names of `peft`, whose prefix may be doubled
_PAIR = re.compile(r"(base_model\.model\.)*(?P<module>.+)\.lora_(?P<part>[AB])(\.\w+)?\.weight")
# fields that may change the computation or the base model in a way that no tensor shows, and the
# values that do not; others have tensors that fit no pair
_MERGED = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "true", "false", "gaussian", "eva", "orthogonal"),
    "use_dora": (False,),
    "layer_replication": ([],),
    "alora_invocation_tokens": ([],),
}


@final
@dataclass(frozen=True)
class Update:
    """Adds `scale` B A to a matrix, [in, out] if `transposed`. a, b: names of the tensors."""

    a: str
    b: str
    scale: float
    transposed: bool = False


@final
@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter with its config and header. updates: by tensor, after `checked`."""

    folder: Path
    files: TensorFiles
    config: dict[str, Any]
    updates: dict[str, Update] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Adapter":
        """Read an adapter's folder, without values. Raises `CheckpointError`."""
        path, about = folder / ADAPTER, folder / ADAPTER_CONFIG
        if not (path.is_file() and about.is_file()):
            raise CheckpointError(
                f"`{folder}` has no {ADAPTER_CONFIG} with an {ADAPTER}: give a folder of a LoRA "
                "adapter as `peft` saves it (`bass convert` reads one in a pickle file)."
            )
        config = {name: value for name, value in read_json(about).items() if value is not None}
        if wrong := [n for n, known in _MERGED.items() if config.get(n, known[0]) not in known]:
            fields = "`, `".join(f"{name}={config[name]!r:.60}" for name in wrong)
            raise _unmerged(folder, f"is an adapter with `{fields}`")
        return cls(folder, TensorFiles(folder, (path,), read_header(path)), config)

    def checked(self, base: Any) -> "Adapter":
        """The adapter by the names of a checkpoint, a `CheckpointIndex`. Raises `CheckpointError`
        for an update of a tensor that the model does not have, or has in another shape.
        """
        self._check_vocabulary(base)
        sources = {tensor: s for s in base.sources.values() for tensor in s.tensors}
        found: dict[str, Update] = {}
        unknown: list[str] = []
        for name, update in _updates(self.files, self.config).items():
            # as a folder of the text half has it, and with the prefix of the family or without
            names, prefix = [name, name.replace("language_model.", "", 1)], base.decoder.prefix
            names += [n.removeprefix(prefix) for n in names] + [prefix + n for n in names]
            own = next((n for n in names if n in sources), None)
            if own is None:
                unknown.append(name)
                continue
            transposed, wanted = sources[own].transposed, base.files.stored[own].shape
            found[own] = replace(update, transposed=transposed)
            shape = self.files.stored[update.b].shape[0], self.files.stored[update.a].shape[1]
            shape = shape[::-1] if transposed else shape
            if shape != wanted:
                raise CheckpointError(
                    f"`{self.folder}` has {[*shape]} for `{own}`, which is {[*wanted]} in "
                    f"`{base.folder}`: give the adapter of this model."
                )
        # towers of other modalities are left out, as those of the checkpoint are
        if unknown := [name for name in unknown if not (found and OF_TOWERS.fullmatch(name))]:
            raise CheckpointError(
                f"`{self.folder}` adapts {counted(len(unknown), 'tensor')} that `{base.folder}` "
                f"does not have ({some(sorted(unknown))}): give the adapter of this model."
            )
        return replace(self, updates=found)

    def _check_vocabulary(self, base: Any) -> None:
        names, size = base.decoder.names, base.decoder.shape.vocab_size
        ends = (names[n].removesuffix(".weight").rpartition(".")[2] for n in ("embed", "head"))
        of_tokens = re.compile(
            rf".*\.({'|'.join(ends)})\.((base_layer|modules_to_save)\.)?"
            r"(weight|lora_B\.weight|lora_embedding_(?P<A>A))"
        )
        for name, tensor in self.files.stored.items():
            found = of_tokens.fullmatch(name)
            if found and (trained := tensor.shape[1 if found["A"] else 0]) != size:
                raise CheckpointError(
                    f"`{self.folder}` was trained with {trained} tokens, and `{base.folder}` has "
                    f"{size}: resize the model's embeddings (`resize_token_embeddings`), merge the "
                    "adapter with `peft`, and give the merged folder."
                )

    def merged(self, name: str, part: Tensor) -> Tensor:
        """The base model's tensor `name`, whose value is `part`, with its update in float32."""
        if (update := self.updates.get(name)) is None:
            return part
        reader = TensorReader(self.files, torch.device("cpu"))
        a, b = (reader[own].to(part.device, torch.float32) for own in (update.a, update.b))
        product = b @ a
        return part.float() + update.scale * (product.T if update.transposed else product)


def _updates(files: TensorFiles, config: dict[str, Any]) -> dict[str, Update]:
    """The updates by the names of the base model's tensors."""
    pairs: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    for name in files.stored:
        if (pair := _PAIR.fullmatch(name.replace(".base_layer.", "."))) is not None:
            pairs.setdefault(pair["module"], {})[pair["part"]] = name
        else:
            wrong.append(name)
    wrong += [name for pair in pairs.values() if len(pair) < 2 for name in pair.values()]
    if wrong or not files.stored:
        first = some(sorted(wrong))
        what = f"has {counted(len(wrong), 'tensor')} in no pair of LoRA matrices ({first})"
        raise _unmerged(files.folder, what)
    found: dict[str, Update] = {}
    for module, pair in pairs.items():
        rank = files.stored[pair["A"]].shape[0]
        # as `peft`: the first pattern that is the module's name, or its end after a dot
        patterns = config.get("alpha_pattern", {}).items()
        matching = (value for one, value in patterns if re.match(rf"(.*\.)?({one})$", module))
        alpha = next(matching, config.get("lora_alpha", 8))
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        found[f"{module}.weight"] = Update(pair["A"], pair["B"], scale)
    return found


def _unmerged(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"`{folder}` {what}, which `bass` does not merge: merge it with `peft` and give the "
        "merged folder."
    )
