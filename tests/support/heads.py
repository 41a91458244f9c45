"""Heads as their producers write them, with random weights, and a reference in float64 that is
derived from the descriptions of the formats, and shares no code with the drafters.
"""

import functools
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.checkpoints.heads import read_head
from bass.drafters.eagle import ChainDrafter
from bass.drafters.heads import DraftHead
from bass.engine.scorer import ModelScorer
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.records import CacheBudget, Window
from bass.testing.small_models import SmallModel
from support.mtp import PRODUCERS, mtp, mtp_states

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 4, 2, 8, 24, 40  # of the small heads
MASK = "mask_embedding"


@dataclass(frozen=True)
class Published:
    """A config.json and tensors, by the names of EAGLE or of the producer of an MTP layer."""

    raw: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    producer: str = ""  # of an MTP layer
    mask: str = ""  # the key of `mask_embedding` in a file of its own

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.raw))
        stored = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        if self.mask:
            mask = {"mask_token_id": 1, self.mask: stored.pop(MASK)}
            torch.save(mask, folder / "mask_embedding.pt")
        save_file(stored, folder / "model.safetensors")
        return folder

    def but(self, **changes: Any) -> "Published":
        return replace(self, raw=self.raw | changes)


def eagle(
    vocab: int, of_target: int, version: int = 3, draft_vocab: int = 0, layers: int = 1,
    states: int = 3, qk_norm: bool = False, bias: bool = False, hidden: int = HIDDEN,
    lacks: tuple[str, ...] = (), seed: int = 0, **options: Any,
) -> Published:  # fmt: skip
    """A head of EAGLE-3, or of EAGLE (version 1), as SafeAILab writes it, without the tensors
    `lacks`. hidden: 0: as of the target.
    """
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 1.2 / shape[-1] ** 0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=random)

    three = version == 3
    hidden = hidden if three and hidden else of_target
    tensors = {"fc.weight": matrix(hidden, states * of_target if three else hidden + of_target)}
    if options.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(states * of_target)
    for i in range(states if options.get("fc_norm") else 0):
        tensors[f"fc_norm.{i}.weight"] = norm(of_target)
    for layer in range(layers):
        own = "midlayer" if three and layers == 1 else f"layers.{layer}"
        width = 2 * hidden if three and layer == 0 else hidden
        sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        for name, count in sizes.items():
            tensors[f"{own}.self_attn.{name}_proj.weight"] = matrix(count * DIM, width)
        tensors[f"{own}.self_attn.o_proj.weight"] = matrix(hidden, HEADS * DIM)
        for name in ("gate", "up"):
            tensors[f"{own}.mlp.{name}_proj.weight"] = matrix(INNER, hidden)
        tensors[f"{own}.mlp.down_proj.weight"] = matrix(hidden, INNER)
        tensors[f"{own}.post_attention_layernorm.weight"] = norm(hidden)
        if three or layer:
            tensors[f"{own}.input_layernorm.weight"] = norm(hidden)
        if three and layer == 0:
            tensors[f"{own}.hidden_norm.weight"] = norm(hidden)
        for name in ("q", "k") if qk_norm else ():
            tensors[f"{own}.self_attn.{name}_norm.weight"] = norm(DIM)
    if bias:
        products = [name for name in tensors if re.search(r"(fc|_proj)\.weight", name)]
        for name in products:
            tensors[name.replace("weight", "bias")] = matrix(len(tensors[name]))
    tensors["embed_tokens.weight"] = matrix(vocab, hidden) * hidden**0.5
    tensors["lm_head.weight"] = matrix(draft_vocab or vocab, hidden)
    if three:
        tensors["norm.weight"] = norm(hidden)
    if draft_vocab:
        ids = torch.randperm(vocab, generator=random)[:draft_vocab].sort()[0]
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    raw = {
        "architectures": ["LlamaForCausalLMEagle3" if three else "EagleLlamaForCausalLM"],
        "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0, "max_position_embeddings": 512, "target_hidden_size": of_target,
    }  # fmt: skip
    raw |= {"draft_vocab_size": draft_vocab} if draft_vocab else {}
    stored = {name: tensor for name, tensor in tensors.items() if name not in lacks}
    return Published(raw | options, stored)


