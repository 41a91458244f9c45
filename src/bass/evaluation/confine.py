"""What a process does to itself before it runs a program that nobody has read. Standard library only; Linux; needs no privileges.

Three layers that cannot be taken off again: resource limits; a filter of calls to the kernel (seccomp), without which no program is
run; and, where the kernel has it, a list of the folders that can be read and of the one that can be written (Landlock).
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from dataclasses import dataclass

from bass.evaluation import syscalls

_NO_NEW_PRIVS, _PDEATHSIG, _DUMPABLE = 38, 1, 4
_SIGKILL = 9
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_NOSUID_NODEV = 0x2 | 0x4
_READ_RIGHTS = 0x4 | 0x8  # read files, list folders
_ALL_RIGHTS = (1 << 13) - 1  # of Landlock's first version: files and folders
_SCRATCH_RIGHTS = 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x80 | 0x100 | 0x1000  # read, write, list, remove, make folders, files and symbolic links
_ENOSYS, _EROFS = 38, 30


@dataclass(frozen=True)
class Limits:
    """Of one program. `seconds`: by the clock; `memory`: address space in MiB; `scratch`: MiB that it may write."""

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
    """Be killed when the thread that started this process ends; `parent`: its process, which may have ended before."""
    _libc().prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def hide() -> None:
    """Let no other process of the user look into this one's memory."""
    _libc().prctl(_DUMPABLE, 0, 0, 0, 0)


def mount_scratch(folder: str, megabytes: int) -> bool:
    """Put a file system in memory, seen by this process and its children alone, on `folder`. False where the system forbids it."""
    libc, uid, gid = _libc(), os.getuid(), os.getgid()
    if megabytes < 1 or libc.unshare(_NEW_USER | _NEW_MOUNTS) != 0:
        return False
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
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


def confine(limits: Limits, scratch: str | None) -> list[str]:
    """Confine this process for good. `scratch`: the folder it may write to, if any. Returns the layers in force.

    Raises `Unconfined` where there is no filter of system calls: then no program is to be run.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in syscalls.COLUMNS:
        raise Unconfined(f"there is no filter of system calls for {sys.platform} on {machine}")
    _limit(limits)
    libc = _libc()
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _fail("no_new_privs")
    layers = ["resource limits"]
    column = syscalls.COLUMNS[machine]
    walled = _landlock(libc, column, scratch)
    layers += ["Landlock"] if walled else []
    writes = scratch is not None and walled
    layers += ["scratch folder in memory"] if writes else ["no writing"]
    header = struct.pack("Ii", 0x20080522, 0)
    if libc.syscall(_own("capset", column), header, bytes(24)) != 0:  # root is as powerless as anybody
        raise _fail("capabilities")
    _filter(libc, machine, column, writes)
    return [*layers, "seccomp"]


def _own(name: str, column: int) -> int:
    return syscalls.OWN[name][column]


def _limit(limits: Limits) -> None:
    seconds, memory = int(limits.seconds) + 2, limits.memory * 2**20  # the clock is to strike first, which says what happened
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
    """What a program needs to read: the interpreter, its libraries, time zones, and the devices that are no device."""
    own = [sys.prefix, sys.base_prefix, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"]
    return [*dict.fromkeys(own), "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom"]


def _landlock(libc: ctypes.CDLL, column: int, scratch: str | None) -> bool:
    """Restrict what can be reached in the file system. False where the kernel cannot."""
    if libc.syscall(_own("landlock_create", column), None, 0, 1) < 1:  # the version that it has
        return False
    rules = libc.syscall(_own("landlock_create", column), struct.pack("Q", _ALL_RIGHTS), 8, 0)
    if rules < 0:
        return False
    paths = [(path, _READ_RIGHTS) for path in readable()] + ([(scratch, _SCRATCH_RIGHTS)] if scratch else [])
    for path, rights in paths:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not every system has all of them
        allowed = rights if os.path.isdir(path) else rights & ~0x8
        added = libc.syscall(_own("landlock_add", column), rules, 1, struct.pack("=Qi", allowed, handle), 0)
        os.close(handle)
        if added != 0:
            raise _fail(f"Landlock refuses {path}")
    if libc.syscall(_own("landlock_restrict", column), rules, 0) != 0:
        raise _fail("Landlock")
    os.close(rules)
    return True


def _filter(libc: ctypes.CDLL, machine: str, column: int, writes: bool) -> None:
    """Install the list of allowed system calls; any other one returns ENOSYS."""
    program = b"".join(struct.pack("=HBBI", *line) for line in _lines(machine, column, writes))
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    if libc.syscall(_own("seccomp", column), 1, 0, pointer) != 0:
        raise _fail("seccomp")


def _lines(machine: str, column: int, writes: bool) -> list[tuple[int, int, int, int]]:
    """Instructions of the filter: (code, jump if true, jump if false, value)."""
    load, equal, at_least, any_bit, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, syscalls.AUDIT[machine]), (ret, 0, 0, kill), (load, 0, 0, 0)]
    if machine == "x86_64":
        lines += [(at_least, 0, 1, 0x40000000), (ret, 0, 0, kill)]  # the x32 calls have numbers of their own

    def argument(index: int) -> tuple[int, int, int, int]:
        return (load, 0, 0, 16 + 8 * index)  # its low half

    for numbers, index, values in syscalls.CHECKED.values():
        number = numbers[column]
        if number is not None:
            block = [argument(index), *((equal, len(values) - i, 0, value) for i, value in enumerate(values))]
            block += [(ret, 0, 0, refuse | _ENOSYS), (ret, 0, 0, allow)]
            lines += [(equal, 0, len(block), number), *block]
    for numbers, index in syscalls.OPENING.values():
        number = numbers[column]
        if number is not None:
            block = [argument(index), (any_bit, 0, 1, syscalls.WRITE_FLAGS), (ret, 0, 0, refuse | _EROFS), (ret, 0, 0, allow)]
            lines += [(equal, 0, 1, number), (ret, 0, 0, allow)] if writes else [(equal, 0, len(block), number), *block]
    for numbers in (*syscalls.ALLOWED.values(), *(syscalls.WRITING.values() if writes else ())):
        if numbers[column] is not None:
            lines += [(equal, 0, 1, numbers[column]), (ret, 0, 0, allow)]
    return [*lines, (ret, 0, 0, refuse | _ENOSYS)]
