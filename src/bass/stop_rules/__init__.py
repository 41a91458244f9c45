"""Rules that end a draft early, by their names for `stop_rule=`."""

from bass.stop_rules.rules import Confidence, Entropy

STOP_RULES = {"confidence": Confidence, "entropy": Entropy}
__all__ = ["STOP_RULES", "Confidence", "Entropy"]
