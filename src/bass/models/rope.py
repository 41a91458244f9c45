"""Rotary positions: frequencies for each kind of rope scaling, and the angles of a window."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.models.fields import read
from bass.records import Angles, Rotation

NEEDED = {  # by kind of scaling, the fields that have no default
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}


@dataclass(frozen=True)
class RopeScaling:
    """The rope scaling of a checkpoint (`rope_scaling` or `rope_parameters` in config.json).

    linear: divides all frequencies by `factor` (Chen et al., 2023).
    llama3: divides low frequencies, keeps high ones, interpolates between (Llama 3.1).
    yarn: the same by the number of rotations within the context, and scales scores (Peng et al.,
    2023).
    longrope: divides each frequency by its own factor (Ding et al., 2024).
    """

    kind: str
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None  # 0 is none, too
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, rope: dict[str, Any]) -> "RopeScaling | None":
        """Read the object of config.json; None for no scaling within the trained context, as of
        `dynamic`. Raises `CheckpointError`.
        """
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in ("default", "dynamic", None):
            return None
        if kind == "su":  # the name in early Phi-3 checkpoints
            kind = "longrope"
        if kind not in [*NEEDED]:
            raise CheckpointError(
                f"The checkpoint has rope scaling `{kind}`; `bass` supports: {', '.join(NEEDED)}."
            )
        for name in NEEDED[kind]:
            if rope.get(name) is None:
                raise CheckpointError(
                    f"config.json has a rope scaling of kind `{kind}` without `{name}`: download "
                    "the checkpoint again."
                )
        if kind == "longrope" and rope.get("factor") == 1 and rope.get("attention_factor") is None:
            # An explicit 1 is a factor. Without one, the factor is the ratio of the contexts.
            rope = rope | {"attention_factor": 1.0}
        names = {f.name: f.name for f in fields(cls)}
        return read(cls, rope | {"kind": kind}, names, "The rope scaling of config.json")

    def to_json(self) -> dict[str, Any]:
        """The object of config.json."""
        _, *others = fields(self)  # without the kind
        changed = (f.name for f in others if getattr(self, f.name) != f.default)
        values = {name: getattr(self, name) for name in (*NEEDED[self.kind], *changed)}
        return {"rope_type": self.kind, **values}

    def context(self, trained: int) -> int:
        """The number of usable positions, if config.json says `trained`.

        longrope has other frequencies beyond the original context, for *all* positions, but cached
        keys keep the old ones. So the original context is its limit.
        """
        original = self.original_max_position_embeddings or trained
        if self.kind == "longrope":
            return min(original, trained)
        return max(trained, int(original * self.factor)) if self.kind == "yarn" else trained


def frequencies(
    theta: float, dim: int, trained: int, scaling: RopeScaling | None
) -> tuple[Float[Tensor, " pairs"], float]:
    """Radians per position of each of the `dim / 2` pairs, and the factor of cosine and sine."""
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if scaling is None:
        return plain, 1.0
    s, original = scaling, scaling.original_max_position_embeddings or trained
    if s.kind == "linear":
        return plain / s.factor, 1.0
    if s.kind == "llama3":
        rotations, width = original * plain / (2 * math.pi), s.high_freq_factor - s.low_freq_factor
        fast = ((rotations - s.low_freq_factor) / width).clamp(0, 1)
        return plain * (fast + (1 - fast) / s.factor), 1.0
    if s.kind == "longrope":
        ratio = trained / original if s.factor == 1.0 else s.factor
        stretch = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        return plain / torch.tensor(s.short_factor), s.attention_factor or stretch

    def pair(rotations: float) -> float:
        """The pair of dimensions with that many rotations within the original context."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(s.beta_fast), pair(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    slow = (
        (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    ).clamp(0, 1)
    return plain * (1 - slow + slow / s.factor), s.attention_factor or _yarn_scale(s)


def _yarn_scale(s: RopeScaling) -> float:
    def scale(by: float) -> float:
        return 0.1 * by * math.log(s.factor) + 1 if s.factor > 1 else 1.0

    return (
        scale(s.mscale) / scale(s.mscale_all_dim) if s.mscale and s.mscale_all_dim else scale(1.0)
    )


class Rotary(nn.Module):
    """Angles of positions (Su et al., 2021), in one convention: pair i consists of dimensions i and
    i + head_dim / 2.

    `rotary_dim` dimensions of each head are rotated, by default all. Loading a checkpoint with
    another convention reorders the rows of q and k (`pair_order`): the same permutation of both
    does not change the scores.
    """

    frequency: Tensor
    scale: Tensor | None

    def __init__(
        self,
        head_dim: int,
        theta: float,
        trained: int,
        scaling: RopeScaling | None,
        device: torch.device,
        dtype: torch.dtype,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        dim = head_dim if rotary_dim is None else rotary_dim
        rotated, factor = frequencies(theta, dim, trained, scaling)
        still = torch.zeros((head_dim - dim) // 2)
        # The sign makes the sine of the first half negative; the cosine is even.
        buffers = {"frequency": torch.cat((-rotated, -still, rotated, still))}
        self.dtype = dtype
        self.context = trained if scaling is None else scaling.context(trained)
        self._tables: Angles | None = None
        if factor != 1.0:
            scale = torch.cat((torch.full_like(rotated, factor), torch.ones_like(still)))
            buffers["scale"] = scale.repeat(2)
        for name in ("frequency", "scale"):
            buffer = buffers.get(name)
            self.register_buffer(name, buffer if buffer is None else buffer.to(device), False)

    def __call__(self, positions: Int[Tensor, "batch window"]) -> Rotation:
        """The rotation of a window, for all layers of a pass."""
        return Rotation(self, positions)

    @property
    def tables(self) -> Angles:
        """Angles of every position of the context [context, dim]; made on first use."""
        if self._tables is None or self._tables[0].device != self.frequency.device:
            cos, sin = self.angles(torch.arange(self.context, device=self.frequency.device)[None])
            self._tables = cos[0, :, 0].contiguous(), sin[0, :, 0].contiguous()
        return self._tables

    def angles(self, positions: Int[Tensor, "batch window"]) -> Angles:
        """Cosines and signed sines [batch, window, 1, dim], in the decoder's type; those of
        position -1 ("no token") are never used.
        """
        angle = positions[..., None, None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        if self.scale is not None:
            cos, sin = cos * self.scale, sin * self.scale
        return cos.to(self.dtype), sin.to(self.dtype)


def pair_order(head_dim: int, rotary_dim: int, interleaved: bool) -> np.ndarray:
    """Our dimension j of a head is the checkpoint's dimension `order[j]`.

    The checkpoint's pairs are (2i, 2i+1) if `interleaved`, and (i, i + rotary_dim / 2) if not. The
    other dimensions are not rotated, and fill the rest of our two halves.
    """
    stored = "(pair half) -> half pair" if interleaved else "(half pair) -> half pair"
    rotated = rearrange(np.arange(rotary_dim), stored, half=2)
    still = rearrange(np.arange(rotary_dim, head_dim), "(half pair) -> half pair", half=2)
    return rearrange(np.concatenate((rotated, still), 1), "half pair -> (half pair)")
