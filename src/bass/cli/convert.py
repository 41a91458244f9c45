"""`bass convert`: writes the weights of pickle files as safetensors."""

from pathlib import Path

from bass.cli.options import parser
from bass.errors import counted

EXAMPLES = (
    "bass convert FOLDER",
    "bass convert FOLDER --output OTHER",
    "bass info OTHER",
)


def run(argv: list[str]) -> int:
    """Convert a folder, and print what was written."""
    about = "Writes the weights of pickle files as safetensors, without running their code."
    command = parser("convert", about, EXAMPLES, skip=("config",))
    command.add_argument("folder", type=Path, help="folder with files such as pytorch_model.bin")
    help = "folder to write to; by default the same one"
    command.add_argument("--output", type=Path | None, metavar="FOLDER", help=help)
    config = command.read(argv)

    from bass.checkpoints.convert import convert
    from bass.files import size_in_words

    done = convert(config.folder, config.output)
    place, files = done.paths[0].parent, counted(len(done.paths), "file")
    rounded = f" {done.rounded} of float64 became float32." if done.rounded else ""
    print(
        f"{counted(done.tensors, 'tensor')}, {size_in_words(done.size)}, in {files} in `{place}`."
        f"{rounded} `bass info {place}` describes what is there."
    )
    return 0
