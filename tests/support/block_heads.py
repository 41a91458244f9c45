"""Heads of Medusa and block drafters as their producers write them, with random weights, and
references in float64 that are derived from the descriptions of the formats.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from bass.drafters import Block
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from support.heads import (
    DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    Published,
    eagle,
    eagle_states,
    loaded,
)


@dataclass
class Weights:
    """Random weights of a head by their names."""

    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)

    def matrix(self, name: str, *shape: int, scale: float = 1.2) -> None:
        drawn = torch.randn(*shape, generator=self.random)
        self.tensors[f"{name}.weight"] = drawn * scale / shape[-1] ** 0.5

    def vector(self, name: str, size: int, around: float = 1.0) -> None:
        self.tensors[name] = around + 0.2 * torch.randn(size, generator=self.random)


def medusa(
    vocab: int, of_target: int, heads: int = 3, layers: int = 1, own: bool = True,
    by_vllm: bool = False,
) -> Published:  # fmt: skip
    """Heads as FasterDecoding writes them, or as vLLM reads them."""
    w = Weights()
    for i in range(heads):
        for j in range(layers):
            name = f"blocks.{i}.layers.{j}" if by_vllm else f"{i}.{j}.linear"
            w.matrix(name, of_target, of_target)
            if not by_vllm:
                w.vector(f"{name}.bias", of_target, 0)
        if own:
            w.matrix(f"lm_heads.{i}" if by_vllm else f"{i}.{layers}", vocab, of_target)
    if by_vllm:
        raw = {"model_type": "medusa", "hidden_size": of_target, "vocab_size": vocab}
        return Published(raw | {"num_heads": heads, "num_hidden_layers": layers}, w.tensors)
    raw = {"medusa_num_heads": heads, "medusa_num_layers": layers}
    return Published(raw | {"base_model_name_or_path": "some/target"}, w.tensors)


def medusa_logits(head: Published, state: Tensor, of_target: Tensor) -> Tensor:
    """Logits [heads, vocab] after the final state of one position; of_target: the target's matrix
    of logits.
    """
    w = {name: x.double() for name, x in head.tensors.items()}
    if head.raw.get("model_type") == "medusa":
        count, layers = head.raw["num_heads"], head.raw["num_hidden_layers"]
        names, own = "blocks.{}.layers.{}", "lm_heads.{}.weight"
    else:
        count, layers = head.raw["medusa_num_heads"], head.raw["medusa_num_layers"]
        names, own = "{}.{}.linear", f"{{}}.{layers}.weight"
    found = []
    for i in range(count):
        x = state.double()
        for j in range(layers):
            name = names.format(i, j)
            y = w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros(()))
            x = x + y * y.sigmoid()
        found.append(w.get(own.format(i), of_target.double()) @ x)
    return torch.stack(found)


def peagle(vocab: int, of_target: int, **options: Any) -> Published:
    """A head of P-EAGLE, whose first three layers of the target are read."""
    head = eagle(vocab, of_target, layers=2, **options)
    random = torch.Generator().manual_seed(1)
    raw = {
        "architectures": ["PeagleLlamaForCausalLM"], "pard_token": 1,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }  # fmt: skip
    mask = {"mask_hidden": torch.randn(1, 1, 3 * of_target, generator=random)}
    return replace(head.but(**raw), tensors=head.tensors | mask)


def peagle_logits(
    head: Published, states: list[Tensor], tokens: Tensor, count: int, target: Any
) -> Tensor:
    """Logits [count, vocab] of the tokens drafted after a text of which all but the last token have
    states: all after the first are read from slots with the mask's state and token.
    """
    masks = head.tensors["mask_hidden"][0].double().expand(count - 1, -1).chunk(3, 1)
    given = [torch.cat((x.double(), y)) for x, y in zip(states, masks, strict=True)]
    read = torch.cat((tokens, torch.full((count - 1,), head.raw["pard_token"])))
    as_eagle = head.but(architectures=["LlamaForCausalLMEagle3"])
    return eagle_states(as_eagle, given, read, target)[1][-count:]


def layer_weights(w: Weights, name: str, hidden: int, bias: bool) -> None:
    """The tensors of a layer of Qwen 3."""
    sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    outputs = {f"{part}_proj": (heads * DIM, hidden) for part, heads in sizes.items()}
    for part, shape in (outputs | {"o_proj": (hidden, HEADS * DIM)}).items():
        w.matrix(f"{name}self_attn.{part}", *shape)
        if bias:
            w.vector(f"{name}self_attn.{part}.bias", shape[0], 0)
    for part in "qk":
        w.vector(f"{name}self_attn.{part}_norm.weight", DIM)
    for part in ("gate", "up"):
        w.matrix(f"{name}mlp.{part}_proj", INNER, hidden)
    w.matrix(f"{name}mlp.down_proj", hidden, INNER)
    for norm in ("input", "post_attention"):
        w.vector(f"{name}{norm}_layernorm.weight", hidden)


def block(
    vocab: int, of_target: int, producer: str = "z-lab", layers: int = 2, markov: int = 0,
    confidence: bool = False, draft_vocab: int = 0, bias: bool = False, mask: bool | str = False,
    markov_type: str = "vanilla", **options: Any,
) -> Published:  # fmt: skip
    """A block drafter as z-lab, speculators or DeepSpec writes it: the last two with their own
    embedding and matrix of logits, speculators' in a config of its own.
    """
    w, own = Weights(), producer != "z-lab"
    hidden, ids = (HIDDEN if own else of_target), draft_vocab or vocab
    w.matrix("fc", hidden, 2 * of_target)
    for name in ("hidden_norm", "norm"):
        w.vector(f"{name}.weight", hidden)
    for layer in range(layers):
        layer_weights(w, f"layers.{layer}.", hidden, bias)
    if mask:
        w.vector("mask_embedding", hidden, 0)
    if own:
        w.matrix("embed_tokens", vocab, hidden, scale=1.2 * hidden**0.5)
        w.matrix("lm_head", ids, hidden)
    if markov:
        w.matrix("markov_head.markov_w1", vocab, markov, scale=markov**0.5)
        w.matrix("markov_head.markov_w2", ids, markov)
        gates = {"gated": ("gate_proj", 1, 1), "rnn": ("joint_proj", 3, 2)}
        if markov_type in gates:
            name, parts, inputs = gates[markov_type]
            w.matrix(f"markov_head.{name}", parts * markov, hidden + inputs * markov)
            w.vector(f"markov_head.{name}.bias", parts * markov, 0)
    if confidence:
        w.matrix("confidence_head.proj", 1, hidden + markov)
        w.vector("confidence_head.proj.bias", 1, 0)
    if draft_vocab:
        kept = torch.randperm(vocab, generator=w.random)[:draft_vocab].sort()[0]
        w.tensors["d2t"] = kept - torch.arange(draft_vocab)
    layer = {
        "model_type": "qwen3", "vocab_size": vocab, "hidden_size": hidden, "rms_norm_eps": 1e-5,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rope_theta": 5000.0,
        "max_position_embeddings": 512, "attention_bias": bias,
    }  # fmt: skip
    if producer == "speculators":
        raw = {
            "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash",
            "transformer_layer_config": layer | options, "draft_vocab_size": ids,
            "target_hidden_size": of_target, "aux_hidden_state_layer_ids": [2, 0],
            "mask_token_id": 1, "block_size": 4, "sliding_window_non_causal": False,
        }  # fmt: skip
    elif producer == "z-lab":
        ids_of_states = {"target_layer_ids": [0, 1], "mask_token_id": 1}
        raw = layer | {"architectures": ["DFlashDraftModel"], "dflash_config": ids_of_states}
        raw |= {"block_size": 4} | options
    else:
        raw = layer | {
            "architectures": ["Qwen3DSparkModel"], "target_layer_ids": [-1, 1], "mask_token_id": 1,
            "block_size": 4, "markov_rank": markov, "markov_head_type": markov_type,
            "enable_confidence_head": confidence, "confidence_head_with_markov": confidence,
            "target_hidden_size": of_target,
        } | options  # fmt: skip
    return Published(raw, w.tensors, mask=mask if isinstance(mask, str) else "")


def states_read(head: Published) -> tuple[int, ...]:
    """The states of the target by their numbers: i enters layer i; -1 is the final one."""
    raw = head.raw
    if "block_size" not in raw:
        return tuple(raw.get("eagle_aux_hidden_state_layer_ids", (-1,)))
    if "speculators_model_type" in raw:
        return tuple(raw["aux_hidden_state_layer_ids"])
    ids = (raw.get("dflash_config") or raw)["target_layer_ids"]
    return tuple(i + 1 for i in ids)  # what leaves layer i


@dataclass
class Reference:
    """A block drafter in float64, with the config in one piece."""

    head: Published

    def __post_init__(self) -> None:
        raw = self.head.raw
        self.raw = raw | raw.get("transformer_layer_config", {}) | raw.get("dflash_config", {})
        self.w = {name: x.double() for name, x in self.head.tensors.items()}

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.w[f"{name}.weight"]

    def product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", torch.zeros(()))

    def rotated(self, x: Tensor, places: Tensor) -> Tensor:  # [positions, heads, dim]
        theta = self.raw["rope_theta"] ** (-torch.arange(0, DIM, 2).double() / DIM)
        angle = places[-len(x) :, None, None] * theta
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def layer(self, x: Tensor, context: Tensor, layer: int) -> Tensor:
        """The block x [slots, hidden] after a layer."""
        own = f"layers.{layer}."
        normed = self.norm(x, f"{own}input_layernorm")
        both = torch.cat((context, normed))
        places, groups = torch.arange(len(both)), HEADS // KV_HEADS
        q, k, v = (
            self.product(y, f"{own}self_attn.{part}_proj").unflatten(-1, (-1, DIM))
            for part, y in zip("qkv", (normed, both, both), strict=True)
        )
        q = self.rotated(self.norm(q, f"{own}self_attn.q_norm"), places)
        k = self.rotated(self.norm(k, f"{own}self_attn.k_norm"), places)
        behind = places[len(context) :, None] - places  # of a key, behind the query
        visible = torch.ones_like(behind, dtype=torch.bool)
        if (self.raw.get("layer_types") or {layer: ""})[layer] == "sliding_attention":
            visible = (behind >= 0) & (behind < self.raw["sliding_window"])
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, 1)) * DIM**-0.5
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(groups, 1)).flatten(1)
        x = x + self.product(mixed, f"{own}self_attn.o_proj")
        y = self.norm(x, f"{own}post_attention_layernorm")
        gate, up = (self.product(y, f"{own}mlp.{part}_proj") for part in ("gate", "up"))
        return x + self.product(gate * gate.sigmoid() * up, f"{own}mlp.down_proj")


def markov_read(r: Reference, before: Tensor, h: Tensor) -> Tensor:
    """What W2 reads for each slot, of W1 of the token before it and its final state."""
    kind = r.raw["markov_head_type"]
    if kind == "vanilla":
        return before
    if kind == "gated":
        gate = r.product(torch.cat((h, before), -1), "markov_head.gate_proj").sigmoid()
        return gate * before
    state, found = torch.zeros_like(before[0]), []
    for w1, x in zip(before, h, strict=True):
        gate, new, out = r.product(torch.cat((state, w1, x)), "markov_head.joint_proj").chunk(3)
        state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
        found.append(out.tanh())
    return torch.stack(found)


def block_logits(
    head: Published, states: list[Tensor], tokens: Tensor, drafted: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """Logits [length, vocab] of each token of a draft, and its confidence [length], for a text of
    which all but the last token have states.
    """
    r, count = Reference(head), len(drafted)
    w = r.w
    slots = count if "DSpark" in r.raw["architectures"][0] else count + 1
    table = w.get("embed_tokens.weight", target.embed.cpu().double())
    masks = torch.full((slots - 1,), r.raw["mask_token_id"])
    x = table[torch.cat((tokens[-1:], masks))]
    if "mask_embedding" in w:
        x = torch.cat((x[:1], w["mask_embedding"].expand(slots - 1, -1)))
    read = torch.cat([y.double() for y in states], -1)
    context = r.norm(r.product(read, "fc"), "hidden_norm")
    for layer in range(r.raw["num_hidden_layers"]):
        x = r.layer(x, context, layer)
    h = r.norm(x, "norm")[slots - count :]
    logits = h @ w.get("lm_head.weight", target.head.weight.cpu().double()).T
    if "markov_head.markov_w1.weight" in w:
        before = w["markov_head.markov_w1.weight"][torch.cat((tokens[-1:], drafted[:-1]))]
        logits = logits + r.product(markov_read(r, before, h), "markov_head.markov_w2")
        h = torch.cat((h, before), -1)
    ids = torch.arange(logits.shape[1]) + head.tensors.get("d2t", torch.zeros((), dtype=int))
    whole = torch.full((count, r.raw["vocab_size"]), -torch.inf).double()
    sure = torch.ones(count)
    if "confidence_head.proj.weight" in w:
        sure = r.product(h, "confidence_head.proj")[:, 0].sigmoid()
    return whole.index_copy(1, ids, logits), sure


SURE, ALL_SURE = 0.3, 0.2
MIXED = ("sliding_attention", "full_attention")
FORMS: dict[str, dict[str, Any]] = {
    "FasterDecoding": {},
    "vLLM, two layers": {"layers": 2, "by_vllm": True},
    "vLLM, the target's matrix": {"heads": 2, "own": False, "by_vllm": True},
    "z-lab": {},
    "z-lab, windows": {"layer_types": MIXED, "sliding_window": 4},
    "z-lab, mask embedding, biases": {"mask": True, "bias": True},
    "z-lab, mask embedding in a file": {"mask": "embedding"},
    "speculators": {"producer": "speculators", "draft_vocab": -1},
    "DeepSpec, DSpark": {"producer": "DeepSpec", "markov": 4, "confidence": True},
    "DeepSpec, its DFlash": {"producer": "DeepSpec"},
    "DeepSpec, gated": {"producer": "DeepSpec", "markov": 4, "markov_type": "gated"},
    "DeepSpec, recurrent": {
        "producer": "DeepSpec", "markov": 4, "markov_type": "rnn", "confidence": True,
    },
    "P-EAGLE": {"draft_vocab": -1},
    "P-EAGLE, norms": {"norm_before_fc": True, "fc_norm": False, "norm_output": True},
}  # fmt: skip
MEDUSAS = tuple(FORMS)[:3]


@functools.cache
def published(form: str, vocab: int, of_target: int) -> Published:
    """A head of one of the forms for a target."""
    options = FORMS[form]
    if options.get("draft_vocab"):  # one token less than the target
        options = options | {"draft_vocab": vocab + options["draft_vocab"]}
    make = medusa if form in MEDUSAS else peagle if form.startswith("P-EAGLE") else block
    return make(vocab, of_target, **options)


@final
@dataclass(frozen=True)
class WithHead(DraftMethod):
    """A head of a form, made for the run's target, of three layers or more; made: its drafters.

    A confidence head ends drafts below `SURE`, and where the product is below `ALL_SURE`.
    """

    form: str
    made: list[Any] = field(default_factory=list, compare=False, repr=False)

    @property
    def target_features(self) -> tuple[int, ...]:
        return states_read(published(self.form, 13, 32))

    @property
    def obeys_stop_rules(self) -> bool:
        return True

    def build(self, context: DrafterContext) -> Drafter:
        head = published(self.form, context.vocab_size, context.hidden_size)
        module = loaded(head, context.device, context.dtype)
        context.head = lambda: module  # as if `draft=` had named it
        method = module.method().with_head(module, context.layers)
        assert method.target_features == self.target_features
        if isinstance(method, Block):
            method = replace(method, confidence=SURE, survival=ALL_SURE)
        self.made.append(method.build(context))
        return self.made[-1]
