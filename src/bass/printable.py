"""Makes untrusted text (of checkpoints, run folders, user classes) safe for a terminal."""

import re

# Control characters (C0, DEL, C1), lone surrogates, line and paragraph separators, and invisible
# characters that reorder, hide or annotate text. Joiners and variation selectors stay, since words
# and emoji contain them.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""`text` with every character that could control a terminal or reorder a line escaped as in
    Python: `\x1b`.

    keep: characters that stay, such as line breaks.
    """
    return _STEERING.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
