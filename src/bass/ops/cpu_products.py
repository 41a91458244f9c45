"""Products on a CPU: the fastest way for each shape and number of rows, by measurement.

    y = x Wᵀ + b

    kernel      `bass.kernels.cpu.gemm`: W is read once, at nearly the bandwidth of the memory
    transposed  (W xᵀ)ᵀ, a row of x twice if it is alone
    torch       `F.linear`

`measure` runs when a model is loaded, and stores its choices per machine in the user's cache
folder. For a number of rows, all shapes use the kernel unless other ways save 15 % in all shapes
together: a row's result by the kernel does not depend on the other rows. For few rows they must
save a millisecond too, since a pass of kernels alone is replayed (`bass.ops.recorded`). On a busy
machine, whose times mean little, it takes the kernel and stores nothing: an idle one nearly always
chooses the kernel too, so a later load computes the same. A shape of no loaded model uses torch.
BASS_CPU_PRODUCTS names one way for all shapes, whatever the times.
"""

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bass.errors import OptionError
from bass.files import write_atomically
from bass.kernels import cpu
from bass.ops import dispatch
from bass.processor import cpu_name

Key = tuple[int, int, str, int, int]  # outputs, inputs, type, largest number of rows, threads
FEW = 64  # most rows of a step, whose passes are replayed; a prompt has more
# numbers of rows that are measured, each for those up to it, the last for all others
ROWS = (1, 2, 4, 5, 8, 16, 32, FEW, 256)
# of W: smaller ones use torch, and of larger ones only as many are measured
LEAST_NUMBERS, MOST_NUMBERS = 1 << 16, 1 << 21
STORED = (torch.float32, torch.int64)  # what kernels read, but for matrices
SECONDS = 0.5  # of all measurements of a load
ADVANTAGE = 0.85  # of the kernels' time for all shapes, that other ways must take less than
REPLAY = 1e-3  # seconds that a replay of a pass saves on the host: other ways must save more
VARIABLE = "BASS_CPU_PRODUCTS"
LARGEST_FILE = 1 << 20  # bytes
_chosen: dict[Key, str] = {}
# the choice for a shape, type, number of rows and of threads: found once
_found: dict[tuple[torch.Size, torch.dtype, int, int], str] = {}


def _transposed(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.expand(2, -1) if len(x) == 1 else x
    y = (w @ rows.T).T[: len(x)].contiguous()
    return y if bias is None else y + bias


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "kernel": lambda x, w, bias: cpu.gemm.linear(x, w, bias),
    "transposed": _transposed,
    "torch": F.linear,
}


def product(
    x: Float[Tensor, "*rows in"], w: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "*rows out"]:
    """x Wᵀ + b by the way that was chosen for the shape."""
    way = chosen(x, w)
    if way == "torch" or dispatch.has_gradient(x, w, bias):
        return F.linear(x, w, bias)
    return WAYS[way](x.reshape(-1, x.shape[-1]), w, bias).view(*x.shape[:-1], -1)


def gated(
    x: Float[Tensor, "*rows in"],
    w: Float[Tensor, "twice in"],
    bias: Float[Tensor, " twice"] | None,
    act: str,
) -> Float[Tensor, "*rows inner"] | None:
    """act(gate) · up by the kernel; None where it was not chosen for the shape."""
    if chosen(x, w) != "kernel" or dispatch.has_gradient(x, w, bias):
        return None
    y = cpu.gemm.gated(x.reshape(-1, x.shape[-1]), w, bias, act)
    return y.view(*x.shape[:-1], -1)


