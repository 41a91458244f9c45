"""Kernels compiled in threads, before the first launch that needs them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

import triton
from triton import knobs

MOST_THREADS = 16
SUPPORTED = hasattr(triton, "AsyncCompileMode")  # since Triton 3.5

rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


@final
class NotLaunched:
    """In the place of a kernel that is being compiled: its launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None: ...

    def run(self, *_: object) -> None: ...


@final
class Compiler(triton.AsyncCompileMode if SUPPORTED else object):  # type: ignore[misc]
    """Compiles in an executor what this thread launches, instead of launching it.

    compiled: whether a kernel was not on disk.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor, ignore_errors=True)  # the first launch raises them
        self.compiled = False

    def submit(
        self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]
    ) -> NotLaunched:
        super().submit(key, compile_fn, finalize_fn)
        return NotLaunched()

    def note(self, *, cache_hit: bool, **_: Any) -> None:
        """Listen to a compilation that has ended."""
        self.compiled = self.compiled or not cache_hit


@contextmanager
def compiled_ahead() -> Iterator[Compiler]:
    """Within it, kernels that this thread launches for the first time are compiled, not launched.

    What would read their results must not run either: use it within the capture of a graph that is
    dropped. At its end all are compiled; after an exception, those that have begun.
    """
    settings: Any = knobs.compilation
    before, token = settings.listener, rehearsing.set(True)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        compiler = Compiler(pool)
        settings.listener = compiler.note
        try:
            with compiler:
                try:
                    yield compiler
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    # nobody would notify who waits for them
                    compiler.raw_futures = [f for f in compiler.raw_futures if not f.cancelled()]
                    raise
        finally:
            settings.listener = before
            rehearsing.reset(token)
