"""Tiny checkpoints for the tests of what a user touches, and what a command said."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bass.checkpoints.folder import INDEX, SINGLE
from bass.checkpoints.weights import save_decoder
from bass.models.llama import Llama, LlamaConfig

TEXT = [
    "def double(value):\n    return 2 * value\n",
    "for item in items:\n    print(item)\n",
    "naïve café, déjà vu ☕",
]
CONTEXT = 64


def byte_tokenizer(vocabulary: int = 320) -> Tokenizer:
    """A byte-level BPE, so that a token may be a part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<eos>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return tokenizer


def write_checkpoint(
    folder: Path,
    tokenizer: Tokenizer | None,
    hidden: int,
    layers: int,
    vocabulary: int,
    context: int = CONTEXT,
) -> Path:
    """Random weights, the same in every run."""
    config = LlamaConfig(
        vocabulary, hidden, 2 * hidden, layers, 2, 1, hidden // 2, context, tie_word_embeddings=True
    )
    decoder = Llama(config)
    generator = torch.Generator().manual_seed(layers)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.dim() == 1)
            )
    save_decoder(decoder, folder, torch.float32, eos_token_id=0)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def shard(folder: Path, count: int) -> Path:
    """The single file of a folder as `count` files with an index."""
    tensors = load_file(folder / SINGLE)
    names = sorted(tensors)
    files = {f"model-{i + 1:05}-of-{count:05}.safetensors": names[i::count] for i in range(count)}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, part in files.items() for name in part}
    total = sum(tensor.nbytes for tensor in tensors.values())
    (folder / INDEX).write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": places}), encoding="utf-8"
    )
    (folder / SINGLE).unlink()
    return folder


def pad(folder: Path, vocabulary: int, fill: float) -> Path:
    """The checkpoint with its vocabulary padded to `vocabulary` ids, whose embeddings are all
    `fill`.
    """
    tensors = load_file(folder / SINGLE)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            more = torch.full((vocabulary - len(tensors[name]), tensors[name].shape[1]), fill)
            tensors[name] = torch.cat((tensors[name], more))
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"vocab_size": vocabulary}), encoding="utf-8"
    )
    return folder


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its draft."""

    target: Path
    draft: Path

    @property
    def options(self) -> list[str]:
        return ["--target", str(self.target), "--draft", str(self.draft), "--max_new_tokens", "8"]

    def copy(self, to: Path) -> "Pair":
        """Folders of one's own, to be damaged."""
        return Pair(
            Path(shutil.copytree(self.target, to / "target")),
            Path(shutil.copytree(self.draft, to / "draft")),
        )


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]
