"""Modules of the user: `mine:Class` is found in the current folder, after all installed modules.

Importing a module runs it. The current folder may be untrusted, for example a checkpoint, so it is
used only when a user names a module that is found nowhere else.
"""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def find_object(module: str, name: str) -> Any:
    """The object `name`, which may have dots, of a module.

    If the module is not installed, the current folder is appended to `sys.path` for good, since the
    module may import others later. Raises the errors of the module, `ModuleNotFoundError` with the
    folder where a module that does not exist could be, and `ImportError` if an installed module
    hides one of the current folder.
    """
    top = module.partition(".")[0]
    here = Path.cwd()
    if (
        top not in sys.modules
        and importlib.util.find_spec(top) is None
        and str(here) not in sys.path
    ):
        sys.path.append(str(here))
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (AttributeError, ModuleNotFoundError) as error:
        hidden = next(
            (path for path in (here / f"{top}.py", here / top / "__init__.py") if path.is_file()),
            None,
        )
        found = getattr(sys.modules.get(top), "__file__", None)
        if (
            hidden is None
            or top not in sys.modules
            or (found is not None and Path(found) == hidden)
        ):
            if hidden is None and isinstance(error, ModuleNotFoundError) and error.name == top:
                raise ModuleNotFoundError(
                    f"No module named '{top}'; put `{top}.py` into the current folder, `{here}`, "
                    "or install it",
                    name=top,
                ) from error
            raise
        raise ImportError(
            f"`{top}` is an installed module ({found or 'without a file'}), which comes before "
            f"`{hidden.relative_to(here)}` of this "
            "folder: rename yours"
        ) from error
