"""Medusa: heads on the target's final state, each for one of the next tokens (Cai et al., 2024).

    final state of position t      target -> token t+1,   head i -> token t+2+i

The last committed token is not fed yet, so the state is that of the token before it, and head i
drafts token i. No head reads a drafted token: q is a product over positions.
"""

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast, final

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu

from bass.drafters.chain import Chain, Fed, LastStates
from bass.drafters.heads import DraftHead, FamilyOf, NamedDraft, Shapes, over_vocabulary
from bass.interfaces import Drafter, DrafterContext
from bass.models.decoder import FINAL
from bass.models.fields import read
from bass.models.layers import LayerFactory
from bass.models.sources import WeightSource
from bass.records import DecoderShape, Draft, Noise, Observation, RowAssignment, Sequences


@dataclass(frozen=True)
class MedusaConfig:
    """Sizes of the heads: `heads`, each of `layers` residual layers and, if `has_head`, a matrix of
    logits of its own.
    """

    target_hidden_size: ClassVar[int] = 0  # as hidden_size
    hidden_size: int
    vocab_size: int
    heads: int
    layers: int = 1
    bias: bool = True
    has_head: bool = True

    @property
    def shape(self) -> DecoderShape:
        """A shape without attention, for any position."""
        return DecoderShape(self.vocab_size, 1, 1, self.hidden_size, 2**31 - 1, ())


@final
class MedusaHead(DraftHead):
    """The heads of Medusa: of x + silu(linear(x)), several times, a product."""

    one_pass = True

    def setup(self, c: MedusaConfig, make: LayerFactory) -> None:
        size = c.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleList(make.linear(size, size, c.bias) for _ in range(c.layers))
            for _ in range(c.heads)
        )
        own = range(c.heads * c.has_head)
        self.lm_heads = nn.ModuleList(make.linear(size, c.vocab_size) for _ in own)

    @classmethod
    def read_config(cls, raw: dict[str, Any], shapes: Shapes, family_of: FamilyOf) -> MedusaConfig:
        def numbers(pattern: str) -> int:
            found = (re.match(pattern, name) for name in shapes)
            return len({match[1] for match in found if match})

        heads = raw.get("medusa_num_heads", raw.get("num_heads"))
        layers = raw.get("medusa_num_layers", raw.get("num_hidden_layers"))
        own, found = shapes.get("lm_heads.0.weight"), raw | {"heads": heads, "layers": layers}
        if shapes:
            found |= {
                "heads": numbers(r"(?:blocks|lm_heads)\.(\d+)\."),
                "layers": numbers(r"blocks\.0\.(\d+)\.weight"),
                "hidden_size": (own or shapes.get("blocks.0.0.weight", (0, 0)))[1],
                "bias": "blocks.0.0.bias" in shapes,
                "has_head": own is not None,
            }
        found |= {"vocab_size": own[0]} if own else {}
        return read(MedusaConfig, found, {f.name: f.name for f in fields(MedusaConfig)})

    @classmethod
    def stored_name(cls, name: str) -> str:
        """FasterDecoding numbers a head, then its layers, of which the last one has the logits."""
        name = re.sub(r"^(model\.|medusa_heads?\.)+", "", name).replace(".layers.", ".", 1)
        name = re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.\2.", name)
        return re.sub(r"^(\d+)\.\d+\.", r"lm_heads.\1.", name)

    def sources(self) -> dict[str, WeightSource]:
        named = self.named_parameters()
        return {name: WeightSource((name,), (len(parameter),)) for name, parameter in named}

    def method(self) -> "Medusa":
        return Medusa()


@final
@dataclass(frozen=True)
class Medusa(NamedDraft):
    """Heads of Medusa, the folder of `draft=`: no draft is longer than their number."""

    paper: ClassVar[str] = "Cai et al., 2024 (Medusa, without its tree)"
    target_features: ClassVar[tuple[int, ...]] = (FINAL,)

    def build(self, context: DrafterContext) -> Drafter:
        head = self.own_head(context, MedusaHead, "its own heads")
        last = LastStates.of(context, head.config.hidden_size)
        return MedusaDrafter(head, context, Chain.of(context), last)


@final
@dataclass(frozen=True)
class MedusaDrafter(Drafter):
    """Drafts from the final state of each row's last committed token but one."""

    head: MedusaHead
    context: DrafterContext
    chain: Chain
    last: LastStates

    @property
    def label(self) -> str:
        return "the heads"

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.last.copy_rows(assignment)

    def observe(self, seen: Observation) -> None:
        self.last.observe(seen, seen.features[0])

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        k = min(k, self.head.config.heads)
        heads = iter(range(k))

        def logits_after(_: Fed | None) -> Tensor:
            return self.logits(next(heads))

        requested = self.last.lengths(sequences, lengths.clamp(max=k))
        return self.chain.drawn(logits_after, sequences, requested, k, noise)

    def logits(self, i: int) -> Float[Tensor, "batch 1 vocab"]:
        """Logits of head i over the target's vocabulary."""
        head, layers, x = self.head, self.head.blocks[i], self.last.values[:, None]
        self.context.count((layers,), range(i, i + 1))
        for layer in cast(nn.ModuleList, layers):
            x = x + silu(layer(x))
        own = self.context.unembed(x, head.lm_heads[i] if head.config.has_head else None)
        return over_vocabulary(own, None, self.context.vocab_size)
