"""What may only be read stays as it is, at every strength that the sandbox has."""

import os
import platform
import socket
from pathlib import Path

import pytest

from bass.evaluation.sandbox import Limits, Outcome, Program, Sandbox, SandboxError, syscalls
from bass.evaluation.sandbox import judge as sandbox_module
from support.strengths import Strength, landlock_here, strengths

BOX = Sandbox(Limits(seconds=20.0))

try:
    STRENGTHS = strengths()
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)

MACHINE = syscalls.COLUMNS[platform.machine()]
KNOWN = {
    call: row[MACHINE]
    for call, row in {
        "open": (2, None),
        "openat": (257, 56),
        "openat2": (437, 437),
        "creat": (85, None),
        "truncate": (76, 45),
    }.items()
}
# the kernel's own, past any filter; whoever else makes them gets SIGILL
PROBES = {335, 336} if MACHINE == 0 else set()
FCNTL = syscalls.CHECKED["fcntl"][0][MACHINE]
START = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if number is None or libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), "refused")

def permitted(tries):
    found = []
    for name, one in tries:
        try:
            one()
        except OSError:
            continue
        found.append(name)
    return found
"""

TRUNCATIONS = """
def truncations():
    paths = [outside]
    try:
        os.symlink(outside, "link")
        paths.append("link")
    except OSError:
        pass
    folder, name = os.path.split(outside)
    for path in paths:
        raw = path.encode()
        for access in range(4):
            quiet = os.O_NOCTTY | os.O_CLOEXEC
            for more in (0, os.O_CREAT, os.O_APPEND, os.O_NONBLOCK, quiet, os.O_DSYNC):
                flags = access | os.O_TRUNC | more
                yield f"os.open {flags:o}", lambda: os.open(path, flags)
                yield f"open {flags:o}", lambda: call(KNOWN["open"], raw, flags, 0o600)
                yield f"openat {flags:o}", lambda: call(KNOWN["openat"], -100, raw, flags, 0o600)
                how = struct.pack("QQQ", flags, 0o600 if more == os.O_CREAT else 0, 0)
                yield f"openat2 {flags:o}", lambda: call(KNOWN["openat2"], -100, raw, how, 24)
        yield "creat", lambda: call(KNOWN["creat"], raw, 0o600)
        yield "truncate", lambda: call(KNOWN["truncate"], raw, 0)
        yield "os.truncate", lambda: os.truncate(path, 0)
        for flags in (0, 1, 2, 3, os.O_RDONLY | os.O_APPEND, os.O_PATH):
            yield f"ftruncate {flags:o}", lambda: os.ftruncate(os.open(path, flags), 0)
            yield f"fallocate {flags:o}", lambda: os.posix_fallocate(os.open(path, flags), 0, 2**16)
        for flags in (0, os.O_PATH):
            by_number = "/proc/self/fd/{}"
            yield (
                f"/proc {flags:o}",
                lambda: os.open(by_number.format(os.open(path, flags)), os.O_TRUNC),
            )
        yield "folder", lambda: os.open(name, os.O_TRUNC, dir_fd=os.open(folder, os.O_PATH))
    yield "new", lambda: os.open(outside + ".new", os.O_RDONLY | os.O_CREAT)
    yield "unnamed", lambda: os.open(folder, os.O_RDWR | os.O_TMPFILE)
    yield "access 3", lambda: os.open(outside, 3)
"""

OTHERS = """
import fcntl, resource, signal, time

def others():
    reading = os.open("/dev/zero", os.O_RDONLY)
    for command in (*range(5, 1024), *range(1024, 1030), 1031, *range(1033, 1050)):
        yield f"fcntl {command}", lambda: call(FCNTL, reading, command, bytes(64))
    lock = struct.pack("hhqqi", 0, 0, 0, 0, 0)
    yield "lock", lambda: fcntl.fcntl(reading, fcntl.F_SETLK, lock)
    yield "flock", lambda: fcntl.flock(reading, fcntl.LOCK_SH)
    yield "prlimit", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU)
    for number in range(1024):
        if number not in LISTED and number not in PROBES:
            yield f"call {number}", lambda: call(number, 0, 0, 0, 0, 0, 0)
"""

REACHING = """
import fcntl, socket

def reaching():
    yield "device", lambda: denied(lambda: fcntl.ioctl(os.open("/dev/zero", 0), 0x4B3A))
    yield "connect", lambda: denied(lambda: socket.create_connection({port}, 5))
    yield "bind", lambda: denied(lambda: socket.create_server(("127.0.0.1", 0)))
    yield "abstract", lambda: denied(lambda: socket.socket(socket.AF_UNIX).connect({abstract}))
    yield "signal", lambda: denied(lambda: os.kill(os.getppid(), 0))

def denied(one):
    try:
        one()
    except PermissionError:
        raise
    except OSError:  # it was tried
        pass
"""

# The 32-bit call `open` by an interrupt, whose number is `fork` among the 64-bit ones; and the x32
# call `open`.
ENTRIES = {
    "32-bit": """
