"""The command line.

Each command is a module with `run(parser, argv)`, imported on use.
"""

import importlib
import io
import os
import select
import signal
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from bass.cli.terminal import left_as_found, said_printably, say
from bass.errors import BassError, OptionError, ProblemsError, is_out_of_memory, unknown_name

COMMANDS = {
    "generate": "continue a prompt, live on a terminal, as plain text or JSON elsewhere",
    "ablate": "run a config's cells, as a grid over strategies and settings, into a folder",
    "report": "make one HTML page of a run, or of the difference of two",
    "table": "write the table of a run as Markdown, LaTeX or CSV",
    "trace": "export the acceptance of a run, and replay it with other policies",
    "eval": "score a pair on HumanEval, MBPP, GSM8K, summaries or small problems, in time budgets",
    "bench": "measure latency and throughput of a pair, compared with the bound by bytes",
    "list": "show every registered strategy with its parameters",
    "info": "describe a checkpoint, and whether a draft is compatible with it",
    "convert": "write the weights of pickle files as safetensors, without running their code",
}
MODULES = {
    "generate": "generate",
    "ablate": "ablate",
    "report": "report",
    "table": "table",
    "trace": "trace",
    "eval": "eval",
    "bench": "bench",
    "list": "strategies",
    "info": "checkpoint",
    "convert": "convert",
}
_HELP = """usage: bass COMMAND [options]

Batched speculative decoding of language models.

commands:
{commands}

`bass COMMAND --help` describes the options of a command; `bass --version` prints the version.
Try: bass generate --example -n 8 --num-speculative-tokens 3 --compare-plain
"""
# what Ctrl-C ends, unless a command says it itself
_OF_GENERATION = "Interrupted before anything was generated."
_INTERRUPTED = {
    "convert": "Interrupted: unfinished files are removed.",
    "info": "Interrupted.",
    "list": "Interrupted.",
    "report": "Interrupted: no page was written.",
    "table": "Interrupted: no table was written.",
    "trace": "Interrupted: no file was written.",
}
UNEXPECTED, FAILED, INTERRUPTED = 1, 2, 130
LONGEST = 5000  # characters of an error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 after an error, 130 after Ctrl-C.

    An error is one sentence on stderr; several problems of one input have a line each. An
    unexpected exception, of bass or of a user's class, is printed as a traceback, with status 1.

    Interrupted in the command line of this process (`argv=None`), it lets a second Ctrl-C end the
    process at once.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the terminal cannot encode must not lose the output
            stream.reconfigure(errors="backslashreplace")
    try:
        with left_as_found(), said_printably():
            status = _dispatch(given)
    except SystemExit as error:  # of `--help`, or of a class of the user's
        if error.code is None or isinstance(error.code, int):
            raise
        # Python would print the text with its control characters
        say("".join(traceback.format_exception_only(error)).rstrip(), stderr=True)
        return UNEXPECTED
    except BaseException as error:
        try:
            status = _failed(error, given)
        except OSError:  # of the standard error
            _discard_unwritable()
            status = FAILED
    if status == INTERRUPTED and argv is None:
        _discard_unwritable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return status


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        say(
            _HELP.format(
                commands="\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items())
            ).rstrip()
        )
        return 0 if argv else FAILED
    if name == "--version":
        from bass.provenance.environment import bass_version

        say(f"bass {bass_version()}")
        return 0
    if name.startswith("-"):
        raise OptionError(
            f"`{name}` must follow the command: write `bass COMMAND {name} ...`, with one of "
            f"{', '.join(COMMANDS)}."
        )
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Set before torch is loaded. OpenMP threads spin for milliseconds at the end of every
        # operation, which slows each operation down by as much if another process is busy. A third
        # of a millisecond is as fast on an idle machine.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from bass.cli.parsing import Parser, underscored

    return importlib.import_module(f"bass.cli.{MODULES[name]}").run(
        Parser(name, COMMANDS[name]), underscored(argv[1:])
    )


def _failed(error: BaseException, argv: list[str]) -> int:
    """Print why the command ended, and return its exit status."""
    match error:
        case ProblemsError():
            say(f"bass: {error}", stderr=True)
            return FAILED
        case BassError():
            return _fail(str(error))
        case MemoryError() | RuntimeError() if is_out_of_memory(error):
            return _fail(
                f"Out of memory ({error}): lower `--max-batch-size`, `-n` or `--max-new-tokens`."
            )
        case KeyboardInterrupt():
            return _fail(_INTERRUPTED.get("".join(argv[:1]), _OF_GENERATION), INTERRUPTED)
        case BrokenPipeError() if _reader_has_gone():
            _discard_unwritable()
            return 0
        case OSError() if not _of_own_class(error):
            _discard_unwritable()
            return _fail(f"Cannot read or write ({error}): free disk space, or name another file.")
        case _:
            say("".join(traceback.format_exception(error)).rstrip(), stderr=True)
            return UNEXPECTED


def _reader_has_gone() -> bool:
    """Whether nobody reads the standard output any more."""
    if sys.stdout is None:  # closed from the start
        return False
    watched = select.poll()
    watched.register(sys.stdout.fileno(), select.POLLERR)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))


def _of_own_class(error: BaseException) -> bool:
    """Whether code was running that neither is ours nor is installed: a user's class."""
    known = (str(Path(__file__).parents[1]), *sysconfig.get_paths().values(), "<frozen")
    code = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(not one.co_filename.startswith(known) for one in code)


def _discard_unwritable() -> None:
    """Write buffered output, or discard what cannot be written, so that it does not fail again when
    Python exits.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, status: int = FAILED) -> int:
    sentence = " ".join(message[:LONGEST].split())
    if len(message) > LONGEST:
        sentence = f"{sentence}... (of {len(message):,} characters)."
    say(f"bass: {sentence}", stderr=True)
    return status
