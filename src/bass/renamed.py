"""Former public names: importing one raises an `ImportError` with the new name."""

from collections.abc import Callable, Mapping
from typing import Any, final

# by new package: modules that moved there with their names, by old package
_MOVED = {
    "bass": {"bass.experiments": "problems report"},
    "bass.analysis": {
        "bass.experiments": "acceptance against_plain metrics repeats speed statistics units",
        "bass.evaluation": "intervals scores",
    },
    "bass.api": {"bass": "generation llm loading requests results"},
    "bass.checkpoints": {"bass": "hub", "bass.models": "bounds shards weights"},
    "bass.evaluation.sandbox": {"bass.evaluation": "candidate checker confine syscalls values"},
    "bass.provenance": {"bass.experiments": "fingerprints own_code sources"},
    "bass.report": {"bass.evaluation": "curves"},
    "bass.runs": {
        "bass.experiments": "drafts lines own_files prompts records run_folder settings strict work"
    },
}
# by old module: the new module
MODULES = {
    f"{old}.{name}": f"{new}.{name}"
    for new, places in _MOVED.items()
    for old, names in places.items()
    for name in names.split()
} | {
    "bass.kernels.reference": "bass.ops.attention",
    "bass.noise": "bass.ops.noise",
    "bass.verifiers.emit": "bass.ops.verification",
    "bass.evaluation.folder": "bass.runs.evaluation_folder",
    "bass.evaluation.reading": "bass.analysis.evaluated",
    "bass.evaluation.report": "bass.report.evaluation",
    "bass.experiments.provenance": "bass.provenance.environment",
    "bass.experiments.strategies": "bass.runs.words",
    "bass.models.checkpoint": "bass.checkpoints.folder",
    "bass.models.quantized": "bass.quantization",
}


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: an `ImportError` with the new name for each old name."""

    def find(name: str) -> Any:
        if name in names:
            raise _moved(f"{module}.{name}", names[name])
        raise AttributeError(f"module `{module}` has no attribute `{name}`")

    return find


def renamed_fields(record: str, names: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A class's `__getattr__`: an `AttributeError`, with the new name for each old name."""

    def find(self: Any, name: str) -> Any:
        now = f": it is now `{names[name]}`." if name in names else "."
        raise AttributeError(f"`{record}` has no `{name}`{now}")

    return find


@final
class MovedModules:
    """A finder of modules, the last of `sys.meta_path`: an `ImportError` with the new name for each
    of `MODULES`.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in MODULES:
            raise _moved(name, MODULES[name])


def _moved(old: str, new: str) -> ImportError:
    return ImportError(f"`{old}` is now `{new}`.", name=old.rpartition(".")[2])
