"""The bases of heads, small modules that draft from a target's hidden states, and their config."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bass.errors import CheckpointError, PairingError
from bass.interfaces import DrafterContext, DraftMethod
from bass.models.config import SLIDING, RotaryConfig
from bass.models.decoder import CausalDecoder
from bass.models.layers import Attention, GatedMLP, LayerFactory, PreNorm
from bass.models.sources import LLAMA, Names, WeightSource, named_sources, stored_tensors
from bass.ops.norms import RMSNorm
from bass.records import AttentionRule, DecoderShape

Shapes = Mapping[str, tuple[int, ...]]  # of stored tensors
Hidden = Float[Tensor, "batch window width"]  # of the head
FamilyOf = Callable[[dict[str, Any]], type[CausalDecoder]]
H = TypeVar("H", bound="DraftHead")


@dataclass(frozen=True)
class OpenRule:
    """What the files of a head leave open. text: a clause after "the files do not say". other: the
    drafter with the other answer.
    """

    text: str
    other: DraftMethod

    @property
    def options(self) -> str:
        """The options of a command that give the other answer."""
        default, name = type(self.other)(), type(self.other).__name__.lower()
        changed = vars(self.other).items() - vars(default).items()
        return " ".join([f"--drafter {name}", *(f"--drafter.{n} {x}".lower() for n, x in changed)])


class DraftHead(nn.Module):
    """A head that `draft=` names. Parameters start empty.

    `config`: has `shape`, of the head's own layers. `names`: the checkpoint's modules, after the
    drafter's own renaming. `fusing`: the modules that read the target's states, and draft nothing.
    `one_pass`: all tokens of a draft come from one pass. `setup` makes the parameters, and `method`
    is the drafter that runs it.
    """

    names: ClassVar[Names] = {}
    fusing: tuple[str, ...] = ()
    one_pass: bool = False

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
    def read_config(cls, raw: dict[str, Any], shapes: Shapes, family_of: FamilyOf) -> Any:
        """The config of a folder: of its config.json, and of the shapes of its tensors by their
        `stored_name`; random weights have none. family_of: the family of a config.json, which a
        head may have a layer of. Raises `CheckpointError`.
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

    def modules_of(self, names: tuple[str, ...]) -> tuple[nn.Module, ...]:
        """The modules of these names that it has."""
        return tuple(one for name, one in self.named_children() if name in names)

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
        return stored_tensors(self, self.sources())


class NamedDraft(DraftMethod):
    """Drafts with what the option `draft=` names, and obeys stop rules."""

    needs_draft: ClassVar[bool] = True
    obeys_stop_rules: ClassVar[bool] = True

    def own_head(self, context: DrafterContext, kind: type[H], called: str) -> H:
        """The head that `draft=` names. Raises `PairingError` for one of another kind."""
        head = context.head()
        if not isinstance(head, kind):
            raise PairingError(
                f"`{type(self).__name__}` drafts with {called}, and `draft` names a "
                f"`{type(head).__name__}`: give the folder of such a head, or leave out `drafter`."
            )
        return head


def over_vocabulary(
    logits: Float[Tensor, "*rows known"], ids: Tensor | None, vocab: int
) -> Float[Tensor, "*rows vocab"]:
    """Logits of the token ids `ids` (None: 0, 1 ...) over `vocab` ids; -inf for the others."""
    if ids is None:
        missing = vocab - logits.shape[-1]
        return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :vocab]
    whole = logits.new_full((*logits.shape[:-1], vocab), -torch.inf)
    return whole.index_copy_(-1, ids, logits)


@dataclass(frozen=True)
class HeadConfig(RotaryConfig):
    """Fields of heads with layers of Llama or Qwen 3.

    `target_hidden_size`: 0: the same. `draft_vocab_size`: token ids of the head's table of them; 0:
    all, and no table. `windows`: of each layer, 0 for none. `has_embed`, `has_head`: whether the
    head has an embedding and a matrix of logits of its own.
    """

    target_hidden_size: int = 0
    draft_vocab_size: int = 0
    windows: tuple[int, ...] = ()
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    has_embed: bool = False
    has_head: bool = False

    @property
    def rules(self) -> tuple[AttentionRule, ...]:
        windows = self.windows or (0,) * self.num_hidden_layers
        return tuple(AttentionRule(self.head_dim**-0.5, window or None) for window in windows)

    @classmethod
    def of_files(cls, raw: Mapping[str, Any], shapes: Shapes, own: Mapping[str, Any]) -> Self:
        """The config of a flattened config.json, of the shapes of the tensors (none for random
        weights) and of fields `own`.
        """

        def has(name: str, otherwise: Any) -> bool:
            return name in shapes if shapes else bool(otherwise)

        vocab, attention, bias = raw["vocab_size"], "layers.0.self_attn", raw.get("attention_bias")
        drafts = raw.get("draft_vocab_size") or shapes.get("lm_head.weight", (vocab,))[0]
        of_target = raw.get("target_hidden_size") or raw["hidden_size"]
        found = {
            "target_hidden_size": of_target,
            "draft_vocab_size": drafts if drafts != vocab or "d2t" in shapes else 0,
            "windows": layers_of(raw)[0],
            "qkv_bias": has(f"{attention}.q_proj.bias", bias or raw.get("qkv_bias")),
            "out_bias": has(f"{attention}.o_proj.bias", bias),
            "mlp_bias": has("layers.0.mlp.gate_proj.bias", raw.get("mlp_bias")),
            "qk_norm": has(f"{attention}.q_norm.weight", raw["layer_type"] == "qwen3"),
            "has_embed": "embed_tokens.weight" in shapes or of_target != raw["hidden_size"],
            "has_head": drafts != vocab or has("lm_head.weight", own.get("has_head")),
        }
        return cls.from_json({**raw, **own, **found})


