"""The kernels of `attention.py`, `dense.py` and `stream.py` in plain torch and float64: what they
must equal.

B = batch, W = window, G = query heads per key head, S = span. A query at position p sees the
positions 0..p of its row, of these the last `window` if that is given. One at -1 sees nothing; its
output is zero.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.shapes import Blocks, Padded, Pool, Positions, Queries


def attend(
    q: Queries,
    k: Padded,
    v: Padded,
    positions: Positions,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Queries:
    """softmax(cap(scale q kᵀ)) v over the visible positions, in the inputs' own dtype; cap(x) =
    softcap tanh(x / softcap).
    """
    kv_heads, place, own = (
        k.shape[2],
        torch.arange(k.shape[1], device=k.device),
        positions[..., None],
    )
    hidden = place > own
    if window is not None:
        hidden |= place <= own - window
    hidden = hidden[:, None, None]
    scores = torch.einsum("bwhgd,bshd->bhgws", q.unflatten(2, (kv_heads, -1)), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # A finite floor: a softmax of nothing but -inf is not a number.
    weights = (
        scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)
    )
    return torch.einsum("bhgws,bshd->bwhgd", weights, v).flatten(2, 3)


def padded(
    q: Queries,
    k: Padded,
    v: Padded,
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Queries:
    """Attention over rows of equal extents, of which the first `span` positions are in use."""
    return attend(
        q.double(), k[:, :span].double(), v[:, :span].double(), positions, scale, window, softcap
    ).to(q.dtype)


def ragged(
    q: Queries,
    k: Pool,
    v: Pool,
    starts: Int[Tensor, " batch"],
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Queries:
    """Attention over a flat pool, in which position p of row b is at `starts[b] + p`."""
    # What is beyond a row's last query is another row's, or nobody's: the last place is read again
    # instead.
    last = positions.amax(1, keepdim=True).clamp(min=0)
    places = (starts[:, None] + torch.minimum(torch.arange(span, device=k.device), last)).clamp(
        max=len(k) - 1
    )
    return padded(q, k[places], v[places], positions, span, scale, window, softcap)


def paged(
    q: Queries,
    k: Blocks,
    v: Blocks,
    table: Int[Tensor, "batch entries"],
    positions: Positions,
    span: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Queries:
    """Attention over a pool of blocks, in which position p of row b is in block `table[b, p //
    block]` at `p % block`.
    """
    return padded(
        q, gather(k, table, span), gather(v, table, span), positions, span, scale, window, softcap
    )


def gather(
    pool: Blocks, table: Int[Tensor, "batch entries"], span: int
) -> Float[Tensor, "batch span kv_heads dim"]:
    """The first `span` positions of each row, one after the other."""
    return pool[table[:, : -(-span // pool.shape[1])]].flatten(1, 2)[:, :span]


def linear(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "rows out"]:
    """x wᵀ + b."""
    y = x.double() @ w.double().T
    return y if bias is None else y + bias.double()


def gated(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "twice in"], act: str
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up, where the first half of w's rows makes the gates."""
    gate, up = linear(x, w, None).chunk(2, -1)
    if act == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if act == "gelu_tanh" else "none") * up


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
) -> tuple[Float[Tensor, "rows size"], Float[Tensor, "rows size"]]:
    """s' = s + Σ parts, rounded as the stream is; and s' / sqrt(mean(s'²) + eps) · weight."""
    summed = stream if parts is None else (stream.double() + parts.double().sum(0)).to(stream.dtype)
    wide = summed.double()
    return summed, wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def turn(
    y: Float[Tensor, "splits rows heads dim"],
    turning: int,
    cos: Float[Tensor, "rows dim"],
    sin: Float[Tensor, "rows dim"],
) -> Float[Tensor, "rows heads dim"]:
    """Σ y, its first `turning` heads turned: y cos + (y with its halves swapped) · signed sin."""
    total = y.double().sum(0)
    turned = (
        total * cos.double()[:, None] + total.roll(y.shape[-1] // 2, -1) * sin.double()[:, None]
    )
    return torch.cat((turned[:, :turning], total[:, turning:]), 1)
