"""A hash of the inputs of a folder's results, stored next to them."""

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
        """The hash of JSON values."""
        return cls(hash_of_text(json.dumps(parts, sort_keys=True)))
