"""tekken.json and files of tiktoken's format give the ids of their own libraries.

The reference for tiktoken's format is its rule, written down here: of the adjacent parts of a
piece, the pair whose bytes have the lowest rank is merged.
"""

import base64
import json
import unicodedata
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.integrations.mistral.tokenizer import MistralConverter

from bass.errors import CheckpointError
from bass.text import Tokenizer
from bass.text.ranks import KIMI, LETTERS, TEKKEN
from unit.text_folders import CORPUS, strings, write

TEXTS = [*strings()[:300], "İstanbul'S ſ'ſ don'T 中文English混合 12345\r\n\n  x", "e\u0301 가"]
ENGLISH = r"'(?i:[sdmt]|ll|ve|re)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HAN = r"[\p{Han}]+"
UPPER, LOWER = (
    rf"[\p{{{c}}}\p{{Lm}}\p{{Lo}}\p{{M}}{more}&&[^\p{{Han}}]]"
    for c, more in (("Lu", r"\p{Lt}"), ("Ll", ""))
)
HEAD = r"[^\r\n\p{L}\p{N}]?"
PATTERNS = {
    "Llama 3": rf"{ENGLISH}|{WORDS}|\p{{N}}{{1,3}}|{REST}",
    "Qwen": rf"{ENGLISH}|{WORDS}|\p{{N}}|{REST}",
    "Kimi": rf"(?V1){HAN}|{HEAD}{UPPER}*{LOWER}+({ENGLISH})?|{HEAD}{UPPER}+{LOWER}*({ENGLISH})?"
    rf"|\p{{N}}{{1,3}}|{REST}",
}


