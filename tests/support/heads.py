"""Heads as their producers write them, with random weights, and a reference in float64 that is
derived from the descriptions of the formats, and shares no code with the drafters.
"""

import functools
import json
import tempfile
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
from bass.engine.scorer import ModelScorer
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.models.heads import DraftHead
from bass.records import CacheBudget, Window
from bass.testing.small_models import SmallModel
from support.mtp import PRODUCERS, mtp, mtp_states

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 4, 2, 8, 24, 40  # of the small heads


@dataclass(frozen=True)
class Published:
    """A config.json and tensors, by the names of EAGLE or of the producer of an MTP layer."""

    raw: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    producer: str = ""  # of an MTP layer

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.raw))
        stored = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        save_file(stored, folder / "model.safetensors")
        return folder

    def but(self, **changes: Any) -> "Published":
        return replace(self, raw=self.raw | changes)


def eagle(
    vocab: int, of_target: int, version: int = 3, draft_vocab: int = 0, layers: int = 1,
    states: int = 3, qk_norm: bool = False, seed: int = 0, **options: Any,
) -> Published:  # fmt: skip
    """A head of EAGLE-3, or of EAGLE (version 1), as SafeAILab writes it."""
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 1.2 / shape[-1] ** 0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=random)

    three, hidden = version == 3, HIDDEN if version == 3 else of_target
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
    return Published(
        raw | ({"draft_vocab_size": draft_vocab} if draft_vocab else {}) | options, tensors
    )


@torch.no_grad()
def eagle_states(head: Published, features: list[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Recurrent states [length, hidden] and logits [length, vocab] of the head for the features of
    positions 0, 1 ... and the tokens 0, 1 ... of a text, of which row t reads token t + 1.
    """
    raw, w = head.raw, {name: x.double() for name, x in head.tensors.items()}
    three = "Eagle3" in raw["architectures"][0]

    def norm(x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + raw["rms_norm_eps"]).rsqrt()
        return x * scale * w[f"{name}.weight"]

    states = [x.double() for x in features]
    embedded = w["embed_tokens.weight"][tokens[1 : len(states[0]) + 1]]
    if three:
        if raw.get("fc_norm"):
            states = [norm(x, f"fc_norm.{i}") for i, x in enumerate(states)]
        both = torch.cat(states, -1)
        x = (norm(both, "input_norm") if raw.get("norm_before_fc") else both) @ w["fc.weight"].T
    else:
        x = torch.cat((embedded, states[0]), -1) @ w["fc.weight"].T
    length, theta = len(x), raw["rope_theta"]
    angle = torch.arange(length)[:, None] * theta ** (-torch.arange(0, DIM, 2).double() / DIM)

    def rotated(y: Tensor) -> Tensor:  # [length, heads, dim]
        first, second = y.chunk(2, -1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

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
            (read @ w[f"{own}.self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, DIM))
            for name in "qkv"
        )
        if f"{own}.self_attn.q_norm.weight" in w:
            q, k = norm(q, f"{own}.self_attn.q_norm"), norm(k, f"{own}.self_attn.k_norm")
        q, k = rotated(q), rotated(k).repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
        future = torch.ones(length, length).triu(1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        values = v.repeat_interleave(HEADS // KV_HEADS, 1)
        mixed = torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
        x = x + mixed @ w[f"{own}.self_attn.o_proj.weight"].T
        y = norm(x, f"{own}.post_attention_layernorm")
        gate = y @ w[f"{own}.mlp.gate_proj.weight"].T
        up = y @ w[f"{own}.mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[f"{own}.mlp.down_proj.weight"].T
    last = norm(x, "norm") if three else x
    own_logits, logits = (
        last @ w["lm_head.weight"].T,
        torch.full((length, raw["vocab_size"]), -torch.inf),
    )
    ids = torch.arange(own_logits.shape[1]) + head.tensors.get("d2t", torch.zeros((), dtype=int))
    logits = logits.double().index_copy(1, ids, own_logits)
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


NORMS = ("norm_before_fc", "norm_output", "norm_before_residual", "qk_norm")
FORMS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3, reduced vocabulary": {"draft_vocab": -1},  # one token less than the target
    "eagle3, norms": dict.fromkeys(NORMS, True),
    "eagle3, norms of states, two layers": {"fc_norm": True, "layers": 2},
    "eagle": {"version": 1, "states": 1},
}


FORMS |= {f"mtp of {producer}": {"producer": producer} for producer in PRODUCERS}


@functools.cache
def published(form: str, vocab: int, of_target: int) -> Published:
    """A head of one of `FORMS` for a target."""
    options = FORMS[form]
    if producer := options.get("producer"):
        return Published(*mtp(vocab, of_target, producer), producer)
    if options.get("draft_vocab"):
        options = options | {"draft_vocab": vocab + options["draft_vocab"]}
    return eagle(vocab, of_target, **options)


def states_of(
    head: Published, features: list[Tensor], tokens: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """As `eagle_states`, for any form; `target`: its embedding and head serve an MTP layer."""
    if not head.producer:
        return eagle_states(head, features, tokens)
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

    @property
    def target_features(self) -> tuple[int, ...]:
        return (0, 1, 2) if self.form.startswith("eagle3") else (-1,)

    @property
    def obeys_stop_rules(self) -> bool:
        return True

    def build(self, context: DrafterContext) -> Drafter:
        head = published(self.form, context.vocab_size, context.hidden_size)
        module: Any = loaded(head, context.device, context.dtype)
        self.made.append(ChainDrafter.of(module, context))
        return self.made[-1]
