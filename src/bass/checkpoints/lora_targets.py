"""The modules for which an adapter holds matrices by its adapter_config.json, as `peft` chooses
them: by the end of a name, by a regular expression, by the number of a layer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from bass.checkpoints.folder import ADAPTER_CONFIG
from bass.checkpoints.lora_config import LoraConfig
from bass.checkpoints.patterns import PatternError, matched
from bass.errors import CheckpointError

ALL_LINEAR = "all-linear"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
# linear layers in some versions of `transformers` alone: routers, and the matrices of each expert
_VARYING = re.compile(r".*(\.experts\.\d+\.|\.(gate|router)(\.\w+)?$).*")


def respelling(own: str, theirs: str, raw: str) -> Callable[[str], tuple[str, ...]]:
    """How the adapter may spell a module of the base model, found from one tensor's name.

    own, theirs: that name in the base model and in the adapter, without prefixes of wrappers; raw:
    its module in the adapter, with these.
    """
    pairs = zip(reversed(own), reversed(theirs), strict=False)
    shared = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    start, dropped = theirs[: len(theirs) - shared], own[: len(own) - shared]
    bare = theirs.removesuffix(".weight")
    lead = raw.removesuffix(bare) if raw.endswith(bare) else ""

    def respelled(module: str) -> tuple[str, ...]:
        name = start + module.removeprefix(dropped)
        return tuple(dict.fromkeys((name, lead + name)))

    return respelled


def lacking(
    config: LoraConfig, names: Mapping[str, Sequence[str]], linear: set[str], adapted: set[str]
) -> list[str]:
    """The modules of a model that the config names and that are not `adapted`, in order.

    names: of each module with a matrix, as the adapter may spell it. linear: those that count as
    linear layers of `all-linear`. Raises `CheckpointError` for a pattern that cannot be matched.
    """
    wanted = _targeted(config, names, linear, adapted) - _excluded(config, names)
    kinds = {_kind(module) for module in adapted}
    by_layers = config.raw.get("layers_to_transform") not in (None, [])

    def is_lacking(module: str) -> bool:
        varies = _VARYING.fullmatch(module) and (by_layers or _kind(module) not in kinds)
        return module in wanted and module not in adapted and not varies

    return [*filter(is_lacking, names)]


def _targeted(
    config: LoraConfig, names: Mapping[str, Sequence[str]], linear: set[str], adapted: set[str]
) -> set[str]:
    """The modules that the config's target_modules and layers_to_transform name; without
    target_modules, those of the kinds that are adapted.
    """
    targets = config.raw.get("target_modules")
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        return linear
    if isinstance(targets, str):
        return _matching(config, "target_modules", names)
    layers = config.raw.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) else layers
    kinds = {_kind(module) for module in adapted}
    found: set[str] = set()
    for module, spelled in names.items():
        if targets is None:
            chosen = _kind(module) in kinds
        elif {*spelled} & {*targets}:
            found.add(module)  # whatever its layer
            continue
        else:
            chosen = _ends(spelled, targets)
        if chosen and (not layers or _layer(config, spelled[0]) in layers):
            found.add(module)
    return found


def _excluded(config: LoraConfig, names: Mapping[str, Sequence[str]]) -> set[str]:
    """The modules that exclude_modules names, and those within a saved module."""
    excluded = config.raw.get("exclude_modules", [])
    if isinstance(excluded, str):
        found = _matching(config, "exclude_modules", names)
    else:
        found = {m for m, spelled in names.items() if _ends(spelled, excluded)}
    saved = [f".{module}." for module in config.saved]
    return found | {m for m, (one, *_) in names.items() if any(s in f".{one}." for s in saved)}


def _ends(spelled: Sequence[str], ends: Sequence[str]) -> bool:
    return any(f".{name}".endswith(f".{end}") for name in spelled for end in ends)


def _layer(config: LoraConfig, module: str) -> int | None:
    """The number of a module's layer: the first after a name of layers_pattern."""
    patterns = config.raw.get("layers_pattern") or [r"[^.]+"]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if found := re.match(rf"(?:.*?\.)?{pattern}\.(\d+)\.", module):
            return int(found[1])
    return None


def _kind(module: str) -> str:
    return _NUMBER.sub("#", module)


def _matching(config: LoraConfig, field: str, names: Mapping[str, Sequence[str]]) -> set[str]:
    """The modules with a name that the regular expression of a field matches."""
    spelled = [one for several in names.values() for one in several]
    try:
        (indices,) = matched([str(config.raw[field])], spelled, whole=True)
    except PatternError as error:
        raise CheckpointError(
            f"`{config.folder / ADAPTER_CONFIG}` has the {field} {error.pattern}, which {error}: "
            "correct it, or merge the adapter with `peft` and give the merged folder."
        ) from None
    found = {spelled[index] for index in indices}
    return {module for module, several in names.items() if found & {*several}}
