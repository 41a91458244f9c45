"""Drafters, by the name under which `drafter=` finds them."""

from bass.drafters.model import ModelDrafter
from bass.drafters.nothing import NoDrafter

DRAFTERS = {"model": ModelDrafter, "none": NoDrafter}
