"""`bass table`: writes the table of a run, finished or not."""

from collections.abc import Sequence
from pathlib import Path

from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import say
from bass.errors import OptionError
from bass.files import check_replaceable, write_atomically
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
        check_file(output, "--output")
    if not Path(config.run).is_dir():
        raise OptionError(f"`{config.run}` is no folder: give one that `bass ablate` wrote.")
    folder, evaluations = RunFolder(Path(config.run)), read_evaluations(config.evaluation)
    if output is None:
        say(FORMATS[kind](table(folder, evaluations)).rstrip("\n"))
    else:
        write(folder, output, kind, evaluations)
    return 0


def write(folder: RunFolder, output: Path, kind: str, evaluations: Sequence[PassAtK] = ()) -> None:
    """Write the table of a run, and print the file's name."""
    found = table(folder, evaluations)
    write_atomically(output, FORMATS[kind](found))
    say(f"{output}: {len(found.rows)} rows", stderr=True)


def check_file(output: Path, option: str) -> None:
    """Raise `OptionError` for a file that cannot be written, before the work."""
    if not output.parent.is_dir():
        raise OptionError(
            f"`{option} {output}` is in a folder that does not exist: make `{output.parent}`, or "
            "name another file."
        )
    try:
        check_replaceable(output)
    except OSError as error:
        raise OptionError(
            f"`{output}` cannot be written ({error.strerror}): name another file."
        ) from error
