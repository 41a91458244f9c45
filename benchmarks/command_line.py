"""The command line of the benchmarks.

Options are checked before anything is written or measured, errors are one sentence, and a process
that is ended by Ctrl-C or SIGTERM removes its temporary folders.
"""

import argparse
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

FAILED, INTERRUPTED = 1, 130
DEVICES = ("cpu", "cuda")


class Parser(argparse.ArgumentParser):
    """Describes the benchmark by its docstring; an error is one line, without the usage."""

    def __init__(self, doc: str | None, **more: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=doc, formatter_class=formatter, **more)

    def error(self, message: str) -> NoReturn:
        """Exit with the sentence."""
        self.exit(2, f"{self.prog}: {message}\n")


def integer(least: int, most: int = 1 << 20, multiple: int = 1) -> Callable[[str], int]:
    """The type of an option: an integer within these bounds, and a multiple of the last number."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most or value % multiple:
            of = f", a multiple of {multiple}" if multiple > 1 else ""
            raise argparse.ArgumentTypeError(
                f"`{text[:40]}` must be an integer from {least} to {most:,}{of}."
            )
        return value

    return parsed


def number(least: float, most: float = math.inf, above: bool = False) -> Callable[[str], float]:
    """The type of an option: a number within these bounds. above: the least one is excluded."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (above and value == least) or math.isinf(value):
            bounds = f"{'above' if above else 'from'} {least:g}"
            bounds += f" to {most:g}" if math.isfinite(most) else ""
            raise argparse.ArgumentTypeError(f"`{text[:40]}` must be a number {bounds}.")
        return value

    return parsed


positive, natural = integer(1), integer(0)
drafted = integer(1, 255)  # tokens
threads, layers = integer(1, 1024), integer(1, 1000)
hidden = integer(64, 1 << 16, 64)  # heads have 64 dimensions
seconds, temperature, share = number(0), number(0), number(0, 1, above=True)


def device(text: str) -> str:
    """The type of an option: a device that is there."""
    import torch  # not where a process measures its import

    if text not in DEVICES:
        raise argparse.ArgumentTypeError(f"`{text[:40]}` must be `cpu` or `cuda`.")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("there is no CUDA device here: give `--device cpu`.")
    return text


def folder(text: str) -> Path:
    """The type of an option: a folder to write to."""
    if not _writable(Path(text)):
        raise argparse.ArgumentTypeError(
            f"`{text}` is no folder that can be written to: make it, or name another."
        )
    return Path(text)


def new_folder(text: str) -> Path:
    """The type of an option: a folder to write to, or a place to make it."""
    place = Path(text).absolute()
    while not place.exists():
        place = place.parent
    folder(str(place))
    return Path(text)


def results_file(text: str) -> Path:
    """The type of an option: a file to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"`{text}` is a folder: name a file.")
    folder(str(path.absolute().parent))
    return path


def checkpoint(text: str) -> Path:
    """The type of an option: the folder of a checkpoint."""
    if not Path(text, "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"`{text}` has no config.json: name the folder of a checkpoint."
        )
    return Path(text)


def _writable(path: Path) -> bool:
    try:  # permissions do not say it of /proc
        tempfile.TemporaryFile(dir=path).close()  # without a name, where the system can
    except OSError:
        return False
    return True


def add_trial(parser: Parser, of: str = "") -> None:
    """Add the options `--hidden` and `--layers`. of: the beginning of what is said about them."""
    parser.add_argument("--hidden", type=hidden, help=f"{of}a smaller model, for a trial")
    parser.add_argument("--layers", type=layers, help=f"{of}fewer layers, for a trial")


def check_trial(
    parser: Parser, arguments: argparse.Namespace, configs: Iterable[dict[str, Any]]
) -> None:
    """Refuse `--hidden` and `--layers` for a pair without Llama's names, which would not shrink."""
    given = arguments.hidden is not None or arguments.layers is not None
    if given and not all("head_dim" in config for config in configs):
        parser.error(
            "`--hidden` and `--layers` shrink pairs with Llama's names: give another pair."
        )


def data_file(home: str | Path | None, name: str) -> Path:
    """A file of the evaluation data; exits with a sentence if it is not there."""
    if not home:
        raise SystemExit(f"Set BASS_DATA to a folder with {name}.")
    if not Path(home, name).is_file():
        raise SystemExit(f"`{home}` has no {name}: set BASS_DATA to a folder that has it.")
    return Path(home, name)


def check_room(needed: float, home: Path | None) -> None:
    """Exit with a sentence if the folder (None: that of temporary files) lacks these bytes."""
    place = home or Path(tempfile.gettempdir())
    if needed > (free := shutil.disk_usage(place).free):
        raise SystemExit(
            f"The checkpoints take {needed / 1e9:.1f} GB, and `{place}` has {free / 1e9:.1f}: give "
            "`--folder` on a larger disk."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Within it, an error that `bass` or the system explains ends the process with a sentence."""
    try:
        yield
    except Exception as error:
        from bass.errors import BassError

        if isinstance(error, BassError):
            raise SystemExit(str(error)) from error
        if isinstance(error, OSError):
            raise SystemExit(
                f"Cannot read or write ({error}): free disk space, or name another folder."
            ) from error
        raise


def run(main: Callable[[], int | None]) -> NoReturn:
    """End the process with the status of `main`; None is a success."""
    # an exception, so that temporary folders are removed
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with explained():
            status = main()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        status = INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(status)
