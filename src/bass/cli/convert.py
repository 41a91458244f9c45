"""`bass convert`: writes the weights of pickle files as safetensors."""

from pathlib import Path

from bass.cli.options import Parser

EXAMPLES = ("bass convert FOLDER", "bass convert FOLDER --output OTHER", "bass info OTHER")


def run(argv: list[str]) -> int:
    """Convert a folder, and name the files that were written."""
    about = "Writes the weights of pickle files as safetensors, without running their code."
    command = Parser("convert", about, EXAMPLES, skip=("config",))
    command.add_argument("folder", type=Path, help="folder with files such as pytorch_model.bin")
    command.add_argument("--output", type=Path | None, help="folder to write to, else the same one")
    config = command.read(argv)

    from bass.checkpoints.convert import convert

    for path in convert(config.folder, config.output or config.folder):
        print(path)
    return 0
