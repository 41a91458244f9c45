"""The adapter_config.json of a LoRA adapter: which fields it may have, and what each module gets.

A field of a type that JSON readers elsewhere would take for something else ("false" for true) is an
error, and so is every field that changes the computation in a way that is not merged.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.checkpoints.folder import ADAPTER_CONFIG, read_json
from bass.errors import CheckpointError, is_finite

_SIMPLE = re.compile(r"\^?[\w.]+\$?")  # a pattern of module names that is a name or its end
# fields that change the computation, unless empty
_UNSUPPORTED = (
    "use_dora", "layer_replication", "trainable_token_indices", "target_parameters", "lora_bias",
    "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config",
    "megatron_config", "monteclora_config", "velora_config",
)  # fmt: skip
# other ways to start training change the weights of the base model, which the adapter lacks
_STARTS = (True, False, None, "true", "false", "gaussian", "eva", "orthogonal")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _are_names(value: object) -> bool:
    return _are_texts(value) or (isinstance(value, str) and value != "")


def _are_layers(value: object) -> bool:
    listed = value if isinstance(value, list) else [value]
    return all(isinstance(one, int) and not isinstance(one, bool) for one in listed)


def _are_parts(value: object) -> bool:
    """Whether they are names of layers, which are read as patterns elsewhere."""
    listed = value if isinstance(value, list) else [value]
    return all(isinstance(one, str) and re.fullmatch(r"[\w.]*", one) for one in listed)


def _by_pattern(valid: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(valid, value.values()))


_FLAG = (_is_flag, "true or false")
# what a field must be, unless it is null or absent
_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "peft_type": (_is_text, "a text"),
    "bias": (_is_text, "a text"),
    "r": (_is_rank, "a whole number from 1"),
    "lora_alpha": (is_finite, "a number"),
    "rank_pattern": (_by_pattern(_is_rank), "a mapping of names to whole numbers from 1"),
    "alpha_pattern": (_by_pattern(is_finite), "a mapping of names to numbers"),
    "modules_to_save": (_are_texts, "a list of names"),
    "target_modules": (_are_names, "a list of names, or a text"),
    "exclude_modules": (_are_names, "a list of names, or a text"),
    "layers_to_transform": (_are_layers, "a whole number, or a list of them"),
    "layers_pattern": (_are_parts, "a name of layers, or a list of them"),
    "use_rslora": _FLAG,
    "use_dora": _FLAG,
    "use_qalora": _FLAG,
    "lora_bias": _FLAG,
    "fan_in_fan_out": _FLAG,
}


@final
@dataclass(frozen=True)
class LoraConfig:
    """The fields of a valid adapter_config.json that decide how tensors are merged."""

    folder: Path
    raw: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "LoraConfig":
        """Read and check the config. Raises `CheckpointError`."""
        path = folder / ADAPTER_CONFIG
        raw = {name: value for name, value in read_json(path).items() if value is not None}
        for name, (valid, form) in _TYPES.items():
            if name in raw and not valid(raw[name]):
                raise CheckpointError(
                    f"`{path}` has the {name} {raw[name]!r:.60}, which is not {form}: correct it, "
                    "or download the adapter again."
                )
        _check_supported(folder, raw)
        return cls(folder, raw)

    @property
    def saved(self) -> list[str]:
        """Names of modules whose tensors the adapter holds as a whole."""
        return self.raw.get("modules_to_save", [])

    def rank(self, module: str) -> int:
        """The rank of a module's matrices."""
        return self._of_module("rank_pattern", module, self.raw.get("r", 8))

    def scale(self, module: str) -> float:
        """The factor of a module's product: alpha / r, or by `use_rslora` alpha / sqrt(r)."""
        alpha = self._of_module("alpha_pattern", module, self.raw.get("lora_alpha", 8))
        rank = self.rank(module)
        return float(alpha) / (math.sqrt(rank) if self.raw.get("use_rslora") else rank)

    def _of_module(self, field: str, module: str, default: Any) -> Any:
        """The value of the first pattern that is the module's name, or its end after a dot."""
        for pattern, value in self.raw.get(field, {}).items():
            if not _SIMPLE.fullmatch(pattern):
                raise CheckpointError(
                    f"`{self.folder}` has the {field} {pattern!r:.100}, and `bass` reads names of "
                    "modules alone: merge it with `peft` and give the merged folder."
                )
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        return default


def _check_supported(folder: Path, config: dict[str, Any]) -> None:
    """Raise `CheckpointError` for a kind of adapter that is not merged."""
    kind = config.get("peft_type", "LORA")
    wrong = [f"{name}={config[name]!r:.60}" for name in _UNSUPPORTED if config.get(name)]
    if kind != "LORA":
        wrong.append(f"peft_type={kind!r:.60}")
    if config.get("bias", "none") != "none":
        wrong.append(f"bias={config['bias']!r:.60}")
    start = config.get("init_lora_weights", True)
    if not any(start is one or (isinstance(start, str) and start == one) for one in _STARTS):
        wrong.append(f"init_lora_weights={start!r:.60}")
    if wrong:
        raise CheckpointError(
            f"`{folder}` is an adapter with `{'`, `'.join(wrong)}`, which `bass` does not merge: "
            "merge it with `peft` and give the merged folder."
        )
