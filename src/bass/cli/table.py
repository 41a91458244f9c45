"""`bass table`: the table of a run, on standard output."""

from collections.abc import Sequence
from typing import Literal

from bass.cli.options import Parser

EXAMPLES = (
    "bass table runs/comparison",
    "bass table runs/comparison --format latex > comparison.tex",
    "bass table runs/comparison --format csv > comparison.csv",
)


def run(argv: Sequence[str]) -> int:
    """Print the table."""
    about = "Write the table of a run as Markdown, LaTeX or CSV."
    made = Parser("table", about, EXAMPLES, skip=["config"])
    made.add_argument("run", type=str, help="folder that `bass ablate` wrote")
    formats = Literal["markdown", "latex", "csv"]
    made.add_argument("--format", type=formats, default="markdown", help="of the table")
    config = made.read(argv)

    from bass.analysis.frames import open_run  # after the options are read
    from bass.analysis.tables import to_text

    print(to_text(open_run(config.run), config.format), end="")
    return 0
