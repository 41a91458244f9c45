"""Tokenizers, and the files of the forms that real checkpoints have."""

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = (
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    "
    "return a\n"
    "class Account:\n\tdef __init__(self, owner, balance=0):\n\t\tself.owner = owner\n"
    "The quick brown fox doesn't jump over 12345 lazy dogs . They're 67 ! Is it so ? It's fine , "
    "isn't it ?\n"
    "hello world hello there the then them and land sand hand in the house of the people\n"
    "Füchse springen über Zäune. Déjà vu à la carte. Ça va?\n"
    "Съешь же ещё этих мягких французских булок. "
    "敏捷的棕色狐狸跳过懒狗。 いろはにほへと こんにちは世界\n"
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก 안녕하세요 세계\n"
    "x = [i ** 2 for i in items if i % 3 == 0]  # squares\n<html><body "
    "class='a'>&amp;</body></html>\n"
).splitlines()  # fmt: skip
SPECIAL = [
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<bos>",
        "<eos>",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|begin|>",
        "<|turn|>",
    ),
    *("<start_of_turn>", "<0x41>", "<0xE2>", "[INST]", "<tool>", "▁", "Ġ", "<extra>"),
]
LETTERS = [
    *"abc XYZ012,.'!?\"()[]{}<>|_-=+*/#\\\t\néßñøЖщλ中文字の안녕שלمنथाไ",
    *(
        "  ",
        "    ",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\u2028",
        "\x00",
        "\x07",
        "\x1b",
        "\x7f",
        "\ufeff",
    ),
    *(
        "e\u0301",
        "a\u0308\u0323",
        "\u0915\u094d\u0937",
        "ﬁ",
        "Å",
        "½",
        "①",
        "Ａ",
        "\U0010ffff",
        "\ufffd",
    ),
    *(
        "😀",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "𝄞",
        "𐍈",
        "don't",
        " 's",
        " n't",
        " .",
        " ,",
        "it's ",
        "hello",
        " world",
        "def f(x):\n",
        "12345",
    ),
]


@functools.cache
def strings(count: int = 1000) -> list[str]:
    """Varied texts, the same in every run: code, scripts, emoji, controls, spaces, special tokens,
    long runs.
    """
    draw = random.Random(0)
    fixed: list[str] = [
        "",
        " ",
        "  ",
        "   ",
        "\n",
        "\t",
        " a",
        "a ",
        "  a  ",
        "a  b   c",
        "\n\n\n",
        "a" * 300,
        " " * 100,
        "é" * 50,
        "😀" * 20,
        "\x00" * 5,
        "\ufffd",
    ]
    fixed += [
        *CORPUS,
        "\n".join(CORPUS),
        *SPECIAL,
        *(f" {t} " for t in SPECIAL),
        *(f"a{t}b" for t in SPECIAL),
        *(f"{t}{t} a" for t in SPECIAL),
    ]
    parts = LETTERS * 4 + SPECIAL + [line[:20] for line in CORPUS]
    return fixed + [
        "".join(draw.choice(parts) for _ in range(draw.randrange(1, 16)))
        for _ in range(count - len(fixed))
    ]


@functools.cache
def pieces(kind: str, size: int = 420, **options: Any) -> bytes:
    """A trained sentencepiece model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3), model_writer=out, model_type=kind, vocab_size=size,
        hard_vocab_limit=False, num_threads=1,
        minloglevel=2, remove_extra_whitespaces=False, split_digits=True,
        **{"byte_fallback": True, "normalization_rule_name": "identity"} | options,
    )  # fmt: skip
    return out.getvalue()


@functools.cache
def byte_level(size: int = 400, first: tuple[str, ...] = ("<|endoftext|>",)) -> str:
    """A trained byte-level BPE, as tokenizer.json."""
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(first),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return fast.to_str()


def write(folder: Path, **files: Any) -> Path:
    """`tokenizer_config={...}` becomes tokenizer_config.json; bytes become tokenizer.model; text
    keeps its name with a dot for `__`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / f"{name}.model").write_bytes(content)
        elif isinstance(content, str):
            (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(
                json.dumps(content, ensure_ascii=False), encoding="utf-8"
            )
    return folder


def vocab_and_merges(
    first: tuple[str, ...] = ("<|endoftext|>",), size: int = 400
) -> dict[str, Any]:
    model = json.loads(byte_level(size, first))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {"vocab": model["vocab"], "merges__txt": "\n".join(["#version: 0.2", *merges]) + "\n"}


def flags(content: str, **changed: bool) -> dict[str, Any]:
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    } | changed


def llama_json(config: dict[str, Any] | None = None) -> str:
    """What the converters of earlier versions wrote for a Llama-2 tokenizer.model: a prefix by the
    normalizer.
    """
    model = sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe"))  # pyright: ignore[reportCallIssue]
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    merges = [
        (p[:c], p[c:]) for p in vocab for c in range(1, len(p)) if p[:c] in vocab and p[c:] in vocab
    ]
    fast = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return fast.to_str()


def llama3_json() -> str:
    fast = Tokenizer.from_str(byte_level(420, ()))
    size = fast.get_vocab_size()
    split = Regex(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    fast.add_special_tokens(["<|begin|>", "<|endoftext|>", "<|turn|>"])
    bos = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", size)]
    )
    fast.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    return fast.to_str()


def decoder_of(size: int) -> dict[str, Any]:
    """`added_tokens_decoder` for a byte-level vocabulary of `size`: special and ordinary ones, with
    flags of all kinds.
    """
    return {
        "0": flags("<|endoftext|>", special=True),
        str(size): flags("<|im_start|>", special=True),
        str(size + 1): flags("<|im_end|>", special=True, rstrip=True),
        str(size + 2): flags("<tool>", special=False, normalized=True),
        str(size + 3): flags("<extra>", special=False, lstrip=True, normalized=False),
    }


def digits_json() -> str:
    fast = Tokenizer.from_str(byte_level())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return fast.to_str()


def unigram_json() -> str:
    fast = Tokenizer(models.Unigram())
    fast.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    fast.train_from_iterator(
        CORPUS * 3,
        trainers.UnigramTrainer(
            vocab_size=250,
            special_tokens=["<pad>", "</s>", "<unk>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    return fast.to_str()


def wordpiece_json() -> str:
    fast = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    fast.normalizer = normalizers.BertNormalizer(lowercase=False)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(cleanup=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    fast.train_from_iterator(
        CORPUS * 3,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    return fast.to_str()
