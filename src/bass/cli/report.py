"""`bass report` and `bass table`: what a run folder holds, as a page and as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bass.cli.options import Parser, write

EXAMPLES = (
    "bass report runs/comparison",
    "bass report runs/comparison --output comparison.html",
    "bass report evaluations/small",
)
EXAMPLES_OF_TABLE = (
    "bass table runs/comparison",
    "bass table runs/comparison --format latex > comparison.tex",
    "bass table runs/comparison --columns tau ttft my_metrics:slowest_token",
)


def run(argv: Sequence[str]) -> int:
    """Write the page, and print its name."""
    about = "Write one HTML page of a run or of an evaluation, which needs no other file."
    made = Parser("report RUN", about, EXAMPLES, skip=["config"])
    made.add_argument("run", type=str, help="folder that `bass ablate` or `bass eval` wrote")
    default = "file of the page; by default report.html in the folder"
    made.add_argument("--output", type=str | None, default=None, metavar="FILE.html", help=default)
    config = made.read(argv)

    from bass.analysis.frames import REQUESTS, open_run  # after the options are read
    from bass.analysis.report import report, report_of_evaluation

    folder = Path(config.run)
    output = Path(config.output) if config.output else folder / "report.html"
    if (folder / REQUESTS).exists():  # an ablation has one in the folder of each cell
        from bass.experiments.pass_at_k import Evaluation

        found = Evaluation(folder)
        curve = found.curve([found.requests["ended"].max() * i / 100 for i in range(101)])
        html = report_of_evaluation(found.manifest, found.scores(), found.curve(), curve)
    else:
        html = report(open_run(folder))
    write("output", output, html)
    print(output)
    return 0


def table(argv: Sequence[str]) -> int:
    """Print the table."""
    about = "Write the table of a run as Markdown, LaTeX or CSV."
    made = Parser("table RUN", about, EXAMPLES_OF_TABLE, skip=["config"])
    made.add_argument("run", type=str, help="folder that `bass ablate` wrote")
    formats = Literal["markdown", "latex", "csv"]
    made.add_argument("--format", type=formats, default="markdown", help="of the table")
    help = "metrics, of a module as my_module:my_metric; by default those of its tables"
    made.add_argument("--columns", type=str, nargs="+", default=[], metavar="METRIC", help=help)
    config = made.read(argv)

    from bass.analysis.frames import open_run  # after the options are read
    from bass.analysis.tables import to_text

    print(to_text(open_run(config.run), config.format, config.columns), end="")
    return 0
