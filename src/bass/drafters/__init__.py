"""Draft methods by their names for `drafter=`."""

from bass.drafters.block import Block, BlockHead
from bass.drafters.eagle import Eagle, EagleHead
from bass.drafters.ensemble import Ensemble
from bass.drafters.medusa import Medusa, MedusaHead
from bass.drafters.model import ModelDraft, ModelDrafter
from bass.drafters.mtp import Mtp, MtpHead
from bass.drafters.ngram import Ngram
from bass.drafters.nothing import NoDrafter
from bass.drafters.replay import Replay
from bass.drafters.self_draft import SelfDraft
from bass.drafters.several import Choice
from bass.drafters.suffix import Suffix
from bass.drafters.whole_texts import record_states

DRAFTERS = {
    "block": Block,
    "choice": Choice,
    "eagle": Eagle,
    "ensemble": Ensemble,
    "medusa": Medusa,
    "model": ModelDraft,
    "mtp": Mtp,
    "ngram": Ngram,
    "replay": Replay,
    "self": SelfDraft,
    "suffix": Suffix,
}
__all__ = [
    "DRAFTERS",
    "Block",
    "BlockHead",
    "Choice",
    "Eagle",
    "EagleHead",
    "Ensemble",
    "Medusa",
    "MedusaHead",
    "ModelDraft",
    "ModelDrafter",
    "Mtp",
    "MtpHead",
    "Ngram",
    "NoDrafter",
    "Replay",
    "SelfDraft",
    "Suffix",
    "record_states",
]
