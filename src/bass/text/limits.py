"""Limits on the files of a tokenizer.

A file of a kilobyte can double a text fifty times, and an id of a billion makes a loop over the ids
take minutes. The limits are several times the needs of any known tokenizer; a file beyond them is
an error before anything is built.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LARGEST_FILE = 128 << 20  # bytes; the largest tokenizer.json known has 33 MB
MOST_TOKENS, MOST_MERGES = 1 << 20, 1 << 20  # Gemma has 262,144 and 514,906
# ways to split all tokens into two; the largest known sentencepiece model has two million
MOST_SPLITS = 4_000_000
MOST_LETTERS, LONGEST_TOKEN = 8_000_000, 4096  # characters of all tokens, and of one
# Gemma 3 has 6,415, of 77,000 characters
MOST_ADDED, MOST_ADDED_LETTERS, LONGEST_ADDED = 20_000, 300_000, 256
MOST_ADDED_WRITTEN = 20_000_000  # characters that the normalizers make of all added tokens
SPARE_IDS = 1 << 16  # ids may go up to twice the number of tokens plus this
MOST_PARTS = 200  # normalizers, pre-tokenizers, decoders and post-processors
MOST_GROWTH = 1000  # characters that one may become before tokenization
MOST_DECODED = 16  # characters that one of a token may become when decoded
MOST_STRIPPED = 2  # characters, of the start of a text; Llama strips one
MOST_TEMPLATE = 1000  # tokens that post-processors may add to a text
LONGEST_PATTERNS = 10_000  # characters of all regular expressions; the longest known has 500
MOST_WRITTEN = 200_000_000  # characters that a text may grow to

# Maximum growth of a character. For a chain of Unicode normalizers it is `_CHAIN` at any length, by
# the Unicode tables.
_UNICODE = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 3,
    "BertNormalizer": 12,
    "StripAccents": 1,
    "Strip": 1,
    "Nmt": 1,
}
_CHAIN = 54
_PRE_TOKENIZERS = {  # one character per byte, and a space before the first word
    "ByteLevel": 5, "Metaspace": 2, "BertPreTokenizer": 1, "CharDelimiterSplit": 1, "Whitespace": 1,
    "WhitespaceSplit": 1, "Split": 1,
    "Punctuation": 1, "Digits": 1, "UnicodeScripts": 1, "FixedLength": 1,
}  # fmt: skip
_DECODERS = {
    "ByteLevel": 1,
    "WordPiece": 1,
    "Metaspace": 1,
    "Fuse": 1,
    "Strip": 1,
    "ByteFallback": 1,
}
_JOINING = ("ByteFallback", "ByteLevel", "BPEDecoder", "CTC", "Metaspace", "WordPiece")
_POST_PROCESSORS = ("BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing")
_QUANTIFIERS = re.compile(r"[*+?{]")
# a character or a character class
_ESCAPED = re.compile(r"\\(?:[pP]\{\w*\}|x\{\w*\}|[^kgRX1-9])|\[(?:\\.|[^\]\\])+\]")


def check_vocabulary(vocabulary: Any) -> None:
    """Raise `ValueError` for a vocabulary (token -> id, or a list of tokens with their scores) of
    too many, long or sparse tokens.
    """
    ids = (
        [index for index in vocabulary.values() if isinstance(index, int)]
        if isinstance(vocabulary, Mapping)
        else []
    )
    entries = vocabulary if isinstance(vocabulary, Mapping | list) else ()
    tokens = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
    _at_most(MOST_TOKENS, len(tokens), "tokens")
    _check_lengths(tokens, MOST_LETTERS)
    if max(ids, default=0) > 2 * len(tokens) + SPARE_IDS:
        raise ValueError(f"its largest id is {max(ids)}, and it has {len(tokens):,} tokens")


def check_added(tokens: Iterable[Any], grown: int = 1) -> None:
    """Raise `ValueError` for too many or too long added tokens.

    `grown`: characters that normalizers make of one character.
    """
    texts = [str(token) for token in tokens]
    letters = sum(map(len, texts))
    _at_most(MOST_ADDED, len(texts), "added tokens")
    _at_most(LONGEST_ADDED, max(map(len, texts), default=0), "characters in an added token")
    _at_most(MOST_ADDED_LETTERS, letters, "characters in all added tokens")
    _at_most(
        MOST_ADDED_WRITTEN,
        letters * grown,
        "characters may become of all added tokens by the normalizers",
    )


def check_merges(count: int) -> None:
    """Raise `ValueError` for too many merges."""
    _at_most(MOST_MERGES, count, "merges")


def check_splits(tokens: Iterable[str | bytes]) -> None:
    """Raise `ValueError` for too many ways to split the tokens into two."""
    splits = sum(max(len(token) - 1, 0) for token in tokens)
    if splits > MOST_SPLITS:
        raise ValueError(
            f"its pieces can be split in {splits:,} ways, and the limit is {MOST_SPLITS:,}"
        )


def check_json(data: Any) -> None:
    """Raise `ValueError` for a parsed tokenizer.json beyond the limits.

    Its reader reports invalid values.
    """
    if not isinstance(data, Mapping):
        return
    model = data.get("model")
    if isinstance(model, Mapping):
        check_vocabulary(model.get("vocab"))
        merges = _listed(model.get("merges"))
        check_merges(len(merges))
        _check_halves(merges, model.get("continuing_subword_prefix"))
    normalizers, pre_tokenizers, decoders = (
        leaves(data.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder")
    )
    _check_patterns(normalizers, pre_tokenizers, decoders)
    normalized = growth(normalizers)
    _at_most(
        MOST_GROWTH,
        normalized * growth(pre_tokenizers),
        "characters may become of one by its normalizers and pre-tokenizers",
    )
    added = [entry for entry in _listed(data.get("added_tokens")) if isinstance(entry, Mapping)]
    check_added((entry.get("content") for entry in added), normalized)
    most = max((index for entry in added if isinstance(index := entry.get("id"), int)), default=0)
    if most > 2 * (MOST_TOKENS + MOST_ADDED):
        raise ValueError(f"the id of an added token is {most}")
    _at_most(MOST_DECODED, growth(decoders), "characters may become of one by its decoders")
    if any(part.get("type") == "Strip" and part.get("stop") != 0 for part in decoders):
        raise ValueError("a decoder strips the end of a text, at which the library panics")
    stripped = max((n for part in decoders if isinstance(n := part.get("start"), int)), default=0)
    _at_most(MOST_STRIPPED, stripped, "characters are stripped from the start of a text")
    _check_stack(decoders)
    _at_most(
        MOST_TEMPLATE,
        template(leaves(data.get("post_processor"))),
        "tokens may its post-processors put around a text",
    )


def _check_stack(decoders: list[Mapping[str, Any]]) -> None:
    """One decoder may join tokens. Another, or one that looks for more than a letter in the text
    that is joined, lets later tokens change the text of all earlier ones.
    """
    joining: str | None = None
    for part in decoders:
        kind, pattern = str(part.get("type")), part.get("pattern")
        text = pattern.get("String") if isinstance(pattern, Mapping) else pattern
        many = kind == "Replace" and not (isinstance(text, str) and len(text) == 1)
        if joining is not None and (kind in _JOINING or many):
            raise ValueError(f"the decoder {kind} comes after {joining}, which is not supported")
        if kind in _JOINING or kind == "Fuse":
            joining = kind


def _check_halves(merges: list[Any], prefix: Any) -> None:
    """Check that second halves of merges begin with the prefix: the library cuts off as many bytes,
    and aborts if that is within a character.
    """
    for merge in merges if isinstance(prefix, str) and prefix else ():
        halves = merge.split(" ") if isinstance(merge, str) else _listed(merge)
        if not all(isinstance(half, str) and half.startswith(prefix) for half in halves[1:]):
            raise ValueError(f"its merge {merge!r:.100} lacks the prefix {prefix!r:.100}")


def growth(parts: Iterable[Mapping[str, Any]]) -> int:
    """A bound on the characters that a chain of normalizers, pre-tokenizers or decoders makes of
    one character.

    Raises ValueError for a part of an unknown type, which the library may interpret differently.
    """
    total, chain = 1, 1
    for part in parts:
        kind = str(part.get("type"))
        if kind in _UNICODE:
            chain = min(chain * _UNICODE[kind], _CHAIN)
            continue
        known = _DECODERS | _PRE_TOKENIZERS
        if kind not in known and kind not in _MADE:
            raise ValueError(f"it has a part of the unknown type {kind!r:.100}")
        total, chain = total * chain * (_MADE[kind](part) if kind in _MADE else known[kind]), 1
        if total > 10**9:  # beyond every limit
            break
    return total * chain


def grown(part: Any) -> int:
    """`growth` of a normalizer or pre-tokenizer object, or of None."""
    return 1 if part is None else growth(leaves(json.loads(part.__getstate__())))


def template(parts: Iterable[Mapping[str, Any]]) -> int:
    """A bound on the tokens that post-processors add to a text; a repeated text is beyond every
    limit.
    """
    count = 0
    for part in parts:
        if part.get("type") not in _POST_PROCESSORS:
            raise ValueError(
                f"a post-processor of it is of the type {part.get('type')!r:.100}, which is not "
                "known"
            )
        single = [piece for piece in _listed(part.get("single")) if isinstance(piece, Mapping)]
        special = part.get("special_tokens")
        tokens = special.values() if isinstance(special, Mapping) else ()
        longest = max(
            (len(_listed(token.get("ids"))) for token in tokens if isinstance(token, Mapping)),
            default=1,
        )
        again = sum("Sequence" in piece for piece in single) > 1
        count += len(single) * longest + MOST_TEMPLATE * again
    return count


def _replaced(part: Mapping[str, Any]) -> int:
    pattern, content = part.get("pattern"), part.get("content")
    made = len(content) if isinstance(content, str) else 0
    given = pattern.get("String") if isinstance(pattern, Mapping) else pattern
    if not isinstance(given, str) or not given:  # a pattern may match between characters
        return 1 + made
    return max(1, -(-made // len(given)))


def _precompiled(part: Mapping[str, Any]) -> int:
    """The longest replacement in sentencepiece's table: a trie, then texts that end with zero."""
    table = base64.b64decode(str(part.get("precompiled_charsmap") or ""))
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return max(1, max(len(text.decode(errors="replace")) for text in texts))


