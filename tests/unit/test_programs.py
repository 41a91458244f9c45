"""Programs that a model wrote: what passes, and what cannot leave the process."""

import contextlib
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bass.errors import OptionError
from bass.experiments import programs
from bass.experiments.programs import bubblewrap, check, check_all, isolation

HOW = [
    pytest.param(True, marks=pytest.mark.skipif(bubblewrap() is None, reason="needs bubblewrap")),
    False,
]


@pytest.fixture(params=HOW, ids=lambda isolated: "bubblewrap" if isolated else "process")
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether programs run in bubblewrap, else in a process with limits."""
    if not request.param:
        monkeypatch.setattr(programs, "bubblewrap", lambda: None)
    return request.param


def passes(program: str, seconds: float = 20.0) -> bool:
    return check(textwrap.dedent(program), seconds, allow_code_execution=True)


PASSING = {
    "nothing": "",
    "this interpreter": f"import sys\nassert sys.version == {sys.version!r}",
    "a test": "def f(x):\n    return x\nassert f(3) == 3",
    "text": "text = 'naïve ☕'\nassert len(text) == 7",
    "a block of a script, which does not run": "if __name__ == '__main__':\n    assert False",
}
FAILING = {
    "a failed test": "assert 1 == 2",
    "an error": "1 / 0",
    "an exit before the test": "import sys\nsys.exit(0)\nassert False",
    "a killed process": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "too much memory": "x = bytearray(2**31)",
}


@pytest.mark.parametrize("name", PASSING)
def test_a_program_that_reaches_its_end_passes(name: str, isolated: bool) -> None:
    assert passes(PASSING[name])


@pytest.mark.parametrize("name", FAILING)
def test_a_program_that_does_not_reach_its_end_fails(name: str, isolated: bool) -> None:
    assert not passes(FAILING[name])


@pytest.mark.parametrize(("rest", "passed"), [("while True: pass", False), ("", True)])
def test_a_program_ends_with_its_time_and_so_do_its_children(
    rest: str, passed: bool, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = f"{os.getpid()}-{isolated}-{passed}"  # an argument of the process, and of its children
    monkeypatch.setattr("secrets.token_hex", lambda size: token)
    child = "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\n"
    assert passes(child + rest, seconds=20.0 if passed else 1.0) == passed
    deadline = time.monotonic() + 20
    while token in "".join(command_lines()):
        assert time.monotonic() < deadline


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def test_a_program_has_no_environment_and_an_empty_folder(
    isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    assert passes(
        """
        import os
        assert "SECRET" not in os.environ and "HOME" not in os.environ
        assert not set(os.listdir()) - {"program.py", "output"}
        open("scratch", "w").write("a")
        """
    )


@pytest.mark.skipif(bubblewrap() is None, reason="needs bubblewrap")
def test_in_bubblewrap_there_is_no_network_and_the_system_is_read_only(tmp_path: Path) -> None:
    kept = tmp_path / "kept"  # below /tmp
    kept.write_text("a")
    beside = Path(__file__).parent / "written_by_a_program"
    assert passes(
        f"""
        import os, socket
        assert not os.path.exists({str(kept)!r})
        for path in ("/etc/written", {str(beside)!r}):
            try:
                open(path, "w")
            except OSError:
                continue
            raise AssertionError
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        assert os.getpid() < 10  # other processes are not visible
        """
    )
    assert kept.read_text() == "a"
    assert not beside.exists()


def test_without_bubblewrap_programs_run_only_if_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "bubblewrap", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OptionError, match=r"not installed: install it .*--allow-code-execution"):
        isolation()
    with pytest.raises(OptionError, match="bubblewrap"):
        check("")
    assert isolation(allow_code_execution=True) == ()


def test_many_programs_are_checked_in_their_order(isolated: bool) -> None:
    texts = [f"assert {i} % 3" for i in range(8)]
    assert check_all(texts, 20.0, True) == [bool(i % 3) for i in range(8)]