def trained() -> list[bytes]:
    """The bytes of the tokens of a small byte-level vocabulary, in the order of the merges."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False),
    )
    bytes_of = {letter: byte for byte, letter in LETTERS.items()}
    found = sorted(fast.get_vocab().items(), key=lambda entry: entry[1])
    return [bytes(bytes_of[letter] for letter in token) for token, _ in found]


RANKS = trained()


def tiktoken_file() -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(RANKS))


def by_the_rule(text: str, pattern: str) -> list[int]:
    """The ids of a text without special tokens."""
    ranks = {token: i for i, token in enumerate(RANKS)}
    ids: list[int] = []
    for found in regex.finditer(pattern, text):
        piece = found[0].encode()
        parts = [piece] if piece in ranks else [bytes([byte]) for byte in piece]
        while True:
            pairs = [(ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts))]
            rank, at = min(pairs, default=(1 << 30, 0))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


FOLDERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama 3": ("tokenizer.model", {"model_type": "llama"}, {}),
    "Qwen": ("qwen.tiktoken", {"model_type": "qwen"}, {"tokenizer_class": "QWenTokenizer"}),
    "Kimi": (KIMI, {"model_type": "kimi_k2"}, {"tokenizer_class": "TikTokenTokenizer"}),
}


def folder_of(path: Path, kind: str, **settings: Any) -> Path:
    file, config, own = FOLDERS[kind]
    write(path, config=config, tokenizer_config=own | settings)
    (path / file).write_bytes(tiktoken_file())
    return path


def read(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_file_of_ranks_gives_the_ids_of_its_rule(tmp_path: Path, kind: str) -> None:
    tokenizer = read(folder_of(tmp_path, kind))
    for text in TEXTS:
        if any(token in text for token in ("<|", "[BOS]")):
            continue  # a special token
        told = unicodedata.normalize("NFC", text) if kind == "Qwen" else text
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == by_the_rule(told, PATTERNS[kind]), repr(text)
        assert tokenizer.decode(ids) == told


def test_special_tokens_have_the_ids_of_the_folder_or_of_the_model(tmp_path: Path) -> None:
    count = len(RANKS)
    listed = {str(count + 2): {"content": "<end>", "special": True}}
    tokenizer = read(
        folder_of(tmp_path / "a", "Llama 3", added_tokens_decoder=listed, eos_token="<end>")
    )
    assert tokenizer.vocabulary["<end>"] == count + 2
    assert tokenizer.vocabulary[f"<|reserved_token_{count}|>"] == count
    assert tokenizer.encode("<end>a") == [count + 2, *tokenizer.encode("a")]
    assert tokenizer.decode(tokenizer.encode("a<end>")) == "a"
    qwen = read(folder_of(tmp_path / "b", "Qwen"))
    assert [qwen.vocabulary[f"<|{name}|>"] - count for name in ("endoftext", "im_end")] == [0, 2]
    assert qwen.vocabulary["<|extra_204|>"] == count + 207
    kimi = read(folder_of(tmp_path / "c", "Kimi"))
    assert max(kimi.vocabulary.values()) == count + 255


def test_llama_3_begins_a_text_with_its_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bass.text.ranks.LLAMA3_SIZE", len(RANKS))
    tokenizer = read(folder_of(tmp_path, "Llama 3"))
    begin = tokenizer.vocabulary["<|begin_of_text|>"]
    assert begin == len(RANKS)
    assert tokenizer.vocabulary["<|eot_id|>"] == begin + 9
    assert tokenizer.encode("a")[0] == begin
    assert tokenizer.encode("<|begin_of_text|>a") == tokenizer.encode("a")
    folder_of(tmp_path, "Llama 3", add_bos_token=False)
    assert read(tmp_path).encode("a")[0] != begin


def tekken(special: Any = None, **config: Any) -> dict[str, Any]:
    data = {
        "config": {
            "pattern": rf"{WORDS}|\p{{N}}|{REST}",
            "default_vocab_size": 690,
            "default_num_special_tokens": 30,
            "version": "v11",
        }
        | config,
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for i, token in enumerate(RANKS)
        ],
    }
    return data if special is None else data | {"special_tokens": special}


SPECIAL = [
    {"rank": i, "token_str": token, "is_control": True}
    for i, token in enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
]


def tekken_folder(path: Path, data: Mapping[str, Any]) -> Path:
    write(path, config={"model_type": "mistral"})
    (path / TEKKEN).write_text(json.dumps(data))
    return path


def test_a_tekken_file_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    folder = tekken_folder(tmp_path, tekken(SPECIAL[::-1]))
    tokenizer, theirs = read(folder), MistralConverter(str(folder / TEKKEN)).converted()
    assert tokenizer.vocabulary == theirs.get_vocab()
    for text in [*TEXTS, "[INST]a[/INST]</s><SPECIAL_29>"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert tokenizer.decode(ids) == theirs.decode(ids)
    assert tokenizer.encode("a")[0] == tokenizer.vocabulary["<s>"] == 1
    assert tokenizer.chat.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_an_early_tekken_file_has_the_tokens_of_its_version(tmp_path: Path) -> None:
    tokenizer = read(tekken_folder(tmp_path, tekken()))
    ids = [tokenizer.vocabulary[name] for name in ("[TOOL_CALLS]", "<pad>", "[TOOL_CONTENT]")]
    assert ids == [9, 11, 19]
    assert tokenizer.vocabulary["<SPECIAL_20>"] == 20


def test_tokenizer_json_comes_before_both(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "Llama 3")
    (folder / TEKKEN).write_text(json.dumps(tekken()))
    assert read(folder).source == "tokenizer.model"
    read(folder).fast.save(str(folder / "tokenizer.json"))
    assert read(folder).source == "tokenizer.json"
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs("don't 123")["input_ids"] == read(folder).encode("don't 123")


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "no base64": ("tokenizer.model", b"aGk= 0\n??? 1\n", "not a readable tokenizer"),
    "three columns": ("tokenizer.model", b"aGk= 0\naGk= 1 2\n", "not a readable tokenizer"),
    "an enormous rank": ("tokenizer.model", b"aGk= 0\naGo= 99999999\n", "its largest id is"),
    "an unknown pattern": ("mine.tiktoken", b"aGk= 0\n", "does not say how text is split"),
    "an empty file": ("qwen.tiktoken", b"", "not a readable tokenizer"),
    "tekken without config": (TEKKEN, b'{"vocab": []}', "not a readable tokenizer"),
    "tekken with a list": (TEKKEN, b"[]", "not a readable tokenizer"),
    "too many special tokens": (
        TEKKEN,
        json.dumps(tekken(default_num_special_tokens=10**9)).encode(),
        "special tokens, and the limit is",
    ),
    "a pattern that is too long": (
        TEKKEN,
        json.dumps(tekken(pattern="a" * 20_000)).encode(),
        "characters in its regular expressions",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, case: str) -> None:
    name, content, words = DAMAGED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as error:
        Tokenizer.read(tmp_path)
    assert str(error.value).endswith(".")
