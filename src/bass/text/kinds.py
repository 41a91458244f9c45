"""The tokenizer classes of `transformers` as data: what they add to a vocabulary and its merges.

`transformers` 5 takes the vocabulary, the merges and the post-processor out of tokenizer.json for
these classes, and adds the normalizer, pre-tokenizer and decoder of the class. `bass` does the
same, so that a text gets the same ids. For every other class a tokenizer.json is used unchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Settings = Mapping[str, Any]  # tokenizer_config.json, with the special tokens
Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class Kind:
    """One class: how it is built, its default special tokens, and whether it adds a
    beginning-of-sequence token by default.
    """

    build: Callable[[dict[str, int], Merges, Settings], Tokenizer]
    special: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    own_ends: bool = False  # the post-processor of tokenizer.json is replaced
    special_again: bool = False  # special tokens lose the flags of the checkpoint


def _byte_level(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    fast = Tokenizer(
        BPE(
            vocab=vocab,
            merges=merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    )
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.get("add_prefix_space"))
    )
    fast.decoder = decoders.ByteLevel()
    return fast


def _neox(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    fast = _byte_level(vocab, merges, settings)
    fast.normalizer = normalizers.NFC()
    return fast


def _qwen2(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    fast = _neox(vocab, merges, settings)
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=bool(settings.get("add_prefix_space")), use_regex=False
            ),
        ]
    )
    return fast


def spaced_decoder(strip: bool) -> decoders.Sequence:
    """Pieces to text: `▁` is a space, a byte token a byte;

    `strip` removes the space before the first word.
    """
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if strip else parts)


def _llama(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    prefix = settings.get("add_prefix_space") is not False
    scheme = ("always" if settings.get("legacy") else "first") if prefix else "never"
    fast = Tokenizer(BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme=scheme, split=False
    )
    fast.decoder = spaced_decoder(strip=prefix)
    return fast


def _code_llama(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    scheme = "never" if settings.get("add_prefix_space") is False else "first"
    fast = Tokenizer(
        BPE(
            vocab=vocab,
            merges=merges,
            fuse_unk=True,
            byte_fallback=True,
            unk_token=str(settings.get("unk_token")),
        )
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme=scheme, split=False
    )
    fast.decoder = spaced_decoder(strip=True)
    return fast


def _gemma(vocab: dict[str, int], merges: Merges, settings: Settings) -> Tokenizer:
    fast = Tokenizer(
        BPE(
            vocab=vocab,
            merges=merges,
            fuse_unk=True,
            byte_fallback=True,
            unk_token=str(settings.get("unk_token")),
        )
    )
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    fast.decoder = spaced_decoder(strip=False)
    return fast


_END = "<|endoftext|>"
_GPT2 = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_INFILLING = {
    "prefix_token": "▁<PRE>", "middle_token": "▁<MID>", "suffix_token": "▁<SUF>",
    "eot_token": "▁<EOT>", "fill_token": "<FILL_ME>",
}  # fmt: skip
KINDS = {
    "GPT2Tokenizer": Kind(_byte_level, _GPT2),
    "CodeGenTokenizer": Kind(_byte_level, _GPT2),
    "GPTNeoXTokenizer": Kind(_neox, _GPT2 | {"pad_token": "<|padding|>"}, own_ends=True),
    "Qwen2Tokenizer": Kind(
        _qwen2, {"unk_token": _END, "eos_token": _END, "pad_token": _END}, special_again=True
    ),
    "LlamaTokenizer": Kind(_llama, _LLAMA),
    "CodeLlamaTokenizer": Kind(_code_llama, _LLAMA | _INFILLING, add_bos=True),
    "GemmaTokenizer": Kind(
        _gemma,
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
    ),
}
BYTE_LEVEL = ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer")

# The class that `transformers` associates with a model_type; "": tokenizer.json is used unchanged,
# and the named class is ignored.
_BY_MODEL = {
    "GPT2Tokenizer": "codegen dbrx gpt2 gpt_neo gptj opt phi starcoder2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma",
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next",
    "CohereTokenizer": "cohere cohere2",
    "CodeLlamaTokenizer": "code_llama",
    "": "arctic deepseek_v2 deepseek_v3 ernie4_5 glm glm4 glm4_moe gpt_bigcode granite granitemoe "
    "granitemoehybrid granitemoeshared internlm2 jamba "
    "minicpm3 ministral ministral3 mistral mistral3 mixtral nemotron olmo2 olmo3 persimmon phi3 "
    "phimoe stablelm",
}
REGISTERED = {model: name for name, models in _BY_MODEL.items() for model in models.split()}


def class_name(model_type: str | None, named: str | None) -> str:
    """The class that reads a folder whose files name `named` as the tokenizer's class."""
    named = named.removesuffix("Fast") if named else None
    registered = REGISTERED.get(model_type or "")
    if registered is None:
        return named or ""
    if registered == "" or model_type == "qwen2":  # their files are known to name a wrong class
        return registered
    return named or registered
