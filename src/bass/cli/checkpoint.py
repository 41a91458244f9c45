"""`bass info`: what a checkpoint is. Its weights are checked against its config, and not read."""

from pathlib import Path

import torch
from jsonargparse import ArgumentParser

from bass.cli.parsing import parse
from bass.errors import PairingError
from bass.loading import check_pair
from bass.models.checkpoint import DTYPES, eos_ids, read_config
from bass.models.weights import load_decoder
from bass.text import Tokenizer


def run(parser: ArgumentParser, argv: list[str]) -> int:
    """Print what the checkpoint is; with a draft, both and whether they go together (exit status 1 if not)."""
    parser.add_argument("checkpoint", type=str, help="folder with config.json and model.safetensors")
    parser.add_argument("--draft", type=str, help="a second folder: can it draft for the first?")
    config = parse(parser, argv)
    target = Path(config.checkpoint)
    lines, fits = describe(target), True
    if config.draft is not None:
        draft = Path(config.draft)
        lines += ["", *describe(draft), ""]
        try:
            check_pair(target, draft)
            lines.append(f"`{draft}` can draft for `{target}`.")
        except PairingError as error:
            fits = False
            lines.append(f"`{draft}` cannot draft for `{target}`. {error}")
    print("\n".join(lines))
    return 0 if fits else 1


def describe(folder: Path) -> list[str]:
    """Name and value, line by line."""
    config = read_config(folder)
    kind = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = DTYPES.get(kind, torch.float32)
    decoder = load_decoder(folder, torch.device("meta"), dtype)
    shape = decoder.shape
    tokenizer = Tokenizer.read(folder)
    figures = {
        "checkpoint": str(folder),
        "family": config.get("model_type"),
        "parameters": f"{sum(p.numel() for p in decoder.parameters()):,}",
        "layers": shape.layers,
        "heads": f"{shape.heads} query, {shape.kv_heads} key-value, of {shape.head_dim} dimensions",
        "context": f"{shape.max_positions:,} tokens",
        "vocabulary": f"{shape.vocab_size:,} tokens",
        "tokenizer": "none: give token ids" if tokenizer is None else f"tokenizer.json, {len(tokenizer.vocabulary):,} tokens",
        "end of sequence": ", ".join(map(str, eos_ids(folder))) or "none",
        "dtype": kind,
        "bytes": f"{(folder / 'model.safetensors').stat().st_size:,}",
        "KV bytes per token": f"{2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize:,} ({kind})",
    }
    return [f"{name:20}{value}" for name, value in figures.items()]
