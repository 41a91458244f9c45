"""Loads a Hugging Face folder into a decoder, and saves one; accounts for every tensor."""

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bass.checkpoints.families import family_of
from bass.checkpoints.folder import read_config, some, text_config
from bass.checkpoints.heads import refuse_head
from bass.checkpoints.lora import Adapter
from bass.checkpoints.names import is_unused, named_as_stored, of_stacks, renamed, text_half
from bass.checkpoints.quantized.formats import declared, described
from bass.checkpoints.quantized.matrices import (
    keep_in_four_bits,
    keep_quantized,
    without_zero_biases,
)
from bass.checkpoints.shards import (
    FLOATS,
    TensorFiles,
    TensorReader,
    dtypes_of,
    mismatches,
    write_folder,
)
from bass.errors import BassError, CheckpointError, OptionError, counted, explained
from bass.interfaces import Quantization
from bass.models.decoder import CausalDecoder
from bass.models.sources import (
    WeightSource,
    fill_with_random,
    stored_shapes,
    stored_tensors,
)
from bass.progress import advancing
from bass.quantization.apply import quantizable, quantize, quantize_head, quantize_layer, unfilled

Family = type[CausalDecoder]

_INTEGERS = ("I64", "I32", "BOOL")
SHOWN_FROM = 1_000_000_000  # bytes of a checkpoint from which there is a progress bar


