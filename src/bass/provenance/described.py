"""Complete descriptions of strategies, as JSON, to distinguish evaluations."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def described(made: Any, spec: Any = None) -> Any:
    """The class of a strategy and its parameters, including those of strategies in it.

    spec: the argument of `make`. The parameters of a dataclass are its fields; those of another
    class are the given ones.
    """
    if made is None or isinstance(made, str | int | float | bool):
        return made
    if isinstance(made, list | tuple):
        specs = spec if isinstance(spec, list | tuple) and len(spec) == len(made) else made
        return [described(one, arguments) for one, arguments in zip(made, specs, strict=True)]
    if isinstance(made, Mapping):
        return {str(name): described(value) for name, value in made.items()}
    if isinstance(made, type):
        return _path(made)
    arguments = spec.get("init_args", {}) if isinstance(spec, Mapping) else {}
    own = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    values = {f.name: described(getattr(made, f.name, None), arguments.get(f.name)) for f in own}
    more = {name: described(value) for name, value in arguments.items() if name not in values}
    return {"class_path": _path(type(made)), "init_args": values | more}


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
