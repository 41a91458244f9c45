"""A byte-level BPE tokenizer for Python source, and the corpus as token ids.

    python examples/train_pair/tokenizer.py train --corpus .data/corpus --out .data/tokenizer
    python examples/train_pair/tokenizer.py encode --corpus .data/corpus --tokenizer .data/tokenizer
    --out .data/tokens

A newline run, and an indent, are tokens of their own, so that a prompt which ends with a newline is
cut where the training text is cut too. Each digit is a token. Nothing is added when encoding; id 0
ends a document.
"""

import argparse
import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import arguments
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
PIECES = r"\n+| {2,}|[ ._]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"


def train(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Learn the merges; pieces of PIECES are never merged across."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        max_token_length=32,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and the tokenizer_config.json with which `transformers` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def encode(task: tuple[Path, list[str]]) -> np.ndarray:
    """Documents as one uint16 stream: id 0, then the document, and so on."""
    folder, texts = task
    tokenizer = arguments.read_tokenizer(folder)
    ids: list[np.ndarray] = []
    for start in range(0, len(texts), 64):
        for encoding in tokenizer.encode_batch_fast(
            texts[start : start + 64], add_special_tokens=False
        ):
            ids += [np.zeros(1, np.uint16), np.array(encoding.ids, np.uint16)]
    return np.concatenate(ids)


def main() -> None:
    """Train or encode."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("train", "encode"))
    parser.add_argument("--corpus", type=Path, default=Path(".data/corpus"))
    parser.add_argument("--tokenizer", type=Path, default=Path(".data/tokenizer"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--vocab-size", type=arguments.integer(257), default=4096)
    parser.add_argument("--sample-mb", type=arguments.positive, default=60)
    parser.add_argument("--workers", type=arguments.positive, default=2)
    args = parser.parse_args()
    texts = (args.corpus / "train.txt").read_bytes().decode().split("\0")
    if args.action == "train":
        random.Random(0).shuffle(texts)
        sizes = np.cumsum([len(t) for t in texts])
        sample = texts[: int(np.searchsorted(sizes, args.sample_mb * 1e6)) + 1]
        save(train(iter(sample), args.vocab_size), args.out or args.tokenizer, context=1024)
        return
    out = args.out or Path(".data/tokens")
    arguments.read_tokenizer(args.tokenizer)  # before anything is written
    out.mkdir(parents=True, exist_ok=True)
    chunks = [(args.tokenizer, texts[start : start + 2000]) for start in range(0, len(texts), 2000)]
    with ProcessPoolExecutor(args.workers) as pool:
        ids = np.concatenate(list(pool.map(encode, chunks)))
    ids.tofile(out / "train.bin")
    size = sum(len(t.encode()) for t in texts)
    print(
        json.dumps(
            {"tokens": len(ids), "bytes": size, "bytes_per_token": round(size / len(ids), 3)}
        )
    )


if __name__ == "__main__":
    arguments.run(main)
