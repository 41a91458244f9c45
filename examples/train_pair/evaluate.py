"""Measure the pair: held-out bits per byte of both, and how well the draft foresees the target's
own text.

    python examples/train_pair/evaluate.py --target src/bass/pair/target --draft src/bass/pair/draft
    --corpus .data/corpus

The target continues prompts from held-out files at each temperature; on that text, up to the end of
the document, `overlap` is the mean of sum(min(target, draft)): the probability that a drafted token
is accepted where the context is the target's own. `accepted[i]` is the probability that at least i
+ 1 of four drafted tokens are accepted: E[prod min(1, draft/target)] along the target's text, which
equals that of the draft's own tokens. `tau` = 1 + their sum.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import arguments
import numpy as np
import torch
from common import CONTEXT, bits_per_byte, held_out_windows, logits_of
from jaxtyping import Bool, Float, Int
from sample import docstring_ends, generate
from tokenizers import Tokenizer
from torch import Tensor

from bass.checkpoints.weights import load_decoder
from bass.models.llama import Llama

DRAFTED = 4


def laws(logits: Float[Tensor, "*rows vocab"], temperature: float) -> Float[Tensor, "*rows vocab"]:
    """Probabilities at a temperature; 0 puts all mass on the likeliest token."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits.float() / temperature).softmax(-1)


def foresight(
    target: Float[Tensor, "batch window vocab"],
    draft: Float[Tensor, "batch window vocab"],
    tokens: Int[Tensor, "batch window"],
    counted: Bool[Tensor, "batch window"],
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Sum over counted places of the overlap, and of the chances [DRAFTED] that 1, 2, .. tokens
    from there are accepted.
    """
    target_probs, draft_probs = laws(target, temperature), laws(draft, temperature)
    overlap = torch.minimum(target_probs, draft_probs).sum(-1)
    ratio = (
        draft_probs.gather(-1, tokens[..., None])
        / target_probs.gather(-1, tokens[..., None]).clamp(min=1e-20)
    ).clamp(max=1)[..., 0]
    runs = ratio.unfold(1, DRAFTED, 1).cumprod(-1)
    whole = counted.unfold(1, DRAFTED, 1).all(-1)
    return torch.stack([(overlap * counted).sum(), counted.sum()]), torch.cat(
        [(runs * whole[..., None]).sum((0, 1)), whole.sum()[None]]
    )


@torch.no_grad()
def measure(
    target: Llama,
    draft: Llama,
    prompts: Int[Tensor, "batch prompt"],
    new: int,
    temperature: float,
    rows: int,
) -> dict[str, Any]:
    """Continue the prompts by `new` tokens at one temperature and sum `foresight` over them."""
    first, second = (
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(DRAFTED + 1, dtype=torch.float64),
    )
    for seed, part in enumerate(prompts.split(rows)):
        length = part.shape[1]
        text = generate(
            target,
            part,
            length + new,
            torch.full((len(part),), temperature, device=part.device),
            seed,
        )
        own = text[:, length:]
        # up to the end of the document, which counts
        counted = (own == 0).cumsum(1) - (own == 0).int() == 0
        both = (logits_of(model, text)[:, length - 1 : -1] for model in (target, draft))
        sums = foresight(*both, own, counted, temperature)
        first += sums[0].cpu()
        second += sums[1].cpu()
    accepted = (second[:-1] / second[-1]).tolist()
    return {
        "temperature": temperature,
        "tokens": int(first[1]),
        "overlap": round((first[0] / first[1]).item(), 4),
        "accepted": [round(a, 4) for a in accepted],
        "tau": round(1 + sum(accepted), 3),
    }


def held_out_prompts(
    corpus: Path, tokenizer: Tokenizer, length: int, count: int
) -> Int[Tensor, "batch prompt"]:
    """Half end just after a docstring, half are cut anywhere."""
    texts = (corpus / "heldout.txt").read_bytes().decode().split("\0")
    tokens = np.array(
        [i for text in texts for i in [0, *tokenizer.encode(text, add_special_tokens=False).ids]],
        np.uint16,
    )
    random = np.random.default_rng(0)
    ends = docstring_ends(tokens, tokenizer)
    chosen = random.choice(ends[ends > length], count // 2) - length
    first = np.concatenate([chosen, random.integers(0, len(tokens) - length, count - count // 2)])
    return torch.from_numpy(tokens[first[:, None] + np.arange(length)].astype(np.int64))


def main() -> None:
    """Print one line of JSON for the bits per byte, then one for each temperature."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("target", "draft", "corpus"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--prompts", type=arguments.positive, default=512)
    parser.add_argument("--prompt-length", type=arguments.positive, default=128)
    parser.add_argument("--new", type=arguments.positive, default=256)
    parser.add_argument("--rows", type=arguments.positive, default=128)
    parser.add_argument("--device", type=arguments.device, default="auto")
    args = parser.parse_args()
    if args.prompt_length + args.new > CONTEXT:
        parser.error(f"`--prompt-length` and `--new` must be {CONTEXT} or less together.")
    device = torch.device(args.device)
    target, draft = (
        load_decoder(folder, device, torch.float32) for folder in (args.target, args.draft)
    )
    windows, size = held_out_windows(args.corpus, args.target)
    print(
        json.dumps(
            {
                name: round(bits_per_byte(model, windows, size), 4)
                for name, model in (("target", target), ("draft", draft))
            }
        )
    )
    tokenizer = arguments.read_tokenizer(args.target)
    prompts = held_out_prompts(args.corpus, tokenizer, args.prompt_length, args.prompts).to(device)
    for temperature in (0.0, 0.2, 0.8, 1.0):
        print(
            json.dumps(measure(target, draft, prompts, args.new, temperature, args.rows)),
            flush=True,
        )


if __name__ == "__main__":
    arguments.run(main)
