"""Small tokenizers, in folders of the forms that real checkpoints have."""

import functools
import io
import json
import random
from collections.abc import Callable
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


LLAMA = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": 2048,
}
GEMMA_OPTIONS = (
    ("pad_id", 0),
    ("eos_id", 1),
    ("bos_id", 2),
    ("unk_id", 3),
    ("pad_piece", "<pad>"),
    ("eos_piece", "<eos>"),
    ("bos_piece", "<bos>"),
)
GEMMA_SYMBOLS = (
    "user_defined_symbols",
    ("<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "▁▁", "▁▁▁▁", "<b>"),
)
QWEN = {
    "tokenizer_class": "Qwen2Tokenizer",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
}


def gemma_model() -> bytes:
    return pieces("bpe", 440, **dict([*GEMMA_OPTIONS, GEMMA_SYMBOLS]), add_dummy_prefix=False)


Files = Callable[[], dict[str, Any]]
FLAVOURS: dict[str, Files] = {
    "Llama 2, tokenizer.model": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "tokenizer_config": LLAMA
        | {
            "add_bos_token": True,
            "add_eos_token": False,
            "legacy": False,
            "clean_up_tokenization_spaces": False,
            "pad_token": None,
            **{
                f"{n}_token": {"__type": "AddedToken", **flags(t, normalized=True)}
                for n, t in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
            },
        },
    },
    "Llama 1, legacy, with an end": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "tokenizer_config": LLAMA | {"add_bos_token": True, "add_eos_token": True, "legacy": True},
    },
    "Llama 2 without a prefix space": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "tokenizer_config": LLAMA
        | {"add_bos_token": True, "add_prefix_space": False, "legacy": False},
    },
    "Vicuna, added_tokens.json": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "added_tokens": {"<pad>": 420, "<tool>": 421, "<|im_end|>": 422},
        "special_tokens_map": {
            "bos_token": flags("<s>"),
            "eos_token": flags("</s>", rstrip=True),
            "unk_token": "<unk>",
            "pad_token": "<pad>",
        },
        "tokenizer_config": LLAMA | {"add_bos_token": True, "legacy": True},
    },
    "Llama 2, nothing but tokenizer.model": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
    },
    "TinyLlama, tokenizer.json": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "tokenizer__json": llama_json(),
        "tokenizer_config": LLAMA
        | {
            "add_bos_token": True,
            "add_eos_token": True,
            "legacy": False,
            "pad_token": "</s>",
            "added_tokens_decoder": {
                str(i): flags(t, special=True) for i, t in enumerate(("<unk>", "<s>", "</s>"))
            },
        },
    },
    "Llama 2, tokenizer.json, no class": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer__json": llama_json(),
    },
    "Code Llama": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("bpe"),
        "tokenizer_config": LLAMA | {"tokenizer_class": "CodeLlamaTokenizer"},
    },
    "Mistral, tokenizer.json": lambda: {
        "config": {"model_type": "mistral"},
        "tokenizer": pieces("bpe"),
        "tokenizer__json": llama_json(),
        "tokenizer_config": LLAMA,
    },
    "Mistral, tokenizer.model": lambda: {
        "config": {"model_type": "mistral"},
        "tokenizer": pieces("bpe"),
        "tokenizer_config": LLAMA
        | {"add_bos_token": True, "additional_special_tokens": [], "sp_model_kwargs": {}},
    },
    "Phi 3, placeholders": lambda: {
        "config": {"model_type": "phi3"},
        "tokenizer": pieces("bpe", user_defined_symbols=("<place0>", "<place1>")),
        "tokenizer_config": LLAMA
        | {
            "add_bos_token": True,
            "added_tokens_decoder": {
                "1": flags("<s>", special=True),
                "3": flags("<|turn|>", special=True, rstrip=True),
                "430": flags("<tool>", special=False),
            },
        },
    },
    "unigram, tokenizer.model": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("unigram", 450, normalization_rule_name="nmt_nfkc"),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_eos_token": True,
            "clean_up_tokenization_spaces": True,
        },
    },
    "unigram without byte fallback": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer": pieces("unigram", 250, byte_fallback=False, add_dummy_prefix=False),
    },
    "unigram, tokenizer.json": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer__json": unigram_json(),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>",
            "clean_up_tokenization_spaces": True,
        },
    },
    "WordPiece": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer__json": wordpiece_json(),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": True,
        },
    },
    "Gemma, tokenizer.model": lambda: {
        "config": {"model_type": "gemma"},
        "tokenizer": gemma_model(),
        "tokenizer_config": {
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
            "clean_up_tokenization_spaces": False,
        },
    },
    "Gemma, nothing but tokenizer.model": lambda: {
        "config": {"model_type": "gemma2"},
        "tokenizer": gemma_model(),
    },
    "Llama 3": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer__json": llama3_json(),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|turn|>",
            "clean_up_tokenization_spaces": True,
            "added_tokens_decoder": {
                "420": flags("<|begin|>", special=True),
                "421": flags("<|endoftext|>", special=True),
                "422": flags("<|turn|>", special=True),
            },
        },
    },
    "GPT-2": lambda: {"config": {"model_type": "gpt2"}, **vocab_and_merges()},
    "GPT-2, tokenizer.json beside": lambda: {
        "config": {"model_type": "gpt2"},
        **vocab_and_merges(),
        "tokenizer__json": byte_level(),
        "tokenizer_config": {"model_max_length": 1024},
    },
    "OPT": lambda: {
        "config": {"model_type": "opt"},
        **vocab_and_merges(("<s>", "<pad>", "</s>", "<unk>")),
        "tokenizer_config": {
            "errors": "replace",
            "add_prefix_space": False,
            "add_bos_token": True,
            "tokenizer_class": "GPT2Tokenizer",
            **{
                n: {"__type": "AddedToken", **flags(t, normalized=True)}
                for n, t in (
                    ("unk_token", "</s>"),
                    ("bos_token", "</s>"),
                    ("eos_token", "</s>"),
                    ("pad_token", "<pad>"),
                )
            },
        },
        "special_tokens_map": {
            n: flags(t, normalized=True)
            for n, t in (
                ("bos_token", "</s>"),
                ("eos_token", "</s>"),
                ("unk_token", "</s>"),
                ("pad_token", "<pad>"),
            )
        },
    },
    "CodeGen": lambda: {
        "config": {"model_type": "codegen"},
        **vocab_and_merges(),
        "added_tokens": {" " * n: 400 + i for i, n in enumerate(range(31, 1, -1))} | {"\t\t": 430},
        "tokenizer_config": {
            "tokenizer_class": "CodeGenTokenizer",
            "add_prefix_space": False,
            "unk_token": "<|endoftext|>",
        },
    },
    "CodeGen, prefix space": lambda: {
        "config": {"model_type": "codegen"},
        **vocab_and_merges(),
        "tokenizer_config": {"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": True},
    },
    "StarCoder": lambda: {
        "config": {"model_type": "gpt_bigcode"},
        **vocab_and_merges(),
        "tokenizer__json": digits_json(),
        "tokenizer_config": {
            "tokenizer_class": "GPT2Tokenizer",
            "bos_token": "<|endoftext|>",
            "additional_special_tokens": ["<|im_start|>", "<tool>"],
        },
    },
    "StarCoder 2": lambda: {
        "config": {"model_type": "starcoder2"},
        "tokenizer__json": digits_json(),
        "tokenizer_config": {
            "tokenizer_class": "GPT2Tokenizer",
            "added_tokens_decoder": decoder_of(400),
            "bos_token": "<|endoftext|>",
        },
    },
    "Qwen 2": lambda: {
        "config": {"model_type": "qwen2"},
        **vocab_and_merges(),
        "tokenizer_config": QWEN
        | {
            "add_prefix_space": False,
            "added_tokens_decoder": decoder_of(400),
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        },
    },
    "DeepSeek distilled to Qwen": lambda: {
        "config": {"model_type": "qwen2"},
        "tokenizer__json": byte_level(),
        "tokenizer_config": LLAMA | {"tokenizer_class": "LlamaTokenizerFast"},
    },
    "GPT-NeoX": lambda: {
        "config": {"model_type": "gpt_neox"},
        "tokenizer__json": byte_level(),
        "tokenizer_config": {
            "tokenizer_class": "GPTNeoXTokenizer",
            "add_prefix_space": False,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
        },
    },
    "Phi 2": lambda: {
        "config": {"model_type": "phi"},
        "tokenizer__json": byte_level(),
        **vocab_and_merges(),
        "tokenizer_config": {
            "tokenizer_class": "CodeGenTokenizer",
            "added_tokens_decoder": decoder_of(400),
            "clean_up_tokenization_spaces": True,
        },
    },
    "special tokens split": lambda: {
        "config": {"model_type": "llama"},
        "tokenizer__json": llama3_json(),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "split_special_tokens": True,
            "extra_special_tokens": {"image_token": "<tool>"},
        },
    },
}


def build(root: Path, flavour: str) -> Path:
    """The folder of one flavour."""
    return write(root / flavour.replace(" ", "_").replace(",", ""), **FLAVOURS[flavour]())
