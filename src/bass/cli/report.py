"""`bass report`: one HTML page of a run or of an evaluation."""

from collections.abc import Sequence
from pathlib import Path

from bass.cli.options import Parser, write

EXAMPLES = (
    "bass report runs/comparison",
    "bass report runs/comparison --output comparison.html",
    "bass report evaluations/small",
)


def run(argv: Sequence[str]) -> int:
    """Write the page, and print its name."""
    about = "Write one HTML page of a run or of an evaluation, which needs no other file."
    made = Parser("report", about, EXAMPLES, skip=["config"])
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