def fused(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether norms and attention of these rows of a step use kernels: where products do."""
    return (
        in_use()
        and x.is_cpu
        and x.dtype == torch.float32
        and 0 < x.numel() <= FEW * x.shape[-1]
        and all(w is None or w.is_contiguous() for w in weights)
        and not dispatch.has_gradient(x, *weights)
    )


def step(*tensors: Tensor | None) -> bool:
    """Whether the work of a step between its passes uses kernels, on these tensors."""
    return (
        in_use()
        and all(t is None or (t.is_cpu and t.dtype in STORED) for t in tensors)
        and not dispatch.has_gradient(*tensors)
    )


def few(tokens: Tensor, *weights: Tensor) -> bool:
    """Whether the embedding of these tokens of a step uses a kernel: as `fused`."""
    return (
        in_use()
        and tokens.is_cpu
        and tokens.dtype == torch.int64
        and 0 < tokens.numel() <= FEW
        and all(w.dtype == torch.float32 and w.is_contiguous() for w in weights)
        and not dispatch.has_gradient(*weights)
    )


def chosen(x: Tensor, w: Tensor) -> str:
    """The way for these rows: a key of `WAYS`."""
    if not _chosen or x.dtype != w.dtype or not w.is_contiguous():
        return "torch"
    rows = x.numel() // w.shape[1]
    place = w.shape, w.dtype, rows, torch.get_num_threads()
    way = _found.get(place)
    if way is None:
        way = _chosen.get(_key(w, rows), "torch") if rows else "torch"
        _found[place] = way
    return way


def _key(w: Tensor, rows: int) -> Key:
    outputs, inputs = w.shape
    most = next((most for most in ROWS if rows <= most), ROWS[-1])
    return outputs, inputs, str(w.dtype), most, torch.get_num_threads()


def measure(weights: Iterable[Tensor]) -> None:
    """Choose the way for each shape of these matrices, unless this machine has measured it.

    Raises `OptionError` for an unknown way in BASS_CPU_PRODUCTS.
    """
    forced = os.environ.get(VARIABLE)
    if forced is not None and forced not in WAYS:
        raise OptionError(f"`{VARIABLE}={forced}` is unknown: give {', '.join(WAYS)}, or unset it.")
    _found.clear()
    if forced == "torch" or dispatch.cpu_unsupported() is not None:
        _chosen.clear()
        return
    shapes: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
    for w in weights:
        if w.is_cpu and (forced or w.numel() >= LEAST_NUMBERS) and cpu.gemm.supports(w):
            shapes.setdefault((w.shape, w.dtype), []).append(w.detach())
    wanted = {_key(same[0], rows): same for rows in ROWS for same in shapes.values()}
    if wanted:
        cpu.load()  # not in the first step
    if forced:
        _chosen.update(dict.fromkeys(wanted, forced))
        return
    if not wanted.keys() <= _chosen.keys():
        known = _read(path := _path())
        _chosen.update(known)
        _choose({key: same for key, same in wanted.items() if key not in known}, known)
        _write(path, known)


def _choose(missing: dict[Key, list[Tensor]], known: dict[Key, str]) -> None:
    """Measure what is missing, and add it to what is known, within `SECONDS`."""
    _chosen.update(dict.fromkeys(missing, "kernel"))
    until = time.perf_counter() + SECONDS
    for rows, keys in itertools.groupby(missing, key=lambda key: key[3]):
        times = {}
        for key in keys:
            if busy() or time.perf_counter() > until:
                return
            times[key] = _times(missing[key], rows)
        if busy():  # meanwhile
            return
        ways = _fastest(times)
        _chosen.update(ways)
        known.update(ways)


def _fastest(times: dict[Key, dict[str, float]]) -> dict[Key, str]:
    """The way of each shape for the same rows: the kernel for all, unless others save enough in
    all together, since a pass of few rows that uses kernels alone is replayed
    (`bass.ops.recorded`).
    """
    ways = {key: min(own, key=lambda way: own[way]) for key, own in times.items()}
    best = sum(own[ways[key]] for key, own in times.items())
    kernels = sum(own["kernel"] for own in times.values())
    replay = REPLAY if all(key[3] <= FEW for key in times) else 0.0
    if best < min(ADVANTAGE * kernels, kernels - replay):
        return ways
    return dict.fromkeys(times, "kernel")


def busy() -> bool:
    """Whether other processes use the CPUs: now, or in the last minute."""
    count = os.cpu_count() or 1
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        running = 0  # no Linux
    return running > count or os.getloadavg()[0] > 0.75 * count


@torch.inference_mode()
def _times(weights: list[Tensor], rows: int) -> dict[str, float]:
    """Seconds of each way for all of these matrices. They take turns, so that caches do not hold
    them.
    """
    most = max(1, MOST_NUMBERS // weights[0].shape[1])
    turns = itertools.cycle([w[:most] for w in weights])
    x = torch.ones(rows, weights[0].shape[1], dtype=weights[0].dtype)
    least = dict.fromkeys(WAYS, float("inf"))
    for _ in range(6 if rows <= FEW else 2):
        for name, way in WAYS.items():
            w = next(turns)
            began = time.perf_counter()
            way(x, w, None)
            least[name] = min(least[name], time.perf_counter() - began)
    share = len(weights) * max(1.0, len(weights[0]) / most)
    return {name: seconds * share for name, seconds in least.items()}


def in_use() -> bool:
    """Whether a loaded model uses the kernels for CPUs."""
    return bool(_chosen)


def in_words() -> str:
    """The ways of the shapes that were chosen, in a few words, the most frequent first."""
    if not _chosen:
        reason = dispatch.cpu_unsupported()
        return "torch" if reason is None else f"torch ({reason.reason})"
    counts = Counter(_chosen.values())
    words = {"kernel": "numba", "transposed": "torch (transposed)", "torch": "torch"}
    if len(counts) == 1:
        return words[next(iter(counts))]
    share = ", ".join(f"{words[way]} {count}" for way, count in counts.most_common())
    return f"{share} of {len(_chosen)} shapes"


def _machine() -> str:
    """What the choices depend on, but for shapes and threads."""
    return f"{cpu_name()}, {os.cpu_count()} CPUs, torch {torch.__version__}, kernels 5"


def _path() -> Path | None:
    """The file of the choices; None for a user without a home."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "bass" / "cpu_products.json"


def _read(path: Path | None) -> dict[Key, str]:
    """The stored choices of this machine; none of a file that is missing or damaged."""
    try:
        stored = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        return dict(_entries(stored[_machine()]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _entries(stored: dict[str, str]) -> Iterator[tuple[Key, str]]:
    for name, way in stored.items():
        outputs, inputs, dtype, rows, threads = name.split()
        if way in WAYS:
            yield (int(outputs), int(inputs), dtype, int(rows), int(threads)), way


def _write(path: Path | None, choices: dict[Key, str]) -> None:
    """Store the choices of this machine, where the folder is writable."""
    if path is None:
        return
    own = {" ".join(map(str, key)): way for key, way in choices.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({_machine(): own}, indent=1))
    except OSError:
        pass
