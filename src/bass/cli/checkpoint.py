"""`bass info`: describes a checkpoint, and checks the shapes of its weights against the config."""

import numpy as np
import torch

from bass.api.loading import Checkpoint, check_family, check_pair
from bass.api.plan import backend_for, find_device, find_family, layout_for
from bass.api.resolve import find_class, make, names
from bass.checkpoints.folder import some
from bass.checkpoints.quantized import summary
from bass.checkpoints.shards import StoredQuantized
from bass.checkpoints.weights import CheckpointIndex
from bass.cli import kernels
from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import say
from bass.engine.cost import expected_experts
from bass.errors import OptionError, PairingError, counted
from bass.models.decoder import CausalDecoder
from bass.ops.dispatch import Capability, cpu_unsupported
from bass.ops.experts import Experts
from bass.ops.group_quantized import GroupQuantizedLinear
from bass.records import AttentionRule, CacheBudget, DecoderShape

ROWS = (200, 400, 800, 1600)  # positions; scaled down for a shorter context
EXAMPLE = "[100,200,400,800]"  # within the context of the embedded pair
OPTIONS = (
    Option(
        "checkpoint",
        help=(
            "folder with config.json and safetensors files, or hub id (org/name, org/name@revision)"
        ),
        place=ONE,
    ),
    Option("draft", help="a second checkpoint: can it draft for the first?"),
    Option("lora", help="LoRA adapter that is merged into the checkpoint, a folder or a hub id"),
    Option("draft_lora", help="LoRA adapter that is merged into the draft"),
    Option("family", help='decoder of your own as "package.module:Class"', metavar="CLASS"),
    Option(
        "rows",
        list[int],
        f"positions of each row, to compare what the cache layouts take, e.g. {EXAMPLE}",
        metavar="[N,...]",
    ),
    Option(
        "cache",
        help='only this layout, or one of your own as "package.module:Class"',
        metavar="NAME",
    ),
)


def run(parser: Parser, argv: list[str]) -> int:
    """Print a description of the checkpoint; with a draft, of both, and whether they are compatible
    (exit status 1 if not).
    """
    parser.add(*OPTIONS)
    config = parser.parse(argv)
    layouts = {
        name: find_class("cache", name)
        for name in ([config.cache] if config.cache else names("cache"))
    }
    if config.draft is None and config.draft_lora is not None:
        raise OptionError(
            f"`--draft-lora {config.draft_lora}` would not be used: give its `--draft`, or leave "
            "it out."
        )
    specs = [config.checkpoint] if config.draft is None else [config.checkpoint, config.draft]
    own = None if config.family is None else find_family(config.family)
    adapters = [config.lora, config.draft_lora]
    checkpoints = [
        Checkpoint.read(spec, lora=lora, family=own)
        for spec, lora in zip(specs, adapters, strict=False)
    ]
    check_family(own, *checkpoints)
    rows = requested_rows(
        config.rows, min(c.index.decoder.shape.max_positions for c in checkpoints)
    )
    described = [
        describe(spec, c)
        + kernel_lines(c, find_device("auto"))
        + weights(c, is_draft)
        + memory(layouts, c.index.decoder.shape, rows, c.index.dtypes[0])
        for spec, c, is_draft in zip(specs, checkpoints, (False, True), strict=False)
    ]
    lines, fits = described[0], True
    if config.draft is not None:
        target, draft = checkpoints
        lines += ["", *described[1], ""]
        try:
            check_pair(target, draft)
            lines.append(f"`{config.draft}` can draft for `{config.checkpoint}`.")
            ours, theirs = (c.index.decoder.shape.vocab_size for c in checkpoints)
            if ours != theirs:
                lines.append(
                    f"Their vocabularies are padded differently, to {ours:,} and {theirs:,} ids: "
                    f"the target's size is used, and the draft proposes the first "
                    f"{min(ours, theirs):,} ids."
                )
        except PairingError as error:
            fits = False
            lines.append(f"`{config.draft}` cannot draft for `{config.checkpoint}`. {error}")
    say("\n".join(lines))
    return 0 if fits else 1


