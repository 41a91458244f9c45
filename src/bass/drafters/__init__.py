"""Ways to draft, by the name under which `drafter=` finds them."""

from bass.drafters.model import ModelDraft, ModelDrafter
from bass.drafters.nothing import NoDrafter

DRAFTERS = {"model": ModelDraft, "none": NoDrafter}
__all__ = ["DRAFTERS", "ModelDraft", "ModelDrafter", "NoDrafter"]
