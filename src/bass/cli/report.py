"""`bass report`: writes an HTML page of one run or evaluation, or of a comparison of two."""

from pathlib import Path

from bass.analysis.evaluated import both, read_evaluation
from bass.cli.output import check_folder, check_output, check_parent, write
from bass.cli.parsing import MAYBE, ONE, Option, Parser
from bass.cli.terminal import say
from bass.errors import OptionError, RunFolderError
from bass.plain_json import parse_json
from bass.report.drawing import Plot
from bass.report.evaluation import page as page_of_evaluation
from bass.report.page import comparison, page
from bass.runs.own_files import content
from bass.runs.run_folder import RunFolder

SUFFIXES = (".html", ".htm")  # of a page


def run(parser: Parser, argv: list[str]) -> int:
    """Write the page, and print its path."""
    parser.add(
        Option("run", help="folder that `bass ablate` or `bass eval` wrote", place=ONE),
        Option(
            "other",
            help="a second folder: what differs from the first, beyond noise?",
            place=MAYBE,
        ),
        Option(
            "output",
            help=(
                "file of the page; default: report.html or comparison.html in the (second) folder"
            ),
            metavar="FILE.html",
        ),
        Option("plots", help="also write each plot there, as SVG and PNG", metavar="FOLDER"),
    )
    config = parser.parse(argv)
    folders = [Path(name) for name in (config.run, config.other) if name is not None]
    output = (
        Path(config.output)
        if config.output
        else folders[-1] / ("report.html" if config.other is None else "comparison.html")
    )
    where = Path(config.plots) if config.plots is not None else None
    _check_places(folders, output, where)
    try:
        html, plots, reported = (
            _evaluations(folders) if _are_evaluations(folders) else _runs(folders, where)
        )
    except RecursionError as error:
        raise RunFolderError(
            f"A file of {folders[0]} is nested too deeply: it is damaged, or not part of a run."
        ) from error
    write(output, html)
    for sentence in reported:
        say(sentence)
    say(f"{output}: {len(html.encode()) / 1e6:.1f} MB")
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            for kind in ("svg", "png"):
                write(where / f"{plot.name}.{kind}", plot.file(kind))
        say(f"{where}: {len(plots)} plots, each as SVG and PNG")
    return 0


def _runs(folders: list[Path], where: Path | None) -> tuple[str, list[Plot], list[str]]:
    if len(folders) == 1:
        return page(RunFolder(folders[0]))
    if where is not None:
        raise OptionError("`--plots` needs a single run: report the runs one by one.")
    html, reported = comparison(*map(RunFolder, folders))
    return html, [], reported


def _evaluations(folders: list[Path]) -> tuple[str, list[Plot], list[str]]:
    read = [read_evaluation(folder) for folder in folders]
    return page_of_evaluation(read[0] if len(read) == 1 else both(*read))


def _are_evaluations(folders: list[Path]) -> bool:
    kinds = [_is_evaluation(folder) for folder in folders]
    if any(kinds) and not all(kinds):
        one, other = (folders[kinds.index(kind)] for kind in (True, False))
        raise OptionError(
            f"`{one}` is an evaluation and `{other}` is not, so they cannot be compared: "
            "report them one by one."
        )
    return all(kinds)


def _is_evaluation(folder: Path) -> bool:
    """Whether the manifest describes an evaluation. The reader reports an invalid manifest."""
    try:
        manifest = parse_json(content(folder / "manifest.json"))
    except (RunFolderError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("kind") == "evaluation"


def _check_places(folders: list[Path], output: Path, where: Path | None) -> None:
    """Check the output paths before the work, which may take minutes."""
    for folder in folders:
        check_folder(folder, "`bass ablate` or `bass eval`")
    check_parent(output, "--output")
    # no file of a run, no device and no pipe of a shell has such a name
    if output.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"`--output {output}` is no name of a page: give one that ends in {SUFFIXES[0]}."
        )
    check_output(output, "--output")
    if where is not None and where.exists() and not where.is_dir():
        raise OptionError(f"`--plots {where}` is a file: name a folder, which need not exist.")
