"""Passes over whole texts, without a cache, and with gradients: a target's states of them, for a
head in training, and the drafts of a head from every position of them.
"""

from collections.abc import Iterator, Sequence
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.drafters.block import BlockHead
from bass.drafters.eagle import ChainHead
from bass.drafters.heads import Hidden
from bass.interfaces import Attend
from bass.models.decoder import FINAL, CausalDecoder
from bass.ops import attention
from bass.ops.residual import embedding
from bass.records import AttentionRule, Features, Projection, Window


@final
class WholeTexts(Attend):
    """Attention of texts that begin at position 0, and of drafts from each of their positions.

        call of a layer   query of anchor t   sees
        first             the text's          keys 0 .. t of the text
        j-th              of draft j          the same, and those of drafts 2 .. j of anchor t

    A head that drafts from anchor t reads true states up to t, then its own drafts (the
    training-time test of EAGLE-3). rules: of the layers.
    """

    def __init__(self, rules: tuple[AttentionRule, ...]) -> None:
        self.rules = rules
        self.texts = dict[int, tuple[Tensor, Tensor]]()  # keys and values by layer
        self.drafts = dict[int, list[tuple[Tensor, Tensor]]]()

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        rule, (q, k, v) = self.rules[layer], projection.rotated()
        if layer not in self.texts:
            self.texts[layer] = k, v
            return self._of_text(q, k, v, rule, projection.sinks)
        self.drafts.setdefault(layer, []).append((k, v))
        own_keys, own_values = (torch.stack(x, 2) for x in zip(*self.drafts[layer], strict=True))
        anchors = torch.arange(q.shape[1], device=q.device).expand(len(q), -1)
        every = torch.ones(1, own_keys.shape[2], dtype=torch.bool, device=q.device)
        own = own_keys, own_values, every
        return attended(q[:, :, None], self.texts[layer], anchors + 1, own, rule.scale)[:, :, 0]

    def _of_text(
        self, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule, sinks: Tensor | None
    ) -> Tensor:
        if rule.window is rule.softcap is sinks is None:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            options = {"is_causal": True, "enable_gqa": True, "scale": rule.scale}
            return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
        positions = torch.arange(q.shape[1], device=q.device).expand(len(q), -1)
        return attention.attend(q, k, v, positions, rule, sinks)

    def store(self, layer: int, projection: Projection) -> None:
        raise NotImplementedError("a whole text is attended to, not stored alone")


def attended(
    q: Float[Tensor, "batch anchors slots heads dim"],
    text: tuple[Tensor, Tensor],
    ends: Int[Tensor, "batch anchors"],
    own: tuple[Tensor, Tensor, Tensor],
    scale: float,
) -> Float[Tensor, "batch anchors slots heads dim"]:
    """Attention of the drafts of each anchor over the text up to it, and over themselves.

    text: keys and values [batch, length, kv_heads, dim], of which an anchor sees those before its
    end. own: keys and values [batch, anchors, drafts, kv_heads, dim] of the anchor alone, and which
    of them each slot sees, bool [slots, drafts].
    """
    (keys, values), (own_keys, own_values, visible) = text, own
    # h: key heads, g: the query heads of each, n: drafts of the anchor
    grouped = q.unflatten(3, (keys.shape[2], -1))
    seen = torch.einsum("bashgc, blhc -> bhgasl", grouped, keys)
    drafted = torch.einsum("bashgc, banhc -> bhgasn", grouped, own_keys)
    behind = torch.arange(keys.shape[1], device=q.device) >= ends[..., None]
    seen = seen.masked_fill(behind[:, None, None, :, None], -torch.inf)
    scores = torch.cat((seen, drafted.masked_fill(~visible, -torch.inf)), -1)
    weights = (scale * scores).softmax(-1).to(q.dtype)
    seen, drafted = weights.split_with_sizes((keys.shape[1], own_keys.shape[2]), -1)
    out = torch.einsum("bhgasl, blhc -> bashgc", seen, values)
    return (out + torch.einsum("bhgasn, banhc -> bashgc", drafted, own_values)).flatten(3, 4)


def window_of(tokens: Int[Tensor, "batch length"], first: int = 0) -> Window:
    """A window of texts, whose tokens are at positions `first`, `first` + 1 ..."""
    length = tokens.shape[1]
    positions = first + torch.arange(length, device=tokens.device)
    return Window(tokens, positions.expand_as(tokens), first + length)


