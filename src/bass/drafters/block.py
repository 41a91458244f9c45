"""Block drafters: one pass over a block of masks drafts several tokens (DFlash, DSpark).

    context   c_t = hidden_norm(fc(states of token t)), of which each layer makes keys and values
    block     [last committed token, mask, mask ...] at positions lens-1, lens, lens+1 ...

    drafted token i is read    at slot i + 1, whose position is its own    (z-lab, speculators)
                               at slot i, the position before it           (`sample_from_anchor`)

A block sees all of the context and, unless its layer is causal, all of itself. The block of a row
is as long as its draft, so the draft does not depend on other rows. What a block writes to the
cache from position lens-1 on is gone when it matters: `observe` writes the committed positions with
their context, and the next block begins at the first one after these.

DSpark's Markov head adds W2[W1[token before]] to the logits, so each q depends on the drafted token
before it; a gated one scales W1[...] by a gate, a recurrent one reads all drafted tokens before it.
Its confidence head may end a draft before a token is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.drafters.chain import Chain, Fed
from bass.drafters.heads import (
    BOTH_WAYS,
    FamilyOf,
    HeadConfig,
    Hidden,
    MappedHead,
    NamedDraft,
    OpenRule,
    Shapes,
    flattened,
    layers_of,
    over_vocabulary,
)
from bass.errors import CheckpointError, PairingError
from bass.interfaces import (
    Attend,
    Drafter,
    DrafterContext,
    ForwardingRowStore,
    LayerCache,
    RowStore,
)
from bass.models.layers import LayerFactory
from bass.ops import batch_state
from bass.ops.residual import Residual, embedding
from bass.option import within
from bass.records import (
    Draft,
    Features,
    Noise,
    Observation,
    Projection,
    Sequences,
    Window,
)

Rank = Float[Tensor, "batch window rank"]  # of a Markov head
MARKOV = ("markov_out", "markov_gate", "markov_joint")


@dataclass(frozen=True)
class BlockConfig(HeadConfig):
    """What the published block drafters differ in.

    `features`: the states that are read, as of `DraftMethod.target_features`. `block_size`: slots,
    the anchor included. `sample_from_anchor`: see above. `causal`: of each layer; the window of one
    that is not causal ends at the block's last slot. `confidence`: inputs of the confidence head, 0
    without one.
    """

    model_type = "block"
    architecture = "DFlashDraftModel"
    assumes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "is_causal": (None, True, False),
        "projector_type": ("dflash", None),
        "markov_head_type": ("vanilla", "gated", "rnn"),
        "attention_sink_bias": (False, None),
        "add_swa_attention_sink_bias": (False, None),
        "is_neox_style": (True, None),
        "input_embedding_scale": (1.0, None),
        "logit_scale": (1.0, None),
    }
    features: tuple[int, ...] = ()
    block_size: int = 16
    sample_from_anchor: bool = False
    known_anchor: bool = True
    causal: tuple[bool, ...] = ()
    known_causal: bool = True
    mask_token_id: int = 0
    has_mask: bool = False
    qk_norm: bool = True
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    confidence: int = 0


@final
class BlockHead(MappedHead):
    """The head of DFlash, or of DSpark."""

    names = MappedHead.names | {
        "mask": "mask_embedding",
        "markov_in": "markov_head.markov_w1.weight",
        "markov_out": "markov_head.markov_w2",
        "markov_gate": "markov_head.gate_proj",
        "markov_joint": "markov_head.joint_proj",
        "confidence": "confidence_head.proj",
    }

    one_pass = True

    def setup(self, c: BlockConfig, make: LayerFactory) -> None:
        inputs = len(c.features) * (c.target_hidden_size or c.hidden_size)
        self.fusing = "fc", "hidden_norm"
        self.fc, self.hidden_norm = make.linear(inputs, c.hidden_size), make.norm()
        self.setup_own(c, make, (self.block(c, make) for _ in range(c.num_hidden_layers)))
        self.norm = make.norm()
        self.mask = make.empty(c.hidden_size) if c.has_mask else None
        rank, ids = c.markov_rank, c.draft_vocab_size or c.vocab_size
        self.markov_in = make.empty(c.vocab_size, rank) if rank else None
        self.markov_out = make.linear(rank, ids) if rank else None
        gated, recurrent = (rank and c.markov_head_type == kind for kind in ("gated", "rnn"))
        inputs = c.hidden_size + rank
        self.markov_gate = make.linear(inputs, rank, bias=True) if gated else None
        self.markov_joint = make.linear(inputs + rank, 3 * rank, True) if recurrent else None
        self.confidence = make.linear(c.confidence, 1, bias=True) if c.confidence else None

    @classmethod
    def read_config(cls, raw: dict[str, Any], shapes: Shapes, family_of: FamilyOf) -> BlockConfig:
        raw = flattened(raw, "dflash_config")
        words = str([raw.get("architectures"), raw.get("speculators_model_type")]).lower()
        spark = "dspark" in words or "markov_rank" in raw
        if "mask_token_id" not in raw and "mask_embedding" not in shapes:
            raise CheckpointError("config.json has no `mask_token_id`: download the head again.")
        _, causal = layers_of(raw)
        own = {
            "features": feature_ids_of(raw),
            "causal": causal,
            "known_causal": not any(causal)
            or bool(raw.keys() & {"is_causal", "causal", BOTH_WAYS}),
            "sample_from_anchor": raw.get("sample_from_anchor", spark),
            # z-lab has one layout
            "known_anchor": spark or bool(raw.keys() & {"sample_from_anchor", "target_layer_ids"}),
            "has_mask": "mask_embedding" in shapes,
            "confidence": shapes.get("confidence_head.proj.weight", (1, 0))[1],
        }
        return BlockConfig.of_files(raw, shapes, own)

    @classmethod
    def stored_name(cls, name: str) -> str:
        name = super().stored_name(name).removeprefix("logit_head.")
        name = name.replace("encoder.output_norm_enc.", "hidden_norm.", 1)
        return name.removeprefix("encoder.")

    def method(self) -> "Block":
        return Block()

    def described(self, layers: int) -> dict[str, str]:
        c = self.config
        drafts = c.block_size if c.sample_from_anchor else c.block_size - 1
        causal = ", ".join("yes" if one else "no" for one in c.causal)
        return {
            "vocabulary": f"{c.draft_vocab_size or c.vocab_size:,} of {c.vocab_size:,} tokens",
            "states of the target": ", ".join(map(str, c.features)),
            "block": f"{c.block_size} slots, which draft {drafts} tokens",
            "causal layers": causal,
            "Markov head": f"of rank {c.markov_rank}" if c.markov_rank else "",
            "confidence head": "yes" if c.confidence else "",
        }

    def open_rules(self, layers: int) -> list[OpenRule]:
        found = list[OpenRule]()
        if not self.config.known_anchor:
            text = "whether the slot of the last committed token drafts too (it does not here)"
            found.append(OpenRule(text, Block(sample_from_anchor=True)))
        if not self.config.known_causal:
            text = "whether its layers with a window are causal within a block (they are here)"
            found.append(OpenRule(text, Block(causal=False)))
        return found

    def context(self, features: Features) -> Hidden:
        """What the layers make keys and values of, from the target's states."""
        return self.hidden_norm(self.fc(torch.cat([*features], -1)))

    def projections(self, context: Hidden, window: Window) -> Iterator[Projection]:
        """The keys and values that each layer makes of the context, with unused queries."""
        rotation = self.rotary(window.positions)
        for block in self.blocks:
            attention: Any = block.attention
            yield attention.project(context, rotation)

    def states(self, embedded: Hidden, window: Window, attends: Sequence[Attend]) -> Hidden:
        """The final states of a block; attends: the attention of each layer."""
        x, rotation = Residual(embedded), self.rotary(window.positions)
        for layer, (block, attend) in enumerate(zip(self.blocks, attends, strict=True)):
            x = block(x, rotation, attend, layer)
        return x.normed(self.norm).tensor()

    def markov(self, before: Rank, hidden: Hidden, state: Rank) -> tuple[Tensor, Rank]:
        """What the token before adds to logits, and the state of a recurrent head.

        before: W1 of that token. hidden: the final state. state: 0 in the first slot.
        """
        assert self.markov_out is not None
        if self.markov_joint is not None:
            both = self.markov_joint(torch.cat((state, before, hidden), -1))
            gate, new, out = both.chunk(3, -1)
            state = torch.lerp(new.tanh(), state, gate.sigmoid())
            return self.markov_out(out.tanh()), state
        if self.markov_gate is not None:
            before = before * self.markov_gate(torch.cat((hidden, before), -1)).sigmoid()
        return self.markov_out(before), state


