"""EAGLE: a head of few layers drafts from the target's hidden states (Li et al., 2024, 2025).

    row t of the head      feature of position t, embedding of token t+1  ->  token t+2

    observed, positions    lens_old-1 .. lens-2    true features; the last row gives d1 and u
    drafting               lens-1, lens ...        (u, d1) -> d2, (u, d2) -> d3 ...
    P-EAGLE, in one pass   lens-1, lens ...        (mask, mask) -> d2, (mask, mask) -> d3 ...

What drafting writes to the head's cache at positions from lens-1 on used approximate features; the
next observation writes the committed ones again, with true features.
"""

import copy
import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.drafters.chain import Chain, Fed, LastStates
from bass.drafters.eagle_config import EagleConfig, Ids, read_eagle
from bass.drafters.heads import (
    DraftHead,
    FamilyOf,
    Hidden,
    MappedHead,
    NamedDraft,
    OpenRule,
    Shapes,
    over_vocabulary,
)
from bass.errors import PairingError
from bass.interfaces import Attend, Drafter, DrafterContext, LayerCache
from bass.models.layers import Attention, GatedMLP, LayerFactory
from bass.ops.norms import RMSNorm
from bass.ops.residual import Residual, embedding, joined, normed
from bass.records import Draft, Features, Noise, Observation, RowAssignment, Sequences, Window

MOST_STATES = 16  # with a norm of their own
ALSO_CALLED = {  # by some producer: its name, and that of `EagleHead.names`
    r"^(layers\.[1-9]\d*)\.hidden_norm\.": r"\1.input_layernorm.",
    "^aux_norm_low": "fc_norm.0",
    "^aux_norm_mid": "fc_norm.1",
    "^aux_norm_high": "fc_norm.2",
}


class EagleBlock(nn.Module):
    """The first layer of EAGLE-3: its attention reads the normed embedding and feature."""

    def __init__(self, c: EagleConfig, make: LayerFactory) -> None:
        super().__init__()
        norm = make.head_norm() if c.qk_norm else None
        self.embed_norm, self.hidden_norm, self.mlp_norm = make.norm(), make.norm(), make.norm()
        size = 2 * c.hidden_size
        self.attention = Attention(make, c.qkv_bias, c.out_bias, norm, inputs=size)
        self.mlp, self.norm_before_residual = GatedMLP(make, c.mlp_bias), c.norm_before_residual

    def __call__(
        self, embedded: Hidden, g: Hidden, rotation: Any, attend: Attend, layer: int
    ) -> Residual:
        of_g = normed(g, self.hidden_norm)
        read = joined(normed(embedded, self.embed_norm), of_g)
        x = Residual(of_g if self.norm_before_residual else g)
        x = x.plus(self.attention(read, rotation, attend, layer))
        return x.plus(self.mlp(x.normed(self.mlp_norm)))


class ChainHead(DraftHead):
    """A head that drafts token by token, each state from the one before and a token.

    `blocks`: its layers. `embed`, `head`: None: the target's. `token_ids`: the target's ids of the
    rows of `head`; None: the same. `masked`: the feature of slots without a token before, which
    draft in one pass; None: each slot needs the state and the token before.
    """

    blocks: nn.ModuleList
    embed: nn.Parameter | None
    head: nn.Module | None
    token_ids: Tensor | None
    masked: Float[Tensor, "1 1 width"] | None = None

    @abstractmethod
    def fused_features(self, features: Features) -> Hidden:
        """One state of the target's states."""

    @abstractmethod
    def states(self, embedded: Hidden, g: Hidden, window: Window, attend: Attend) -> Hidden:
        """The recurrent states of a window, whose tokens have the features g."""

    @abstractmethod
    def read(self, u: Hidden) -> Hidden:
        """What the matrix of logits reads of recurrent states."""