@dataclass(frozen=True)
class CheckpointIndex:
    """A checkpoint without the values of its weights.

    `decoder` is on the meta device. dummy: there are no weights; loading makes random ones.
    """

    folder: Path
    raw: dict[str, Any]
    files: TensorFiles
    decoder: CausalDecoder
    sources: dict[str, WeightSource]
    second_head: str | None  # tensor of a head that config.json declares as tied to the embedding
    dummy: bool = False
    half_of: str | None = None
    removed: str = ""  # prefix of all stored names that is none of the family's
    unused: tuple[str, ...] = ()  # stored tensors that the decoder does not need
    adapter: Adapter | None = None  # merged at load

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Types of the stored weights, most bytes first; of random ones, that of config.json."""
        names = (name for source in self.sources.values() for name in source.tensors)
        return dtypes_of((self.files.stored[name] for name in names), self.raw)

    def load(
        self, device: torch.device, dtype: torch.dtype, quantization: Quantization | None = None
    ) -> CausalDecoder:
        """The decoder with its weights, filled tensor by tensor, on `device` in `dtype`.

        A layer is quantized as soon as it is filled, so only one layer at a time is in memory
        unquantized. A stored head that differs from the embedding is used even if config.json ties
        them, as in `transformers`.
        """
        stored = self.files.method  # of quantized weights
        if stored and quantization is not None:
            raise OptionError(
                f"`{self.folder}` is already quantized by {stored}: leave out `quantization`, or "
                "give `none` (for a draft, as `draft_quantization`)."
            )
        embed, second = self.sources.get("embed"), self.second_head
        if embed and second and device.type != "meta" and not self._same(embed.tensors[0], second):
            raw, kind = self.raw | {"tie_word_embeddings": False}, type(self.decoder)
            untied = _indexed(raw, kind, self.files)
            return replace(untied, adapter=self.adapter).load(device, dtype, quantization)

        def no_room(reason: str) -> CheckpointError:
            size = self.weight_bytes(dtype, quantization)
            return CheckpointError(
                f"`{self.folder}` needs {size / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')} "
                f"on {device}, and there is not enough memory "
                f"({reason}): choose a smaller `dtype`, a `quantization`, or another device."
            )

        with explained(no_room):
            with unfilled() if stored or quantization is not None else nullcontext():
                decoder = type(self.decoder)(self.decoder.config, device, dtype)  # pyright: ignore[reportCallIssue]
            if device.type != "meta" or stored:
                self._fill(decoder, device, quantization)
            elif quantization is not None:
                quantize(decoder, quantization)
        return decoder.requires_grad_(False).eval()

    def weight_bytes(
        self, dtype: torch.dtype, quantization: Quantization | None = None, draft: bool = False
    ) -> int:
        """The bytes of the loaded weights; for a draft with its quantized head."""
        decoder = self.load(torch.device("meta"), dtype, quantization)
        if draft and quantization is not None:
            quantize_head(decoder, quantization)
        return sum(p.nbytes for p in decoder.parameters())

    def _same(self, one: str, other: str) -> bool:
        """Whether two stored tensors are equal."""
        reader = TensorReader(self.files, torch.device("cpu"))
        return reader[one].dtype == reader[other].dtype and torch.equal(reader[one], reader[other])

    @torch.no_grad()
    def _fill(
        self, decoder: CausalDecoder, device: torch.device, quantization: Quantization | None
    ) -> None:
        shrinking = set() if quantization is None else set(quantizable(decoder))
        layers = set(quantizable(decoder)) if self.files.method else set()
        generator = torch.Generator(device).manual_seed(0) if self.dummy else None
        size = self.files.size
        shown = sys.stderr.isatty() and size >= SHOWN_FROM
        with advancing(f"loading {self.folder.name}, bytes", size, shown) as advance:
            reader = TensorReader(self.files, device, advance)
            # a list of the modules would keep freed layers alive
            for path in [path for path, _ in decoder.named_modules()]:
                module = decoder.get_submodule(path)
                if path in layers and keep_quantized(decoder, path, self.sources, reader):
                    continue
                for own in [name for name, _ in module.named_parameters(recurse=False)]:
                    source = self.sources.get(f"{path}.{own}" if path else own)
                    if source and keep_in_four_bits(module, own, source, reader):
                        continue
                    if getattr(module, own).is_meta:  # `unfilled`
                        empty = torch.empty_like(getattr(module, own), device=device)
                        setattr(module, own, nn.Parameter(empty, requires_grad=False))
                    if generator is not None:
                        fill_with_random(module, own, generator)
                    elif source is not None:
                        parts = [reader[tensor] for tensor in source.tensors]
                        if self.adapter is not None:
                            parts = [*map(self.adapter.merged, source.tensors, parts)]
                        source.fill(module.get_parameter(own), parts)
                        del parts  # the next layer may need their memory
                del module
                if quantization is not None and path in shrinking:
                    quantize_layer(decoder, path, quantization)


def load_decoder(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalDecoder:
    """The decoder of `folder`, on `device` in `dtype`; see `read_index`."""
    return read_index(folder).load(device, dtype)


def read_index(
    folder: Path,
    family: Family | None = None,
    adapter: Adapter | None = None,
    files: TensorFiles | None = None,
    raw: dict[str, Any] | None = None,
) -> CheckpointIndex:
    """Read a checkpoint's config and headers, and no weights.

    family: a class of the user's for its own model_type. adapter: merged into the weights at load.
    files, raw: the headers and config.json, if they have been read.

    It accounts for every tensor before it allocates memory: one `CheckpointError` names all
    missing, unexpected and wrongly shaped ones.
    """
    whole = read_config(folder) if raw is None else raw
    raw, half_of = text_config(whole)
    files = files or TensorFiles.read(folder)
    family = _family(folder, raw, family, files.stored)
    files = described(files, whole, raw)
    if files.method and adapter is not None:
        raise CheckpointError(
            f"`{folder}` holds quantized weights, into which no adapter can be merged: use the "
            "original checkpoint."
        )
    if half_of is not None:
        raw, files = text_half(half_of, raw, files)
    found = replace(_indexed(raw, family, files), half_of=half_of)
    return found if adapter is None else replace(found, adapter=adapter.checked(found))


def dummy_index(
    folder: Path, family: Family | None = None, raw: dict[str, Any] | None = None
) -> CheckpointIndex:
    """Read a config.json alone, for random weights. Raises `CheckpointError` if it is quantized."""
    whole = read_config(folder) if raw is None else raw
    raw, half_of = text_config(whole)
    if declared(whole) is not None:
        raise CheckpointError(
            f"`{folder}` has the config of quantized weights, and random ones are not: take its "
            "`quantization_config` out, or give one without, and `quantization=` if wanted."
        )
    decoder = _empty(folder, raw, _family(folder, raw, family))
    files = TensorFiles(folder, (), {})
    return CheckpointIndex(folder, raw, files, decoder, {}, None, True, half_of)


def _family(
    folder: Path, raw: dict[str, Any], own: Family | None, tensors: Iterable[str] = ()
) -> Family:
    """As `family_of`. Raises `CheckpointError` for a head too, if no class of the user's has it."""
    if own is None or own.config_type.model_type != raw.get("model_type"):
        refuse_head(folder, raw, tensors)
    return family_of(folder, raw, own)