def attended(q: Tensor, k: Tensor, v: Tensor, theta: float, window: int) -> Tensor:
    """Causal attention within a window, with rotary positions: [length, heads * dim]."""
    length = len(q)
    angle = torch.arange(length)[:, None] * theta ** (-torch.arange(0, DIM, 2).double() / DIM)
    hidden = torch.ones(length, length).triu(1) + torch.ones(length, length).tril(-window)

    def rotated(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    q, k = rotated(q), rotated(k).repeat_interleave(HEADS // KV_HEADS, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    weights = scores.masked_fill(hidden.bool(), -torch.inf).softmax(-1)
    values = v.repeat_interleave(HEADS // KV_HEADS, 1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@torch.no_grad()
def eagle_states(
    head: Published, features: list[Tensor], tokens: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """Recurrent states [length, hidden] and logits [length, vocab] of the head for the features of
    positions 0, 1 ... and the tokens 0, 1 ... of a text, of which row t reads token t + 1. target:
    a decoder, whose embedding a head without one reads.
    """
    raw, w = head.raw, {name: x.double() for name, x in head.tensors.items()}
    three = "Eagle3" in raw["architectures"][0]

    def norm(x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + raw["rms_norm_eps"]).rsqrt()
        return x * scale * w[f"{name}.weight"]

    def product(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    states = [x.double() for x in features]
    table = w.get("embed_tokens.weight", target.embed.cpu().double())
    embedded = table[tokens[1 : len(states[0]) + 1]]
    if three:
        if raw.get("fc_norm"):
            states = [norm(x, f"fc_norm.{i}") for i, x in enumerate(states)]
        x = torch.cat(states, -1)
        x = norm(x, "input_norm") if raw.get("norm_before_fc") else x
        x = product(x, "fc") if "fc.weight" in w else x
    else:
        x = product(torch.cat((embedded, states[0]), -1), "fc")
    for layer in range(raw["num_hidden_layers"]):
        own = "midlayer" if "midlayer.mlp.up_proj.weight" in w else f"layers.{layer}"
        read = x
        if three and layer == 0:
            normed = norm(x, f"{own}.hidden_norm")
            read = torch.cat((norm(embedded, f"{own}.input_layernorm"), normed), -1)
            x = normed if raw.get("norm_before_residual") else x
        elif layer:
            read = norm(x, f"{own}.input_layernorm")
        q, k, v = (
            product(read, f"{own}.self_attn.{name}_proj").unflatten(-1, (-1, DIM)) for name in "qkv"
        )
        if f"{own}.self_attn.q_norm.weight" in w:
            q, k = norm(q, f"{own}.self_attn.q_norm"), norm(k, f"{own}.self_attn.k_norm")
        mixed = attended(q, k, v, raw["rope_theta"], raw.get("sliding_window", len(x)))
        x = x + product(mixed, f"{own}.self_attn.o_proj")
        y = norm(x, f"{own}.post_attention_layernorm")
        gate = product(y, f"{own}.mlp.gate_proj")
        y = gate * gate.sigmoid() * product(y, f"{own}.mlp.up_proj")
        x = x + product(y, f"{own}.mlp.down_proj")
    last = norm(x, "norm") if three else x
    if "lm_head.weight" in w or raw.get("tie_word_embeddings"):
        own_logits = last @ w.get("lm_head.weight", table).T
    else:
        whole = target.embed if target.head is None else target.head.weight
        own_logits = last @ whole.cpu().double().T
    logits = torch.full((len(x), raw["vocab_size"]), -torch.inf).double()
    ids = torch.arange(own_logits.shape[1]) + head.tensors.get(
        "d2t", torch.zeros((), dtype=torch.int64)
    )
    logits = logits.index_copy(1, ids, own_logits * raw.get("logit_scale", 1))
    return (last if raw.get("norm_output") else x), logits


@torch.inference_mode()
def target_states(model: SmallModel, tokens: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """States of the target for a text, [length, hidden] each, by one pass over all of it."""
    target, count = model.models["target"].to(tokens.device), len(tokens)
    budget = CacheBudget.of(np.array([count]))
    cache = PaddedCache.allocate(target.shape, budget, tokens.device, torch.float32)
    scorer = ModelScorer(target, cache, SDPA(), 1, layers)
    positions = torch.arange(count, device=tokens.device)[None]
    return [x[0].cpu() for x in scorer(Window(tokens[None], positions, count)).features]


# Each producer's way of writing a head.


def named(head: Published, pattern: str, new: str) -> Published:
    """With other names of tensors."""
    return replace(
        head, tensors={re.sub(pattern, new, name): x for name, x in head.tensors.items()}
    )


def nested(head: Published, **eagle: Any) -> Published:
    """With an `eagle_config`."""
    raw = {name: x for name, x in head.raw.items() if name not in eagle}
    return replace(head, raw=raw | {"eagle_config": eagle})


def by_speculators(head: Published, layers: str = "llama", **changes: Any) -> Published:
    """Without `norm_before_residual`, which is then true."""
    layer = {
        name: head.raw[name]
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
            "max_position_embeddings",
        )
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": head.raw["rope_theta"]}
    kinds = {"layer_types": ["full_attention"], "sliding_window": None}
    norms = {n: head.raw.get(n, False) for n in ("norm_before_fc", "norm_output", "fc_norm")}
    raw = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [], "verifier": {}},
        "transformer_layer_config": layer
        | {"model_type": layers, "rope_parameters": rope, "tie_word_embeddings": True} | kinds,
        "draft_vocab_size": head.raw.get("draft_vocab_size", head.raw["vocab_size"]),
        "eagle_aux_hidden_state_layer_ids": None, "tie_word_embeddings": False,
        "target_hidden_size": head.raw["target_hidden_size"],
    }  # fmt: skip
    return replace(named(head, "^midlayer", "layers.0"), raw=raw | norms | changes)


def by_specforge(head: Published) -> Published:
    """With a table of ids in any case."""
    zeros = {"d2t": torch.zeros(head.raw["vocab_size"], dtype=torch.int64)}
    full = replace(head, tensors=zeros | head.tensors)
    return nested(full, use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=[1, 0, 2])


def by_nvidia(head: Published, ids: list[int] | None, **eagle: Any) -> Published:
    written = named(head, "^midlayer", "layers.0")
    before = {"norm_before_fc": True} if head.raw.get("norm_before_fc") else {}
    return nested(
        written, eagle_aux_hidden_state_layer_ids=ids, use_aux_hidden_state=ids is not None,
        use_input_layernorm_in_first_layer=True, use_last_layernorm=True, use_mtp_layernorm=False,
        next_layer_regular=True, parallel_draft_step=1, **before, **eagle,
    )  # fmt: skip


def by_deepspec(head: Published) -> Published:
    changes = {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [-1, 0, 1, 2]}
    return head.but(**changes, model_type="qwen3")


@dataclass(frozen=True)
class Form:
    """`options` of `eagle`, how it is written, and the states of a target of three layers."""

    options: dict[str, Any]
    write: Callable[[Published], Published] = lambda head: head
    states: tuple[int, ...] = (2, 1, 0)


NORMS = ("norm_before_fc", "norm_output", "norm_before_residual", "qk_norm")
FIRST = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
# a reduced vocabulary has one token less than the target's
FORMS: dict[str, Form] = {
    "eagle3": Form(FIRST, states=(0, 1, 2)),
    "eagle3, reduced vocabulary": Form(FIRST | {"draft_vocab": -1}, states=(0, 1, 2)),
    "eagle3, norms": Form(FIRST | dict.fromkeys(NORMS, True), states=(0, 1, 2)),
    "eagle3, norms of states, two layers": Form(
        FIRST | {"fc_norm": True, "layers": 2}, states=(0, 1, 2)
    ),
    "eagle": Form({"version": 1, "states": 1}, states=(-1,)),
}
OF_TARGET = ("embed_tokens.weight", "lm_head.weight")
PRODUCED: dict[str, Form] = {
    "SpecForge": Form({"draft_vocab": -1}, by_specforge, (2, 1, 3)),
    "SpecForge, whole vocabulary": Form({}, by_specforge, (2, 1, 3)),
    "speculators": Form(
        {"draft_vocab": -1, "norm_before_residual": True, "norm_before_fc": True,
         "norm_output": True},
        by_speculators,
    ),
    "speculators, Qwen 3": Form(
        {"qk_norm": True, "hidden": 0, "lacks": OF_TARGET[:1]},
        lambda head: by_speculators(
            head, "qwen3", norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[1, 2, 0]
        ),
        (1, 2, 0),
    ),
    "NVIDIA": Form(
        {"norm_before_fc": True, "hidden": 0, "lacks": OF_TARGET},
        lambda head: by_nvidia(head, [2, 3, 0]),
        (2, 3, 0),
    ),
    "NVIDIA, final state": Form(
        {"states": 1, "hidden": 0, "lacks": ("fc.weight",), "draft_vocab": -1},
        lambda head: by_nvidia(head, None),
        (-1,),
    ),
    "DeepSpec": Form({"qk_norm": True, "states": 4}, by_deepspec, (0, 1, 2, 3)),
    "EAGLE-3.1": Form({"draft_vocab": -1, "fc_norm": True, "norm_output": True}),
    "SGLang, norms of states": Form(
        {"fc_norm": True},
        lambda head: functools.reduce(
            lambda one, i: named(one, rf"fc_norm\.{i}", f"aux_norm_{('low', 'mid', 'high')[i]}"),
            range(3),
            head.but(use_aux_norm=True, fc_norm=None),
        ),
    ),
    "NeMo": Form({}, lambda head: named(named(head, "^midlayer", "layers.0"), "^", "model.")),
    "two layers by SGLang": Form(
        {"layers": 2}, lambda head: named(head, r"(layers\.1)\.input_layernorm", r"\1.hidden_norm")
    ),
    "biases, eps, rope": Form(
        {"bias": True, "rms_norm_eps": 0.1, "rope_theta": 50.0, "logit_scale": 0.5}
    ),
    "biases of EAGLE": Form({"version": 1, "states": 1, "bias": True}, states=(-1,)),
    "tied": Form({"tie_word_embeddings": True, "lacks": OF_TARGET[1:]}),
    "two states": Form(
        {"states": 2}, lambda head: nested(head, eagle_aux_hidden_state_layer_ids=[0, 2]), (0, 2)
    ),
    "window": Form(
        {"sliding_window": 3},
        lambda head: by_speculators(head, norm_before_residual=False, transformer_layer_config=
            head.raw | {"layer_types": ["sliding_attention"], "use_sliding_window": True}
        ),
    ),
}  # fmt: skip


FORMS |= {
    f"mtp of {producer}": Form({"producer": producer}, states=(-1,)) for producer in PRODUCERS
}


@functools.cache
def published(form: str, vocab: int, of_target: int) -> Published:
    """A head of a form for a target, for the reference: of EAGLE by the names of `eagle`."""
    options = (FORMS | PRODUCED)[form].options
    if producer := options.get("producer"):
        return Published(*mtp(vocab, of_target, producer), producer)
    if options.get("draft_vocab"):
        options = options | {"draft_vocab": vocab + options["draft_vocab"]}
    return eagle(vocab, of_target, **options)


def written(form: str, vocab: int, of_target: int) -> Published:
    """The same as its producer writes it."""
    return (FORMS | PRODUCED)[form].write(published(form, vocab, of_target))


def states_of(
    head: Published, features: list[Tensor], tokens: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """As `eagle_states`, for any form."""
    if not head.producer:
        return eagle_states(head, features, tokens, target)
    return mtp_states(head.producer, head.tensors, features[0], tokens, target)


def loaded(head: Published, device: torch.device, dtype: torch.dtype) -> DraftHead:
    """The head, as it is read from files."""
    with tempfile.TemporaryDirectory() as folder:
        index = read_head(head.write(Path(folder)), kind="MTP" if head.producer else None)
        assert index is not None
        return index.load(device, dtype)


@final
@dataclass(frozen=True)
class Headed(DraftMethod):
    """A head with random weights, made for the run's target, of three layers or more.

    made: its drafters.
    """

    form: str = "eagle3"
    made: list[Any] = field(default_factory=list, compare=False, repr=False)

    @functools.cached_property
    def target_features(self) -> tuple[int, ...]:  # type: ignore[override]
        head: Any = loaded(written(self.form, 20, 16), torch.device("cpu"), torch.float32)
        return head.method().with_head(head, 3).target_features

    @property
    def obeys_stop_rules(self) -> bool:
        return True

    def build(self, context: DrafterContext) -> Drafter:
        head = written(self.form, context.vocab_size, context.hidden_size)
        module: Any = loaded(head, context.device, context.dtype)
        self.made.append(ChainDrafter.of(module, context))
        return self.made[-1]
