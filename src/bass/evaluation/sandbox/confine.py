"""Confines a process before it runs an untrusted program. Standard library only; Linux; needs no
privileges.

Three irrevocable layers: resource limits; a filter of system calls (seccomp), without which no
program runs; and, if the kernel supports it, access to a list of folders only (Landlock).
"""

import ctypes
import os
import platform
import resource
import site
import struct
import sys
from dataclasses import dataclass

from bass.evaluation.sandbox import syscalls

_NO_NEW_PRIVS, _PDEATHSIG, _DUMPABLE = 38, 1, 4
_SIGKILL = 9
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_NOSUID_NODEV = 0x2 | 0x4
_READ_RIGHTS = 0x4 | 0x8  # read files, list folders
# Read, write, list, remove, make folders, files and symbolic links, truncate.
_SCRATCH_RIGHTS = 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x80 | 0x100 | 0x1000 | 0x4000
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version of Landlock: its number of rights to files
_ENOSYS, _EROFS = 38, 30
# Instructions of a filter, and what it returns. An error number is added to _REFUSE.
_LOAD, _MASK, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


@dataclass(frozen=True)
class Limits:
    """The limits of one program.

    `seconds`: by the clock; `memory`: address space in MiB; `scratch`: MiB that it may write.
    """

    seconds: float = 10.0
    memory: int = 1024
    scratch: int = 16


class Unconfined(Exception):
    """The system cannot confine a process."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _fail(what: str) -> Unconfined:
    return Unconfined(f"{what}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """Kill this process when the thread that started it ends.

    `parent`: the process of that thread, which may have ended already.
    """
    _libc().prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def hide() -> None:
    """Prevent other processes of the user from reading this process's memory."""
    _libc().prctl(_DUMPABLE, 0, 0, 0, 0)


def mount_scratch(folder: str, megabytes: int) -> bool:
    """Mount a file system in memory on `folder`, visible only to this process and its children.

    Returns False if the system forbids it.
    """
    libc, uid, gid = _libc(), os.getuid(), os.getgid()
    if megabytes < 1 or libc.unshare(_NEW_USER | _NEW_MOUNTS) != 0:
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return False
    options = f"size={megabytes}m,nr_inodes=1000,mode=0700".encode()
    return (
        libc.mount(b"none", b"/", None, _PRIVATE, None) == 0
        and libc.mount(b"tmpfs", folder.encode(), b"tmpfs", _NOSUID_NODEV, options) == 0
        and os.chdir(folder) is None
    )


def wall(scratch: str | None) -> bool:
    """Restrict this process and its children with Landlock. `scratch`: the folder to write to, if
    any.

    Returns False if the kernel has no Landlock. The checker calls it before the fork, and the
    process with the program again: the kernel sends the signal of `die_with_parent` on behalf of
    the checker, which may only signal processes within its own domain. Raises `Unconfined`.
    """
    libc, column = _libc(), _column()
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _fail("no_new_privs")
    version = landlock_version(libc, column)
    if version > 0:
        _landlock(libc, column, version, scratch)
    return version > 0


def confine(limits: Limits, writes: bool) -> None:
    """Confine this process irrevocably, after `wall`. `writes`: whether it has a writable folder.

    Raises `Unconfined` without a filter of system calls: then no program may run.
    """
    libc, column = _libc(), _column()
    _limit(limits)
    header = struct.pack("Ii", 0x20080522, 0)
    # drops the capabilities of root
    if libc.syscall(_own("capset", column), header, bytes(24)) != 0:
        raise _fail("capabilities")
    _filter(libc, platform.machine(), column, writes)


def layers(walled: bool, writes: bool) -> list[str]:
    """The names of the layers."""
    wall = ["Landlock"] if walled else []
    return [
        "resource limits",
        *wall,
        "scratch folder in memory" if writes else "no writing",
        "seccomp",
    ]