def describe(spec: str, checkpoint: Checkpoint) -> list[str]:
    """Name and value, line by line."""
    index, tokenizer = checkpoint.index, checkpoint.tokenizer
    shape, files = index.decoder.shape, index.files
    kinds = [str(dtype).removeprefix("torch.") for dtype in index.dtypes]
    kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * index.dtypes[0].itemsize
    figures = {
        "checkpoint": spec,
        "family": index.raw["model_type"] + text_half(index),
        "parameters": f"{sum(p.numel() for p in index.decoder.parameters()):,}",
        "layers": shape.layers,
        "heads": f"{shape.heads} query, {shape.kv_heads} key-value, of {shape.head_dim} dimensions",
        "context": f"{shape.max_positions:,} tokens",
        "window": by_layer(shape.rules, "window"),
        "soft cap of scores": by_layer(shape.rules, "softcap"),
        "experts": experts(index),
        "vocabulary": f"{shape.vocab_size:,} tokens",
        "tokenizer": "none: give token ids"
        if tokenizer is None
        else f"{len(tokenizer.vocabulary):,} tokens",
        "end of sequence": ", ".join(map(str, checkpoint.eos)) or "none",
        "dtype": " and ".join(kinds),
        "quantization": summary(index.scheme, files),
        "bytes": f"{files.size:,}"
        + (f" in {len(files.paths)} files" if len(files.paths) > 1 else ""),
        "prefix of names": f"`{index.removed}`, removed" if index.removed else "",
        "unused tensors": f"{len(index.unused)} ({some(index.unused)})" if index.unused else "",
        "LoRA": ""
        if index.adapter is None
        else f"{counted(len(index.adapter.updates), 'tensor')} of {index.adapter.folder}",
        "KV bytes per token": f"{kv_bytes:,} ({kinds[0]})",
    }
    return [f"{name:20}{value}" for name, value in figures.items() if value]


def as_loaded(index: CheckpointIndex, dtype: torch.dtype) -> CausalDecoder:
    """The decoder without its weights; of a quantized checkpoint it has other layers."""
    return index.decoder if index.scheme is None else index.load(torch.device("meta"), dtype)


def is_mixture(index: CheckpointIndex) -> bool:
    """Whether the decoder has experts."""
    return any(isinstance(module, Experts) for module in index.decoder.modules())


def experts(index: CheckpointIndex) -> str:
    """The experts of a mixture, and how many of them a step reads; empty without."""
    if not is_mixture(index):
        return ""
    decoder = as_loaded(index, index.dtypes[0])
    layers = [module for module in decoder.modules() if isinstance(module, Experts)]
    count, chosen = layers[0].count, layers[0].chosen

    def read(tokens: int) -> str:
        return f"{expected_experts(count, chosen, tokens):.3g}"

    bits = ", in 4 bits" if all(layer.in_four_bits for layer in layers) else ""
    return (
        f"{chosen} of {count} for each token, in {counted(len(layers), 'layer')}{bits}; if all "
        f"choose at random, a step reads {read(1)} and {read(8)} at batch 1 and 8, {read(5)} and "
        f"{read(40)} with 4 drafted tokens (`bass bench` measures it)"
    )


def wide_experts(index: CheckpointIndex) -> bool:
    """Whether quantized experts of the checkpoint are dequantized at load."""
    if not is_mixture(index):
        return False
    decoder = as_loaded(index, index.dtypes[0])
    layers = [
        name for name, module in decoder.named_modules()
        if isinstance(module, Experts) and not module.in_four_bits
    ]  # fmt: skip
    return any(
        isinstance(index.files.stored[tensor], StoredQuantized)
        for name, source in index.sources.items()
        if name.rpartition(".")[0] in layers
        for tensor in source.tensors
    )


