"""Triton's interpreter, without the work that it repeats.

At each launch of a kernel, and again at each call of a function within one, it searches all of
`triton.language` for what it has to replace; and it makes a table of types for each tensor. That is
a third of its time. Here, the search is made once, what it found is replaced for a launch and put
back after it, as ever, and a type is looked up once.
"""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

REPLACED = ("_patch_lang", "_LangPatchScope", "_get_np_dtype")  # private names of Triton 3.6


def hasten() -> None:
    """Once in a process; changes nothing where the interpreter is written in another way."""
    if not all(hasattr(interpreter, name) for name in REPLACED):
        return
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
