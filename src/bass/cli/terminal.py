"""All output of the command line: text passes through `printable`, and the terminal's state is
restored.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from bass.printable import printable

SHOWN = "\n\t"  # control characters that stay
# valid range of each variable
SIZES = {"COLUMNS": (20, 1000), "LINES": (1, 1000)}
# SIGTSTP, Ctrl-Z, stops the process
ENDING = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGXCPU, signal.SIGALRM,
    signal.SIGVTALRM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
SHOW_CURSOR = b"\x1b[?25h"


def say(text: str, stderr: bool = False) -> None:
    """Print a text and a line break."""
    print(printable(text, SHOWN), file=sys.stderr if stderr else sys.stdout)


def give(text: str, file: Any = None) -> None:
    """Write data, such as generated text, to standard output or another stream; a terminal gets
    printable characters only.
    """
    file = file or sys.stdout
    if file is not None:  # as `print` does where standard output is closed
        file.write(printable(text, SHOWN) if file.isatty() else text)


@final
class Screen(Console):
    """A rich console on which only the console itself writes control sequences."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, SHOWN), style, control)

    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which ends a command whose reader has closed the pipe with
        status 0.
        """
        raise


def console(stderr: bool = False, **options: Any) -> Screen:
    """A console for messages.

    It ignores an invalid `COLUMNS` or `LINES` of the environment.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in SIZES or _is_size(value, *SIZES[name])
    }
    return Screen(stderr=stderr, highlight=False, emoji=False, _environ=environment, **options)


def _is_size(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most


@contextlib.contextmanager
def left_as_found() -> Iterator[None]:
    """Within it, a signal that ends or stops the process first shows the cursor, which a live
    display may have hidden.
    """
    if threading.current_thread() is not threading.main_thread():  # receives no signals
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        show_cursor()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, end)  # the process was stopped, and continues

    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def show_cursor() -> None:
    """Show the cursor on every terminal of this process, without waiting for a blocked one."""
    for handle in (1, 2):
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(handle) and select.select([], [handle], [], 0)[1]:
                os.write(handle, SHOW_CURSOR)


@contextlib.contextmanager
def said_printably() -> Iterator[None]:
    """Within it, Python prints warnings and uncaught errors of threads by `say`."""
    format_warning, hooks = warnings.formatwarning, (sys.unraisablehook, threading.excepthook)

    def traced(args: Any) -> None:
        if args.exc_type is not SystemExit:  # a thread may end by it
            trace = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
            say(f"Ignored: {''.join(trace).rstrip()}", stderr=True)

    warnings.formatwarning = lambda *args, **more: printable(format_warning(*args, **more), SHOWN)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = traced
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = traced
    try:
        yield
    finally:
        warnings.formatwarning = format_warning
        sys.unraisablehook, threading.excepthook = hooks
