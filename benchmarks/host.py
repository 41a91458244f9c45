"""What the host does while files are read: page cache, threads, memory, and the link to a GPU."""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

READ = 16 << 20  # bytes of a read
INTERVAL = 0.01  # seconds between two looks at the memory
LINK_BYTES = 1 << 30


def evict(paths: Sequence[Path]) -> None:
    """Drop the files from the page cache, as far as the system does what it is asked to."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(paths: Sequence[Path]) -> float:
    """The share of the files' pages that are in the page cache, by `mincore`."""
    libc, cached, pages = ctypes.CDLL(None, use_errno=True), 0, 0
    for path in paths:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        begin = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
        found = torch.zeros(-(-len(mapped) // mmap.PAGESIZE), dtype=torch.uint8)
        where = [ctypes.c_void_p(begin), ctypes.c_size_t(len(mapped))]
        if libc.mincore(*where, ctypes.c_void_p(found.data_ptr())):
            raise OSError(ctypes.get_errno(), "mincore")
        cached, pages = cached + int((found & 1).sum()), pages + len(found)
    return cached / max(pages, 1)


def read_in_threads(paths: Sequence[Path], threads: int) -> int:
    """Read the files, a piece at a time in each thread, into reused buffers; returns the bytes."""
    pieces = [(p, at) for p in paths for at in range(0, p.stat().st_size, READ)]
    own = threading.local()

    def read(piece: tuple[Path, int]) -> int:
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(READ)
        with piece[0].open("rb", buffering=0) as file:
            return os.preadv(file.fileno(), [own.buffer], piece[1])

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, pieces))


@dataclass
class Memory:
    """By how many bytes the process's resident memory rose at most; own: without mapped files."""

    resident: int = 0
    own: int = 0


def resident() -> Memory:
    """The resident memory of this process, now."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    words = (line.split() for line in text.splitlines() if line.startswith(("VmRSS", "RssAnon")))
    found = {name: int(size) * 1024 for name, size, _ in words}
    return Memory(found["VmRSS:"], found.get("RssAnon:", found["VmRSS:"]))


@contextmanager
def peak_memory() -> Iterator[Memory]:
    """Within it, a thread looks at the memory; the peaks of what came are there afterwards."""
    before, peak, over = resident(), Memory(), threading.Event()

    def look() -> None:
        now = resident()
        peak.resident = max(peak.resident, now.resident - before.resident)
        peak.own = max(peak.own, now.own - before.own)

    def watch() -> None:
        while not over.wait(INTERVAL):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        look()
        over.set()
        thread.join()


def link_bandwidth(device: torch.device) -> float:
    """Bytes per second of a copy from pinned memory to the device, the best of 5."""
    source = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device)
    times = []
    for _ in range(6):  # the first maps the pages
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return LINK_BYTES / min(times)
