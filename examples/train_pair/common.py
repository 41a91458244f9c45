"""What the stages share: shapes of the pair, attention for training, batches, optimisers, schedule,
held-out text.
"""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from arguments import read_tokenizer
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.models.llama import Llama, LlamaConfig
from bass.records import Projection, Window

CONTEXT = 1024
TARGET = LlamaConfig(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
)
DRAFT = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=896,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
)


@dataclass(frozen=True)
class Recipe:
    """How one model is optimised: Muon for the matrices of the blocks, AdamW for the embedding and
    the norms.

    The rate rises linearly over `warmup` steps, stays, and falls linearly to zero over the last
    `decay` share.
    """

    steps: int
    batch: int  # rows of CONTEXT tokens a step
    matrix_rate: float = 4e-3
    matrix_decay: float = 0.1
    other_rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.5
    seed: int = 0

    def rate(self, step: int) -> float:
        """The share of the full rate at `step`."""
        return min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


class CausalAttend(Attend):
    """Attention of a whole text to itself; nothing is stored."""

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        dtype = projection.partial_sums.dtype  # that of autocast, if it is on
        q, k, v = (x.transpose(1, 2).to(dtype) for x in projection.rotated())
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(
            1, 2
        )

    def store(self, layer: int, projection: Projection) -> None:
        raise NotImplementedError("a whole text is attended to, never stored")


def logits_of(
    model: Llama, tokens: Int[Tensor, "batch window"]
) -> Float[Tensor, "batch window vocab"]:
    """Logits of the token after each of `tokens`, which start at position 0."""
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    window = Window(tokens, positions, tokens.shape[1])
    return model.unembed(model.hidden(window, CausalAttend())[0])


@torch.no_grad()
def initialise(model: Llama, seed: int) -> Llama:
    """Embedding 0.02, matrices 1/sqrt(inputs), norms one; what is added to the residual stream
    starts at zero.
    """
    generator = torch.Generator(model.embed.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        elif name.endswith(("out.weight", "down.weight")):
            parameter.zero_()
        else:
            parameter.normal_(
                0.0, 0.02 if name == "embed" else parameter.shape[1] ** -0.5, generator=generator
            )
    return model


@dataclass
class Stream:
    """Windows of CONTEXT + 1 tokens cut at random from one long stream; the cuts depend on the seed
    and the step alone.
    """

    tokens: Int[Tensor, " length"]
    seed: int = 0

    @classmethod
    def load(cls, path: Path, device: torch.device, seed: int = 0) -> "Stream":
        return cls(torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int32)).to(device), seed)

    def batch(self, step: int, rows: int) -> Int[Tensor, "rows window"]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.tokens) - CONTEXT - 1, (rows, 1), generator=generator)
        index = starts.to(self.tokens.device) + torch.arange(CONTEXT + 1, device=self.tokens.device)
        return self.tokens[index].long()


@dataclass
class Optimisers:
    """Both optimisers as one."""

    model: nn.Module
    recipe: Recipe
    parts: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        named = list(self.model.named_parameters())
        matrices = [p for n, p in named if p.dim() == 2 and n.startswith("blocks")]
        others = [p for n, p in named if p.dim() == 1 or not n.startswith("blocks")]
        r = self.recipe
        self.parts = [
            torch.optim.Muon(
                matrices,
                lr=r.matrix_rate,
                weight_decay=r.matrix_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                others,
                lr=r.other_rate,
                betas=(0.9, 0.95),
                weight_decay=0.0,
                fused=others[0].is_cuda,
            ),
        ]

    def step(self, step: int) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part, rate in zip(
            self.parts, (self.recipe.matrix_rate, self.recipe.other_rate), strict=True
        ):
            for group in part.param_groups:
                group["lr"] = rate * self.recipe.rate(step)
            part.step()
            part.zero_grad(set_to_none=True)


@dataclass
class Run:
    """A folder with the log (one JSON object a line) and the newest checkpoint of a training."""

    folder: Path
    model: Llama
    optimisers: Optimisers
    started: float = field(default_factory=time.monotonic)

    def log(self, **record: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps(record | {"seconds": round(time.monotonic() - self.started, 1)})
        print(line, flush=True)
        with (self.folder / "log.jsonl").open("a") as stream:
            stream.write(line + "\n")

    def save(self, step: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": step,
            "model": self.model.state_dict(),
            "optimisers": [p.state_dict() for p in self.optimisers.parts],
        }
        torch.save(state, self.folder / "new.pt")
        (self.folder / "new.pt").replace(self.folder / "checkpoint.pt")

    def resume(self) -> int:
        """The step to continue with: that of the newest checkpoint, or 0."""
        if not (self.folder / "checkpoint.pt").exists():
            return 0
        state = torch.load(self.folder / "checkpoint.pt", map_location=self.model.embed.device)
        self.model.load_state_dict(state["model"])
        for part, saved in zip(self.optimisers.parts, state["optimisers"], strict=True):
            part.load_state_dict(saved)
        return state["step"]


def held_out_windows(corpus: Path, tokenizer: Path) -> tuple[Int[Tensor, "windows window"], int]:
    """Each held-out file in windows that overlap by half, and the number of bytes of all files.

    A target of -1 - token has been scored by the window before: every token is scored once, with
    half a window of context where the file has it.
    """
    encoder = read_tokenizer(tokenizer)
    texts = (corpus / "heldout.txt").read_bytes().decode().split("\0")
    rows: list[Tensor] = []
    for encoding in encoder.encode_batch(texts, add_special_tokens=False):
        ids = torch.tensor([0, *encoding.ids])
        for start in range(0, max(1, len(ids) - CONTEXT // 2), CONTEXT // 2):
            row = torch.full((CONTEXT + 1,), -1)
            piece = ids[start : start + CONTEXT + 1].clone()
            if start:
                piece[1 : CONTEXT // 2 + 1] = -1 - piece[1 : CONTEXT // 2 + 1]
            row[: len(piece)] = piece
            rows.append(row)
    return torch.stack(rows), sum(len(t.encode()) for t in texts)


@torch.no_grad()
def bits_per_byte(
    model: Llama, windows: Int[Tensor, "windows window"], size: int, rows: int = 64
) -> float:
    """Total surprise of the held-out text in bits over its bytes."""
    device = model.embed.device
    total = 0.0
    for part in windows.split(rows):
        part = part.to(device)
        tokens = torch.where(part < 0, -1 - part, part)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = logits_of(model, tokens[:, :-1])
        wanted = torch.where(part[:, 1:] < 0, -100, part[:, 1:])
        total += F.cross_entropy(
            logits.float().flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum"
        ).item()
    return total / math.log(2) / size