def feature_ids_of(raw: Mapping[str, Any]) -> list[int]:
    """The states that a head reads: `target_layer_ids` (z-lab, DeepSpec) are layers whose output is
    read, `aux_hidden_state_layer_ids` (speculators) those whose input is.
    """
    ids, distance = raw.get("target_layer_ids"), 1
    if ids is None:
        ids = raw.get("aux_hidden_state_layer_ids")
        distance = raw.get("aux_hidden_state_layer_offset") or 0
    if not ids:
        raise CheckpointError(
            "config.json has neither `target_layer_ids` nor `aux_hidden_state_layer_ids`: add the "
            "layers whose states the head was trained with."
        )
    return [i + distance for i in ids]


@final
@dataclass(frozen=True)
class Block(NamedDraft):
    """A head of DFlash or DSpark, the folder of `draft=`: drafts a block in one pass.

    `features` (as of `DraftMethod.target_features`), `sample_from_anchor`, `causal`: instead of the
    head's own, which follow from its producer. `confidence`: a draft ends before the first token
    that DSpark's confidence head expects to be accepted less often; 0: never. `survival`: the same
    of the token and all before it, the rule of SpecDec++ (Huang et al., 2024): a draft ends where a
    rejection is more probable than 1 - `survival`. That paper's own head reads the token too.
    """

    paper: ClassVar[str] = "Chen et al., 2026 (DFlash); DSpark"

    features: tuple[int, ...] = ()
    sample_from_anchor: bool | None = None
    causal: bool | None = None
    confidence: float = within("[0, 1]", 0.0)
    survival: float = within("[0, 1]", 0.0)

    @property
    def target_features(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.features

    def with_head(self, head: nn.Module | None, layers: int) -> "Block":
        if not isinstance(head, BlockHead):
            return self
        if (self.confidence or self.survival) and not head.config.confidence:
            raise PairingError(
                f"`Block(confidence={self.confidence}, survival={self.survival})` would have no "
                "effect: the head has no confidence head. Leave both out, or give a stop rule."
            )
        c, anchor, causal = head.config, self.sample_from_anchor, self.causal
        if causal is None and len({*c.causal}) == 1:
            causal = c.causal[0]
        return replace(
            self, causal=causal, features=self.features or c.features,
            sample_from_anchor=c.sample_from_anchor if anchor is None else anchor,
        )  # fmt: skip

    def build(self, context: DrafterContext) -> Drafter:
        head = self.own_head(context, BlockHead, "a head of DFlash or DSpark")
        c, cache = head.config, context.cache(head.shape)
        causal = c.causal if self.causal is None else (self.causal,) * len(c.causal)
        anchor = bool(self.sample_from_anchor)  # `with_head` has taken it of the head
        chain = Chain.of(context)
        ends = self.confidence, self.survival
        return BlockDrafter(head, context, chain, cache, causal, anchor, *ends)


@final
@dataclass(frozen=True)
class BlockDrafter(ForwardingRowStore, Drafter):
    """Drafts by one pass over a block, on the cached context.

    causal: of each layer. anchor: whether the slot of the last committed token drafts.
    confidence, survival: as of `Block`.
    """

    head: BlockHead
    context: DrafterContext
    chain: Chain
    cache: LayerCache
    causal: tuple[bool, ...]
    anchor: bool
    confidence: float = 0.0
    survival: float = 0.0

    @property
    def label(self) -> str:
        return "the head"

    @property
    def store(self) -> RowStore:
        return self.cache

    def observe(self, seen: Observation) -> None:
        """Write the context of committed tokens to the cache of each layer."""
        head, attend = self.head, self.cache.attend(seen.window)
        attentions: Any = [block.attention for block in head.blocks]
        projected = [x for one in attentions for x in (one.qkv, one.qk_norm) if x is not None]
        self.context.count((*head.modules_of(head.fusing), *projected))
        projections = head.projections(head.context(seen.features), seen.window)
        for layer, projection in enumerate(projections):
            attend.store(layer, projection)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        head, i, state = self.head, -1, None
        k = min(k, head.config.block_size - (not self.anchor))
        lengths = lengths.clamp(max=k)
        hidden, ends = self.states(sequences, lengths, k, span), lengths
        logits = self.context.unembed(hidden, head.head)
        last, markov = batch_state.last(sequences, 1), head.modules_of(MARKOV)
        survival = torch.ones(len(lengths), device=lengths.device)

        def logits_after(fed: Fed | None) -> Tensor:
            nonlocal i, ends, state, survival
            i += 1
            own, x, before = logits[:, i : i + 1], hidden[:, i : i + 1], None
            if head.markov_in is not None:
                self.context.count(markov, range(i, i + 1))
                before = embedding((last if fed is None else fed)[0], head.markov_in)
                state = torch.zeros_like(before) if state is None else state
                added, state = head.markov(before, x, state)
                own = own + added
            if (self.confidence or self.survival) and head.confidence is not None:
                self.context.count((head.confidence,), range(i, i + 1))
                sure = self._confidence(x, before)
                survival = survival * sure
                doubtful = (sure < self.confidence) | (survival < self.survival)
                ends = torch.where(doubtful, ends.clamp(max=i), ends)
            return over_vocabulary(own, head.token_ids, self.context.vocab_size)

        draft = self.chain.drawn(logits_after, sequences, lengths, k, noise)
        return replace(draft, lengths=torch.minimum(draft.lengths, ends))

    def states(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, span: int
    ) -> Float[Tensor, "batch k width"]:
        """The final states of the slots that draft, of rows of these draft lengths."""
        head, unread = self.head, int(not self.anchor)
        last, at = batch_state.last(sequences, 1)
        slots = torch.arange(k + unread, device=last.device)
        used = torch.where(lengths > 0, lengths + unread, 0)[:, None]
        fed = (slots < used) & (at >= 0)
        positions = torch.where(fed, at + slots, -1)
        masks = last.new_full((len(last), len(slots) - 1), head.config.mask_token_id)
        window = Window(torch.cat((last, masks), 1), positions, span)
        table = self.context.embed if head.embed is None else head.embed
        embedded = embedding(window.tokens, table)
        if head.mask is not None:
            embedded = torch.where(slots[:, None] > 0, head.mask, embedded)
        visible = torch.where(fed, at + used - 1, -1)
        kinds = {one: self.cache.attend(window, None if one else visible) for one in {*self.causal}}
        modules = head.drafting("head", *MARKOV, "confidence")
        self.context.count(modules, range(len(slots)), unread - 1, head.shape)
        return head.states(embedded, window, [kinds[one] for one in self.causal])[:, unread:]

    def _confidence(self, hidden: Hidden, before: Tensor | None) -> Float[Tensor, " batch"]:
        """The expected acceptance of the token that a slot drafts."""
        head = self.head
        assert head.confidence is not None
        if before is not None and head.config.confidence > hidden.shape[-1]:
            hidden = torch.cat((hidden, before), -1)
        return head.confidence(hidden)[:, 0, 0].float().sigmoid()
