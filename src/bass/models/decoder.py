"""The common part of all families: embedding, blocks, final norm, head; and the first layers of a
decoder, followed by its norm and head.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.errors import OptionError, counted
from bass.interfaces import Attend, Decoder
from bass.models.config import LOCAL, FamilyConfig
from bass.models.layers import Attention, DecoderBlock, GatedMLP, LayerFactory, PreNorm
from bass.models.sources import LLAMA, Names, WeightSource, named_sources
from bass.ops.experts import Experts
from bass.ops.linear import dense
from bass.ops.norms import RMSNorm
from bass.ops.residual import Residual, embedding
from bass.records import DecoderShape, Features, Rotation, Window

FINAL = -1  # of `feature_ids`: the final state, after the last norm


class CausalDecoder(nn.Module, Decoder):
    """The base of every family. A subclass makes each `block`, and in `setup` what is neither
    block, norm nor head. Parameters start empty.

    `head` is None if it is tied to the embedding; `head_bias` is then its bias, if any.
    `norm_type`: of the last norm, and of those that a block asks its factory for. `names`: the
    checkpoint's modules. `prefix`: the start of all tensor names except the head's; checkpoints of
    the bare model lack it.
    """

    config_type: ClassVar[type[FamilyConfig]]
    norm_type: ClassVar[Callable[..., nn.Module]] = RMSNorm
    has_head_bias: ClassVar[bool] = False
    names: ClassVar[Names] = LLAMA
    prefix: ClassVar[str] = "model."
    config: Any  # a `config_type`

    def __init__(
        self, config: Any, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        c = self.config = config
        make = LayerFactory(c, type(self).norm_type, torch.device(device), dtype)
        tied, bias = c.tie_word_embeddings, self.has_head_bias
        self.embed = make.empty(c.vocab_size, c.embedding_size)
        self.head: nn.Module | None = (
            None if tied else make.linear(c.embedding_size, c.vocab_size, bias)
        )
        self.head_bias = make.empty(c.vocab_size) if tied and bias else None
        self.setup(c, make)
        self.blocks = nn.ModuleList(self.block(c, make, layer) for layer in range(c.shape.layers))
        self.norm = self.last_norm(c, make)
        # on a CPU a mixture reads which experts are chosen
        self.replayable = not any(isinstance(module, Experts) for module in self.modules())

    @abstractmethod
    def block(self, c: Any, make: LayerFactory, layer: int) -> DecoderBlock:
        """A block of the config `c`; `make` has its sizes, device and type."""

    def setup(self, c: Any, make: LayerFactory) -> None:
        """Make further modules and parameters, before the blocks."""

    def last_norm(self, c: Any, make: LayerFactory) -> nn.Module:
        """The norm behind the last block."""
        return make.norm()

    @property
    def shape(self) -> DecoderShape:
        return self.config.shape

    @classmethod
    def sources(cls, config: Any) -> dict[str, WeightSource]:
        """The checkpoint tensors of each parameter, by `names`."""
        return named_sources(cls(config, "meta"), cls.names)

    def embedded(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window hidden"]:
        """The input of the first block."""
        return embedding(tokens, self.embed)

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        """The rotary embedding of each block; None if positions are part of the embedding."""
        return itertools.repeat(None)

    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        streams: dict[int, Residual] = {}
        x = None
        for layer, (x, _) in enumerate(self.streams(window, attend)):
            if layer in feature_ids:
                streams[layer] = x
        assert x is not None
        final = x.normed(self.norm).tensor()
        # by now the blocks have completed the streams: read at once, each would need a kernel
        return final, tuple(final if i == FINAL else streams[i].tensor() for i in feature_ids)

    def fill(self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()) -> Features:
        """As `Decoder.fill`. The last block computes only keys and values, unless `feature_ids`
        include what leaves it.
        """
        last, streams = len(self.blocks) - 1, dict[int, Residual]()
        if feature_ids and (max(feature_ids) > last or FINAL in feature_ids):
            return self.hidden(window, attend, feature_ids)[1]
        for layer, (x, rotation) in enumerate(self.streams(window, attend)):
            if layer in feature_ids:
                streams[layer] = x
            if layer == last and isinstance(block := self.blocks[last], DecoderBlock):
                attend.store(last, block.project(x, rotation))
                break
        return tuple(streams[i].tensor() for i in feature_ids)

    def streams(self, window: Window, attend: Attend) -> Iterator[tuple[Residual, Rotation | None]]:
        """The residual stream before each block, with the block's rotary embedding; then the stream
        after the last block. A reader that stops early ends the pass there.
        """
        x = Residual(self.embedded(window.tokens, window.positions))
        for layer, (block, rotation) in enumerate(
            zip(self.blocks, self.rotations(window.positions), strict=False)
        ):
            yield x, rotation
            x = block(x, rotation, attend, layer)
        yield x, None

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        if self.head is None:
            return dense(hidden, self.embed, self.head_bias)
        return self.head(hidden)


class RotaryDecoder(CausalDecoder):
    """A decoder with rotary positions, and Llama's block unless a subclass makes another."""

    def setup(self, c: Any, make: LayerFactory) -> None:
        trained = c.max_position_embeddings
        self.rotary = make.rotary(c.rope_theta, trained, c.rope_scaling, c.rotary_dim)
        if LOCAL in c.rotations:
            self.local_rotary = make.rotary(c.rope_local_base_freq, c.context)

    def block(self, c: Any, make: LayerFactory, layer: int) -> DecoderBlock:
        return PreNorm(make, Attention(make), GatedMLP(make))

    def rotations(self, positions: Int[Tensor, "batch window"]) -> Iterable[Rotation | None]:
        names = self.config.rotations
        found = {name: name and getattr(self, name)(positions) for name in {*names}}
        return [found[name] for name in names]


@final
@dataclass(frozen=True)
class FirstLayers(Decoder):
    """`decoder` without the layers from `count` on. It shares the decoder's weights.

    Raises `OptionError` if `count` is none or all of the layers.
    """

    decoder: CausalDecoder
    count: int

    def __post_init__(self) -> None:
        layers = self.decoder.shape.layers
        if not 1 <= self.count < layers:
            raise OptionError(
                f"A draft of the first {counted(self.count, 'layer')} needs a larger target than "
                f"one of {layers}: set 1 to {layers - 1} layers."
            )

    @property
    def shape(self) -> DecoderShape:
        return replace(self.decoder.shape, rules=self.decoder.shape.rules[: self.count])

    def hidden(
        self, window: Window, attend: Attend, feature_ids: tuple[int, ...] = ()
    ) -> tuple[Float[Tensor, "batch window hidden"], Features]:
        assert not feature_ids, "features come from the whole decoder"
        x, _ = next(itertools.islice(self.decoder.streams(window, attend), self.count, None))
        return x.normed(self.decoder.norm).tensor(), ()

    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        return self.decoder.unembed(hidden)
