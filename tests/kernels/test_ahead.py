"""Kernels that are compiled in threads are not launched, and are there afterwards."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
from triton import knobs
from triton.runtime import _async_compile

from bass.kernels.triton import launch
from bass.kernels.triton.launch import Compiler, NotLaunched, compiled_ahead

pytestmark = pytest.mark.skipif(not launch.COMPILES_AHEAD, reason="it needs Triton 3.5")


def test_a_kernel_is_compiled_once_and_not_launched() -> None:
    compiled, kept = list[str](), list[str]()

    def compile_it() -> str:
        compiled.append("kernel")
        return "kernel"

    with ThreadPoolExecutor(2) as pool, Compiler(pool) as compiler:
        for _ in range(3):
            found: Any = compiler.submit("key", compile_it, kept.append)
            assert isinstance(found, NotLaunched)
            assert not hasattr(found, "result")  # for which a launch would wait
            assert found.launch_metadata((1,), 0) is None
            assert found.run(1, 1, 1, 0, found.function, found.packed_metadata) is None
    assert (compiled, kept) == (["kernel"], ["kernel"])


def test_what_does_not_compile_is_left_to_its_first_launch() -> None:
    kept = list[str]()

    def fails() -> str:
        raise RuntimeError("it does not compile")

    with compiled_ahead() as compiler:
        compiler.submit("bad", fails, kept.append)
        compiler.submit("good", lambda: "good", kept.append)
    assert kept == ["good"]


def test_after_an_interrupt_nothing_more_is_compiled() -> None:
    begun, go = list[int](), Event()

    def wait(i: int) -> None:
        begun.append(i)
        go.wait(10)

    def interrupted() -> None:
        with compiled_ahead() as compiler:
            for i in range(200):
                compiler.submit(i, partial(wait, i), lambda _: None)
            go.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(begun) < 200
    assert _async_compile.active_mode.get() is None


def test_it_notes_whether_a_kernel_was_new_and_restores_the_listener() -> None:
    heard = list[bool]()
    settings: Any = knobs.compilation
    before = settings.listener
    settings.listener = lambda *, cache_hit, **_: heard.append(cache_hit)
    try:
        mine = settings.listener
        with compiled_ahead() as compiler:
            settings.listener(src=None, cache_hit=True)
            assert not compiler.compiled
            settings.listener(src=None, cache_hit=False)
            assert compiler.compiled
        assert settings.listener is mine
    finally:
        settings.listener = before


def test_counters_that_are_made_meanwhile_are_not_kept() -> None:
    device = torch.device("cpu")
    with compiled_ahead():
        dropped = launch.kept_zeros("ahead", 4, device)
    kept = launch.kept_zeros("ahead", 4, device)
    assert kept is not dropped
    assert launch.kept_zeros("ahead", 4, device) is kept
