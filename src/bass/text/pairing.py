"""Whether token ids have the same meaning in two models."""

import warnings
from collections.abc import Mapping

from bass.errors import PairingError
from bass.text.tokenizer import Tokenizer

_REMEDY = "Use a draft that was trained with the target's tokenizer."


def check_same_tokenizer(target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """Raise `PairingError`, with the first difference, if token ids of target and draft differ in
    meaning.

    It compares the tokenizers' vocabularies, not the padded ones of the models. Other added tokens
    are only a warning, and how the draft's tokenizer splits or decodes a text does not matter: the
    target's does both, and the target verifies all tokens.
    """
    if target is None or draft is None:
        return
    of_target, of_draft = (one.fast.get_vocab(with_added_tokens=False) for one in (target, draft))
    if of_target != of_draft:
        raise PairingError(
            "Target and draft have different tokenizers: "
            f"{_first_token(of_target, of_draft)}. {_REMEDY}"
        )
    if target.vocabulary != draft.vocabulary:
        warnings.warn(
            "Target and draft have different added tokens: "
            f"{_first_token(target.vocabulary, draft.vocabulary)}. The output is the target's all "
            "the same; if few drafted tokens are accepted, use a draft with the target's "
            "tokenizer.",
            stacklevel=2,
        )


def _first_token(of_target: Mapping[str, int], of_draft: Mapping[str, int]) -> str:
    """The token of the lowest id that the vocabularies do not share."""
    others = (t for t in of_target.keys() | of_draft.keys() if of_target.get(t) != of_draft.get(t))
    token = min(others, key=lambda t: (of_target.get(t, of_draft.get(t, 0)), t))
    one, other = of_target.get(token, "missing"), of_draft.get(token, "missing")
    return f"token {token!r} is {one} in the target's and {other} in the draft's"
