"""Distil the draft from the target.

    python examples/train_pair/train_draft.py --target .data/pair/target --tokens .data/tokens
    --samples .data/samples --run .data/draft

Drafted tokens are accepted with probability sum(min(target, draft)), so after a first stage that
lowers KL(target || draft) on the corpus and on the target's samples, the second raises that sum
itself, at the temperatures at which people sample, on the target's samples.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import arguments
import numpy as np
import torch
from common import CONTEXT, DRAFT, Optimisers, Recipe, Run, Stream, initialise, logits_of
from jaxtyping import Float, Int
from torch import Tensor

from bass.checkpoints.weights import load_decoder
from bass.models.llama import Llama

TEMPERATURES = (0.2, 0.8, 1.0)
KL_SHARE = 0.1  # of the second stage's loss: keeps a gradient where the two laws are disjoint


@dataclass
class Samples:
    """Whole rows of the target's samples."""

    rows: Int[Tensor, "count window"]
    seed: int

    @classmethod
    def load(cls, path: Path, device: torch.device, seed: int) -> "Samples":
        flat = np.fromfile(path, np.uint16).astype(np.int16)  # ids are below 2**15
        return cls(torch.from_numpy(flat).view(-1, CONTEXT).to(device), seed)

    def batch(self, step: int, count: int) -> Int[Tensor, "count window"]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        index = torch.randint(len(self.rows), (count,), generator=generator)
        return self.rows[index.to(self.rows.device)].long()


def kl(target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]) -> Tensor:
    """Mean KL(target || draft) of the laws that these logits give."""
    target, draft = target.float().log_softmax(-1), draft.float().log_softmax(-1)
    return (target.exp() * (target - draft)).sum(-1).mean()


def rejection(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"], temperature: float
) -> Tensor:
    """Mean probability of rejecting a drafted token: 1 - sum(min(target, draft))."""
    laws = ((logits.float() / temperature).softmax(-1) for logits in (target, draft))
    return 1 - torch.minimum(*laws).sum(-1).mean()


def main() -> None:
    """Train both stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("target", "tokens", "samples", "run"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=arguments.positive, default=16_000)
    parser.add_argument("--batch", type=arguments.positive, default=128)
    parser.add_argument(
        "--first-stage", type=arguments.share, default=0.5, help="share of the steps that lower KL"
    )
    parser.add_argument("--log-every", type=arguments.positive, default=200)
    parser.add_argument("--device", type=arguments.device, default="auto")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_float32_matmul_precision("high")

    recipe = Recipe(steps=args.steps, batch=args.batch, seed=1)
    target = load_decoder(args.target, device, torch.float32)
    model = initialise(Llama(DRAFT, device), recipe.seed)
    run = Run(args.run, model, Optimisers(model, recipe))
    corpus = Stream.load(args.tokens / "train.bin", device, recipe.seed)
    samples = Samples.load(args.samples / "samples.bin", device, recipe.seed)
    first = run.resume()
    run.log(
        parameters=sum(p.numel() for p in model.parameters()),
        samples=samples.rows.numel(),
        step=first,
        **vars(recipe),
    )

    def both(tokens: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16):
            with torch.no_grad():
                wanted = logits_of(target, tokens)
            return wanted, logits_of(model, tokens)

    def first_loss(tokens: Tensor) -> tuple[Tensor, Tensor]:
        wanted, given = both(tokens)
        return kl(wanted, given), torch.stack(
            [rejection(wanted, given.detach(), t) for t in TEMPERATURES]
        )

    def second_loss(tokens: Tensor) -> tuple[Tensor, Tensor]:
        wanted, given = both(tokens)
        rejected = torch.stack([rejection(wanted, given, t) for t in TEMPERATURES])
        return rejected.mean() + KL_SHARE * kl(wanted, given), rejected.detach()

    if device.type == "cuda":
        first_loss, second_loss = torch.compile(first_loss), torch.compile(second_loss)
    for step in range(first, recipe.steps):
        if step < args.first_stage * recipe.steps:
            half = recipe.batch // 2
            tokens = torch.cat(
                [samples.batch(step, half), corpus.batch(step, recipe.batch - half)[:, :CONTEXT]]
            )
            loss, rejected = first_loss(tokens)
        else:
            loss, rejected = second_loss(samples.batch(step, recipe.batch))
        loss.backward()
        run.optimisers.step(step)
        done = step + 1
        if done % args.log_every == 0 or done == recipe.steps:
            overlap = {
                f"overlap_{t}": round(1 - r, 4)
                for t, r in zip(TEMPERATURES, rejected.tolist(), strict=True)
            }
            run.log(
                step=done,
                tokens=done * recipe.batch * CONTEXT,
                loss=round(loss.item(), 4),
                **overlap,
            )
        if done % 2000 == 0 or done == recipe.steps:
            run.save(done)


if __name__ == "__main__":
    arguments.run(main)
