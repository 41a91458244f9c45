"""Text of others (checkpoints, run folders, classes of a user's own) made safe for a terminal."""

import re

# Control characters (C0, DEL, C1), halves of characters, breaks of lines and paragraphs, and the
# invisible ones that reorder, hide or annotate text. Joiners and variation selectors stay, which
# are parts of words and of emoji.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""`text` with every character that could steer a terminal, or reorder a line, written as
    Python writes it: `\x1b`.

    keep: those that stay as they are, as line breaks do in a text of several lines.
    """
    return _STEERING.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
