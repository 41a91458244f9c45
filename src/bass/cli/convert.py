"""`bass convert`: writes the weights of pickle files as safetensors."""

from pathlib import Path

from bass.checkpoints.convert import convert
from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import say
from bass.errors import OptionError, counted
from bass.files import size_in_words

OPTIONS = (
    Option("folder", help="folder with pickle files, such as pytorch_model.bin", place=ONE),
    Option("output", help="folder to write to; by default the same one", metavar="FOLDER"),
)


def run(parser: Parser, argv: list[str]) -> int:
    """Convert a folder, and print what was written."""
    parser.add(*OPTIONS)
    config = parser.parse(argv)
    for name in ("folder", "output"):
        if config[name] == "":  # would be the current folder
            raise OptionError(f"The {name} is empty: give a folder, such as `.` for this one.")
    output = None if config.output is None else Path(config.output)
    done = convert(Path(config.folder), output)
    place, files = done.paths[0].parent, counted(len(done.paths), "file")
    rounded = f" {done.rounded} of float64 became float32." if done.rounded else ""
    say(
        f"{counted(done.tensors, 'tensor')}, {size_in_words(done.size)}, in {files} in `{place}`."
        f"{rounded} `bass info {place}` describes what is there."
    )
    return 0
