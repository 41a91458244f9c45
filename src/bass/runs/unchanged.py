"""Whether the files that results are made with are still what was recorded at the start."""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import final

from bass.api.plan import CHECKPOINTS
from bass.checkpoints.hub import resolve
from bass.provenance.made_with import hash_of_checkpoint
from bass.provenance.sources import Sources
from bass.runs.changes import other_inputs

# of each loaded own module, its identity and the hash of its file when it was first seen: later
# edits of the file do not run, and restoring the file does not change what runs
_loaded: dict[str, tuple[object, str]] = {}


@final
class Unchanged:
    """Compares checkpoints and own modules with their recorded fingerprints.

    Make it after the models are loaded. inputs: by name, as `fingerprints` gives them; other kinds
    are ignored.
    """

    def __init__(self, inputs: Mapping[str, str]) -> None:
        kinds = {name: name.partition(" ")[::2] for name in inputs}
        self._folders = {
            name: resolve(rest) for name, (kind, rest) in kinds.items() if kind in CHECKPOINTS
        }
        self._modules = {name: rest for name, (kind, rest) in kinds.items() if kind == "module"}
        self._then = {name: inputs[name] for name in (*self._folders, *self._modules)}

    def changes(self) -> list[str]:
        """What has changed, in words; a file is hashed again only if its size or times differ."""
        now = {name: hash_of_checkpoint(folder) for name, folder in self._folders.items()}
        sources = Sources()
        for name, module in self._modules.items():
            now[name] = self._hash_of_module(module, self._then[name], sources)
        return other_inputs(self._then, now)

    def _hash_of_module(self, module: str, then: str, sources: Sources) -> str:
        """The hash of a module's file; of a loaded one, when it was first seen loaded."""
        loaded = sys.modules.get(module)
        known, first = _loaded.get(module, (None, ""))
        is_known = loaded is not None and known is _identity(loaded)
        # a package may still import files
        if is_known and (first != then or not hasattr(loaded, "__path__")):
            return first
        now = sources.hash_of_module(module)
        if loaded is not None and not is_known:
            _loaded[module] = _identity(loaded), now
        return now


def _identity(loaded: ModuleType) -> object:
    """An object that another import or a reload of the module replaces."""
    return getattr(loaded, "__spec__", None) or loaded
