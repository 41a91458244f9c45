"""Folders of tokenizers, one for each flavour that real checkpoints have."""

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
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>",
    "<|im_end|>", "<|begin|>", "<|turn|>", "<start_of_turn>", "<0x41>", "<0xE2>", "[INST]",
    "<tool>", "▁", "Ġ", "<extra>",
]  # fmt: skip
LETTERS = [
    *"abc XYZ012,.'!?\"()[]{}<>|_-=+*/#\\\t\néßñøЖщλ中文字の안녕שלمنथाไ",
    *("  ", "    ", "\r\n", "\u00a0", "\u3000", "\u200b", "\u2028", "\x00", "\x07", "\x1b", "\x7f"),
    *(
        "\ufeff",
        "e\u0301",
        "a\u0308\u0323",
        "\u0915\u094d\u0937",
        "ﬁ",
        "Å",
        "½",
        "①",
        "Ａ",
        "\U0010ffff",
    ),
    *("\ufffd", "😀", "👩‍👩‍👧", "🏳️‍🌈", "𝄞", "𐍈", "don't", " 's", " n't", " .", " ,", "it's "),
    *("hello", " world", "def f(x):\n", "12345"),
]
FIXED = [
    *("", " ", "  ", "   ", "\n", "\t", " a", "a ", "  a  ", "a  b   c", "\n\n\n"),
    *("a" * 300, " " * 100, "é" * 50, "😀" * 20, "\x00" * 5, "\ufffd"),
    *(*CORPUS, "\n".join(CORPUS), *SPECIAL),
    *(form.format(token) for form in (" {0} ", "a{0}b", "{0}{0} a") for token in SPECIAL),
]


@functools.cache
def strings(count: int = 1000) -> list[str]:
    """Varied texts, the same in every run: code, scripts, emoji, controls, spaces, special tokens,
    long runs.
    """
    draw, parts = random.Random(0), LETTERS * 4 + SPECIAL + [line[:20] for line in CORPUS]
    return FIXED + [
        "".join(draw.choice(parts) for _ in range(draw.randrange(1, 16)))
        for _ in range(count - len(FIXED))
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


def gemma_pieces() -> bytes:
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    names = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    symbols = ("<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "▁▁", "▁▁▁▁", "<b>")
    more = {"user_defined_symbols": symbols, "add_dummy_prefix": False}
    return pieces("bpe", 440, **ids, **names, **more)


@functools.cache
def byte_level(size: int = 400, first: tuple[str, ...] = ("<|endoftext|>",)) -> str:
    """A trained byte-level BPE, as tokenizer.json."""
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"special_tokens": list(first), "initial_alphabet": alphabet, "show_progress": False}
    fast.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, **options))
    return fast.to_str()


def vocab_and_merges(*first: str) -> dict[str, Any]:
    model = json.loads(byte_level(400, first or ("<|endoftext|>",)))["model"]
    merges = "\n".join(map(" ".join, model["merges"]))
    return {"vocab": model["vocab"], "merges__txt": f"#version: 0.2\n{merges}\n"}


def flags(content: str, **changed: bool) -> dict[str, Any]:
    names = ("lstrip", "normalized", "rstrip", "single_word")
    return {"content": content} | dict.fromkeys(names, False) | changed


def llama_json() -> str:
    """What the converters of earlier versions wrote for a Llama-2 tokenizer.model: a prefix by the
    normalizer.
    """
    model = sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe"))  # pyright: ignore[reportCallIssue]
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    cuts = ((p[:c], p[c:]) for p in vocab for c in range(1, len(p)))
    merges = [(left, right) for left, right in cuts if left in vocab and right in vocab]
    bpe = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    fast, to_space = Tokenizer(bpe), decoders.Replace("▁", " ")
    to_pieces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    fast.normalizer = normalizers.Sequence(to_pieces)
    first = decoders.Strip(" ", 1, 0)
    fast.decoder = decoders.Sequence([to_space, decoders.ByteFallback(), decoders.Fuse(), first])
    special = [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    fast.add_special_tokens(special)
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


def digits_json() -> str:
    fast = Tokenizer.from_str(byte_level())
    digits, to_bytes = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes])
    return fast.to_str()


# of tokenizer_config.json
ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA = {"tokenizer_class": "LlamaTokenizer", **ENDS, "model_max_length": 2048}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
CODEGEN = {"tokenizer_class": "CodeGenTokenizer"}
END = "<|endoftext|>"
OPT_ENDS = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
DECODER = {  # special and ordinary tokens, with flags of all kinds
    "0": flags(END, special=True),
    "400": flags("<|im_start|>", special=True),
    "401": flags("<|im_end|>", special=True, rstrip=True),
    "402": flags("<tool>", special=False, normalized=True),
    "403": flags("<extra>", special=False, lstrip=True, normalized=False),
}


def numbered(*tokens: str, first: int = 0) -> dict[str, Any]:
    return {str(i): flags(token, special=True) for i, token in enumerate(tokens, first)}


def named(tokens: dict[str, str], **more: Any) -> dict[str, Any]:
    return {name: flags(token, normalized=True) | more for name, token in tokens.items()}


