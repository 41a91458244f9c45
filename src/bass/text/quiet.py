"""Suppresses the messages that the library `tokenizers` prints on standard error in a panic."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_LOCK = threading.RLock()  # there is one standard error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back the output of native code on standard error, and drop it after a panic: Rust prints
    its stack before Python raises an exception with the same message.

    A panic is a BaseException, not an Exception. Output of other threads is held back too, and
    appears at the end, so use it only for rare calls.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        stack.callback(os.close, kept)
        held = stack.enter_context(tempfile.TemporaryFile())
        _flush()
        os.dup2(held.fileno(), 2)
        panicked = False
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            panicked = type(error).__name__ == "PanicException"
            raise
        finally:
            _flush()
            os.dup2(kept, 2)
            held.seek(0)
            if not panicked:
                with contextlib.suppress(OSError):
                    os.write(kept, held.read())


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # None, broken or closed
        sys.stderr.flush()
