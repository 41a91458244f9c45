"""`bass report`: a run folder as one HTML page, or two runs compared."""

from pathlib import Path

from jsonargparse import ArgumentParser

from bass.cli.parsing import parse
from bass.errors import OptionError
from bass.experiments.records import RunFolder
from bass.experiments.report.page import comparison, page


def run(parser: ArgumentParser, argv: list[str]) -> int:
    """Write the page, and say where it is."""
    parser.add_argument("run", type=str, help="folder that `bass ablate` wrote")
    parser.add_argument("other", type=str, nargs="?", help="a second one: what differs from the first, and is it more than noise?")
    parser.add_argument(
        "--output",
        type=str,
        metavar="FILE.html",
        help="where the page goes; by default report.html or comparison.html in the (second) folder",
    )
    parser.add_argument("--plots", type=str, metavar="FOLDER", help="also write each plot there, as SVG and PNG")
    config = parse(parser, argv)
    folders = [folder(name) for name in (config.run, config.other) if name is not None]
    if config.plots is not None and config.other is not None:
        raise OptionError("`--plots` is of one run: report the runs one by one to get their plots.")
    told: list[str] = []
    if config.other is None:
        html, plots = page(folders[0])
    else:
        (html, told), plots = comparison(*folders), []
    output = Path(config.output) if config.output else folders[-1].path / ("report.html" if config.other is None else "comparison.html")
    if not output.parent.is_dir():
        raise OptionError(f"`--output {output}` is in a folder that does not exist: make `{output.parent}`, or name another file.")
    output.write_text(html, encoding="utf-8")
    for sentence in told:
        print(sentence)
    print(f"{output}: {len(html.encode()) / 1e6:.1f} MB")
    if config.plots is not None:
        where = Path(config.plots)
        where.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            for kind in ("svg", "png"):
                (where / f"{plot.name}.{kind}").write_bytes(plot.file(kind))
        print(f"{where}: {len(plots)} plots, each as SVG and PNG")
    return 0


def folder(name: str) -> RunFolder:
    """A run folder that is there."""
    if not Path(name).is_dir():
        raise OptionError(f"`{name}` is no folder: give one that `bass ablate` wrote.")
    return RunFolder(Path(name))
