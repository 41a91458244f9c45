"""The settings that define the decoded work, those that define how it is decoded, and the settings
of a cell in a manifest.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from bass.provenance.fingerprints import hash_of_text
from bass.runs.records import CellEntry
from bass.runs.settings import LIMITS, Settings

# Settings of the target; it is compared as resolved by `LoadPlan`.
AS_ORDERED = ("target", "device", "dtype", "quantization")
HOW = (
    "draft",
    "draft_lora",
    "draft_quantization",
    "policy",
    "drafter",
    "stop_rule",
    "verifier",
    "cache",
    "attention",
    "cuda_graphs",
    *LIMITS,
)
# settings in which a cell and its autoregressive counterpart must agree
ALIKE = [f.name for f in fields(Settings) if f.name not in (*AS_ORDERED, *HOW)]
# settings that compared cells share, so that their tokens follow the same distribution
WORK = ["target", *(name for name in ALIKE if name != "repeats")]
_LONGEST = 200  # characters of a value that is written in full


def own_settings(settings: Settings, base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the base run's, for the manifest."""
    return {
        name: short(value)
        for name, value in asdict(settings).items()
        if name not in base or short(value) != short(base[name])
    }


def settings_of(entry: CellEntry, config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a cell of a run of this config; long values by `short`."""
    base = config.get("base")
    known = {str(k): short(v) for k, v in base.items()} if isinstance(base, Mapping) else {}
    return known | entry.own


def short(value: Any) -> Any:
    """A value as JSON; a long one as a text with its hash."""
    text = json.dumps(value, default=str, sort_keys=True)
    if len(text) <= _LONGEST:
        return json.loads(text)
    count = f"{len(value)} of them, " if isinstance(value, list | tuple) else ""
    return f"({count}hash {hash_of_text(text)})"
