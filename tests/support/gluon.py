"""Runs a kernel written in Gluon on the CPU, one program after the other: Triton's interpreter does
not know that dialect.

What is asynchronous on the device comes as late as it can here: a copy spoils its target when it is
asked for, and arrives when its barrier is waited for, which must have been told of as many bytes.
Nothing is written, and nothing read that the kernel before writes, until the kernel has waited for
that. Places beyond a tensor are refused. Layouts mean nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.jit import JITFunction

from bass.kernels.triton.launch import TRITON_DTYPES


class Pointer:
    """Addresses within the memory of a tensor."""

    def __init__(self, tensor: Tensor, at: Any = 0) -> None:
        self.tensor, self.at = tensor, at
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)
        self.memory = torch.as_strided(
            tensor,
            (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)),),
            (1,),
        )

    def __add__(self, other: Any) -> "Pointer":
        return Pointer(self.tensor, self.at + other)

    def places(self, mask: Any) -> tuple[Tensor, Tensor]:
        at, live = torch.broadcast_tensors(
            torch.as_tensor(self.at), torch.as_tensor(True if mask is None else mask)
        )
        assert ((at >= 0) & (at < len(self.memory)))[live].all(), "beyond the tensor"
        return torch.where(live, at, 0).long(), live


def spoil(x: Tensor) -> None:
    x.fill_(float("nan") if x.is_floating_point() else 77)


class Shared:
    """A part of shared memory."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    def index(self, i: Any) -> "Shared":
        assert 0 <= int(i) < len(self.data)
        return Shared(self.data[int(i)])

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.data.permute(*order))

    def reshape(self, shape: Sequence[int]) -> "Shared":
        return Shared(self.data.view(*shape))

    def load(self, layout: Any) -> Tensor:
        return self.data.clone()


class Barrier:
    """Of copies on their way."""

    def __init__(self) -> None:
        self.phase = 0
        self.expected: int | None = None
        self.copies: list[tuple[Any, list[int], Tensor]] = []


class Barriers:
    """One for each stage."""

    def __init__(self, count: int) -> None:
        self.each = [Barrier() for _ in range(count)]

    def index(self, i: Any) -> Barrier:
        return self.each[int(i)]


class Device:
    """What a program sees."""

    def __init__(self, late: Sequence[Tensor]) -> None:
        self.late, self.waited = {x.untyped_storage().data_ptr() for x in late}, False
        self.program: tuple[int, ...] = (0, 0)
        self.grid: tuple[int, ...] = (1, 1)
        self.warps = 4

    def load(
        self, pointer: Pointer, mask: Any = None, other: Any = 0, cache_modifier: str = ""
    ) -> Tensor:
        assert self.waited or pointer.tensor.untyped_storage().data_ptr() not in self.late, (
            "read before the wait"
        )
        at, live = pointer.places(mask)
        return torch.where(
            live,
            pointer.memory[at],
            torch.as_tensor(other if mask is not None else 0).to(pointer.memory.dtype),
        )

    def store(self, pointer: Pointer, value: Tensor, mask: Any = None) -> None:
        assert self.waited, "written before the wait"
        at, live = pointer.places(mask)
        live, at, value = torch.broadcast_tensors(live, at, value)
        pointer.memory[at[live]] = value[live].to(pointer.memory.dtype)

    def allocate(
        self, kind: Any, shape: Sequence[int], layout: Any, value: Tensor | None = None
    ) -> Any:
        if layout == "barrier":
            return Barriers(shape[0])
        data = torch.empty(tuple(shape), dtype=kind)
        spoil(data) if value is None else data.copy_(value)
        return Shared(data)

    def expect(self, barrier: Barrier, count: int, live: Any = True) -> None:
        if live:
            assert barrier.expected is None
            barrier.expected = count

    def copy(
        self, of: Any, at: Sequence[Any], barrier: Barrier, to: Shared, live: Any = True
    ) -> None:
        assert self.waited or of.base.untyped_storage().data_ptr() not in self.late, (
            "asked for before the wait"
        )
        if live:
            spoil(to.data)
            barrier.copies.append((of, [int(i) for i in at], to.data))

    def wait(self, barrier: Barrier, phase: Any) -> None:
        assert int(phase) == barrier.phase
        assert barrier.expected == sum(
            to.numel() * to.element_size() for _, _, to in barrier.copies
        )
        for of, (row, column), to in barrier.copies:
            assert list(to.shape) == of.block_shape
            to.zero_()
            matrix = torch.as_strided(of.base, of.shape, of.strides)
            part = matrix[max(row, 0) : row + to.shape[0], max(column, 0) : column + to.shape[1]]
            assert row >= 0
            assert column >= 0
            to[: part.shape[0], : part.shape[1]] = part
        barrier.phase, barrier.expected, barrier.copies = 1 - barrier.phase, None, []

    def invalidate(self, barrier: Barrier) -> None:
        assert barrier.expected is None
        assert not barrier.copies

    def waits(self) -> None:
        self.waited = True

    def exchanged(self, pointer: Pointer, value: int, sem: str, scope: str) -> None:
        assert sem == "release"
        pointer.memory[pointer.places(None)[0]] = value

    def compared(self, pointer: Pointer, old: int, new: int, sem: str, scope: str) -> int:
        """Programs run in their order: one that waits for another that has not run would wait for
        ever on the device, too.
        """
        assert sem == "acquire"
        at = pointer.places(None)[0]
        assert pointer.memory[at] == old, "waits for a program that comes later"
        pointer.memory[at] = new
        return old


