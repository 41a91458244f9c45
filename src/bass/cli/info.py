"""`bass info` describes a checkpoint by its config and the headers of its files; `bass convert`
writes the weights of pickle files as safetensors.
"""

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bass.api.loading import Checkpoint
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan, find_device
from bass.api.resolve import make, names
from bass.checkpoints.folder import some
from bass.checkpoints.heads import HeadIndex
from bass.checkpoints.quantized.formats import summary
from bass.checkpoints.weights import CheckpointIndex
from bass.cli.options import Parser, console
from bass.errors import BassError, OptionError, PairingError, counted, printable
from bass.ops.dispatch import cpu_kernels_in_words, unsupported
from bass.records import AttentionRule

EXAMPLES = (
    "bass info CHECKPOINT",
    "bass info Qwen/Qwen2.5-Coder-7B --draft Qwen/Qwen2.5-Coder-0.5B",
    "bass info CHECKPOINT --lora ADAPTER --json",
)
EXAMPLES_OF_CONVERT = (
    "bass convert FOLDER", "bass convert FOLDER --output OTHER", "bass info OTHER",
)  # fmt: skip


def run(argv: list[str]) -> int:
    """Describe a checkpoint, or a pair and whether it is compatible (exit status 1 if not)."""
    about = "Describes a checkpoint, and whether a draft is compatible with it; reads no weights."
    command = Parser("info CHECKPOINT", about, EXAMPLES, skip=("config",))
    command.add_argument("checkpoint", type=str, help="a folder, or a hub id (org/name[@revision])")
    command.add_argument("--draft", type=str, help="a second checkpoint, as draft of the first")
    command.add_argument("--lora", type=str, help="LoRA adapter that is merged into the checkpoint")
    command.add_argument("--draft-lora", type=str, help="LoRA adapter of the draft")
    command.add_argument("--family", type=str, help='own decoder as "package.module:Class"')
    command.add_argument("--json", action="store_true", help="print one JSON object")
    config = command.read(argv)
    if config.draft_lora and not config.draft:
        raise OptionError("`--draft-lora` is for `--draft`: give it too, or leave this out.")
    names = (config.checkpoint, config.draft)
    k = None if config.draft else 0  # autoregressive decoding needs no draft
    loaded = {name: config[name] for name in ("lora", "draft_lora", "family")}
    plan = LoadPlan.of(LoadOptions(*names, **loaded, num_speculative_tokens=k))
    read, problem = plan.checkpoints(), ""
    try:
        plan.check(read)
    except PairingError as error:
        problem = str(error)
    figures = [{"checkpoint": names[i]} | describe(one, i == 1) for i, one in enumerate(read)]
    more, contexts = problem, [one.index.decoder.shape.max_positions for one in read]
    if not problem and contexts[-1] < contexts[0]:
        more = f"It drafts up to its context of {contexts[-1]:,} tokens; then the target goes on."
    own = f"draft for `{config.checkpoint}`.{more and f' {more}'}"
    verdict = f"`{config.draft}` {'cannot' if problem else 'can'} {own}" if config.draft else ""
    if config.json:
        print(json.dumps({"checkpoints": figures, "compatible": not problem, "about": verdict}))
        return 1 if problem else 0
    table = Table(show_header=False)
    for name in dict.fromkeys(name for one in figures for name in one):
        table.add_row(name, *(printable(one.get(name, "")) for one in figures))
    console().print(table, soft_wrap=False)
    if verdict:
        console().print(printable(verdict))
    return 1 if problem else 0


