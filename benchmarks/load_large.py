"""How fast does the largest checkpoint that a disk holds load, cold and warm, and in how much
memory of the host? Part of `load.py`: `--shapes 27b`.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from host import cached_share, evict, link_bandwidth, peak_memory, read_in_threads
from random_checkpoint import shrunk, write
from rich.console import Console
from write_shapes import GEMMA, Config, gated

from bass.checkpoints.shards import STAGED_BYTES
from bass.checkpoints.weights import read_index

# Gemma 2 27B
LARGE: Config = gated(
    "gemma2", 256000, 4608, 36864, 46, (32, 16, 128), 8192, True,
    **GEMMA | {"query_pre_attn_scalar": 144},
)  # fmt: skip
SHARDS, WARM_LOADS = 12, 2
SPARE = 3 << 30  # bytes of the disk that stay free
Row = dict[str, Any]


def fitting(config: Config, free: int) -> Config:
    """The config with as many layers as fit into this number of bytes."""
    hidden, inner, heads = (
        config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    width = config["head_dim"] * (2 * heads + 2 * config["num_key_value_heads"])
    layer = 2 * hidden * (width + 3 * inner)
    room = (free - SPARE - 2 * hidden * config["vocab_size"]) // layer
    return config | {"num_hidden_layers": max(1, min(config["num_hidden_layers"], room))}


class Steps:
    """The measurements, printed as they come; none is begun after `seconds`."""

    def __init__(self, console: Console, seconds: float) -> None:
        self.console, self.until, self.rows = console, time.perf_counter() + seconds, list[Row]()

    def timed(self, what: str, size: int, work: Callable[[], object]) -> Row | None:
        """Time a step that moves this number of bytes, with the rise of the process's memory."""
        if time.perf_counter() > self.until:
            self.console.print(f"{what}: no time left")
            return None
        with peak_memory() as peak:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        row = {"what": what, "seconds": seconds, "gb_per_s": size / seconds / 1e9}
        row |= {"host_gb": peak.resident / 1e9, "host_gb_without_files": peak.own / 1e9}
        self.rows.append(row)
        self.console.print(
            f"{what}: {size / 1e9:.2f} GB in {seconds:.2f} s, {row['gb_per_s']:.2f} GB/s; memory "
            f"of the host rose by {row['host_gb']:.2f} GB, by {row['host_gb_without_files']:.2f} "
            "without mapped files",
            markup=False,
        )
        return row


def promised(largest: int, model: int, device: torch.device) -> int:
    """The most bytes that loading may take on the host: the largest stored tensor with a tenth more
    and, on a GPU, the two staging buffers, or else the model itself.
    """
    return int(1.1 * largest) + (2 * STAGED_BYTES if device.type == "cuda" else model)


def run(arguments: argparse.Namespace, console: Console) -> Row:
    """Write the checkpoint and measure; returns the record."""
    steps, device = Steps(console, arguments.seconds), torch.device(arguments.device)
    record: Row = {"steps": steps.rows}
    if device.type == "cuda":
        record["link_gb_per_s"] = link_bandwidth(device) / 1e9
        console.print(f"link: {record['link_gb_per_s']:.1f} GB/s from pinned memory")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, free = Path(name), shutil.disk_usage(arguments.folder or name).free
        asked = shrunk(LARGE, arguments.hidden, arguments.layers)
        config = fitting(asked, free)
        if config != asked:
            layers = config["num_hidden_layers"]
            console.print(f"{free / 1e9:.0f} GB are free, so the model has {layers} layers")
        began = time.perf_counter()
        size = write(folder, config, shards=SHARDS)
        record |= {"bytes": size, "layers": config["num_hidden_layers"]}
        evict(sorted(folder.glob("*.safetensors")))
        console.print(f"written: {size / 1e9:.2f} GB in {time.perf_counter() - began:.1f} s")
        try:
            measure(steps, folder, size, device, arguments.threads, record)
        except KeyboardInterrupt:
            console.print("interrupted")
    return record


def measure(
    steps: Steps, folder: Path, size: int, device: torch.device, threads: int, record: Row
) -> None:
    """Reading and loading, cold and warm."""
    paths = sorted(folder.glob("*.safetensors"))

    def load() -> None:
        decoder = read_index(folder).load(device, torch.bfloat16)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        del decoder

    def cold() -> str:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # every load includes the allocation of its memory
        evict(paths)
        return f"cold ({cached_share(paths):.0%} cached)"

    index = read_index(folder)
    largest = max(tensor.nbytes for tensor in index.files.stored.values())
    record["promised_host_gb"] = promised(largest, size, device) / 1e9
    steps.console.print(
        f"Aims: loading at the disk's or the link's speed; at most "
        f"{record['promised_host_gb']:.2f} GB of the host's memory: the largest tensor has "
        f"{largest / 1e9:.2f} GB",
        markup=False,
    )
    few = paths[-(-len(paths) // 3) :][: -(-len(paths) // 3)]  # a third: the loads are what counts
    part = sum(path.stat().st_size for path in few)
    name = f"reading a third of the files, {threads} threads"
    steps.timed(f"{name}, {cold()}", part, lambda: read_in_threads(few, threads))
    steps.timed(f"loading, {cold()}", size, load)
    for _ in range(WARM_LOADS):
        steps.timed(f"loading, warm ({cached_share(paths):.0%} cached)", size, load)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    steps.timed(f"{name}, warm", part, lambda: read_in_threads(few, threads))
    loads = [row for row in steps.rows if row["what"].startswith("loading")]
    record["within_promise"] = all(r["host_gb"] <= record["promised_host_gb"] for r in loads)
    if not record["within_promise"]:
        steps.console.print("MORE MEMORY THAN PROMISED")
