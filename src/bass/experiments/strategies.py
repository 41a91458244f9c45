"""What strategies are called in labels and tables."""

import re
from collections.abc import Mapping
from typing import Any


def called(spec: Any) -> Any:
    """A short name for a value of a setting: of a strategy with parameters Name(k=4), of anything
    else itself.
    """
    if isinstance(spec, Mapping) and "class_path" in spec:
        name = str(spec["class_path"]).rpartition(":")[2].rpartition(".")[2]
        given = spec.get("init_args") or {}
        inside = (
            ", ".join(f"{key}={called(value)}" for key, value in given.items())
            if isinstance(given, Mapping)
            else repr(given)
        )
        return f"{name}({inside})" if inside else name
    if isinstance(spec, list | tuple):
        return "[" + ", ".join(str(called(one)) for one in spec) + "]"
    if isinstance(spec, str) and re.fullmatch(r"[\w.]+:[\w.]+", spec):  # a class of the user's
        return spec.rpartition(":")[2]
    return spec if isinstance(spec, str | int | float | bool | None) else repr(spec)
