"""`bass info` describes a checkpoint by its config and the headers of its files; `bass convert`
writes the weights of pickle files as safetensors.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bass.api.llm import serve
from bass.api.loading import Checkpoint, ModelCache
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan, find_device
from bass.api.resolve import make, names
from bass.checkpoints.folder import some
from bass.checkpoints.heads import HeadIndex
from bass.checkpoints.quantized.formats import summary
from bass.checkpoints.weights import CheckpointIndex
from bass.cli.options import Parser, console
from bass.drafters.heads import DraftHead, OpenRule
from bass.engine.cost import kv_bytes
from bass.errors import BassError, OptionError, PairingError, counted, printable
from bass.interfaces import DraftMethod
from bass.ops.dispatch import cpu_kernels_in_words, unsupported
from bass.pair import is_head
from bass.records import AttentionRule

EXAMPLES = (
    "bass info Qwen/Qwen2.5-Coder-7B --draft Qwen/Qwen2.5-Coder-0.5B",
    "bass info HEAD --target CHECKPOINT --measure",
    "bass info CHECKPOINT --lora ADAPTER --json",
)
EXAMPLES_OF_CONVERT = (
    "bass convert FOLDER", "bass convert FOLDER --output OTHER", "bass info OTHER",
)  # fmt: skip

# of `--measure`: prompts, new tokens of each, drafted tokens per step, and from which ratio on
# another rule is named
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Question: What is 17 times 24?\nAnswer:",
    "Once upon a time, in a small village by the sea,",
)
MEASURED_TOKENS, MEASURED_DRAFT, MUCH_MORE = 64, 4, 1.1
NOTHING = 1.1  # tokens per target call of a head that does not draft well


def parser() -> Parser:
    """The options of `bass info`."""
    about = "Describes a checkpoint, and whether a draft is compatible with it; reads no weights."
    command = Parser("info [CHECKPOINT]", about, EXAMPLES, skip=("config",))
    command.add_argument(
        "checkpoint", type=str | None, nargs="?",
        help="a folder, or a hub id (org/name[@revision]), else the embedded target",
    )  # fmt: skip
    command.add_argument("--draft", type=str, help="a second checkpoint, as draft of the first")
    command.add_argument("--target", type=str, help="the target, if the checkpoint is the draft")
    command.add_argument(
        "--measure", action="store_true", help="run a head by each rule that its files leave open"
    )
    command.add_argument("--lora", type=str, help="LoRA adapter that is merged into the checkpoint")
    command.add_argument("--draft-lora", type=str, help="LoRA adapter of the draft")
    command.add_argument("--family", type=str, help='own decoder as "package.module:Class"')
    command.add_argument(
        "--load-format", default="auto", help="dummy: by config.json, where there are no weights"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def run(argv: list[str]) -> int:
    """Describe a checkpoint, or a pair and whether it is compatible (exit status 1 if not)."""
    config = parser().read(argv)
    if config.draft_lora and not config.draft:
        raise OptionError("`--draft-lora` is for `--draft`: give it too, or leave this out.")
    names = (config.checkpoint, config.draft)
    if config.target:
        if config.draft:
            raise OptionError("`--target` makes the checkpoint the draft: leave out `--draft`.")
        names = (config.target, config.checkpoint)
    elif not config.draft and is_head(config.checkpoint):
        names = (None, config.checkpoint)
    target, draft = names
    k = None if draft else 0  # autoregressive decoding needs no draft
    loaded = {name: config[name] for name in ("lora", "draft_lora", "family", "load_format")}
    options = LoadOptions(target, draft, **loaded, num_speculative_tokens=k)
    plan = LoadPlan.of(options)
    read, problem = plan.checkpoints(), ""
    try:
        plan.check(read)
    except PairingError as error:
        problem = str(error)
    depth = 0 if problem else read[0].index.decoder.shape.layers
    specs = [spec for spec in plan.models if spec is not None]
    figures = [
        {"checkpoint": spec.checkpoint} | describe(one, spec is plan.draft, depth)
        for spec, one in zip(specs, read, strict=True)
    ]
    more, decoders = problem, [one.index.decoder for one in read]
    context, rules = decoders[-1].shape.max_positions, list[OpenRule]()
    if isinstance(decoders[-1], DraftHead):
        rules = decoders[-1].open_rules(depth) if depth else []
        more += " ".join(f"Its files do not say {rule.text}." for rule in rules)
    elif not problem and context < decoders[0].shape.max_positions:
        more = f"It drafts up to its context of {context:,} tokens; then the target goes on."
    if config.measure and depth:
        if not isinstance(head := decoders[-1], DraftHead):
            raise OptionError("`--measure` is for heads, and the draft is none: leave it out.")
        more += " " * bool(more) + measured(options, head.method(), rules)
    own = f"draft for `{plan.target.checkpoint}`.{more and f' {more}'}"
    verdict = f"`{draft}` {'cannot' if problem else 'can'} {own}" if draft else ""
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


def measured(options: LoadOptions, method: DraftMethod, rules: Sequence[OpenRule]) -> str:
    """How many tokens a head drafts well, as its files are read here and by each other rule."""
    cache, taus = ModelCache(), list[float]()
    for drafter in (method, *(rule.other for rule in rules)):
        plan = LoadPlan.of(replace(options, drafter=drafter, num_speculative_tokens=MEASURED_DRAFT))
        call: dict[str, Any] = {"max_new_tokens": MEASURED_TOKENS, "temperature": 0}
        result = serve(plan, cache).generate([*PROMPTS], **call, ignore_eos=True)
        taus.append(result.stats.tau)
    return in_words(taus[0], dict(zip((rule.options for rule in rules), taus[1:], strict=True)))


def in_words(tau: float, others: dict[str, float]) -> str:
    """The tokens per target call that were measured, and with other options."""
    listed = [f", {other:.2f} with `{options}`" for options, other in others.items()]
    found = f"It emits {tau:.2f} tokens per target call{''.join(listed)}."
    best = max(others, key=others.__getitem__, default="")
    if max([tau, *others.values()]) < NOTHING:
        found += " Almost nothing is accepted: it is for another target, or not trained."
    if best and others[best] > MUCH_MORE * tau:
        found += f" The head was probably trained so: give `{best}`."
    return found


def describe(checkpoint: Checkpoint, draft: bool = False, depth: int = 0) -> dict[str, Any]:
    """The figures of a checkpoint by name; those that do not apply are left out. depth: the number
    of layers of the target that a head is for, 0 if it is for another.
    """
    index, known = checkpoint.index, checkpoint.tokenizer
    shape, files, dtype = index.decoder.shape, index.files, index.dtypes[0]
    found = {
        "family": f"a head of {index.kind}"
        if isinstance(index, HeadIndex)
        else index.raw["model_type"] + text_half(index),
        "parameters": f"{sum(p.numel() for p in index.decoder.parameters()):,}",
        "layers": str(shape.layers),
        "vocabulary": f"{shape.vocab_size:,} tokens",
        "dtype": " and ".join(str(one).removeprefix("torch.") for one in index.dtypes),
        "files": f"{files.size:,} bytes in {counted(len(files.paths), 'file')}",
    }
    if isinstance(index, HeadIndex):
        verifier = (index.raw.get("speculators_config") or {}).get("verifier") or {}
        found |= {"made for": verifier.get("name_or_path", "")}
        found |= index.decoder.described(depth) if depth else {}
        return {name: value for name, value in found.items() if value}
    found |= {
        "heads": f"{shape.heads} query, {shape.kv_heads} key-value, of {shape.head_dim} dimensions",
        "context": f"{shape.max_positions:,} tokens",
        "window": by_layer(shape.rules, "window"),
        "soft cap of scores": by_layer(shape.rules, "softcap"),
        "tokenizer": f"{len(known.vocabulary):,} tokens" if known else "none: give token ids",
        "chat template": ", ".join(known.chat.templates if known else ()) or "none",
        "end of sequence": ", ".join(map(str, checkpoint.eos)) or "none",
        "quantization": summary(files),
        "prefix of names": f"`{index.removed}`, removed" if index.removed else "",
        "unused tensors": f"{len(index.unused)} ({some(index.unused)})" if index.unused else "",
        "LoRA": f"{counted(len(index.adapter.updates), 'tensor')}" if index.adapter else "",
        "KV bytes per token": f"{kv_bytes(shape, shape.layers, dtype):,}",
        "weights": weights(index, dtype, draft),
        "kernels": kernels(find_device("auto")),
    }
    return {name: value for name, value in found.items() if value}


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