def flattened(raw: Mapping[str, Any], nested: str) -> dict[str, Any]:
    """config.json with the fields of its objects, the layers' and `nested`; null is no value."""
    layer = raw.get("transformer_layer_config") or {}
    parts = layer, raw, raw.get(nested) or {}
    found = {name: x for part in parts for name, x in part.items() if x is not None}
    rope = found.get("rope_scaling") or found.get("rope_parameters") or {}
    own = {n: rope[n] for n in ("partial_rotary_factor",) if n in rope}
    kind = layer.get("model_type") or raw.get("model_type")
    return {"num_hidden_layers": 1} | found | own | {"layer_type": kind}


BOTH_WAYS = "sliding_window_non_causal"  # of speculators


def layers_of(raw: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
    """The window of each layer, 0 for none, and whether it is causal in a block: by default those
    with a window in `layer_types` are.
    """
    kinds: list[str] = raw.get("layer_types") or []
    count: int = raw["num_hidden_layers"]
    if raw.get("use_sliding_window") and not kinds:
        raise CheckpointError("config.json has `use_sliding_window`, and no `layer_types`.")
    sliding = [kind == SLIDING for kind in kinds] or [False] * count
    default = [one and not raw.get(BOTH_WAYS) for one in sliding]
    if raw.get("use_swa") and not any(sliding):
        sliding = [True] * count
    stated = [raw[name] for name in ("is_causal", "causal") if name in raw]
    causal = [bool(stated[0])] * count if stated else default
    size: int = raw.get("swa_window_size") or raw.get("sliding_window") or 0
    if len(sliding) != count or (any(sliding) and not size):
        raise CheckpointError(
            f"config.json has kinds for {len(sliding)} of {count} layers and a window of {size}: "
            "each layer must have a kind, and sliding ones a window."
        )
    return [size if one else 0 for one in sliding], causal


class MappedHead(DraftHead):
    """A head with layers, which may have an embedding, and a matrix of logits over a part of the
    target's token ids, of its own.

    `embed`, `head`: None: the target's. `token_ids`: the ids of the logits; None: 0, 1 ...
    """

    names = LLAMA | {
        "embed": "embed_tokens.weight",
        "norm": "norm",
        "blocks": "layers",
        "fc": "fc",
        "hidden_norm": "hidden_norm",
        "token_ids": "d2t",
    }

    def setup_own(self, c: HeadConfig, make: LayerFactory, blocks: Iterable[nn.Module]) -> None:
        """Make all but what reads the target's states and the last norm."""
        self.rotary = make.rotary(c.rope_theta, c.max_position_embeddings, c.rope_scaling)
        self.blocks = nn.ModuleList(blocks)
        ids = c.draft_vocab_size or c.vocab_size
        self.embed = make.empty(c.vocab_size, c.hidden_size) if c.has_embed else None
        self.head = make.linear(c.hidden_size, ids) if c.has_head else None
        self.token_ids = None
        if c.draft_vocab_size:
            empty = torch.empty(ids, dtype=torch.int64, device=make.device)
            self.token_ids = nn.Parameter(empty, requires_grad=False)

    @staticmethod
    def block(c: HeadConfig, make: LayerFactory) -> PreNorm:
        """An ordinary layer."""
        norm = make.head_norm() if c.qk_norm else None
        attention = Attention(make, c.qkv_bias, c.out_bias, norm)
        return PreNorm(make, attention, GatedMLP(make, c.mlp_bias))

    @classmethod
    def stored_name(cls, name: str) -> str:
        return super().stored_name(name).replace("midlayer.", "layers.0.", 1)

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
