"""MTP: a layer trained with the target drafts from its final states (Gloeckle et al., 2024;
DeepSeek-AI, 2024).

    row t      norm(state of position t), norm(embedding of token t+1) -> fc -> layer -> norm -> u
    logits     head(u) of token t+2; row t+1 of a draft reads u in place of the target's state
"""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import nn

from bass.drafters.eagle import ChainDrafter, ChainHead
from bass.drafters.heads import FamilyOf, Hidden, NamedDraft, Shapes
from bass.errors import CheckpointError
from bass.interfaces import Attend, Drafter, DrafterContext
from bass.models.config import FULL, FamilyConfig
from bass.models.decoder import FINAL, RotaryDecoder
from bass.models.layers import LayerFactory
from bass.models.sources import Names, WeightSource, named_sources
from bass.ops.norms import RMSNorm
from bass.ops.residual import Residual, joined, normed
from bass.records import Features, Window


@final
@dataclass(frozen=True)
class Form:
    """What a producer's MTP layers differ in.

    `fc`: the name of the product that joins both inputs, its first group the start of all names.
    `block`: what the names of the decoder block have after it. `names`: of the other modules.
    `state_first`: order of the inputs of `fc`. `blind_start`: the embedding is 0 at position 0.
    `plus`: added to stored weights of norms.
    """

    fc: str
    names: Names
    block: str = ""
    state_first: bool = False
    blind_start: bool = False
    plus: float = 0.0


_MTP_LAYERS: Names = {
    "fc": "input_proj",
    "embed_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "norm": "final_layernorm",
}
FORMS = {
    "mimo": Form(r"(mtp_layers\.\d+\.)input_proj", _MTP_LAYERS, state_first=True, blind_start=True),
    "speculators": Form(r"(mtp_layers\.\d+\.)input_proj", _MTP_LAYERS),
    "deepseek": Form(  # and GLM
        r"(layers\.\d+\.)eh_proj",
        {
            "fc": "eh_proj",
            "embed_norm": "enorm",
            "hidden_norm": "hnorm",
            "norm": "shared_head.norm",
            "embed": "embed_tokens.weight",
            "head": "shared_head.head",
        },
        blind_start=True,
    ),
    "qwen": Form(
        r"(mtp\.)fc",
        {
            "fc": "fc",
            "embed_norm": "pre_fc_norm_embedding",
            "hidden_norm": "pre_fc_norm_hidden",
            "norm": "norm",
        },
        block="layers.0.",
        plus=1.0,
    ),
}


@final
@dataclass(frozen=True)
class MtpConfig:
    """The config of one layer of the target's family, whose fields it has too; `form`: of `FORMS`;
    `prefix`: the start of its names.
    """

    layer: FamilyConfig
    family: type[RotaryDecoder]
    form: str
    prefix: str = ""
    has_embed: bool = False
    has_head: bool = False
    target_hidden_size: ClassVar[int] = 0  # as hidden_size

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "layer"), name)


@final
class MtpHead(ChainHead):
    """The first MTP layer of a folder; further ones, trained for later tokens, are not read."""

    def setup(self, c: MtpConfig, make: LayerFactory) -> None:
        self.form, self.family = FORMS[c.form], c.family
        vocab, hidden, layer = c.layer.vocab_size, c.layer.hidden_size, c.layer
        make = LayerFactory(layer, self.family.norm_type, *make.at)
        decoder: Any = self.family(layer, torch.device("meta"), make.dtype)  # pyright: ignore[reportCallIssue]
        decoder.setup(layer, make)  # on the device
        self.embed_norm, self.hidden_norm, self.norm = make.norm(), make.norm(), make.norm()
        self.fc, self.rotary = make.linear(2 * hidden, hidden), decoder.rotary
        self.blocks = nn.ModuleList([decoder.block(layer, make, 0)])
        self.embed = make.empty(vocab, hidden) if c.has_embed else None
        self.head = make.linear(hidden, vocab) if c.has_head else None
        self.token_ids = None

    @classmethod
    def read_config(cls, raw: dict[str, Any], shapes: Shapes, family_of: FamilyOf) -> MtpConfig:
        of_speculators = "transformer_layer_config" in raw
        raw = raw | (raw.get("transformer_layer_config") or {})
        family, name = family_of(raw), raw["model_type"]
        if not issubclass(family, RotaryDecoder):
            raise CheckpointError(
                f"the MTP layer is of model_type `{name}`, and `bass` reads those of "
                "its families with rotary positions."
            )
        kinds = {"layer_types": [FULL]} if raw.get("layer_types") else {}
        layer = family.config_type.from_json(raw | {"num_hidden_layers": 1} | kinds)
        own = "mimo" if name == "mimo" else "deepseek"
        candidates = ["speculators" if of_speculators else own, *FORMS]
        if not shapes:
            return MtpConfig(layer, family, candidates[0])
        for form in candidates:
            found = [re.fullmatch(rf"{FORMS[form].fc}\.weight", name) for name in shapes]
            if starts := [match[1] for match in found if match]:
                start, names = min(starts, key=lambda one: (len(one), one)), FORMS[form].names
                embed, head = (
                    f"{start}{name}" in shapes
                    for name in (names.get("embed"), f"{names.get('head')}.weight")
                )
                return MtpConfig(layer, family, form, start, embed, head)
        raise CheckpointError(
            "the folder holds no tensors of an MTP layer: give one that does as `draft`, or "
            "another drafter. Quantizers often leave them out."
        )

    def sources(self) -> dict[str, WeightSource]:
        c, form = self.config, self.form
        names = {**self.family.names, **form.names, "blocks": "blocks"}
        adds = form.plus and self.family.norm_type is RMSNorm

        def stored(name: str) -> str:
            own = name.removeprefix("blocks.0.")
            return c.prefix + (form.block if own != name else "") + own

        return {
            own: replace(
                source,
                tensors=tuple(map(stored, source.tensors)),
                plus=form.plus if adds and "norm" in own else source.plus,
            )
            for own, source in named_sources(self, names).items()
        }

    def ignores(self, name: str) -> bool:
        """A folder may hold the whole target too."""
        return super().ignores(name) or not name.startswith(self.config.prefix)

    def method(self) -> "Mtp":
        return Mtp()

    def fused_features(self, features: Features) -> Hidden:
        return features[0]

    def states(self, embedded: Hidden, g: Hidden, window: Window, attend: Attend) -> Hidden:
        """The recurrent states, after the layer's own norm."""
        form = self.form
        if form.blind_start:
            embedded = embedded.masked_fill(window.positions[..., None] == 0, 0)
        read = normed(embedded, self.embed_norm), normed(g, self.hidden_norm)
        x = Residual(self.fc(joined(*(read[::-1] if form.state_first else read))))
        x = self.blocks[0](x, self.rotary(window.positions), attend, 0)
        return x.normed(self.norm).tensor()

    def read(self, u: Hidden) -> Hidden:
        return u


@final
@dataclass(frozen=True)
class Mtp(NamedDraft):
    """The target's own MTP layer: drafts token by token from its final state.

    It is read from the target's folder, or from the one that `draft=` names.
    """

    paper: ClassVar[str] = "Gloeckle et al., 2024; DeepSeek-AI, 2024"
    draft_in_target: ClassVar[bool] = True
    target_features: ClassVar[tuple[int, ...]] = (FINAL,)

    def build(self, context: DrafterContext) -> Drafter:
        head = self.own_head(context, MtpHead, "an MTP layer")
        return ChainDrafter.of(head, context)
