"""Passes over whole texts, without a cache, and with gradients: a target's states of them, for a
head in training, and the drafts of a head from every position of them.
"""

from collections.abc import Iterator, Sequence
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.drafters.eagle import ChainHead
from bass.interfaces import Attend
from bass.models.decoder import FINAL, CausalDecoder
from bass.ops import attention
from bass.ops.residual import embedding
from bass.records import AttentionRule, Features, Projection, Window

Hidden = Float[Tensor, "batch length width"]


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
        dtype, rule = projection.partial_sums.dtype, self.rules[layer]  # that of autocast
        q, k, v = (x.to(dtype) for x in projection.rotated())
        if layer not in self.texts:
            self.texts[layer] = k, v
            return self._of_text(q, k, v, rule, projection.sinks)
        self.drafts.setdefault(layer, []).append((k, v))
        grouped = q.unflatten(2, (k.shape[2], -1))
        keys, values = self.texts[layer]
        own_keys, own_values = (torch.stack(x, 2) for x in zip(*self.drafts[layer], strict=True))
        # h: key heads, g: the query heads of each, d: drafts of the anchor
        length = q.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        seen = torch.einsum("bthgc, bshc -> bhgts", grouped, keys)
        drafted = torch.einsum("bthgc, btdhc -> bhgtd", grouped, own_keys)
        scores = torch.cat((seen.masked_fill(future, -torch.inf), drafted), -1)
        weights = (rule.scale * scores).softmax(-1).to(dtype)
        seen, drafted = weights.split_with_sizes((length, own_keys.shape[2]), -1)
        out = torch.einsum("bhgts, bshc -> bthgc", seen, values)
        return (out + torch.einsum("bhgtd, btdhc -> bthgc", drafted, own_values)).flatten(2, 3)

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


def window_of(tokens: Int[Tensor, "batch length"], first: int = 0) -> Window:
    """A window of texts, whose tokens are at positions `first`, `first` + 1 ..."""
    length = tokens.shape[1]
    positions = first + torch.arange(length, device=tokens.device)
    return Window(tokens, positions.expand_as(tokens), first + length)


@torch.no_grad()
def states_of(
    target: CausalDecoder, tokens: Int[Tensor, "batch length"], layers: tuple[int, ...]
) -> Features:
    """The target's states of texts that begin at position 0; layers: as of
    `DraftMethod.target_features`.
    """
    return target.hidden(window_of(tokens), WholeTexts(target.shape.rules), layers)[1]


def record_states(
    target: CausalDecoder, texts: Sequence[Sequence[int]], layers: tuple[int, ...] = (FINAL,)
) -> tuple[Window, Features]:
    """Tokens and states of texts, to train a head with; of an `LLM`, the target is
    `llm.models.target`.

    texts: token ids, all processed in one batch. layers: as of `DraftMethod.target_features`. The
    window has position -1 behind the end of a text, where states have no meaning. The states
    [batch, length, hidden] are in the target's type and on its device, and gradients may pass them;
    what a drafter observes in a run are inference tensors, which is why they are computed again.
    """
    length, device = max(map(len, texts)), target.embed.device
    rows = [[*text, *[0] * (length - len(text))] for text in texts]
    window = window_of(torch.tensor(rows, device=device))
    ends = torch.tensor([len(text) for text in texts], device=device)
    positions = window.positions.masked_fill(window.positions >= ends[:, None], -1)
    states = states_of(target, window.tokens, layers)
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
