"""The embedded pair: a small code model and its draft, as ordinary Hugging Face folders inside the
package.
"""

from pathlib import Path

TARGET = Path(__file__).parent / "target"
DRAFT = Path(__file__).parent / "draft"