@final
class EagleHead(MappedHead, ChainHead):
    """The head of EAGLE-3, or of EAGLE-1 and 2."""

    names = MappedHead.names | {
        "input_norm": "input_norm",
        **{f"state_norms.{i}": f"fc_norm.{i}" for i in range(MOST_STATES)},
        "attention_norm": "input_layernorm",
        "embed_norm": "input_layernorm",
        "mask_hidden": "mask_hidden",
    }

    def setup(self, c: EagleConfig, make: LayerFactory) -> None:
        self.fusing = ("input_norm", "state_norms", "fc") if c.version == 3 else ()
        of_target = c.target_hidden_size or c.hidden_size
        inputs = c.feature_count * of_target if c.version == 3 else c.hidden_size + of_target
        self.input_norm = RMSNorm(inputs, c.rms_norm_eps, *make.at) if c.norm_before_fc else None
        norms = [
            RMSNorm(of_target, c.rms_norm_eps, *make.at)
            for _ in range(c.feature_count * c.norms_of_states)
        ]
        self.state_norms = nn.ModuleList(norms)
        self.fc = make.linear(inputs, c.hidden_size, c.fc_bias) if c.has_fc else None
        self.mask_hidden = make.empty(1, 1, inputs) if c.parallel else None
        self.one_pass = c.parallel
        first = EagleBlock(c, make) if c.version == 3 else self.block(c, make)
        if c.version != 3 and not c.has_first_norm:
            first.attention_norm = nn.Identity()  # EAGLE-1 has none
        others = (self.block(c, make) for _ in range(1, c.num_hidden_layers))
        self.setup_own(c, make, (first, *others))
        self.norm = make.norm() if c.has_norm else None
        if self.embed is not None and c.tie_word_embeddings and self.head is None:
            self.head = make.linear(c.hidden_size, c.vocab_size)
            self.head.weight = self.embed

    @classmethod
    def read_config(cls, raw: dict[str, Any], shapes: Shapes, family_of: FamilyOf) -> EagleConfig:
        return read_eagle(raw, shapes)

    @classmethod
    def stored_name(cls, name: str) -> str:
        name = super().stored_name(name)
        for pattern, ours in ALSO_CALLED.items():
            name = re.sub(pattern, ours, name)
        return name

    def method(self) -> "Eagle":
        return Eagle()

    def described(self, layers: int) -> dict[str, str]:
        c, names = self.config, ("norm_before_fc", "norms_of_states", "norm_before_residual")
        norms = [name for name in (*names, "norm_output", "qk_norm") if getattr(c, name)]
        ids = f", {c.ids}s of layers {', '.join(map(str, c.layer_ids))}" if c.layer_ids else ""
        return {
            "vocabulary": f"{c.draft_vocab_size or c.vocab_size:,} of {c.vocab_size:,} tokens",
            "producer": c.producer or "not shown by the files",
            "states of the target": ", ".join(map(str, c.feature_ids(layers))) + ids,
            "norms": ", ".join(norms),
        }

    def open_rules(self, layers: int) -> list[OpenRule]:
        c, found = self.config, list[OpenRule]()
        if not c.known_ids(layers):
            other: Ids = "input" if c.ids == "output" else "output"
            text = f"whether its ids of states are inputs or outputs of layers ({c.ids}s here)"
            found.append(OpenRule(text, Eagle(ids=other)))
        if not c.known_norm_output:
            text = "whether drafting continues from states after the last norm (they do here)"
            found.append(OpenRule(text, Eagle(norm_output=False)))
        return found

    @property
    def masked(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.mask_hidden is None:
            return None
        return self.fused_features(self.mask_hidden.chunk(self.config.feature_count, -1))

    def fused_features(self, features: Features) -> Hidden:
        """One state of the target's states; of EAGLE-1 the only one."""
        if self.config.version != 3:
            return features[0]
        norms = self.state_norms
        each = zip(norms, features, strict=True)
        parts = [normed(x, norm) for norm, x in each] if norms else features
        both = joined(*parts)
        both = both if self.input_norm is None else normed(both, self.input_norm)
        return both if self.fc is None else self.fc(both)

    def states(self, embedded: Hidden, g: Hidden, window: Window, attend: Attend) -> Hidden:
        rotation = self.rotary(window.positions)
        if self.config.version == 3:
            x = self.blocks[0](embedded, g, rotation, attend, 0)
        else:
            assert self.fc is not None
            x = Residual(self.fc(joined(embedded, g)))
            x = self.blocks[0](x, rotation, attend, 0)
        for layer, block in enumerate([*self.blocks][1:], 1):
            x = block(x, rotation, attend, layer)
        last = self.norm if self.config.norm_output else None
        return x.tensor() if last is None else x.normed(last).tensor()

    def read(self, u: Hidden) -> Hidden:
        c = self.config
        x = u
        if self.norm is not None and not c.norm_output:
            x = normed(u, self.norm)
        return x if c.logit_scale == 1 else x * c.logit_scale


@final
@dataclass(frozen=True)
class Eagle(NamedDraft):
    """A head of EAGLE, the folder of `draft=`: drafts token by token from the target's states.

    By default all is as in the head's files. `features`: the states that it reads, as of
    `DraftMethod.target_features`. `ids`: what its ids of states mean, "input" or "output" of a
    layer. `norm_output`: whether drafting continues from states after the head's norm.
    """

    paper: ClassVar[str] = "Li et al., 2024, 2025 (EAGLE, EAGLE-3)"

    features: tuple[int, ...] = ()
    ids: Ids | None = None
    norm_output: bool | None = None

    @property
    def target_features(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.features

    def with_head(self, head: nn.Module | None, layers: int) -> "Eagle":
        if not isinstance(head, EagleHead):
            return self
        c, states = head.config, self.features or head.config.feature_ids(layers, self.ids)
        if len(states) != c.feature_count:
            raise PairingError(
                f"The head reads {c.feature_count} states of the target, and there are "
                f"{len(states)} ({', '.join(map(str, states))}): give as many as `features` of "
                "`Eagle`."
            )
        norm = c.norm_output if self.norm_output is None else self.norm_output
        return replace(self, features=states, ids=self.ids or c.ids, norm_output=norm)

    def build(self, context: DrafterContext) -> Drafter:
        head = self.own_head(context, EagleHead, "a head of EAGLE")
        if self.norm_output not in (None, head.config.norm_output):
            head = copy.copy(head)  # with the same weights
            head.config = replace(head.config, norm_output=self.norm_output)
        return ChainDrafter.of(head, context)


@final
@dataclass(frozen=True)
class ChainDrafter(Drafter):
    """Drafts from the recurrent state of each row's last committed token but one."""

    head: ChainHead
    cache: LayerCache
    context: DrafterContext
    chain: Chain
    last: LastStates
    masked: Float[Tensor, "1 1 width"] | None = None  # of the head

    @classmethod
    def of(cls, head: ChainHead, context: DrafterContext) -> "ChainDrafter":
        """The drafter of a run."""
        cache = context.cache(head.shape)
        last = LastStates.of(context, head.config.hidden_size)
        return cls(head, cache, context, Chain.of(context), last, head.masked)

    @property
    def label(self) -> str:
        return "the head"

    def reserve(self, assignment: RowAssignment) -> None:
        self.cache.reserve(assignment)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.cache.copy_rows(assignment)
        self.last.copy_rows(assignment)

    def observe(self, seen: Observation) -> None:
        """Feed the committed tokens with their true features."""
        fed = replace(seen.window, tokens=seen.following)
        self.context.count(self.head.modules_of(self.head.fusing))
        self.context.count(self.head.drafting("head"), shape=self.head.shape)

        def run(fed: Window, *features: Tensor) -> tuple[Tensor]:
            return (self._states(fed, self.head.fused_features(features)),)

        self.last.observe(seen, *self.cache.replayed("observe", run, fed, *seen.features))

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        requested = self.last.lengths(sequences, lengths)
        if self.masked is not None:
            states = self._slots(self.masked, requested, k, span)
            each = iter(self.logits(self.head.read(states)).split(1, 1))
            return self.chain.drawn(lambda _: next(each), sequences, requested, k, noise)
        u, place = self.last.values[:, None], 0  # of the feature to come
        modules = self.head.drafting("head")
        read = self.head.read(u)

        def run(fed: Window, before: Tensor) -> tuple[Tensor, Tensor]:
            states = self._states(fed, before)
            return states, self.head.read(states)

        def logits_after(fed: Fed | None) -> Tensor:
            nonlocal u, read, place
            if fed is not None:
                tokens, positions = fed
                self.context.count(modules, range(place, place + 1), -2, self.head.shape)
                place += 1
                window = Window(tokens, positions, span)
                u, read = self.cache.replayed("draft", run, window, u)
            return self.logits(read)

        return self.chain.drawn(logits_after, sequences, requested, k, noise, behind=1)

    def _slots(
        self, masked: Tensor, lengths: Int[Tensor, " batch"], k: int, span: int
    ) -> Float[Tensor, "batch k width"]:
        """The states of a draft's slots: the last observed one, and those of masked tokens."""
        u, ahead = self.last.values[:, None], torch.arange(1, k, device=lengths.device)
        if k == 1:
            return u
        at = torch.where(ahead < lengths[:, None], self.last.at[:, None] + ahead, -1)
        window = Window(torch.full_like(at, self.head.config.mask_token_id), at, span)
        self.context.count(self.head.drafting("head"), range(k - 1), -2, self.head.shape)
        return torch.cat((u, self._states(window, masked.expand(len(u), k - 1, -1))), 1)

    def _states(self, window: Window, g: Hidden) -> Hidden:
        own = self.head.embed
        embedded = embedding(window.tokens, self.context.embed if own is None else own)
        return self.head.states(embedded, g, window, self.cache.attend(window))

    def logits(self, read: Hidden) -> Float[Tensor, "batch window vocab"]:
        """Logits over the target's vocabulary; -inf for ids that the head does not know."""
        head = self.head
        own = self.context.unembed(read, head.head)
        return over_vocabulary(own, head.token_ids, self.context.vocab_size)
