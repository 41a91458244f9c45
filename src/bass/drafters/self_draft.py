"""The target drafts for itself with its first layers."""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.drafters.model import ModelDrafter
from bass.errors import counted
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.option import within


@final
@dataclass(frozen=True)
class SelfDraft(DraftMethod):
    """Drafts with the target's first `layers`, then its own norm and head. No draft model, no
    second cache.

    At drafted positions it writes the same keys and values to the target's cache as the target's
    first layers do when they verify the draft. It pays off for models that were trained to predict
    early, as by LayerSkip.
    """

    paper: ClassVar[str] = (
        "Zhang et al., 2024 (self-speculative decoding); Elhoushi et al., 2024 (LayerSkip)"
    )

    obeys_stop_rules: ClassVar[bool] = True

    layers: int = within("[1, inf)", 2)

    @property
    def target_layers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.layers

    def build(self, context: DrafterContext) -> Drafter:
        model = f"the target's first {counted(self.layers, 'layer')}"
        return ModelDrafter(
            context.first_layers(self.layers), context.warp, context.draw, context.stop_rule, model
        )