@torch.no_grad()
def states_of_texts(
    target: CausalDecoder, tokens: Int[Tensor, "batch length"], feature_ids: tuple[int, ...]
) -> Features:
    """The target's states of texts that begin at position 0; feature_ids: as of
    `DraftMethod.target_features`.
    """
    return target.hidden(window_of(tokens), WholeTexts(target.shape.rules), feature_ids)[1]


def record_states(
    target: CausalDecoder, texts: Sequence[Sequence[int]], feature_ids: tuple[int, ...] = (FINAL,)
) -> tuple[Window, Features]:
    """Tokens and states of texts, to train a head with; of an `LLM`, the target is
    `llm.models.target`.

    texts: token ids, all in one batch. feature_ids: as of `DraftMethod.target_features`. The
    window has position -1 behind the end of a text, where states have no meaning. The states
    [batch, length, hidden] are in the target's type and on its device, and gradients may pass them;
    what a drafter observes in a run are inference tensors, which is why they are computed again.
    """
    length, device = max(map(len, texts)), target.embed.device
    rows = [[*text, *[0] * (length - len(text))] for text in texts]
    window = window_of(torch.tensor(rows, device=device))
    ends = torch.tensor([len(text) for text in texts], device=device)
    positions = window.positions.masked_fill(window.positions >= ends[:, None], -1)
    states = states_of_texts(target, window.tokens, feature_ids)
    return Window(window.tokens, positions, length), states


def unrolled(
    head: ChainHead,
    embed: Float[Tensor, "vocab width"],
    tokens: Int[Tensor, "batch length"],
    features: Features,
    drafts: int,
) -> Iterator[Hidden]:
    """The recurrent states of `drafts` successive drafts from every position of texts.

        draft j of anchor t     token t + j at position t + j - 1, state of draft j - 1  ->  t+j+1

    Draft 1 reads the true features. Each draft is forced to be the token of the text, as if those
    before it were accepted. States without a token, at the end of a text, have no meaning. embed:
    the target's, for a head without one.
    """
    # in their own type, whatever that of products under autocast
    g, attend = head.fused_features(features).to(features[0].dtype), WholeTexts(head.shape.rules)
    table = embed if head.embed is None else head.embed
    for j in range(drafts):
        fed = window_of(tokens.roll(-(j + 1), 1), j)
        g = head.states(embedding(fed.tokens, table).to(g.dtype), g, fed, attend)
        yield g


@final
class Blocks(Attend):
    """Attention of blocks of drafts, one from each anchor: over the context before the anchor, and
    over the block, of which a slot of a causal layer sees none behind it.

    contexts: keys and values of each layer. anchors: positions of the first slots.
    """

    def __init__(
        self, head: BlockHead, contexts: list[tuple[Tensor, Tensor]],
        anchors: Int[Tensor, "batch anchors"],
    ) -> None:  # fmt: skip
        self.head, self.contexts, self.anchors = head, contexts, anchors

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        c, parts = self.head.config, (self.anchors.shape[1], -1)
        q, k, v = (x.unflatten(1, parts) for x in projection.rotated())
        visible = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
        own = k, v, visible.tril() if c.causal[layer] else visible
        scale = c.rules[layer].scale
        return attended(q, self.contexts[layer], self.anchors, own, scale).flatten(1, 2)

    def store(self, layer: int, projection: Projection) -> None:
        raise NotImplementedError("a block is attended to, not stored alone")


def blocks_of(
    head: BlockHead,
    embed: Float[Tensor, "vocab width"],
    tokens: Int[Tensor, "batch length"],
    features: Features,
    anchors: Int[Tensor, "batch anchors"],
) -> Float[Tensor, "batch anchors slots width"]:
    """The final states of blocks whose first slots are the tokens at `anchors`, the last ones that
    are committed. embed: the target's, for a head without one.
    """
    context, contexts = head.context(features), list[tuple[Tensor, Tensor]]()
    for projection in head.projections(context, window_of(tokens)):
        contexts.append(projection.rotated()[1:])
    slots = torch.arange(head.config.block_size, device=tokens.device)
    positions = anchors[..., None] + slots
    first = tokens.gather(1, anchors)[..., None]
    ids = torch.where(slots == 0, first, head.config.mask_token_id)
    embedded = embedding(ids, embed if head.embed is None else head.embed).to(features[0].dtype)
    if head.mask is not None:
        embedded = torch.where(slots[:, None] == 0, embedded, head.mask)
    span = tokens.shape[1] + len(slots)
    window = Window(ids.flatten(1), positions.flatten(1), span)
    attends = [Blocks(head, contexts, anchors)] * len(head.blocks)
    return head.states(embedded.flatten(1, 2), window, attends).unflatten(1, positions.shape[1:])
