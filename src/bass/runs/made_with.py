"""What the results in a folder are made with, as a hash next to them."""

import json
from dataclasses import dataclass
from typing import Any, final

from bass.provenance.fingerprints import hash_of_text
from bass.runs.strict import Json

FILE = "made_with.json"


@final
@dataclass(frozen=True)
class MadeWith(Json):
    """A hash of settings, inputs and software."""

    hash: str

    @classmethod
    def of(cls, *parts: Any) -> "MadeWith":
        """Of values that JSON has."""
        return cls(hash_of_text(json.dumps(parts, sort_keys=True)))
