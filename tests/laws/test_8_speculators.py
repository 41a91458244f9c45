"""Heads that the package `speculators` (0.9) wrote, with random weights, draft what its own models
compute by teacher forcing. It is no dependency: without it the tests are skipped.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bass.checkpoints.heads import read_head
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.ops.batch_state import clipped
from bass.ops.noise import step_noise
from bass.policies import Fixed
from bass.sampling_params import Sampling
from bass.testing.small_models import SmallLlama
from bass.training.options import TrainOptions
from bass.training.train import TRAINEES
from support.engines import By, Setup, mixed_requests
from support.heads import target_states

models = pytest.importorskip("speculators.models")
transformers = pytest.importorskip("transformers")

WORLD, WIDTH, LONGEST = SmallLlama(layers=3), 32, 3
REDUCED = {"draft_vocab_size": WORLD.vocab - 1}
EAGLE: dict[str, dict[str, Any]] = {
    "Llama": {"layers": "llama"},
    "Llama, norms": {
        "layers": "llama", "norm_before_residual": True, "norm_output": True, "fc_norm": True,
    },
    "Qwen 3, two layers": {"norm_before_fc": True, "num_hidden_layers": 2},
    "Qwen 3, reduced vocabulary": REDUCED | {"norm_before_residual": True},
}  # fmt: skip
BLOCKS: dict[str, dict[str, Any]] = {
    "DFlash": {"kind": "DFlash"},
    "DFlash, reduced vocabulary": {"kind": "DFlash"} | REDUCED,
    "DSpark": {"kind": "DSpark", "markov_rank": 4},
    "DSpark, gated": {"kind": "DSpark", "markov_rank": 4, "markov_head_type": "gated"},
    "DSpark, recurrent": {"kind": "DSpark", "markov_rank": 4, "markov_head_type": "rnn"},
    "DSpark, from the second slot on": {
        "kind": "DSpark", "markov_rank": 4, "sample_from_anchor": False,
    },
}  # fmt: skip
ONE_STEP = {
    "algorithm": "mtp", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 1}],
    "default_proposal_method": "greedy", "verifier": {"name_or_path": None, "architectures": []},
}  # fmt: skip
MTP = {"MTP": {"kind": "MTP", "speculators_config": ONE_STEP}}
OURS = {
    "ours, eagle3": ("eagle3", WORLD.vocab),
    "ours, eagle3, reduced vocabulary": ("eagle3", WORLD.vocab - 1),
    "ours, block": ("block", WORLD.vocab),
}


def package_model(kind: str = "Eagle3", layers: str = "qwen3", **options: Any) -> Any:
    """A model of the package for the target, with random weights but for those that its files
    leave to the target.
    """
    config_class = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[layers]
    layer = config_class(
        vocab_size=WORLD.vocab, hidden_size=WIDTH, intermediate_size=40, num_attention_heads=4,
        num_hidden_layers=options.pop("num_hidden_layers", 1), num_key_value_heads=2, head_dim=8,
        rms_norm_eps=1e-5, max_position_embeddings=512, attn_implementation="eager",
    )  # fmt: skip
    own: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 2, 0]}
    if kind == "MTP":
        own = dict[str, Any]()
    elif kind != "Eagle3":
        size = LONGEST + (not options.get("sample_from_anchor", kind == "DSpark"))
        own = {"aux_hidden_state_layer_ids": [2, 0], "mask_token_id": 1, "block_size": size}
    whole = ({} if kind == "MTP" else {"draft_vocab_size": WORLD.vocab}) | own | options
    config = getattr(models, f"{kind}SpeculatorConfig")(transformer_layer_config=layer, **whole)
    model = getattr(models, f"{kind}DraftModel")(config)
    random = torch.Generator().manual_seed(0)
    target: Any = WORLD.models["target"]
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=random)
        norm = parameter.ndim == 1
        parameter.data = 1 + 0.2 * drawn if norm else drawn * 1.2 / parameter.shape[-1] ** 0.5
    if config.draft_vocab_size < WORLD.vocab:
        ids = torch.randperm(WORLD.vocab, generator=random)[: config.draft_vocab_size].sort()[0]
        known = torch.zeros(WORLD.vocab, dtype=torch.bool).index_fill_(0, ids, True)
        model.load_vocab_mappings(known, ids - torch.arange(len(ids)))
    elif kind != "Eagle3":
        model.lm_head.weight.data = target.head.weight.data.clone()
    if kind != "Eagle3":
        model.embed_tokens.weight.data = target.embed.data.clone()
    return model.eval()


def written(method: str, draft_vocab: int, folder: Path) -> Any:
    """A model of the package with the weights of a head that `bass train-draft` writes."""
    read = {"eagle3": [1, 2, 0], "block": [2, 0]}[method]
    options = TrainOptions(data=[""], draft_vocab_size=draft_vocab, unroll=LONGEST, features=read)
    target: Any = WORLD.models["target"]
    trainee = TRAINEES[method].new(target, options, torch.arange(WORLD.vocab))
    random = torch.Generator().manual_seed(0)
    for parameter in filter(torch.is_floating_point, trainee.head.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=random)
    trainee.save(folder, target, "")
    kind = {"eagle3": "Eagle3", "block": "DSpark"}[method]
    config = getattr(models, f"{kind}SpeculatorConfig").from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = getattr(models, f"{kind}DraftModel")(config)
    of_target = {"embed_tokens.weight": target.embed, "lm_head.weight": target.head.weight}
    stored = load_file(folder / "model.safetensors")
    missing, unexpected = model.load_state_dict(of_target | stored, strict=False)
    assert not unexpected
    assert all(name.startswith("verifier_") for name in missing)
    return model.float().eval()


@final
@dataclass(frozen=True)
class Stored(DraftMethod):
    """The head of a folder. made: its drafters."""

    folder: Path
    made: list[Any] = field(default_factory=list, compare=False, repr=False)

    @functools.cached_property
    def head(self) -> Any:
        index = read_head(self.folder)
        assert index is not None
        return index.load(torch.device("cpu"), torch.float32)

    @functools.cached_property
    def target_features(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.head.method().with_head(self.head, 3).target_features

    def build(self, context: DrafterContext) -> Drafter:
        context.head = lambda: self.head
        method = self.head.method().with_head(self.head, context.layers)
        self.made.append(method.build(context))
        return self.made[-1]


def eagle_logits(model: Any, tokens: Tensor, drafted: Tensor) -> Tensor:
    """Logits of the package for each drafted token [k, vocab], the others given."""
    features = torch.cat(target_states(WORLD, tokens[:-1], (1, 2, 0)), -1)
    read, found = torch.cat((tokens, drafted))[1:][None], []
    padded = torch.nn.functional.pad(features, (0, 0, 0, read.shape[1] - len(features)))[None]
    hook = model.lm_head.register_forward_hook(lambda _, given, logits: found.append(logits))
    model(padded, read, torch.zeros_like(read), ttt_steps=len(drafted))
    hook.remove()
    return torch.stack([logits[0, len(tokens) - 2] for logits in found])


def mtp_logits(model: Any, tokens: Tensor) -> Tensor:
    """The same of the first drafted token. In training the package's later drafts read no states of
    earlier ones.
    """
    [final] = target_states(WORLD, tokens[:-1], (-1,))
    pad = torch.nn.functional.pad
    logits, *_ = model(pad(tokens, (0, 1))[None], pad(final, (0, 0, 0, 2))[None])
    return logits[0][:, len(tokens) - 2]


def block_logits(model: Any, tokens: Tensor, drafted: Tensor, patch: pytest.MonkeyPatch) -> Tensor:
    """The same of a block, whose slots are masks."""
    features, size = torch.cat(target_states(WORLD, tokens[:-1], (2, 0)), -1), model.block_size
    read = torch.nn.functional.pad(torch.cat((tokens, drafted)), (0, size + 1))[None]
    padded = torch.nn.functional.pad(features, (0, 0, 0, read.shape[1] - len(features)))[None]
    anchor = torch.zeros_like(read).index_fill_(1, torch.tensor(len(tokens) - 1), 1)
    found = list[Tensor]()

    def metrics(logits: Tensor, *_: Any, **__: Any) -> tuple[Tensor, dict[str, Any]]:
        found.append(logits[0])
        return torch.zeros(()), {}

    patch.setattr(f"{type(model).__module__}.compute_metrics", metrics)
    last = torch.zeros(1, read.shape[1], WIDTH)
    model(padded, read, anchor, last, torch.zeros_like(read), max_anchors=1)
    first = 0 if model.config.sample_from_anchor else 1
    return found[0][first : first + len(drafted)]


@pytest.mark.parametrize("form", [*EAGLE, *BLOCKS, *MTP, *OURS])
@torch.no_grad()
def test_drafts_are_those_of_the_package(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form in OURS:
        model = written(*OURS[form], tmp_path)
    else:
        model = package_model(**(EAGLE | BLOCKS | MTP)[form])
        model.save_pretrained(tmp_path)
    chain = isinstance(model, models.Eagle3DraftModel)
    method = Stored(tmp_path)
    setup = Setup(WORLD, torch.device("cpu"), policy=Fixed(LONGEST), drafter=By(method),
                  warp=Sampling(1.0), eos=(3,))  # fmt: skip
    run, seen = setup.engine(mixed_requests(WORLD, count=6, longest=12)), 0
    s, ids = run.sequences, torch.arange(model.draft_vocab_size)
    ids = ids if model.d2t is None else ids + model.d2t
    for _ in run:
        [drafter] = method.made
        lengths = clipped(torch.full_like(s.lens, LONGEST), s.lens, s.limits, s.active)
        noise = step_noise(s.keys, s.steps, s.lens, LONGEST)
        with torch.inference_mode():
            draft = drafter.propose(s, lengths, LONGEST, noise, s.capacity)
        for row in torch.nonzero(s.active & (s.lens > 1) & (lengths > 0))[:, 0].tolist():
            tokens, k = s.tokens[row, : s.lens[row]].clone(), int(draft.lengths[row])
            if form in MTP:
                k = min(k, 1)
            elif k < LONGEST and not chain:  # a shorter block, which is not causal
                continue
            drafted = draft.tokens[row, :k].clone()
            if chain:
                logits = eagle_logits(model, tokens, drafted)
            elif form in MTP:
                logits = mtp_logits(model, tokens)
            else:
                logits = block_logits(model, tokens, drafted, monkeypatch)
            expected = torch.zeros(k, WORLD.vocab).index_copy(1, ids, logits.softmax(-1))
            torch.testing.assert_close(draft.probs[row, :k], expected, rtol=1e-3, atol=1e-4)
            seen += k
    assert seen > 8
