"""Triton's interpreter, without the work that it repeats.

At each launch of a kernel, and again at each call of a function within one, it searches all of
`triton.language` for what it has to replace; and it makes a table of types for each tensor. Here,
the search is made once, what it found is replaced for a launch and put back after it, as ever, and
a type is looked up once.

Each value of a kernel gets a type and a shape, written out as texts; here, once for each shape.
Each sum of integers makes an assertion that it did not overflow, of ten operations, which the
interpreter then drops (`InterpreterOptions.debug`); here, none is made. Both are three quarters of
the interpreter's time.
"""

import functools
import inspect
import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton._utils import validate_block_shape
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

REPLACED = ("_patch_lang", "_LangPatchScope", "_get_np_dtype")  # private names of Triton 3.6
SHORTENED = {  # and parameters of its methods
    (tl.tensor, "__init__"): ["self", "handle", "type"],
    (tl.block_type, "__init__"): ["self", "element_ty", "shape"],
    (TritonSemantic, "binary_op_sanitize_overflow_impl"): ["self", "lhs", "rhs", "binary_op"],
}


def hasten() -> None:
    """Once in a process; changes nothing where the interpreter is written in another way."""
    if all(hasattr(interpreter, name) for name in REPLACED):
        _search_once()
    methods = [(getattr(of, name, hasten), own) for (of, name), own in SHORTENED.items()]
    if os.environ.get("TRITON_INTERPRET") == "1" and all(
        list(inspect.signature(method).parameters) == own for method, own in methods
    ):
        tl.tensor.__init__ = _init_tensor
        tl.block_type.__init__ = _init_block_type
        if not interpreter.InterpreterOptions().debug:
            TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None


def _search_once() -> None:
    search, found = interpreter._patch_lang, {}

    def patch(_: Any) -> Any:
        if not found:
            scope = search(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
            found.update({(of, name): getattr(of, name) for of, name, _ in scope._changes})
            return scope
        scope = interpreter._LangPatchScope()
        if tl.range is not found[tl, "range"]:  # else within a launch
            for (of, name), value in found.items():
                scope.set_attr(of, name, value)
        return scope

    interpreter._patch_lang = patch
    of_element = functools.cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda kind: (
        np.dtype(np.uint64) if isinstance(kind.scalar, tl.pointer_type) else of_element(kind.scalar)
    )


@functools.cache
def _block(shape: tuple[int, ...]) -> tuple[Any, int, str, Any, Any]:
    """Of a block of this shape: the attributes of its type, then those of a tensor."""
    of_type = tl.tuple(shape)
    numel = validate_block_shape(of_type)
    of_tensor = tl.tuple([tl.constexpr(size) for size in shape])
    return of_type, numel, str(of_type), of_tensor, tl.constexpr(math.prod(shape))


_SCALAR = tl.tuple([]), tl.constexpr(1)


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _block(tuple(type.shape.values))[3:] if type.is_block() else _SCALAR


def _init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    self.element_ty = element_ty
    self.shape, self.numel, text, *_ = _block(sizes)
    self.name = f"<{text}, {element_ty}>"
