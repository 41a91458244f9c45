"""Train the target on the corpus.

    python examples/train_pair/train_target.py --tokens .data/tokens --corpus .data/corpus
    --tokenizer .data/tokenizer --run .data/target

Continues from the newest checkpoint in `--run`. Ends with the checkpoint's last step; export.py
makes the folder of it.
"""

import argparse
from pathlib import Path

import arguments
import torch
import torch.nn.functional as F
from common import (
    CONTEXT,
    TARGET,
    Optimisers,
    Recipe,
    Run,
    Stream,
    bits_per_byte,
    held_out_windows,
    initialise,
    logits_of,
)
from torch import Tensor

from bass.models.llama import Llama


def main() -> None:
    """Train, logging and saving on the way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("tokens", "corpus", "tokenizer", "run"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=arguments.positive, default=6_200)
    parser.add_argument("--batch", type=arguments.positive, default=256)
    parser.add_argument(
        "--parts",
        type=arguments.positive,
        default=1,
        help="parts of a batch that are differentiated one after the other",
    )
    parser.add_argument("--measure-every", type=arguments.positive, default=500)
    parser.add_argument("--device", type=arguments.device, default="auto")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_float32_matmul_precision("high")

    recipe = Recipe(steps=args.steps, batch=args.batch)
    model = initialise(Llama(TARGET, device), recipe.seed)
    run = Run(args.run, model, Optimisers(model, recipe))
    stream = Stream.load(args.tokens / "train.bin", device, recipe.seed)
    windows, size = held_out_windows(args.corpus, args.tokenizer)
    first = run.resume()
    run.log(
        parameters=sum(p.numel() for p in model.parameters()),
        tokens=len(stream.tokens),
        step=first,
        **vars(recipe),
    )

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits = logits_of(model, batch[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    loss_of_part = torch.compile(loss_of) if device.type == "cuda" else loss_of
    for step in range(first, recipe.steps):
        loss = torch.zeros((), device=device)
        for part in stream.batch(step, recipe.batch).chunk(args.parts):
            part_loss = loss_of_part(part) / args.parts
            part_loss.backward()
            loss += part_loss.detach()
        run.optimisers.step(step)
        done = step + 1
        if done % args.measure_every == 0 or done == recipe.steps:
            run.log(
                step=done,
                tokens=done * recipe.batch * CONTEXT,
                loss=round(loss.item(), 4),
                heldout_bits_per_byte=round(bits_per_byte(model, windows, size), 4),
            )
        elif done % 50 == 0:
            run.log(step=done, tokens=done * recipe.batch * CONTEXT, loss=round(loss.item(), 4))
        if done % 1000 == 0 or done == recipe.steps:
            run.save(done)


if __name__ == "__main__":
    arguments.run(main)