def text_half(index: CheckpointIndex) -> str:
    """What of a multimodal folder is read; empty for any other folder."""
    if index.half_of is None:
        return ""
    unread = (
        ""
        if index.dummy
        else f"; its other parts ({counted(index.files.unread, 'tensor')}) are not read"
    )
    return f", the text half of a {index.half_of} folder{unread}"


def kernel_lines(checkpoint: Checkpoint, device: torch.device) -> list[str]:
    """The parts of the model that run by kernels on the device, with the default options of
    `load`.
    """
    index, layout = checkpoint.index, layout_for("auto", "auto", device)
    dtype = index.dtypes[0] if device.type == "cuda" else torch.float32
    backend = backend_for("auto", layout, device)
    setting = kernels.Setting(Capability.of(device), dtype, layout, backend)
    decoder = as_loaded(index, dtype)
    lines = kernels.lines(decoder, setting, device)
    if device.type == "cpu":
        reason = cpu_unsupported()
        how = "numba's or torch's, by measurement at load" if reason is None else "torch's"
        lines.append(f"{'products':20}{how}" + ("" if reason is None else f": {reason.reason}"))
        if any(isinstance(module, GroupQuantizedLinear) for module in decoder.modules()):
            lines.append(f"{'quantized products':20}torch's: each dequantizes its weight")
    return lines


def weights(checkpoint: Checkpoint, draft: bool) -> list[str]:
    """The size of the loaded weights, as stored and with each quantization; nothing is loaded."""
    index = checkpoint.index
    dtype = index.dtypes[0]
    stored = index.weight_bytes(dtype)
    lines = [f"{'weights':20}{stored / 2**20:,.2f} MiB in {str(dtype).removeprefix('torch.')}"]
    if index.scheme is not None:
        but = ", but for experts: these are dequantized at load" if wide_experts(index) else ""
        return [f"{lines[0]}, quantized as stored{but}"]
    for name in names("quantization"):
        try:
            size = index.weight_bytes(dtype, make("quantization", name), draft)
            figure = f"{size / 2**20:,.2f} MiB, {size / stored:.0%}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a user's class
            figure = f"unknown ({type(error).__name__}: {error})"
        lines += [] if name == "none" else [f"  {name:17} {figure}"]
    return lines


def requested_rows(requested: list[int] | None, context: int) -> list[int]:
    """The positions of each row: the requested ones, or `ROWS` within the context."""
    if requested is None:
        return [max(1, rows * min(context, ROWS[-1]) // ROWS[-1]) for rows in ROWS]
    if not requested or not all(1 <= rows <= context for rows in requested):
        raise OptionError(
            f"`--rows {requested}` must be one or more numbers of positions, each from 1 to the "
            f"context of {context:,}."
        )
    return requested


def memory(
    layouts: dict[str, type], shape: DecoderShape, rows: list[int], dtype: torch.dtype
) -> list[str]:
    """The size of each layout for the keys and values of such rows, and its overhead; nothing is
    allocated.
    """
    needs = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize * sum(rows)
    lines = [f"{'KV of rows':20}{needs / 2**20:,.2f} MiB for {', '.join(map(str, rows))} positions"]
    for name, layout in layouts.items():
        try:
            size = layout.allocate(
                shape, CacheBudget.of(np.array(rows)), torch.device("meta"), dtype
            ).nbytes  # pyright: ignore[reportAttributeAccessIssue]
            known = f"{size / 2**20:,.2f} MiB, {100 * (size / needs - 1):.1f} % over"
            figure = known if size >= needs else "unknown (it reports less than the rows need)"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a user's class, which may need a device that has memory
            figure = f"unknown ({type(error).__name__}: {error})"
        lines.append(f"  {name:17} {figure}")
    return lines


def by_layer(rules: tuple[AttentionRule, ...], name: str) -> str:
    """The values of a field of the rules, each with its number of layers; empty without values."""
    values = [getattr(rule, name) for rule in rules]
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    if set(counts) == {None}:
        return ""
    return ", ".join(
        f"{'none' if value is None else f'{value:,}'} in {counted(count, 'layer')}"
        for value, count in counts.items()
    )
