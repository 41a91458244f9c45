"""The system calls that a confined program may make, by number, for x86_64 and aarch64.

All others do not exist for it.
"""

# Calls that an interpreter needs to compute, to read files, and to wait. Excluded: calls that
# create a process or a thread, run a program, open a socket, signal or inspect another process, map
# shared memory, or have effects beyond the program's end.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "poll": (7, None), "lseek": (8, 62),
    "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "sigaltstack": (131, 132),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "pipe2": (293, 59), "select": (23, None), "pselect6": (270, 72),
    "ppoll": (271, 73),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158),
    "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "getdents64": (217, 61),
    "getcwd": (79, 17), "readlink": (89, None), "readlinkat": (267, 78), "getrandom": (318, 278),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "sysinfo": (99, 179), "uname": (63, 160), "getrusage": (98, 165),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "futex": (202, 98), "set_robust_list": (273, 99),
    "rseq": (334, 293), "exit": (60, 93),
    "exit_group": (231, 94), "arch_prctl": (158, None), "getrlimit": (97, 163),
    "setitimer": (38, 103), "getitimer": (36, 102),
    "alarm": (37, None), "pause": (34, None), "restart_syscall": (219, 128), "umask": (95, 166),
    "chdir": (80, 49), "fchdir": (81, 50),
}  # fmt: skip

# Only where there is a scratch folder that ends with the program.
WRITING: dict[str, tuple[int | None, int | None]] = {
    "unlink": (87, None), "unlinkat": (263, 35), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "symlink": (88, None), "symlinkat": (266, 36),
    "ftruncate": (77, 46),
    "fsync": (74, 82), "fdatasync": (75, 83),
}  # fmt: skip

# Allowed if one argument is among the values given: the argument's index, and the values.
#   fcntl: duplicates, flags; no locks, which work on files that can only be read, too; not the
#          owner and signal of a file's events, by which another process could be killed
#   ioctl: queries of a terminal or a pipe; prlimit64: of the program itself only
CHECKED: dict[str, tuple[tuple[int | None, int | None], int, tuple[int, ...]]] = {
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 1030, 1032)),
    "ioctl": ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    "prlimit64": ((302, 261), 0, (0,)),
}

# The index of the argument with the flags. Where nothing may be written, a call with a flag of
# WRITE_FLAGS is denied. Otherwise such a call must request an access mode of ACCESSES, which
# Landlock checks: O_TRUNC truncates in other modes too, and access mode 3 needs no right at all.
OPENING: dict[str, tuple[tuple[int | None, int | None], int]] = {
    "open": ((2, None), 1),
    "openat": ((257, 56), 2),
}
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE
WRITE_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
ACCESS_MASK, ACCESSES = 0o3, (0o1, 0o2)  # O_ACCMODE; O_WRONLY, O_RDWR

COLUMNS = {"x86_64": 0, "aarch64": 1}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OWN = {
    "capset": (126, 91),
    "seccomp": (317, 277),
    "landlock_create": (444, 444),
    "landlock_add": (445, 445),
    "landlock_restrict": (446, 446),
}
