"""Whether token ids have the same meaning in two models."""

import json
from typing import Any

from bass.errors import PairingError
from bass.text.tokenizer import Tokenizer

_REMEDY = "Use a draft that was trained with the target's tokenizer."


def check_same_tokenizer(target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """Raise `PairingError`, with the first difference, if token ids of target and draft differ in
    meaning.

    It compares the tokenizers' vocabularies, not the padded ones of the models, and everything that
    decides how a text is split. It ignores special tokens around a text and decoding: only the
    target's tokenizer does these.
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
    for name in parts[0].keys() | parts[1].keys():
        one, other = (part.get(name) for part in parts)
        if one != other:
            raise PairingError(
                "Target and draft have the same tokens and different tokenizers: "
                f"{_difference(name, one, other)}. {_REMEDY}"
            )


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
