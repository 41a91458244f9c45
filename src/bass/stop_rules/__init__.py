"""Rules that end a draft early, by their names for `stop_rule=`."""

from bass.stop_rules.rules import Confidence, Entropy, Svip

STOP_RULES = {"confidence": Confidence, "entropy": Entropy, "svip": Svip}
__all__ = ["STOP_RULES", "Confidence", "Entropy", "Svip"]
