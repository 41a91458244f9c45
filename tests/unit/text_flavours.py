"""Folders of tokenizers, one for each flavour that models have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unit.text_folders import (
    byte_level,
    decoder_of,
    digits_json,
    flags,
    llama3_json,
    llama_json,
    pieces,
    unigram_json,
    vocab_and_merges,
    wordpiece_json,
    write,
)

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
