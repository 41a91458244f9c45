"""Draft methods by their names for `drafter=`."""

from bass.drafters.eagle import Eagle, EagleHead
from bass.drafters.ensemble import Ensemble
from bass.drafters.model import ModelDraft, ModelDrafter
from bass.drafters.mtp import Mtp, MtpHead
from bass.drafters.ngram import Ngram
from bass.drafters.nothing import NoDrafter
from bass.drafters.replay import Replay
from bass.drafters.self_draft import SelfDraft
from bass.drafters.suffix import Suffix

DRAFTERS = {
    "eagle": Eagle,
    "ensemble": Ensemble,
    "model": ModelDraft,
    "mtp": Mtp,
    "ngram": Ngram,
    "replay": Replay,
    "self": SelfDraft,
    "suffix": Suffix,
}
__all__ = [
    "DRAFTERS",
    "Eagle",
    "EagleHead",
    "Ensemble",
    "ModelDraft",
    "ModelDrafter",
    "Mtp",
    "MtpHead",
    "Ngram",
    "NoDrafter",
    "Replay",
    "SelfDraft",
    "Suffix",
]