def describe(checkpoint: Checkpoint, draft: bool = False) -> dict[str, Any]:
    """The figures of a checkpoint by name; those that do not apply are left out."""
    if isinstance(checkpoint.index, HeadIndex):
        return describe_head(checkpoint.index)
    index, known = checkpoint.index, checkpoint.tokenizer
    shape, files, dtype = index.decoder.shape, index.files, index.dtypes[0]
    kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
    found = {
        "family": index.raw["model_type"] + text_half(index),
        "parameters": f"{sum(p.numel() for p in index.decoder.parameters()):,}",
        "layers": str(shape.layers),
        "heads": f"{shape.heads} query, {shape.kv_heads} key-value, of {shape.head_dim} dimensions",
        "context": f"{shape.max_positions:,} tokens",
        "window": by_layer(shape.rules, "window"),
        "soft cap of scores": by_layer(shape.rules, "softcap"),
        "vocabulary": f"{shape.vocab_size:,} tokens",
        "tokenizer": f"{len(known.vocabulary):,} tokens" if known else "none: give token ids",
        "chat template": ", ".join(known.chat.templates if known else ()) or "none",
        "end of sequence": ", ".join(map(str, checkpoint.eos)) or "none",
        "dtype": " and ".join(str(one).removeprefix("torch.") for one in index.dtypes),
        "quantization": summary(files),
        "files": f"{files.size:,} bytes in {counted(len(files.paths), 'file')}",
        "prefix of names": f"`{index.removed}`, removed" if index.removed else "",
        "unused tensors": f"{len(index.unused)} ({some(index.unused)})" if index.unused else "",
        "LoRA": f"{counted(len(index.adapter.updates), 'tensor')}" if index.adapter else "",
        "KV bytes per token": f"{kv_bytes:,}",
        "weights": weights(index, dtype, draft),
        "kernels": kernels(find_device("auto")),
    }
    return {name: value for name, value in found.items() if value}


def describe_head(index: HeadIndex) -> dict[str, Any]:
    """The figures of a head by name."""
    shape, config = index.decoder.shape, index.decoder.config
    return {
        "family": f"a head of {index.kind}",
        "parameters": f"{sum(p.numel() for p in index.decoder.parameters()):,}",
        "layers": str(shape.layers),
        "vocabulary": f"{config.draft_vocab_size or config.vocab_size:,} tokens",
        "states of the target": ", ".join(map(str, config.features)) or "by default",
        "dtype": " and ".join(str(one).removeprefix("torch.") for one in index.dtypes),
        "files": f"{index.files.size:,} bytes in {counted(len(index.files.paths), 'file')}",
    }


def weights(index: CheckpointIndex, dtype: torch.dtype, draft: bool) -> str:
    """The size of the loaded weights, as stored and with each quantization; nothing is loaded."""
    kind = str(dtype).removeprefix("torch.")
    sizes = [f"{index.weight_bytes(dtype) / 2**20:,.2f} MiB in {kind}"]
    if index.files.method:
        return f"{sizes[0]}, quantized as stored"
    for name in names("quantization"):
        with contextlib.suppress(BassError):  # not for this family
            size = index.weight_bytes(dtype, make("quantization", name), draft)
            sizes.append(f"{size / 2**20:,.2f} in {name}")
    return ", ".join(sizes)


def kernels(device: torch.device) -> str:
    """How a device computes steps, and why not by kernels."""
    if device.type == "cpu":
        return f"{device}: products by {cpu_kernels_in_words()}"
    reason = unsupported(device)
    return f"{device}: {f'torch ({reason.reason})' if reason else 'Triton, where a layer has one'}"


def text_half(index: CheckpointIndex) -> str:
    """What of a multimodal folder is read; empty for any other folder."""
    if index.half_of is None:
        return ""
    unread = f"; its other parts ({counted(index.files.unread, 'tensor')}) are not read"
    return f", the text half of a {index.half_of} folder{'' if index.dummy else unread}"


def by_layer(rules: tuple[AttentionRule, ...], name: str) -> str:
    """The values of a field of the rules, each with its number of layers; empty without values."""
    counts = Counter(getattr(rule, name) for rule in rules)
    if {*counts} == {None}:
        return ""
    texts = (("none" if x is None else f"{x:,}", counted(n, "layer")) for x, n in counts.items())
    return ", ".join(f"{value} in {layers}" for value, layers in texts)


def convert(argv: list[str]) -> int:
    """Convert a folder, and name the files that were written."""
    about = "Writes the weights of pickle files as safetensors, without running their code."
    command = Parser("convert FOLDER", about, EXAMPLES_OF_CONVERT, skip=("config",))
    command.add_argument("folder", type=Path, help="folder with files such as pytorch_model.bin")
    command.add_argument("--output", type=Path | None, help="folder to write to, else the same one")
    config = command.read(argv)

    from bass.checkpoints.convert import convert as converted

    for path in converted(config.folder, config.output or config.folder):
        print(path)
    return 0
