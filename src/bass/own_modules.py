"""Modules of the user: `mine:Class` is found in the current folder, after all installed modules."""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def find_object(module: str, name: str) -> Any:
    """The object `name`, which may have dots, of a module.

    If the module is not installed, the current folder is appended to `sys.path` for good, since the
    module may import others later. Raises the errors of the module, and `ImportError` for one that
    is nowhere, or that an installed one of its name hides.
    """
    top, here = module.partition(".")[0], Path.cwd()
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        sys.path.append(str(here))
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (AttributeError, ModuleNotFoundError) as error:
        own = here / f"{top}.py"
        installed = getattr(sys.modules.get(top), "__file__", None)
        if installed is not None and own.is_file() and Path(installed) != own:
            raise ImportError(
                f"`{top}` is an installed module ({installed}), which comes before `{own.name}` of "
                "this folder: rename yours"
            ) from error
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            raise ModuleNotFoundError(
                f"No module named '{top}'; put `{top}.py` into the current folder, `{here}`, or "
                "install it",
                name=top,
            ) from error
        raise
