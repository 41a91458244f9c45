"""The command line: each command is a function of its words, in a module imported on use."""

import importlib
import os
import re
import sys
import warnings
from collections.abc import Sequence

import bass
from bass.errors import BassError, ProblemsError, flag, is_out_of_memory, printable, unknown_name

COMMANDS = {
    "generate": "continue prompts, with figures of the run",
    "ablate": "run a grid of strategies and settings into a folder",
    "report": "write one HTML page of a run",
    "table": "write the table of a run as Markdown, LaTeX or CSV",
    "eval": "score a pair on HumanEval, MBPP or small problems, in time budgets",
    "bench": "measure latency and throughput of a pair, compared with the bound by bytes",
    "list": "show every strategy, or the parameters of one",
    "info": "describe a checkpoint, and whether a draft is compatible with it",
    "train-draft": "train a draft for a target: a head, an MTP layer or a small model",
    "convert": "write the weights of pickle files as safetensors, without running their code",
}
# module and function of a command that is not `run` of a module of its name
_HOMES = {
    "list": ("list_", "run"),
    "table": ("report", "table"),
    "train-draft": ("train_draft", "run"),
    "convert": ("info", "convert"),
}
WRONG, INTERRUPTED = 2, 130  # exit statuses
_HELP = f"""usage: bass COMMAND [options]

Batched speculative decoding of language models.

examples:
  bass generate --example -n 8 --num-speculative-tokens 3 --compare-plain
  bass info Qwen/Qwen2.5-Coder-7B --draft Qwen/Qwen2.5-Coder-0.5B
  bass ablate comparison --quick

commands:
{chr(10).join(f"  {name:13}{about}" for name, about in COMMANDS.items())}

`bass COMMAND --help` describes the options of a command; `bass --version` prints the version."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    It is 0, 2 after an error of the user's, which is one sentence on standard error (or a line for
    each problem), and 130 after Ctrl-C. Any other exception is a traceback, with status 1.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    warnings.formatwarning = lambda message, *_: f"bass: {message}\n"
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except ProblemsError as error:
        return _fail(str(error))
    except BassError as error:
        return _fail(" ".join(str(error).split()))
    except KeyboardInterrupt:
        return _fail("Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail(
            f"Out of memory ({' '.join(str(error).split())}): lower `--max-batch-size`, `-n` or "
            "`--max-new-tokens`."
        )


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_HELP)
        return 0 if argv else WRONG
    if name == "--version":
        print(f"bass {bass.__version__}")
        return 0
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if "OMP_WAIT_POLICY" not in os.environ:
        # Set before torch is loaded. OpenMP threads spin for milliseconds at the end of every
        # operation, which slows each operation down by as much if another process is busy. A third
        # of a millisecond is as fast on an idle machine.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    module, function = _HOMES.get(name, (name, "run"))
    return getattr(importlib.import_module(f"bass.cli.{module}"), function)(argv[1:])


def _fail(message: str, status: int = WRONG) -> int:
    # `draft="eagle3"` of Python is `--draft eagle3` here
    message = re.sub(r'`(\w+)="([^"`]+)"`', lambda x: f"`{flag(x[1])} {x[2]}`", message)
    print(f"bass: {printable(message, keep=chr(10))}", file=sys.stderr)
    return status
