"""Widen the embedded pair to the shapes of a large pair, without changing its function.

    python examples/widen_pair/widen.py --out /dev/shm/wide

It writes `target` and `draft` below `--out`, as ordinary Hugging Face folders, one layer at a time.
"""

import argparse
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bass import pair
from bass.checkpoints.folder import INDEX, SINGLE
from bass.errors import BassError
from bass.models.llama import LlamaConfig

PAIRS = {
    "paper": (
        LlamaConfig(51200, 4096, 11008, 36, 32, 32, 128, 2048),
        LlamaConfig(51200, 2048, 5632, 4, 32, 32, 64, 2048, tie_word_embeddings=True),
    ),
    "small": (
        LlamaConfig(5120, 640, 1536, 8, 10, 10, 128, 2048),
        LlamaConfig(5120, 320, 1024, 3, 5, 5, 64, 2048, tie_word_embeddings=True),
    ),
}
COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
PRODUCTS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
NORMS = ("input_layernorm", "post_attention_layernorm")
# The constant is NORMED over the mean square's root after the last norm: about 1 for this pair,
# where the other values are at most 13. A padded id has -EXCLUDED times that as its logit.
NORMED, EXCLUDED = 16.0, 4096.0


KINDS = {torch.bfloat16: "BF16", torch.float32: "F32"}


class ShapeError(ValueError):
    """A shape that cannot compute the same function."""


@dataclass(frozen=True)
class Padded:
    """A tensor of zeros with `blocks` in it, each an index and the values there."""

    shape: tuple[int, ...]
    blocks: tuple[tuple[Any, Tensor | float], ...] = ()

    @classmethod
    def corner(cls, shape: tuple[int, ...], values: Tensor) -> "Padded":
        """With `values` from the first element of each axis on."""
        return cls(shape).and_at(tuple(map(slice, values.shape)), values)

    def and_at(self, index: Any, values: Tensor | float) -> "Padded":
        """With one more block."""
        return replace(self, blocks=(*self.blocks, (index, values)))


