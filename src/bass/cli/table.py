"""`bass table`: writes the table of a run, finished or not."""

from collections.abc import Sequence
from pathlib import Path

from bass.cli.output import check_folder, check_output, write
from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import say
from bass.report.pass_at_k import PassAtK, read_evaluations
from bass.report.table import table
from bass.report.table_formats import FORMATS, format_of
from bass.runs.run_folder import RunFolder


def run(parser: Parser, argv: list[str]) -> int:
    """Print the table, or write it to a file and print the file's name."""
    parser.add(
        Option("run", help="folder that `bass ablate` wrote", place=ONE),
        Option(
            "format",
            help=f"one of {', '.join(FORMATS)}; default: by the name of the file, else markdown",
        ),
        Option(
            "evaluation",
            help="a folder of `bass eval` for pass@k of a method, that is a value on an axis",
            metavar="METHOD=FOLDER",
            repeated=True,
        ),
        Option("output", help="file of the table; default: the standard output", metavar="FILE"),
    )
    config = parser.parse(argv)
    output = Path(config.output) if config.output is not None else None
    kind = format_of(config.format, output)
    if output is not None:
        check_output(output, "--output")
    check_folder(Path(config.run))
    folder, evaluations = RunFolder(Path(config.run)), read_evaluations(config.evaluation)
    if output is None:
        say(FORMATS[kind](table(folder, evaluations)).rstrip("\n"))
    else:
        write_table(folder, output, kind, evaluations)
    return 0


def write_table(
    folder: RunFolder, output: Path, kind: str, evaluations: Sequence[PassAtK] = ()
) -> None:
    """Write the table of a run, and print the file's name."""
    found = table(folder, evaluations)
    write(output, FORMATS[kind](found))
    say(f"{output}: {len(found.rows)} rows", stderr=True)
