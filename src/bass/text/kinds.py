"""The tokenizer classes of `transformers` as data: what they add to a vocabulary and its merges.

`transformers` 5 takes the vocabulary, the merges and the post-processor out of tokenizer.json for
these classes, and adds the normalizer, pre-tokenizer and decoder of the class. `bass` does the
same, so that a text gets the same ids. For every other class a tokenizer.json is used unchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

Settings = Mapping[str, Any]  # tokenizer_config.json, with the special tokens
Vocabulary = dict[str, int]
Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class TokenizerClass:
    """A class: how it is built, its default special tokens, and whether a text begins with BOS."""

    build: Callable[[Vocabulary, Merges, Settings], Tokenizer]
    special: Mapping[str, str]
    add_bos: bool | None = None
    replaces_ends: bool = False  # the post-processor of tokenizer.json is replaced
    drops_flags: bool = False  # special tokens lose the flags of the checkpoint


def _byte_level(
    vocab: Vocabulary,
    merges: Merges,
    settings: Settings,
    nfc: bool = False,
    pattern: str | None = None,
) -> Tokenizer:
    """BPE of bytes. pattern: splits the text; None: the pattern of GPT-2."""
    fast = Tokenizer(BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    if nfc:
        fast.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.get("add_prefix_space")), use_regex=pattern is None
    )
    fast.pre_tokenizer = to_bytes
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        fast.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    fast.decoder = decoders.ByteLevel()
    return fast


def _llama(vocab: Vocabulary, merges: Merges, settings: Settings, code: bool = False) -> Tokenizer:
    """BPE of sentencepiece, with a space before the first word. code: of Code Llama."""
    prefix = settings.get("add_prefix_space") is not False
    scheme = "always" if settings.get("legacy") and not code else "first"
    unknown = {"unk_token": str(settings.get("unk_token"))} if code else {}
    fast = Tokenizer(BPE(vocab, merges, fuse_unk=True, byte_fallback=True, **unknown))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme=scheme if prefix else "never", split=False
    )
    fast.decoder = spaced_decoder(strip=prefix or code)
    return fast


def _gemma(vocab: Vocabulary, merges: Merges, settings: Settings) -> Tokenizer:
    unknown = str(settings.get("unk_token"))
    fast = Tokenizer(BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    fast.decoder = spaced_decoder(strip=False)
    return fast


def spaced_decoder(strip: bool) -> decoders.Sequence:
    """Pieces to text: `▁` is a space, a byte token a byte. strip: without the first space."""
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if strip else parts)


_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"
_GPT2 = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
_QWEN2 = {"unk_token": _END, "eos_token": _END, "pad_token": _END}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_INFILLING = {
    "prefix_token": "▁<PRE>", "middle_token": "▁<MID>", "suffix_token": "▁<SUF>",
    "eot_token": "▁<EOT>", "fill_token": "<FILL_ME>",
}  # fmt: skip
_GEMMA = {
    "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
    "mask_token": "<mask>",
}  # fmt: skip
_KINDS = {
    "GPT2Tokenizer": TokenizerClass(_byte_level, _GPT2),
    "CodeGenTokenizer": TokenizerClass(_byte_level, _GPT2),
    "GPTNeoXTokenizer": TokenizerClass(
        partial(_byte_level, nfc=True), _GPT2 | {"pad_token": "<|padding|>"}, replaces_ends=True
    ),
    "Qwen2Tokenizer": TokenizerClass(
        partial(_byte_level, nfc=True, pattern=_QWEN2_PATTERN), _QWEN2, drops_flags=True
    ),
    "LlamaTokenizer": TokenizerClass(_llama, _LLAMA),
    "CodeLlamaTokenizer": TokenizerClass(
        partial(_llama, code=True), _LLAMA | _INFILLING, add_bos=True
    ),
    "GemmaTokenizer": TokenizerClass(_gemma, _GEMMA),
}
_BYTE_LEVEL = ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer")
_MODELS = {
    "GPT2Tokenizer": "codegen gpt2 gptj opt phi starcoder2",
    "GPTNeoXTokenizer": "gpt_neox olmoe",
    "GemmaTokenizer": "gemma2 gemma3 gemma3_text",
    "Qwen2Tokenizer": "qwen2 qwen3 qwen3_moe",
    "": "ernie4_5 glm4 gpt_bigcode granite granitemoe granitemoehybrid ministral ministral3 "
    "mistral mistral3 mixtral nemotron olmo2 olmo3 phi3 stablelm",
}
# By model_type, the class that `transformers` associates with it; "": tokenizer.json is used
# unchanged, and the class that the files name is ignored. A family of your own may be added.
TOKENIZER_CLASSES = {model: name for name, models in _MODELS.items() for model in models.split()}


def kind_of(model_type: str | None, named: str | None, byte_level: bool) -> TokenizerClass | None:
    """The class that reads a folder whose files name `named` as the tokenizer's class; None for one
    that adds nothing.

    byte_level: the folder has vocab.json and merges.txt, which GPT-2's class reads for all others.
    """
    named = named.removesuffix("Fast") if named else ""
    registered = TOKENIZER_CLASSES.get(model_type or "")
    if registered == "" or model_type == "qwen2":  # their files are known to name a wrong class
        named = ""
    name = named or registered or ""
    return _KINDS.get("GPT2Tokenizer" if byte_level and name not in _BYTE_LEVEL else name)
