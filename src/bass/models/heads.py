"""The base of heads: small modules that draft from a target's hidden states."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bass.errors import CheckpointError
from bass.interfaces import DraftMethod
from bass.models.layers import LayerFactory
from bass.models.sources import Names, WeightSource, named_sources
from bass.ops.norms import RMSNorm
from bass.records import DecoderShape


@dataclass(frozen=True)
class OpenRule:
    """What the files of a head leave open. text: a clause after "the files do not say". other: the
    drafter with the other answer, and `option`, the parameter that gives it on the command line.
    """

    text: str
    option: str
    other: DraftMethod


class DraftHead(nn.Module):
    """A head that `draft=` names. Parameters start empty.

    `config`: has `shape`, of the head's own layers. `names`: the checkpoint's modules, after the
    drafter's own renaming. `fusing`: the modules that read the target's states, and draft nothing.
    `setup` makes the parameters, and `method` is the drafter that runs it.
    """

    names: ClassVar[Names] = {}
    fusing: tuple[str, ...] = ()

    def __init__(
        self, config: Any, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
        self.setup(config, LayerFactory(config, RMSNorm, torch.device(device), dtype))

    @abstractmethod
    def setup(self, c: Any, make: LayerFactory) -> None:
        """Make the modules and parameters."""

    @abstractmethod
    def method(self) -> DraftMethod:
        """The drafter that runs the head, with its default parameters."""

    def described(self, layers: int) -> dict[str, str]:
        """The figures of `bass info`, for a target of this many layers; "": none."""
        return {}

    def open_rules(self, layers: int) -> list[OpenRule]:
        """What the files leave open, for a target of this many layers."""
        return []

    @classmethod
    @abstractmethod
    def read_config(cls, raw: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """The config of a folder: of its config.json, and of the shapes of its tensors by their
        `stored_name`; random weights have none. Raises `CheckpointError`.
        """

    @classmethod
    def stored_name(cls, name: str) -> str:
        """The name in `names` of a tensor that some producer calls otherwise."""
        return name.removeprefix("model.")

    def ignores(self, name: str) -> bool:
        """Whether the head computes without this stored tensor."""
        return name.endswith(".inv_freq")

    @property
    def shape(self) -> DecoderShape:
        return self.config.shape

    @property
    def fusion(self) -> tuple[nn.Module, ...]:
        """The modules that `fusing` names."""
        return tuple(one for name, one in self.named_children() if name in self.fusing)

    def drafting(self, *but: str) -> tuple[nn.Module, ...]:
        """The modules of a pass that drafts, but these."""
        excluded = *self.fusing, *but
        return tuple(one for name, one in self.named_children() if name not in excluded)

    def finish(self) -> None:
        """Complete the parameters, once they are filled."""

    def sources(self) -> dict[str, WeightSource]:
        """The checkpoint tensors of each parameter."""
        return named_sources(self, self.names)

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors by name, which `sources` and `finish` make parameters of."""
        sources = self.sources()
        return {
            tensor: part
            for name, parameter in self.named_parameters()
            for tensor, part in zip(
                sources[name].tensors, sources[name].split(parameter.detach()), strict=True
            )
        }


def over_vocabulary(
    logits: Float[Tensor, "*rows known"], ids: Tensor | None, vocab: int
) -> Float[Tensor, "*rows vocab"]:
    """Logits of the token ids `ids` (None: 0, 1 ...) over `vocab` ids; -inf for the others."""
    if ids is None:
        missing = vocab - logits.shape[-1]
        return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :vocab]
    whole = logits.new_full((*logits.shape[:-1], vocab), -torch.inf)
    return whole.index_copy_(-1, ids, logits)


class MappedHead(DraftHead):
    """A head that may have a matrix of logits of its own, over a part of the target's token ids.

    `head`: None: the target's. `token_ids`: the ids of the logits; None: 0, 1 ...
    """

    def setup_logits(self, c: Any, make: LayerFactory) -> None:
        """Make both: config fields `has_head` and `draft_vocab_size`, 0 for all ids."""
        ids = c.draft_vocab_size or c.vocab_size
        self.head = make.linear(c.hidden_size, ids) if c.has_head else None
        self.token_ids = None
        if c.draft_vocab_size:
            empty = torch.empty(ids, dtype=torch.int64, device=make.device)
            self.token_ids = nn.Parameter(empty, requires_grad=False)

    def finish(self) -> None:
        if self.token_ids is None:
            return
        own = torch.arange(len(self.token_ids), device=self.token_ids.device)
        self.token_ids += own  # stored as distances from the head's own ids
        least, most, vocab = *map(int, self.token_ids.aminmax()), self.config.vocab_size
        if least < 0 or most >= vocab:
            raise CheckpointError(
                f"The head's `d2t` leads to token ids from {least} to {most} of {vocab}: give the "
                "`d2t` that it was trained with."
            )
        if len(own) == vocab and torch.equal(self.token_ids, own):
            self.token_ids = None

    def tensors(self) -> dict[str, Tensor]:
        found, ids = super().tensors(), self.token_ids
        if ids is not None:
            known = torch.zeros(self.config.vocab_size, dtype=torch.bool, device=ids.device)
            own = torch.arange(len(ids), device=ids.device)
            found |= {"d2t": ids - own, "t2d": known.index_fill(0, ids, True)}
        return found

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or name in ("t2d", "d2t")