def chosen(condition: Any, yes: Any, no: Any) -> Any:
    if not isinstance(condition, Tensor):
        return yes if condition else no
    kind = next((x.dtype for x in (yes, no) if isinstance(x, Tensor)), None)
    return torch.where(condition, *(torch.as_tensor(x, dtype=kind) for x in (yes, no)))


def most(a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return max(a, b)
    return torch.maximum(*torch.broadcast_tensors(torch.as_tensor(a), torch.as_tensor(b)))


def product(a: Any, b: Any, total: Tensor, use_acc: Any = True) -> Tensor:
    a, b = (x.data if isinstance(x, Shared) else x for x in (a, b))
    wide = total.dtype if total.dtype == torch.int32 else torch.float64
    return ((a.to(wide) @ b.to(wide)) + (total.to(wide) if use_acc else 0)).to(total.dtype)


def activation(x: Tensor, act: str) -> Tensor:
    """Triton's own, which the interpreter tries elsewhere."""
    if act in ("relu", "relu2"):
        return F.relu(x) if act == "relu" else F.relu(x).square()
    if act == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")


def activated(gate: Tensor, up: Tensor, act: str) -> Tensor:
    """Triton's own, which the interpreter tries elsewhere."""
    return activation(gate, act) * up


def no_layout(*_: Any) -> None:
    return None


def capped(scores: Tensor, softcap: float) -> Tensor:
    """Triton's own, which the interpreter tries elsewhere."""
    return softcap * torch.tanh(scores / softcap)


def language(device: Device) -> dict[str, Any]:
    """What a module of kernels imports, run by the device."""
    made = SimpleNamespace(
        program_id=lambda axis: device.program[axis], num_programs=lambda axis: device.grid[axis],
        num_warps=lambda: device.warps,
        arange=lambda first, last, layout=None: torch.arange(first, last), load=device.load,
        store=device.store,
        zeros=lambda shape, kind, layout=None: torch.zeros(tuple(shape), dtype=kind),
        zeros_like=torch.zeros_like,
        full=lambda shape, value, kind, layout=None: torch.full(tuple(shape), value, dtype=kind),
        where=chosen, maximum=most, exp=torch.exp, rsqrt=torch.rsqrt,
        max=lambda x, axis: x.nan_to_num(-torch.inf).amax(axis), min=lambda x, axis: x.amin(axis),
        sum=lambda x, axis: x.sum(axis),
        allocate_shared_memory=device.allocate, convert_layout=lambda x, layout: x,
        static_range=range, thread_barrier=lambda: None,
        atomic_xchg=device.exchanged, atomic_cas=device.compared, constexpr=object,
        NVMMADistributedLayout=no_layout, DotOperandLayout=no_layout, BlockedLayout=no_layout,
        SliceLayout=no_layout,
        SwizzledSharedLayout=no_layout,
        NVMMASharedLayout=SimpleNamespace(get_default_for=no_layout),
        broadcast=torch.broadcast_tensors,
        float32=torch.float32, int32=torch.int32, int64=torch.int64,
    )  # fmt: skip
    barriers = SimpleNamespace(
        init=lambda bar, count: None, expect=device.expect, wait=device.wait,
        invalidate=device.invalidate, MBarrierLayout=lambda: "barrier"
    )  # fmt: skip
    return {
        "gl": made, "mbarrier": barriers,
        "tma": SimpleNamespace(async_copy_global_to_shared=device.copy),
        "mma_v2": product, "warpgroup_mma": product,
        "activated": activated, "activation": activation,
        "capped": capped,
        "gdc_wait": device.waits, "gdc_launch_dependents": lambda: None,
        "TRITON_DTYPES": {kind: kind for kind in TRITON_DTYPES},
        "TensorDescriptor": lambda base, shape, strides, block, layout: SimpleNamespace(
            base=base, shape=shape, strides=strides, block_shape=block, layout=layout,
            dtype=base.dtype
        ),
    }  # fmt: skip


@contextmanager
def emulated(module: ModuleType, late: Sequence[Tensor] = ()) -> Iterator[Device]:
    """The module's kernels, launched as ever, run here. late: tensors that the kernel before
    writes.
    """
    device = Device(late)
    names = language(device)

    class Kernel:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def __call__(self, *args: Any) -> Any:  # of another kernel
            return self.fn(*args)

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launched(
                *args: Any,
                num_warps: int,
                launch_pdl: bool,
                maxnreg: int | None = None,
                **constants: Any,
            ) -> None:
                device.grid, device.warps = (*grid, 1)[:2], num_warps
                for program in (
                    (a, b) for b in range(device.grid[1]) for a in range(device.grid[0])
                ):
                    device.program, device.waited = program, False
                    self.fn(
                        *(Pointer(x) if isinstance(x, Tensor) else x for x in args), **constants
                    )
                    assert device.waited

            return launched

    names |= {
        name: Kernel(value.fn)
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and name not in names
    }
    kept = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update({name: names[name] for name in kept})
    try:
        yield device
    finally:
        vars(module).update(kept)