def _column() -> int:
    """The column of this machine in the lists of system calls."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in syscalls.COLUMNS:
        raise Unconfined(f"there is no filter of system calls for {sys.platform} on {machine}")
    return syscalls.COLUMNS[machine]


def _own(name: str, column: int) -> int:
    return syscalls.OWN[name][column]


def _limit(limits: Limits) -> None:
    # the timer must fire first, since it reports the reason
    seconds, memory = int(limits.seconds) + 2, limits.memory * 2**20
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, 2**20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def readable() -> list[str]:
    """The paths that a program must read: interpreter, libraries, time zones, and pseudo-devices.

    Not the whole prefix of the interpreter, which may be a project folder with its virtual
    environment.
    """
    packages = [*site.getsitepackages(), os.path.dirname(os.__file__)]
    shared = [f"{sys.base_prefix}/{name}" for name in ("lib", sys.platlibdir)]
    own = [*packages, *shared, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"]
    return [
        *dict.fromkeys(own),
        os.path.realpath(sys.executable),
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
    ]


def landlock_version(libc: ctypes.CDLL, column: int) -> int:
    """The kernel's version of Landlock; 0: not supported, or disabled."""
    return max(0, libc.syscall(_own("landlock_create", column), None, 0, 1))


def landlock_rights(version: int) -> tuple[int, int, int]:
    """All rights that a version of Landlock knows, as three masks: files, TCP ports, scopes.

    Version 2 adds moving between folders, 3 truncation, 4 ports (bind, connect), 5 ioctl of
    devices, 6 scopes (abstract Unix sockets, signals). Version 7 adds no right.
    Source: https://docs.kernel.org/userspace-api/landlock.html
    """
    files = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    return (1 << files) - 1, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0


def _landlock(libc: ctypes.CDLL, column: int, version: int, scratch: str | None) -> None:
    """Drop every right that the kernel knows, except reading, and writing in `scratch`."""
    files, ports, scopes = landlock_rights(version)
    rules = libc.syscall(
        _own("landlock_create", column), struct.pack("QQQ", files, ports, scopes), 24, 0
    )
    if rules < 0:
        raise _fail("Landlock")
    paths = [(path, _READ_RIGHTS) for path in readable()] + (
        [(scratch, _SCRATCH_RIGHTS & files)] if scratch else []
    )
    for path, rights in paths:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not every system has all of them
        allowed = rights if os.path.isdir(path) else rights & ~0x8
        added = libc.syscall(
            _own("landlock_add", column), rules, 1, struct.pack("=Qi", allowed, handle), 0
        )
        os.close(handle)
        if added != 0:
            raise _fail(f"Landlock refuses {path}")
    if libc.syscall(_own("landlock_restrict", column), rules, 0) != 0:
        raise _fail("Landlock")
    os.close(rules)


def _filter(libc: ctypes.CDLL, machine: str, column: int, writes: bool) -> None:
    """Install the list of allowed system calls; any other one returns ENOSYS."""
    program = b"".join(struct.pack("=HBBI", *line) for line in _lines(machine, column, writes))
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    if libc.syscall(_own("seccomp", column), 1, 0, pointer) != 0:
        raise _fail("seccomp")


def _lines(machine: str, column: int, writes: bool) -> list[tuple[int, int, int, int]]:
    """Instructions of the filter: (code, jump if true, jump if false, value)."""
    lines = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, syscalls.AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        # the x32 calls have other numbers
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers, index, values in syscalls.CHECKED.values():
        number = numbers[column]
        if number is not None:
            block = [
                _argument(index),
                *((_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)),
            ]
            block += [(_RETURN, 0, 0, _REFUSE | _ENOSYS), (_RETURN, 0, 0, _ALLOW)]
            lines += [(_EQUAL, 0, len(block), number), *block]
    for numbers, index in syscalls.OPENING.values():
        number = numbers[column]
        if number is not None:
            block = _opening(index, writes)
            lines += [(_EQUAL, 0, len(block), number), *block]
    for numbers in (*syscalls.ALLOWED.values(), *(syscalls.WRITING.values() if writes else ())):
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    return [*lines, (_RETURN, 0, 0, _REFUSE | _ENOSYS)]


def _opening(index: int, writes: bool) -> list[tuple[int, int, int, int]]:
    """Decides on a call that opens a file, whose argument `index` holds the flags."""
    block = [
        _argument(index),
        (_ANY_BIT, 0, 1, syscalls.WRITE_FLAGS),
        (_RETURN, 0, 0, _REFUSE | _EROFS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    if not writes:
        return block
    jumps = [
        (_EQUAL, len(block) + len(syscalls.ACCESSES) - 2 - i, 0, value)
        for i, value in enumerate(syscalls.ACCESSES)
    ]
    return [_argument(index), (_MASK, 0, 0, syscalls.ACCESS_MASK), *jumps, *block]


def _argument(index: int) -> tuple[int, int, int, int]:
    """Loads the low half of an argument of the call."""
    return (_LOAD, 0, 0, 16 + 8 * index)
