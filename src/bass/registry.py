"""From what a user writes (a name, "package.module:Class", an object) to an object of a protocol."""

import importlib
import inspect
from typing import Any

from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.drafters import DRAFTERS
from bass.errors import BassError, OptionError, unknown_name
from bass.interfaces import AttentionBackend, Drafter, DraftLengthPolicy, KVCache, Verifier
from bass.policies import POLICIES
from bass.verifiers import VERIFIERS

REGISTRIES: dict[str, dict[str, type]] = {
    "policy": POLICIES,
    "drafter": DRAFTERS,
    "verifier": VERIFIERS,
    "cache": CACHES,
    "attention": BACKENDS,
}
PROTOCOLS: dict[str, type] = {
    "policy": DraftLengthPolicy,
    "drafter": Drafter,
    "verifier": Verifier,
    "cache": KVCache,
    "attention": AttentionBackend,
}


def find_class(kind: str, spec: str) -> type:
    """The class that a registered name or "package.module:Class" stands for."""
    registry = REGISTRIES[kind]
    if spec in registry:
        return registry[spec]
    if ":" not in spec:
        raise unknown_name(kind, spec, registry)
    module, _, name = spec.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's: anything can happen in it
        raise OptionError(
            f"Cannot load {kind} `{spec}` ({type(error).__name__}: {error}): give an importable `package.module:Class`."
        ) from error
    return _checked(kind, found, spec)


def make(kind: str, spec: Any, **arguments: Any) -> Any:
    """An object for `spec`; `arguments` go to the class that a name stands for."""
    if isinstance(spec, str):
        spec = find_class(kind, spec)
    elif isinstance(spec, type):
        spec = _checked(kind, spec, spec.__name__)
    elif PROTOCOLS[kind] in type(spec).__mro__:
        return spec
    else:
        raise OptionError(
            f"`{kind}={spec!r}` is no {kind}: give a name ({', '.join(sorted(REGISTRIES[kind]))}), `package.module:Class`, "
            f"or an object of a subclass of `bass.interfaces.{PROTOCOLS[kind].__name__}`."
        )
    try:
        return spec(**arguments)
    except BassError:
        raise
    except Exception as error:  # of a user's class, or of arguments that do not fit ours
        raise OptionError(f"Cannot make {kind} `{spec.__name__}`: {error}. It takes {inspect.signature(spec)}.") from error


def _checked(kind: str, found: Any, spec: str) -> type:
    protocol = PROTOCOLS[kind]
    if not (isinstance(found, type) and protocol in found.__mro__):
        raise OptionError(f"`{spec}` is no {kind}: it must be a class that subclasses `bass.interfaces.{protocol.__name__}`.")
    return found