def _indexed(raw: dict[str, Any], family: Family, files: TensorFiles) -> CheckpointIndex:
    """The index of a checkpoint whose quantized matrices are described."""
    decoder = _empty(files.folder, raw, family)
    sources = of_stacks(family.sources(decoder.config), files.stored)
    untied = replace(decoder.config, tie_word_embeddings=False)  # pyright: ignore[reportCallIssue]
    head = family.sources(untied)["head.weight"].tensors[0]
    body = [n for own, s in sources.items() if own != "embed" for n in s.tensors]
    files, removed = renamed(files, body, family.prefix)
    sources = named_as_stored(family, sources, files.stored, head)
    unused = _account(decoder, sources, files, head)
    second = decoder.head is None and head in files.stored and sources["embed"].tensors[0] != head
    return CheckpointIndex(
        files.folder, raw, files, decoder, sources, head if second else None, removed=removed,
        unused=unused,
    )  # fmt: skip


def _empty(folder: Path, raw: dict[str, Any], family: Family) -> CausalDecoder:
    """The decoder of a config.json on the meta device. Raises `CheckpointError`."""
    try:
        config = family.config_type.from_json(raw)
        decoder = family(config, torch.device("meta"), torch.float32)  # pyright: ignore[reportCallIssue]
    except BassError as error:
        raise CheckpointError(f"`{folder}`: {error}") from error
    except Exception as error:  # invalid values may raise anything in a family's constructor
        raise CheckpointError(
            f"`{folder / 'config.json'}` has values that do not form a valid "
            f"{family.config_type.model_type} model "
            f"({type(error).__name__}: {str(error)[:200]}): download it again."
        ) from error
    return decoder.requires_grad_(False).eval()


def _account(
    decoder: CausalDecoder, sources: dict[str, WeightSource], files: TensorFiles, head: str
) -> tuple[str, ...]:
    """The stored tensors that the decoder does not need.

    Raises `CheckpointError` for other tensors that no parameter uses, and for missing ones.
    """
    folder, stored, wanted = files.folder, files.stored, stored_shapes(decoder, sources)
    # a duplicate of the tied matrix, unless `load` finds a difference
    if decoder.head is None and head in stored:
        wanted[head] = tuple(decoder.embed.shape)
    more = [name for name in stored if name not in wanted]
    # buffers of integers, which no decoder reads; packed weights have two axes or more
    flat = {n for n in more if len(stored[n].shape) < 2 and stored[n].kind in _INTEGERS}
    # layers after the last one, which draft (`bass.drafters.mtp`)
    mtp = tuple(n.partition("eh_proj.")[0] for n in more if ".eh_proj." in n)
    unexpected = [n for n in more if n not in flat and not n.startswith(mtp) and not is_unused(n)]
    if found := mismatches(stored, wanted, without_zero_biases(unexpected, files)):
        raise CheckpointError(
            f"`{folder}` does not hold the tensors that its config.json requires: {found}: the "
            "files do not belong together."
        )
    kinds = {name: stored[name].kind for name in wanted}
    if strange := [f"{name} {kind}" for name, kind in kinds.items() if kind not in FLOATS]:
        raise CheckpointError(
            f"`{folder}` has {counted(len(strange), 'tensor')} of an unsupported type "
            f"({some(sorted(strange))}): `bass` supports float32, bfloat16, float16; give a "
            "checkpoint in one of them."
        )
    return tuple(sorted(more))


def narrow(decoder: CausalDecoder, vocab_size: int) -> CausalDecoder:
    """Drop the token ids from `vocab_size` on, in place: they can be neither fed nor drawn.

    Checkpoints of one tokenizer pad their vocabularies to different sizes. A draft must not propose
    ids that the target lacks; these are padding of negligible probability. The result has the
    decoder's distribution, conditioned on the remaining ids.
    """
    if vocab_size < decoder.shape.vocab_size:
        of_head = ((decoder.head, "weight"), (decoder.head, "bias"))
        for owner, name in ((decoder, "embed"), (decoder, "head_bias"), *of_head):
            parameter = getattr(owner, name, None)
            if parameter is not None:
                setattr(owner, name, nn.Parameter(parameter[:vocab_size], requires_grad=False))
        decoder.config = replace(decoder.config, vocab_size=vocab_size)  # pyright: ignore[reportCallIssue]
    return decoder


def save_decoder(
    decoder: CausalDecoder, folder: Path, dtype: torch.dtype = torch.bfloat16, **extra: Any
) -> None:
    """Write `config.json` (with `extra` fields such as `eos_token_id`) and `model.safetensors` with
    the checkpoint's names, fused parameters split.
    """
    sources = decoder.sources(decoder.config)
    if sources.keys() != dict(decoder.named_parameters()).keys():
        raise CheckpointError(
            "The decoder is quantized or otherwise changed, so it cannot be saved as a checkpoint: "
            "save it before that."
        )
    write_folder(folder, stored_tensors(decoder, sources), decoder.config.to_json() | extra, dtype)
