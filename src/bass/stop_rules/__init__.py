"""Rules that end a draft early, by their names for `stop_rule=`."""

from bass.stop_rules.confidence import Confidence
from bass.stop_rules.entropy import Entropy
from bass.stop_rules.svip import Svip

STOP_RULES = {"confidence": Confidence, "entropy": Entropy, "svip": Svip}
__all__ = ["STOP_RULES", "Confidence", "Entropy", "Svip"]
