"""The target's own text: what the draft will be asked to predict.

    python examples/train_pair/sample.py --target .data/pair/target --tokens .data/tokens --out
    .data/samples

All rows of a batch have prompts of one length, so that a step needs no mask. Writes samples.bin:
uint16 [rows, CONTEXT].
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import arguments
import numpy as np
import torch
import torch.nn.functional as F
from common import CONTEXT, CausalAttend
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from bass.checkpoints.weights import load_decoder
from bass.interfaces import Attend
from bass.models.llama import Llama
from bass.records import Projection, Window

TEMPERATURES = (0.0, 0.2, 0.2, 0.2, 0.6, 0.8, 0.8, 1.0, 1.0, 1.0)
PROMPT_LENGTHS = (32, 64, 128, 256, 512)


@dataclass
class Aligned(Attend):
    """Keys and values of rows that are all at the same position: the prompt first, then one token
    at a time.
    """

    k: Float[Tensor, "layers batch positions kv_heads dim"]
    v: Float[Tensor, "layers batch positions kv_heads dim"]
    start: int = 0

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        self.store(layer, projection)
        q, k, _ = projection.rotated()
        if q.shape[1] > 1:
            return CausalAttend()(layer, projection)
        # One query sees everything: the heads that share keys are laid along the window.
        shared, stop = q[:, 0].unflatten(1, (k.shape[2], -1)), self.start + 1
        keys, values = (x[layer, :, :stop].transpose(1, 2) for x in (self.k, self.v))
        return F.scaled_dot_product_attention(shared.to(keys.dtype), keys, values).flatten(1, 2)[
            :, None
        ]

    def store(self, layer: int, projection: Projection) -> None:
        _, k, v = projection.rotated()
        stop = self.start + k.shape[1]
        self.k[layer, :, self.start : stop], self.v[layer, :, self.start : stop] = k, v


@torch.no_grad()
def generate(
    model: Llama,
    prompts: Int[Tensor, "batch prompt"],
    length: int,
    temperatures: Float[Tensor, " batch"],
    seed: int,
) -> Int[Tensor, "batch length"]:
    """Prompts continued to `length` tokens, each row at its own temperature (0: the likeliest
    token).
    """
    batch, prompt = prompts.shape
    s, weight = model.shape, model.embed
    size = (s.layers, batch, length, s.kv_heads, s.head_dim)
    cache = Aligned(
        *(torch.empty(size, device=weight.device, dtype=weight.dtype) for _ in range(2))
    )
    generator = torch.Generator(weight.device).manual_seed(seed)
    tokens = torch.zeros(batch, length, dtype=torch.int64, device=weight.device)
    tokens[:, :prompt] = prompts
    divisor, scale = temperatures.clamp(min=1e-3)[:, None], (temperatures > 0)[:, None]
    window = tokens[:, :prompt]
    for position in range(prompt, length):
        places = torch.arange(cache.start, position, device=weight.device).expand(batch, -1)
        hidden, _ = model.hidden(Window(window, places, position), cache)
        logits = model.unembed(hidden[:, -1]).float()
        noise = torch.empty_like(logits).exponential_(generator=generator).log_()
        tokens[:, position] = (logits / divisor - noise * scale).argmax(-1)
        cache.start, window = position, tokens[:, position : position + 1]
    return tokens


def docstring_ends(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Indices just after a docstring's last line, where a function's body is about to begin."""
    quotes = np.array([id for piece, id in tokenizer.get_vocab().items() if '"""' in piece])
    newline = tokenizer.encode("\n").ids[0]
    places = np.flatnonzero(np.isin(tokens[:-2], quotes) & (tokens[1:-1] == newline))
    colon = np.array([id for piece, id in tokenizer.get_vocab().items() if piece.endswith(":")])
    # An opening quote stands two tokens (newline, indent) after a colon; the others close.
    opens = np.isin(tokens[np.maximum(places - 3, 0)], colon)
    return places[~opens] + 2


def prompts_of(
    tokens: np.ndarray, tokenizer: Tokenizer, length: int, rows: int, random: np.random.Generator
) -> np.ndarray:
    """[rows, length]: a third begin where a document does, a third end where a docstring does, a
    third are cut anywhere.
    """
    starts = np.flatnonzero(tokens[:-CONTEXT] == 0) + 1
    ends = docstring_ends(tokens, tokenizer)
    ends = ends[ends >= length]
    third = rows // 3
    first = np.concatenate(
        [
            random.choice(starts[-len(starts) // 2 :], third),
            random.choice(ends, third) - length,
            random.integers(0, len(tokens) - length, rows - 2 * third),
        ]
    )
    return tokens[first[:, None] + np.arange(length)].astype(np.int64)


def main() -> None:
    """Write the samples, batch after batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("target", "tokens", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--batches", type=arguments.positive, default=12)
    parser.add_argument("--rows", type=arguments.positive, default=4096)
    parser.add_argument("--device", type=arguments.device, default="auto")
    args = parser.parse_args()
    device = torch.device(args.device)
    model = load_decoder(args.target, device, torch.bfloat16)
    tokenizer = arguments.read_tokenizer(args.target)
    tokens = np.fromfile(args.tokens / "train.bin", np.uint16)
    random = np.random.default_rng(0)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (args.out / "samples.bin").open("wb") as stream:
        for batch in range(args.batches):
            length = PROMPT_LENGTHS[batch % len(PROMPT_LENGTHS)]
            prompts = torch.from_numpy(prompts_of(tokens, tokenizer, length, args.rows, random)).to(
                device
            )
            temperatures = (
                torch.from_numpy(random.choice(TEMPERATURES, args.rows)).float().to(device)
            )
            rows = generate(model, prompts, CONTEXT, temperatures, seed=batch)
            stream.write(rows.cpu().numpy().astype(np.uint16).tobytes())
            print(
                json.dumps(
                    {
                        "batch": batch,
                        "prompt": length,
                        "seconds": round(time.monotonic() - began, 1),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    arguments.run(main)