_MADE: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "Replace": _replaced,
    "Prepend": lambda part: 1 + len(str(part.get("prepend"))),
    "Precompiled": _precompiled,
    # an empty text matches between all characters
    "BPEDecoder": lambda part: 1 if part.get("suffix") else 3,
    "CTC": lambda part: 1 if part.get("word_delimiter_token") and part.get("pad_token") else 3,
}


def _check_patterns(
    normalizers: list[Mapping[str, Any]],
    pre_tokenizers: list[Mapping[str, Any]],
    decoders: list[Mapping[str, Any]],
) -> None:
    """Check regular expressions: any in a pre-tokenizer, whose time is limited; only simple ones in
    other parts, which run without a time limit.
    """
    patterns = list(filter(None, map(_expression, (*normalizers, *pre_tokenizers))))
    _at_most(LONGEST_PATTERNS, sum(map(len, patterns)), "characters in its regular expressions")
    if any(_expression(part) is not None for part in decoders):
        raise ValueError("a decoder has a regular expression, which is not supported")
    for part in normalizers:
        if (pattern := _expression(part)) is not None and not is_simple(pattern):
            raise ValueError(
                f"a normalizer has the regular expression {pattern!r:.100}, and only simple "
                "ones are supported"
            )


def is_simple(pattern: str) -> bool:
    """Whether matching takes at most quadratic time: a few characters, at most one repetition, no
    groups.
    """
    plain = _ESCAPED.sub("x", pattern)
    return (
        len(pattern) <= 200
        and not set(plain) & set("()[]\\&")
        and len(_QUANTIFIERS.findall(plain)) <= 1
    )


def _expression(part: Mapping[str, Any]) -> str | None:
    pattern = part.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    return found if isinstance(found, str) else None


def leaves(part: Any) -> list[Mapping[str, Any]]:
    """The elementary parts of a part, in order, with sequences flattened."""
    found: list[Mapping[str, Any]] = []
    waiting = [part]
    while waiting:
        _at_most(
            MOST_PARTS,
            len(found) + len(waiting),
            "normalizers, decoders or the like in one sequence",
        )
        one = waiting.pop()
        if isinstance(one, Mapping) and one.get("type") == "Sequence":
            inner = [
                _listed(one.get(name))
                for name in ("normalizers", "pretokenizers", "decoders", "processors")
            ]
            waiting += reversed([part for listed in inner for part in listed])
        elif isinstance(one, Mapping):
            found.append(one)
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_lengths(tokens: list[Any], most: int) -> None:
    lengths = [len(token) for token in tokens if isinstance(token, str)]
    _at_most(LONGEST_TOKEN, max(lengths, default=0), "characters in a token")
    _at_most(most, sum(lengths), "characters in all tokens")


def _at_most(most: int, count: int, what: str) -> None:
    if count > most:
        raise ValueError(f"{count:,} {what}, and the limit is {most:,}")
