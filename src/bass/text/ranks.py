"""Vocabularies of byte sequences with ranks, of which the pair of lowest rank is merged first:
files of tiktoken's format (Llama 3, Qwen 1, Kimi), and Mistral's tekken.json.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from bass.errors import CheckpointError
from bass.files import open_regular, read_regular
from bass.plain_json import parse_json
from bass.text.kinds import QWEN2_PIECES, Merges
from bass.text.limits import (
    LARGEST_FILE,
    MOST_ADDED,
    MOST_TOKENS,
    check_json,
    check_merges,
    check_splits,
    check_vocabulary,
)

TEKKEN, KIMI = "tekken.json", "tiktoken.model"
LLAMA3_SIZE = 128_000  # tokens of Llama 3 but for the special ones
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s")  # a line of tiktoken's format
_VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
# the letters of byte-level BPE: of a byte that is no visible character of Latin-1, one above 255
LETTERS = dict(zip(_VISIBLE, map(chr, _VISIBLE), strict=True)) | {
    byte: chr(256 + i) for i, byte in enumerate(sorted({*range(256)} - {*_VISIBLE}))
}

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Format:
    """What a file of tiktoken's format does not say: how text is split into pieces, and the special
    tokens after its own.
    """

    pattern: str
    special: tuple[str, ...] = ()
    reserved: int = 0  # special tokens at least, others by number
    named: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool = False
    nfc: bool = False


_LLAMA3 = Format(
    _CL100K,
    (
        "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
        "<|image|>", *(f"<|reserved_special_token_{i}|>" for i in range(2, 246)),
    ),
    named={"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    add_bos=True,
)  # fmt: skip
_QWEN = Format(
    QWEN2_PIECES,
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))),
    named={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    nfc=True,
)
_TEKKEN_SPECIAL = (  # of files that do not list them
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
_TEKKEN_NAMED = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """A vocabulary: the ids of its tokens, in the letters of byte-level BPE and in the order of
    their ranks, and of its special tokens.
    """

    ids: Mapping[str, int]
    special: Mapping[str, int]
    named: Mapping[str, str]
    pattern: str
    add_bos: bool
    nfc: bool = False

    @classmethod
    def read(cls, path: Path, model_type: Any, settings: Mapping[str, Any]) -> "Ranks":
        """Parse a file of either format. Raises `ValueError` or `CheckpointError`."""
        content = read_regular(path, LARGEST_FILE)
        if path.name == TEKKEN:
            return cls._tekken(parse_json(content))
        ids = _tiktoken(content)
        form = _format(path, len(ids), model_type, settings)
        first = max(ids.values()) + 1
        named = {
            int(index): str(token.get("content")) if isinstance(token, Mapping) else str(token)
            for index, token in (settings.get("added_tokens_decoder") or {}).items()
        }
        own = {} if named else dict(enumerate(form.special, first))
        last = max([*named, *own, first + form.reserved - 1])
        _check_special(last + 1 - first)
        special = {
            named.get(index) or own.get(index) or f"<|reserved_token_{index}|>": index
            for index in range(first, last + 1)
        }
        known = {name: token for name, token in form.named.items() if token in special}
        return cls(ids, special, known, form.pattern, form.add_bos and bool(known), form.nfc)

    @classmethod
    def _tekken(cls, data: Any) -> "Ranks":
        """The ranks of tekken.json; special tokens come first, up to a number with fillers."""
        config, listed = data["config"], data.get("special_tokens")
        special = (
            list(_TEKKEN_SPECIAL)
            if listed is None
            else [entry["token_str"] for entry in sorted(listed, key=lambda entry: entry["rank"])]
        )
        count = config.get("default_num_special_tokens") or len(special)
        _check_special(count)
        special += [f"<SPECIAL_{i}>" for i in range(len(special), count)]
        size = config.get("default_vocab_size")
        entries = data["vocab"][: None if size is None else size - count]
        ids = {_letters(entry["token_bytes"]): count + i for i, entry in enumerate(entries)}
        named = {name: token for name, token in _TEKKEN_NAMED.items() if token in special}
        by_name = {token: i for i, token in enumerate(special)}
        return cls(ids, by_name, named, config["pattern"], "bos_token" in named)

    def build(self) -> Tokenizer:
        """The tokenizer that `transformers` makes of the file, with its special tokens."""
        check_vocabulary(self.ids)
        check_splits(self.ids)
        # the reader reports a pattern that is not valid
        check_json({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": self.pattern}}})
        fast = Tokenizer(
            BPE(
                vocab={**self.ids, **self.special},
                merges=self._merges(),
                fuse_unk=False,
                ignore_merges=True,
            )
        )
        if self.nfc:
            fast.normalizer = normalizers.NFC()
        fast.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        fast.decoder = decoders.ByteLevel()
        fast.add_special_tokens(
            [AddedToken(token, normalized=False, special=True) for token in self.special]
        )
        return fast

    def _merges(self) -> Merges:
        """Every way to split a token into two others, by the ranks of the token and its parts."""
        ids, found = self.ids, Merges()
        for token in ids:
            pairs = [
                (token[:cut], token[cut:])
                for cut in range(1, len(token))
                if token[:cut] in ids and token[cut:] in ids
            ]
            found += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        check_merges(len(found))
        return found


def is_tiktoken(path: Path) -> bool:
    """Whether the file begins with a line of tiktoken's format."""
    with open_regular(path) as file:
        return _LINE.match(file.read(1 << 16)) is not None


def _letters(encoded: str | bytes) -> str:
    """A token, given in base64, in the letters of byte-level BPE."""
    return base64.b64decode(encoded, validate=True).decode("latin-1").translate(LETTERS)


def _tiktoken(content: bytes) -> dict[str, int]:
    """Token -> rank, in the order of the ranks."""
    lines = [line.split() for line in content.splitlines() if line]
    if len(lines) > MOST_TOKENS:
        raise ValueError(f"it has {len(lines):,} lines, and the limit is {MOST_TOKENS:,}")
    if not lines or any(len(line) != 2 for line in lines):
        raise ValueError("its lines are not a token in base64 and a rank")
    ranked = sorted((int(rank), _letters(token)) for token, rank in lines)
    return {token: rank for rank, token in ranked}


def _check_special(count: int) -> None:
    if count > MOST_ADDED:
        raise ValueError(f"it has {count:,} special tokens, and the limit is {MOST_ADDED:,}")


def _format(path: Path, size: int, model_type: Any, settings: Mapping[str, Any]) -> Format:
    """The format that model, class and name of the file stand for."""
    model, kind = str(model_type), str(settings.get("tokenizer_class"))
    if kind == "TikTokenTokenizer" or model.startswith("kimi"):
        return Format(_KIMI, reserved=256)
    if path.name == "qwen.tiktoken" or kind == "QWenTokenizer":
        return _QWEN
    if path.suffix == ".tiktoken" and path.stem != "cl100k_base":
        raise CheckpointError(
            f"`{path}` does not say how text is split into tokens: give the tokenizer as "
            "tokenizer.json."
        )
    return _LLAMA3 if model == "llama" and size == LLAMA3_SIZE else Format(_CL100K)
