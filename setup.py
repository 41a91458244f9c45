"""The long description of the package: README.md without links that a package index cannot follow.

Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def described(text: str, repository: str | None, tag: str) -> str:
    """A page with absolute links alone, to the files of the tag.

    repository: its address, if there is one; without it a link to a file is its text, and a picture
    is left out. A link within the page is its text: an index gives its headings no anchors.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if "://" in target:
            return found[0]
        if repository is None or target.startswith("#"):
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{target})"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    home = Path(__file__).parent
    project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=described(
            (home / "README.md").read_text(encoding="utf-8"),
            project.get("urls", {}).get("Repository"),
            f"v{project['version']}",
        ),
        long_description_content_type="text/markdown",
    )
