"""`bass convert`: writes the weights of pickle files as safetensors."""

from pathlib import Path

from bass.checkpoints.convert import convert
from bass.cli.parsing import ONE, Option, Parser
from bass.cli.terminal import say
from bass.errors import OptionError
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
    files = "1 file" if len(done.paths) == 1 else f"{len(done.paths)} files"
    say(
        f"{done.tensors} tensors, {size_in_words(done.size)}, in {files} in "
        f"`{done.paths[0].parent}`. `bass info {done.paths[0].parent}` describes them."
    )
    return 0
