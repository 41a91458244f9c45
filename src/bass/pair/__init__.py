"""The embedded pair: a small code model and its draft, as ordinary Hugging Face folders inside the
package, and heads that draft from the target's states.
"""

from pathlib import Path

TARGET = Path(__file__).parent / "target"
DRAFT = Path(__file__).parent / "draft"
# what `draft=` names with the embedded target, unless there is a folder of this name
HEADS = {name: Path(__file__).parent / name for name in ("eagle3", "block")}


def is_head(checkpoint: str | Path | None) -> bool:
    """Whether this names a head of the embedded target, and no folder."""
    return str(checkpoint) in HEADS and not Path(str(checkpoint)).exists()