import mmap
place = libc.mmap
place.restype = ctypes.c_void_p
code = place(None, 4096, 7, 0x62, -1, 0)  # MAP_32BIT: the path's address has 32 bits
path = outside.encode() + bytes(1)
ctypes.memmove(code + 64, path, len(path))
start = b"\\xb8\\x05\\0\\0\\0\\xbb" + struct.pack("I", code + 64) + b"\\xb9" + struct.pack("I", os.O_TRUNC) + b"\\xcd\\x80\\xc3"
ctypes.memmove(code, start, len(start))
ctypes.CFUNCTYPE(ctypes.c_int)(code)()
""",
    "x32": "libc.syscall(0x40000002, outside.encode(), os.O_TRUNC, 0)",
}


def listed(strength: Strength) -> set[int]:
    """Numbers of the calls that reach the kernel, some with some arguments only."""
    rows = [
        *syscalls.ALLOWED.values(),
        *(row for row, *_ in syscalls.CHECKED.values()),
        *(row for row, _ in syscalls.OPENING.values()),
    ]
    rows += syscalls.WRITING.values() if strength.layers[-2] != "no writing" else ()
    return {row[MACHINE] for row in rows if row[MACHINE] is not None}


def snapshot(folder: Path) -> list[object]:
    """Everything about the files of a folder but when they were read."""
    found: list[object] = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        kept = [
            getattr(status, f"st_{what}")
            for what in ("mode", "uid", "gid", "nlink", "ino", "size", "mtime_ns", "ctime_ns")
        ]
        found.append((path, content, kept, os.listxattr(path)))
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "kept.txt"
    path.parent.mkdir()
    path.write_text("as it was")
    return path


def run(
    strength: Strength,
    code: str,
    tries: str,
    outside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Outcome]:
    """What becomes of the code as a program, and as the tests of a data set."""
    monkeypatch.setattr(sandbox_module, "CHECKER", strength.checker(tmp_path, outside.parent))
    known = (
        f"outside, KNOWN, FCNTL, LISTED, PROBES = {str(outside)!r}, {KNOWN}, {FCNTL}, "
        f"{listed(strength)}, {PROBES}\n"
    )
    program = known + START + code + f"\ndef f(x): return permitted({tries}())\n"
    return [
        BOX.check(Program(program, "assert f(0) == [], f(0)", ("f",))),
        BOX.check(Program("", f"{program}assert f(0) == [], f(0)", ())),
    ]


# of Landlock: the kernel's, the last without a right to truncate, none
DAILY = (landlock_here(), 2, 0)
EVERY = pytest.mark.parametrize(
    "strength",
    [s if s.landlock in DAILY else pytest.param(s, marks=pytest.mark.nightly) for s in STRENGTHS],
    ids=str,
)


@EVERY
def test_a_file_that_may_be_read_cannot_be_truncated(
    strength: Strength, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(outside.parent)
    outcomes = run(strength, TRUNCATIONS, "truncations", outside, tmp_path, monkeypatch)
    assert snapshot(outside.parent) == before
    assert outcomes == [Outcome("passed")] * 2
    assert [o.layers for o in outcomes] == [strength.layers] * 2


@EVERY
def test_no_call_that_changes_or_locks_or_reaches_something_else_exists(
    strength: Strength, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(outside.parent)
    outcomes = run(strength, OTHERS, "others", outside, tmp_path, monkeypatch)
    assert outcomes == [Outcome("passed")] * 2
    assert snapshot(outside.parent) == before


@pytest.mark.skipif(MACHINE != 0, reason="only x86_64 has other ways into the kernel")
@pytest.mark.parametrize("entry", ENTRIES)
def test_another_way_into_the_kernel_ends_the_program(
    entry: str, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(outside.parent)
    for strength in (STRENGTHS[0], STRENGTHS[-1]):
        outcomes = run(
            strength, f"{ENTRIES[entry]}\nothers = list", "others", outside, tmp_path, monkeypatch
        )
        assert [o.passed for o in outcomes] == [False, False]
        assert snapshot(outside.parent) == before


@pytest.mark.skipif(
    landlock_here() < 3,
    reason="the kernel's Landlock is older than version 3, which knows truncation",
)
def test_landlock_alone_keeps_what_may_be_read_as_it_is(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(outside.parent)
    for scratch in (True, False):
        run(
            Strength(landlock_here(), scratch, seccomp=False),
            TRUNCATIONS,
            "truncations",
            outside,
            tmp_path,
            monkeypatch,
        )
        assert snapshot(outside.parent) == before


@pytest.mark.skipif(
    landlock_here() < 6,
    reason="the kernel's Landlock is older than version 6, which knows sockets and signals",
)
def test_landlock_alone_closes_ports_devices_abstract_sockets_and_signals(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as port:
        abstract.bind("")  # the kernel finds a name
        abstract.listen()
        code = REACHING.format(abstract=abstract.getsockname(), port=port.getsockname())
        outcomes = run(
            Strength(landlock_here(), True, seccomp=False),
            code,
            "reaching",
            outside,
            tmp_path,
            monkeypatch,
        )
    assert outcomes == [Outcome("passed")] * 2