@dataclass(frozen=True)
class Widening:
    """From the shape of a checkpoint to a wider one: where each layer, head and dimension goes."""

    narrow: LlamaConfig
    wide: LlamaConfig

    def __post_init__(self) -> None:
        n, w = self.narrow, self.wide
        if (
            n.rope_scaling
            or n.attention_bias
            or n.mlp_bias
            or w.tie_word_embeddings > n.tie_word_embeddings
        ):
            raise ShapeError(
                "The checkpoint has rope scaling, biases or a head of its own, which this script "
                "does not widen: give one without."
            )
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        for size in (*sizes, "num_attention_heads"):
            if getattr(w, size) < getattr(n, size):
                raise ShapeError(
                    f"`{size}={getattr(w, size)}` is less than the checkpoint's "
                    f"{getattr(n, size)}: give at least that."
                )
        if w.head_dim % n.head_dim:
            raise ShapeError(
                f"`head_dim={w.head_dim}` is no multiple of the checkpoint's {n.head_dim}, so its "
                "rotary frequencies are not among the wider head's: give a multiple."
            )
        needed = n.num_key_value_heads * self.slots
        if w.num_key_value_heads < needed:
            raise ShapeError(
                f"`num_key_value_heads={w.num_key_value_heads}` is too few, since a key head has "
                f"{self.group} query heads here: give at least {needed}."
            )
        if w.vocab_size > n.vocab_size and w.hidden_size == n.hidden_size:
            raise ShapeError(
                f"`vocab_size={w.vocab_size}` pads the checkpoint's {n.vocab_size} ids, and "
                "excluding them takes one hidden dimension more: raise `hidden_size`."
            )

    @property
    def group(self) -> int:
        """Query heads of a key head, in the wide model."""
        return self.wide.num_attention_heads // self.wide.num_key_value_heads

    @property
    def slots(self) -> int:
        """Copies of each key head."""
        heads = self.narrow.num_attention_heads // self.narrow.num_key_value_heads
        return math.ceil(heads / self.group)

    @property
    def constant(self) -> float:
        """The value of the last hidden dimension for every id: a power of two, whose square is at
        most half of what eps adds to the sum of squares. 0 without padded ids.
        """
        if self.wide.vocab_size == self.narrow.vocab_size:
            return 0.0
        eps = self.narrow.rms_norm_eps * self.narrow.hidden_size
        return 2.0 ** math.floor(math.log2(eps / 2) / 2)

    @property
    def norm_scale(self) -> float:
        """x / sqrt(S / wide) * scale = x / sqrt(S / narrow), for the same sum of squares S."""
        return math.sqrt(self.narrow.hidden_size / self.wide.hidden_size)

    @property
    def config(self) -> LlamaConfig:
        """The wide config, with the eps for which (S + constant²) / wide + eps is the narrow one's
        S / narrow + eps, times narrow / wide.
        """
        n, w = self.narrow, self.wide
        eps = (n.rms_norm_eps * n.hidden_size - self.constant**2) / w.hidden_size
        return replace(w, rms_norm_eps=eps, rope_theta=n.rope_theta, hidden_act=n.hidden_act)

    def source_of(self, layer: int) -> tuple[int, bool]:
        """The checkpoint's layer in the place of `layer`, and whether it adds to the stream.

        The layers that add are spread evenly; each other one repeats the next of them.
        """
        n, w = self.narrow.num_hidden_layers, self.wide.num_hidden_layers
        places = [(i + 1) * w // n - 1 for i in range(n)]
        source = next(i for i, place in enumerate(places) if layer <= place)
        return source, layer == places[source]

    def query_places(self) -> list[int]:
        """The wide head of each query head."""
        per_kv = self.narrow.num_attention_heads // self.narrow.num_key_value_heads
        return [
            (head // per_kv) * self.slots * self.group + head % per_kv
            for head in range(self.narrow.num_attention_heads)
        ]

    def key_sources(self) -> list[tuple[int, int]]:
        """(wide head, head) of each copy of a key head."""
        heads = range(self.narrow.num_key_value_heads)
        return [(head * self.slots + copy, head) for head in heads for copy in range(self.slots)]

    def rotary_rows(self) -> Tensor:
        """The dimension in the wide head of each dimension of a head.

        theta^(-2i/d) = theta^(-2ir/(dr)): pair i becomes pair ir of a head r times as wide.
        """
        dim, wider = self.narrow.head_dim, self.wide.head_dim
        pairs = torch.arange(dim // 2) * (wider // dim)
        return torch.cat((pairs, pairs + wider // 2))

    def shard(self, number: int, tensors: Mapping[str, Tensor]) -> dict[str, Padded]:
        """The tensors of one file: 0 is the embedding, then one for each layer, then the last norm
        with the head.
        """
        embedding = tensors["model.embed_tokens.weight"]
        if number == 0:
            return {"model.embed_tokens.weight": self.rows_of_ids(embedding, self.constant)}
        if number <= self.wide.num_hidden_layers:
            return self.layer(number - 1, tensors)
        norm = self.norm(tensors["model.norm.weight"])
        if self.constant:
            norm = norm.and_at((-1,), NORMED / self.constant)
        last = {"model.norm.weight": norm}
        if not self.wide.tie_word_embeddings:
            rows = tensors.get("lm_head.weight", embedding)
            last["lm_head.weight"] = self.rows_of_ids(rows, 0.0)
        return last

    def rows_of_ids(self, rows: Tensor, constant: float) -> Padded:
        """Rows of the checkpoint's ids with `constant` in the last dimension, then those of padded
        ids, whose product with the state after the last norm is their large negative logit.
        """
        wide = Padded.corner((self.wide.vocab_size, self.wide.hidden_size), rows)
        if not self.constant:
            return wide
        known = self.narrow.vocab_size
        wide = wide.and_at((slice(known, None), -1), -EXCLUDED)
        return wide.and_at((slice(known), -1), constant) if constant else wide

    def norm(self, weight: Tensor) -> Padded:
        """The weights of a norm; 0 in the dimensions that the checkpoint does not have."""
        return Padded.corner((self.wide.hidden_size,), weight * self.norm_scale)

    def layer(self, layer: int, tensors: Mapping[str, Tensor]) -> dict[str, Padded]:
        """The tensors of one layer."""
        source, adds = self.source_of(layer)
        n, w = self.narrow, self.wide
        names = (*NORMS, *PRODUCTS)
        theirs = {name: tensors[f"model.layers.{source}.{name}.weight"] for name in names}
        hidden, inner = w.hidden_size, w.intermediate_size
        queries, keys = w.num_attention_heads * w.head_dim, w.num_key_value_heads * w.head_dim
        rotary, dims, columns = self.rotary_rows(), torch.arange(n.head_dim), slice(n.hidden_size)
        of_queries = self.query_places()
        slots, heads = zip(*self.key_sources(), strict=True)
        q, k, v, out, gate, up, down = (theirs[name] for name in PRODUCTS)
        q = q * math.sqrt(w.head_dim / n.head_dim)
        k, v = (part[rows_of(heads, dims, n.head_dim)] for part in (k, v))
        made = [
            Padded((queries, hidden)).and_at((rows_of(of_queries, rotary, w.head_dim), columns), q),
            Padded((keys, hidden)).and_at((rows_of(slots, rotary, w.head_dim), columns), k),
            Padded((keys, hidden)).and_at((rows_of(slots, dims, w.head_dim), columns), v),
            Padded((hidden, queries)),
            Padded.corner((inner, hidden), gate),
            Padded.corner((inner, hidden), up),
            Padded((hidden, inner)),
        ]
        if adds:
            made[3] = made[3].and_at((columns, rows_of(of_queries, dims, w.head_dim)), out)
            made[6] = Padded.corner((hidden, inner), down)
        parts = {name: self.norm(theirs[name]) for name in NORMS}
        parts |= dict(zip(PRODUCTS, made, strict=True))
        return {f"model.layers.{layer}.{name}.weight": part for name, part in parts.items()}


def rows_of(heads: Sequence[int], dims: Tensor, head_dim: int) -> Tensor:
    """The rows of `dims` of each of `heads`, in a matrix with `head_dim` rows a head."""
    return (torch.tensor(heads)[:, None] * head_dim + dims).flatten()


def save(path: Path, tensors: Mapping[str, Padded], dtype: torch.dtype) -> None:
    """Write a safetensors file. The zeros take neither time nor memory, and no space on the disk:
    only the blocks are written, into a mapped file of the full length.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, one in tensors.items():
        start, end = end, end + math.prod(one.shape) * dtype.itemsize
        kind = KINDS[dtype]
        header[name] = {"dtype": kind, "shape": one.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the data
    first = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(first + end)
    mapped = torch.from_file(str(path), shared=True, size=first + end, dtype=torch.uint8)
    for name, one in tensors.items():
        start, stop = header[name]["data_offsets"]
        wide = mapped[first + start : first + stop].view(dtype).view(one.shape)
        for index, values in one.blocks:
            wide[index] = values.to(dtype) if isinstance(values, Tensor) else values


def write(
    source: Path, wide: LlamaConfig, folder: Path, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Write the checkpoint of `source` in the shape of `wide`, one shard a layer."""
    raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    widening = Widening(LlamaConfig.from_json(raw), wide)
    tensors = {name: one.float() for name, one in load_file(source / SINGLE).items()}
    folder.mkdir(parents=True, exist_ok=True)
    count, places, size = wide.num_hidden_layers + 2, dict[str, str](), 0
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = widening.shard(number, tensors)
        save(folder / file, part, dtype)
        places |= dict.fromkeys(part, file)
        size += sum(math.prod(one.shape) for one in part.values()) * dtype.itemsize
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    kind = str(dtype).removeprefix("torch.")
    ends = {name: value for name, value in raw.items() if name.endswith("_token_id")}
    config = widening.config.to_json() | {"dtype": kind, "torch_dtype": kind} | ends
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in COPIED:
        shutil.copyfile(source / name, folder / name)
    return folder


def main() -> None:
    """Write both models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pair", choices=PAIRS, default="paper")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    for source, wide in zip((pair.TARGET, pair.DRAFT), PAIRS[args.pair], strict=True):
        began = time.perf_counter()
        folder = write(source, wide, args.out / source.name, getattr(torch, args.dtype))
        size = sum(file.stat().st_size for file in folder.iterdir())
        seconds = time.perf_counter() - began
        print(f"{folder}: {size / 1e9:.2f} GB in {seconds:.1f} s")


if __name__ == "__main__":
    try:
        main()
    except (BassError, OSError) as error:
        raise SystemExit(str(error)) from error