def of(model_type: str, settings: Any = None, **files: Any) -> dict[str, Any]:
    """The files of a folder; `settings`: of tokenizer_config.json."""
    some = {} if settings is None else {"tokenizer_config": settings}
    return {"config": {"model_type": model_type}, **files, **some}


def llama(settings: Any = None, **files: Any) -> dict[str, Any]:
    return of("llama", settings, **{"tokenizer": pieces("bpe"), **files})


Files = Callable[[], dict[str, Any]]
FLAVOURS: dict[str, Files] = {
    "Llama 2, tokenizer.model": lambda: llama(
        LLAMA
        | {"add_bos_token": True, "add_eos_token": False, "legacy": False, "pad_token": None}
        | {"clean_up_tokenization_spaces": False, **named(ENDS, __type="AddedToken")}
    ),
    "Vicuna, added_tokens.json": lambda: llama(
        LLAMA | {"add_bos_token": True, "legacy": True},
        added_tokens={"<pad>": 420, "<tool>": 421, "<|im_end|>": 422},
        special_tokens_map={"bos_token": flags("<s>"), "eos_token": flags("</s>", rstrip=True)}
        | {"unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "TinyLlama, tokenizer.json": lambda: llama(
        LLAMA
        | {"add_bos_token": True, "add_eos_token": True, "legacy": False, "pad_token": "</s>"}
        | {"added_tokens_decoder": numbered("<unk>", "<s>", "</s>")},
        tokenizer__json=llama_json(),
    ),
    "Code Llama": lambda: llama(LLAMA | {"tokenizer_class": "CodeLlamaTokenizer"}),
    "Mistral, tokenizer.json": lambda: of(
        "mistral", LLAMA, tokenizer=pieces("bpe"), tokenizer__json=llama_json()
    ),
    "Phi 3, placeholders": lambda: of(
        "phi3",
        LLAMA
        | {"add_bos_token": True}
        | {
            "added_tokens_decoder": {
                "1": flags("<s>", special=True),
                "3": flags("<|turn|>", special=True, rstrip=True),
                "430": flags("<tool>", special=False),
            }
        },
        tokenizer=pieces("bpe", user_defined_symbols=("<place0>", "<place1>")),
    ),
    "unigram, tokenizer.model": lambda: of(
        "llama",
        PLAIN | {"add_eos_token": True},
        tokenizer=pieces("unigram", 450, normalization_rule_name="nmt_nfkc"),
    ),
    "Gemma, tokenizer.model": lambda: of(
        "gemma",
        {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "pad_token": "<pad>"}
        | {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
        | {"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]}
        | {"clean_up_tokenization_spaces": False},
        tokenizer=gemma_pieces(),
    ),
    "Llama 3": lambda: of(
        "llama",
        PLAIN
        | {"bos_token": "<|begin|>", "eos_token": "<|turn|>"}
        | {"added_tokens_decoder": numbered("<|begin|>", END, "<|turn|>", first=420)},
        tokenizer__json=llama3_json(),
    ),
    "GPT-2": lambda: of("gpt2", **vocab_and_merges()),
    "OPT": lambda: of(
        "opt",
        GPT2
        | {"errors": "replace", "add_prefix_space": False, "add_bos_token": True}
        | named(OPT_ENDS, __type="AddedToken"),
        special_tokens_map=named(OPT_ENDS),
        **vocab_and_merges("<s>", "<pad>", "</s>", "<unk>"),
    ),
    "CodeGen": lambda: of(
        "codegen",
        CODEGEN | {"add_prefix_space": False, "unk_token": END},
        added_tokens={" " * n: 431 - n for n in range(31, 1, -1)} | {"\t\t": 430},
        **vocab_and_merges(),
    ),
    "StarCoder 2": lambda: of(
        "starcoder2",
        GPT2 | {"added_tokens_decoder": DECODER, "bos_token": END},
        tokenizer__json=digits_json(),
    ),
    "Qwen 2": lambda: of(
        "qwen2",
        {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>"}
        | {"pad_token": END, "unk_token": None, "add_prefix_space": False}
        | {"added_tokens_decoder": DECODER}
        | {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
        **vocab_and_merges(),
    ),
    "GPT-NeoX": lambda: of(
        "gpt_neox",
        {"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": False}
        | {"bos_token": END, "eos_token": END},
        tokenizer__json=byte_level(),
    ),
    "Phi 2": lambda: of(
        "phi",
        CODEGEN | {"added_tokens_decoder": DECODER},
        tokenizer__json=byte_level(),
        **vocab_and_merges(),
    ),
}


def write(folder: Path, **files: Any) -> Path:
    """`tokenizer_config={...}` becomes tokenizer_config.json; bytes become tokenizer.model; text
    keeps its name with a dot for `__`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / f"{name}.model").write_bytes(content)
            continue
        file = name.replace("__", ".") if isinstance(content, str) else f"{name}.json"
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def build(root: Path, flavour: str) -> Path:
    """The folder of one flavour."""
    return write(root / flavour.replace(" ", "_").replace(",", ""), **FLAVOURS[flavour]())
