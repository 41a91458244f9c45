"""Whether token ids have the same meaning in two models."""

import json
import warnings
from collections.abc import Iterable
from typing import Any

from bass.errors import PairingError
from bass.text.tokenizer import Tokenizer

# texts that tokenizers of the same tokens often split differently
_TEXTS = (
    "hello world", " hello", "Hello, it's", "a  b", "12345", "x = 1\n\n\ty", "Füchse", "cafe\u0301",
    "中文 ☕",
)  # fmt: skip
_REMEDY = "Use a draft that was trained with the target's tokenizer."


def check_same_tokenizer(target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """Raise `PairingError`, with the first difference, if token ids of target and draft differ in
    meaning.

    It compares the tokenizers' vocabularies, not the padded ones of the models, and everything that
    decides how a text is split. It ignores special tokens around a text and decoding: only the
    target's tokenizer does these. A difference in `legacy` alone, of sentencepiece models, is a
    warning: only text behind a special token is split differently, and the target splits it.
    """
    if target is None or draft is None:
        return
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours != theirs:
        token = min(
            (t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)),
            key=lambda t: ours.get(t, theirs.get(t, 0)),
        )
        raise PairingError(
            f"Target and draft have different tokenizers: token {token!r} is {ours.get(token)} in "
            "the target's and "
            f"{theirs.get(token)} in the draft's. {_REMEDY}"
        )
    parts = [_deciding(tokenizer) for tokenizer in (target, draft)]
    if parts[0] != parts[1] and _without_legacy(parts[0]) == _without_legacy(parts[1]):
        _warn_of_legacy(target, draft)
        return
    for name in parts[0].keys() | parts[1].keys():
        one, other = (part.get(name) for part in parts)
        if one != other:
            example = _example(target, draft, _TEXTS)
            raise PairingError(
                "Target and draft have the same tokens and different tokenizers: "
                f"{_difference(name, one, other)}{example and f' ({example})'}. {_REMEDY}"
            )


def _without_legacy(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts without what `legacy` sets: whether the space before a text is also put behind each
    special token.
    """
    before = parts["pre-tokenizer"]
    spaced = isinstance(before, dict) and before.get("prepend_scheme") in ("first", "always")
    return parts | {"pre-tokenizer": before | {"prepend_scheme": None}} if spaced else parts


def _warn_of_legacy(target: Tokenizer, draft: Tokenizer) -> None:
    """Warn, with an example, if there is a special token behind which texts are split otherwise."""
    special = sorted(target.silent)[:8]
    texts = [f"{target.fast.id_to_token(index)}hello" for index in special]
    if example := _example(target, draft, texts):
        warnings.warn(
            "Target and draft differ in `legacy` of tokenizer_config.json, so they split text "
            f"behind a special token differently: {example}. Token ids mean the same, and the "
            "target splits all prompts; if the draft is accepted too rarely, use one with the "
            "target's setting.",
            stacklevel=2,
        )


def _example(target: Tokenizer, draft: Tokenizer, texts: Iterable[str]) -> str:
    """The first text that they split differently, and its tokens; empty if there is none."""
    for text in texts:
        ours, theirs = (
            [one.fast.id_to_token(index) for index in one.encode(text, add_special_tokens=False)]
            for one in (target, draft)
        )
        if ours != theirs:
            return (
                f"{_short(text)} becomes {_short(ours)} in the target's and {_short(theirs)} in "
                "the draft's"
            )
    return ""


def _deciding(tokenizer: Tokenizer) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, and the model's parts but for its vocabulary."""
    parts = json.loads(tokenizer.fast.to_str())
    model = {f"model's {name}": value for name, value in parts["model"].items() if name != "vocab"}
    return {"normalizer": parts["normalizer"], "pre-tokenizer": parts["pre_tokenizer"]} | model


def _difference(name: str, one: Any, other: Any) -> str:
    if isinstance(one, list) and isinstance(other, list):
        at = next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
            min(len(one), len(other)),
        )
        one, other = (part[at] if at < len(part) else None for part in (one, other))
        name = f"{name}, number {at}"
    return f"the {name}, is {_short(one)} in the target's and {_short(other)} in the draft's"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}..."
