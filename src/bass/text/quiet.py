"""Standard error without the messages that the library `tokenizers` prints when it panics."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_LOCK = threading.RLock()  # there is one standard error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it, what native code prints on standard error is held back, and dropped where a panic
    leaves it: Rust prints its stack before Python has an exception, which says the same.

    A panic is a BaseException and no Exception. Other threads' lines are held back too, and appear
    at the end; so it is for calls that are few.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)
        except OSError:  # it is closed
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
