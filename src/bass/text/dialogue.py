"""Prompts of conversations: by the checkpoint's chat template, or else as plain text.

The plain text of a conversation, for a checkpoint without a template:

    CONTENT OF A SYSTEM MESSAGE

    User: CONTENT
    Assistant: CONTENT
    User: CONTENT
    Assistant:
"""

from collections.abc import Mapping, Sequence

from bass.errors import RequestError
from bass.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]
_FORMS = {"system": "{}\n\n", "user": "User: {}\n", "assistant": "Assistant: {}\n"}


def has_template(tokenizer: Tokenizer) -> bool:
    """Whether the checkpoint has a chat template for conversations."""
    return "default" in tokenizer.chat.templates


def plain_text(messages: Messages) -> str:
    """The conversation up to the assistant's turn, as plain text."""
    written = (_FORMS[one["role"]].format(one["content"].strip()) for one in messages)
    return "".join(written) + "Assistant:"


def prompts_of(
    tokenizer: Tokenizer | None, conversations: Sequence[Messages], most: int
) -> list[str | list[int]]:
    """The prompt of each conversation up to the assistant's turn: token ids of the chat template,
    or else plain text. most: the longest that can be encoded, in tokens.

    Raises `RequestError` or `CheckpointError`.
    """
    if not conversations:
        return []
    if tokenizer is None:
        raise RequestError(
            "The prompts are conversations, and the target's folder has no tokenizer: add the "
            "tokenizer's files, or give prompts of token ids."
        )
    if not has_template(tokenizer):
        return [plain_text(messages) for messages in conversations]
    return [
        tokenizer.encode(tokenizer.chat.render(messages), add_special_tokens=False, most=most)
        for messages in conversations
    ]
