"""Medusa: heads on the target's final state, each for one of the next tokens (Cai et al., 2024).

    final state of position t      target -> token t+1,   head i -> token t+2+i

The last committed token is not fed yet, so the state is that of the token before it, and head i
drafts token i. No head reads a drafted token: q is a product over positions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu

from bass.drafters.eagle import LastStates
from bass.drafters.model import Chain, Fed, NamedDraft
from bass.interfaces import Drafter, DrafterContext
from bass.models.decoder import FINAL
from bass.models.fields import LARGEST, Size, read
from bass.models.heads import DraftHead, over_vocabulary
from bass.models.layers import LayerFactory
from bass.models.sources import WeightSource
from bass.records import DecoderShape, Draft, Noise, Observation, RowAssignment, Sequences


@dataclass(frozen=True)
class MedusaConfig:
    """Sizes of the heads: `heads`, each of `layers` residual layers and, if `has_head`, a matrix of
    logits of its own.
    """

    target_hidden_size: ClassVar[int] = 0  # as hidden_size
    draft_vocab_size: ClassVar[int] = 0  # all
    features: ClassVar[tuple[int, ...]] = (FINAL,)
    hidden_size: Size
    vocab_size: Size
    heads: Size
    layers: int = 1
    bias: bool = True
    has_head: bool = True

    def for_target(self, target: Any) -> "MedusaConfig":
        """The config, which needs nothing of a target's."""
        return self

    @property
    def shape(self) -> DecoderShape:
        """A shape without attention, for any position."""
        return DecoderShape(self.vocab_size, 1, 1, self.hidden_size, LARGEST, ())


class ResidualLayers(nn.Module):
    """x + silu(linear(x)), several times."""

    def __init__(self, c: MedusaConfig, make: LayerFactory) -> None:
        super().__init__()
        layers = (make.linear(c.hidden_size, c.hidden_size, c.bias) for _ in range(c.layers))
        self.layers = nn.ModuleList(layers)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        for layer in self.layers:
            x = x + silu(layer(x))
        return x


@final
class MedusaHead(DraftHead):
    """The heads of Medusa, with vLLM's names of their tensors."""

    def setup(self, c: MedusaConfig, make: LayerFactory) -> None:
        self.blocks = nn.ModuleList(ResidualLayers(c, make) for _ in range(c.heads))
        own = range(c.heads * c.has_head)
        self.lm_heads = nn.ModuleList(make.linear(c.hidden_size, c.vocab_size) for _ in own)

    @classmethod
    def read_config(
        cls, raw: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
    ) -> MedusaConfig:
        first, own = shapes.get("blocks.0.layers.0.weight"), shapes.get("lm_heads.0.weight")
        numbered = [re.match(r"(?:blocks|lm_heads)\.(\d+)\.", name) for name in shapes]
        pattern = r"blocks\.0\.layers\.\d+\.weight"
        stored = {
            "heads": len({found[1] for found in numbered if found}),
            "hidden_size": (own or first or (0, 0))[1],
            "vocab_size": own[0] if own else None,
            "layers": sum(re.fullmatch(pattern, name) is not None for name in shapes),
            "bias": "blocks.0.layers.0.bias" in shapes,
            "has_head": own is not None,
        }
        if not shapes:
            heads = raw.get("medusa_num_heads", raw.get("num_heads"))
            layers = raw.get("medusa_num_layers", raw.get("num_hidden_layers"))
            stored = {"heads": heads, "layers": layers}
        found = raw | {name: value for name, value in stored.items() if value is not None}
        names = ("hidden_size", "vocab_size", "heads", "layers", "bias", "has_head")
        return read(MedusaConfig, found, {name: name for name in names})

    @classmethod
    def stored_name(cls, name: str) -> str:
        """FasterDecoding numbers a head, then its layers, of which the last one has the logits."""
        name = re.sub(r"^(model\.|medusa_heads?\.)+", "", name)
        name = re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name)
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

    @property
    def target_features(self) -> tuple[int, ...]:
        return (FINAL,)

    def build(self, context: DrafterContext) -> Drafter:
        head = self.own_head(context, MedusaHead, "its own heads")
        return MedusaDrafter.of(head, context)


@final
@dataclass(frozen=True)
class MedusaDrafter(Drafter):
    """Drafts from the final state of each row's last committed token but one."""

    head: MedusaHead
    context: DrafterContext
    chain: Chain
    last: LastStates

    @classmethod
    def of(cls, head: MedusaHead, context: DrafterContext) -> "MedusaDrafter":
        """The drafter of a run."""
        last = LastStates.empty(context.batch, head.config.hidden_size, context.embed)
        return cls(head, context, Chain.of(context), last)

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
        head, block = self.head, self.head.blocks[i]
        self.context.count((block,), range(i, i + 1))
        x = block(self.last.values[:, None])
        own = self.context.unembed(x, head.lm_heads[i] if head.config.has_head else None)
        return over_vocabulary(own, None, self.context.vocab_size)
