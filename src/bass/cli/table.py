"""`bass table`: the table of a run, on standard output or in a file."""

from collections.abc import Sequence
from pathlib import Path

from bass.analysis.frames import open_run
from bass.analysis.tables import SUFFIXES, to_text
from bass.cli.options import parser
from bass.errors import OptionError

EXAMPLES = (
    "bass table runs/comparison",
    "bass table runs/comparison --format latex",
    "bass table runs/comparison --output comparison.csv",
)


def run(argv: Sequence[str]) -> int:
    """Print the table, or write it to a file and print the file's name."""
    about = "Write the table of a run as Markdown, LaTeX or CSV."
    made = parser("table", about, EXAMPLES, skip=["config"])
    made.add_argument("run", type=str, help="folder that `bass ablate` wrote")
    formats = ", ".join(SUFFIXES.values())
    by_name = f"{formats}; by default that of the name of the file, else markdown"
    made.add_argument("--format", type=str | None, default=None, metavar="FORMAT", help=by_name)
    made.add_argument("--output", type=str | None, default=None, metavar="FILE", help="its file")
    config = made.read(argv)
    if config.output is None:
        print(to_text(open_run(config.run), config.format or "markdown"), end="")
        return 0
    output = Path(config.output)
    found = config.format or SUFFIXES.get(output.suffix)
    if found is None:
        raise OptionError(
            f"`--output {output}` does not end in {', '.join(SUFFIXES)}: give such a name, or "
            "`--format`."
        )
    output.write_text(to_text(open_run(config.run), found), encoding="utf-8")
    print(output)
    return 0
