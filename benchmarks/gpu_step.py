"""How fast is a speculative step on a GPU, beside what its bytes allow?

    python benchmarks/gpu_step.py [--pairs paper llama] [--batches 1 2 4 8 16 32] [--lengths 0 4 7 bass] [--repeats 5] [--no-graphs]

The pairs have the shapes of real models and random weights in bfloat16: "paper", a target of 7.7B with a draft of 310M as in the BASS
paper; "llama", Llama 3.1 8B with Llama 3.2 1B. Acceptance is imposed by position (`Synthetic(0.8)`: position i is kept with
0.8^i), so no text means anything. Prompts of 150 random tokens, 256 new ones each, temperature 1. Times are from the end of the
prefill; every setting runs once to warm up and capture its graphs, then `--repeats` times. Parts of a step are timed as graphs
of their own: draft, verify (the target's pass), sample (warps, verdict, commit), and host (the rest of a step's wall time).
Prints the bound first, a table for people, and one JSON line last.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bass.assembly import Engine
from bass.drafters import ModelDraft, NoDrafter
from bass.engine.cost import measure_peaks
from bass.engine.graphs import GraphedStep
from bass.engine.step import empty_draft, token_logprobs
from bass.llm import LLM
from bass.loading import Models, Parts, backend_for, cache_class
from bass.models.decoder import CausalDecoder
from bass.models.fused import fuse
from bass.models.llama import Llama, LlamaConfig
from bass.noise import step_noise
from bass.records import History
from bass.registry import make
from bass.verifiers import Synthetic

PROMPT, NEW, ACCEPTANCE = 150, 256, 0.8
PAIRS = {
    "paper": (
        LlamaConfig(51200, 4096, 11008, 36, 32, 32, 128, 2048),
        LlamaConfig(51200, 2048, 5632, 4, 32, 32, 64, 2048, tie_word_embeddings=True),
    ),
    "llama": (
        LlamaConfig(128256, 4096, 14336, 32, 32, 8, 128, 8192),
        LlamaConfig(128256, 2048, 8192, 16, 32, 8, 64, 8192, tie_word_embeddings=True),
    ),
}
ASKED = {  # ms per token of all rows, batch 1, 2, 4, 8, 16
    ("paper", "0"): (4.3, 4.3, 4.4, 4.6, 5.0),
    ("paper", "7"): (1.35, 1.38, 1.42, 1.50, 1.80),
    ("llama", "0"): (4.1, 4.1, 4.15, 4.25, 4.45),
    ("llama", "4"): (2.10, 2.12, 2.16, 2.25, 2.45),
}


def random_model(config: LlamaConfig, device: torch.device) -> CausalDecoder:
    """Weights that keep the stream's size, so that nothing overflows."""
    model = Llama(config, device, torch.bfloat16).requires_grad_(False)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.fill_(1)
        else:
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def pair_of(name: str, device: torch.device, fused: bool) -> Models:
    """The two models of a pair."""
    target, draft = (random_model(config, device) for config in PAIRS[name])
    if fused:
        fuse(target)
        fuse(draft)
    return Models(target, draft, None, [], device, torch.bfloat16)


def engine_for(models: Models, length: str, batch: int, arguments: argparse.Namespace) -> LLM:
    """The pair with one policy; plain decoding has no draft."""
    policy = make("policy", "fixed", k=int(length)) if length.isdigit() else make("policy", length)
    plain = length == "0"
    cache = cache_class(arguments.cache)
    parts = Parts(
        policy, cache, backend_for(arguments.attention, cache, models.device), Synthetic(ACCEPTANCE), NoDrafter() if plain else ModelDraft()
    )
    return LLM(dataclasses.replace(models, draft=None) if plain else models, parts, batch, "auto" if arguments.graphs else False)


def seconds_of(work: Any, repeats: int = 10) -> float:
    """Median time of a graph's replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


@torch.inference_mode()
def parts_of(engine: Engine, k: int) -> dict[str, float]:
    """Seconds of a step's parts, at the lengths at which the last run ended, less a step's growth."""
    step, rows = engine.step, engine.sequences
    assert isinstance(step, GraphedStep)
    inner, span = step.inner, max((span for at, span in step.captured if at == k), default=engine.sequences.capacity)
    rows.lens.fill_(PROMPT + NEW // 2)
    rows.active.fill_(True)
    lengths = torch.full_like(rows.lens, k)
    noise = step_noise(rows.keys, rows.steps, rows.lens, k)
    draft = inner.drafter.propose(rows, lengths, k, noise, span) if k else None
    last, position = rows.last(1)
    window = last if draft is None else torch.cat((last, draft.tokens), 1)
    positions = position + torch.arange(window.shape[1], device=window.device)
    times = {"draft": seconds_of(lambda: inner.drafter.propose(rows, lengths, k, noise, span)) if k else 0.0}
    times["verify"] = seconds_of(lambda: inner.target(window, positions, span))
    logits = inner.target(window, positions, span)

    def judge() -> None:
        noise = step_noise(rows.keys, rows.steps, rows.lens, k)
        probs = inner.warp(logits, History(rows.tokens, rows.lens, window[:, 1:]))
        drafted = draft if draft is not None else empty_draft(lengths)
        rows.commit(inner.verifier(drafted, probs, noise))
        token_logprobs(logits, window)

    times["sample"] = seconds_of(judge)
    rows.active.fill_(False)
    return times


def measure(models: Models, length: str, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One setting: medians over the repeats."""
    llm = engine_for(models, length, batch, arguments)
    prompts = np.random.default_rng(0).integers(0, models.target.shape.vocab_size, (batch, PROMPT)).tolist()
    options = {"max_new_tokens": NEW, "temperature": 1.0, "top_p": 1.0, "ignore_eos": True}
    torch.cuda.reset_peak_memory_stats()
    runs, began = [], time.perf_counter()
    for repeat in range(arguments.repeats + 1):
        result = llm.generate(prompts, **options, seed=repeat)
        if repeat:
            runs.append(result.stats)
        else:
            warm_up = time.perf_counter() - began

    def median(name: str) -> float:
        return statistics.median(getattr(stats, name) for stats in runs)

    steps = result.trace
    found = {
        "ms_per_token": {name: median(name) * 1e3 for name in ("first", "last", "all")},
        "spread": [min(s.all for s in runs) * 1e3, max(s.all for s in runs) * 1e3],
        "tokens_per_second": batch * NEW / statistics.median(s.seconds - s.prefill_seconds for s in runs),
        "tau": median("tau"),
        "mbu": median("mbu"),
        "mfu": median("mfu"),
        "mfu_kept": median("mfu_kept"),
        "step_ms": statistics.median(s.seconds for s in steps) * 1e3,
        "between_ms": statistics.median(s.host_seconds for s in steps) * 1e3,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "warm_up_s": warm_up,
    }
    if llm.graphs and length.isdigit():
        assert llm._kept is not None
        found["parts_ms"] = {part: t * 1e3 for part, t in parts_of(llm._kept.engine, int(length)).items()}
        found["parts_ms"]["host"] = found["step_ms"] + found["between_ms"] - sum(found["parts_ms"].values())
    return found


def main() -> None:
    """Run the settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--lengths", nargs="+", default=["0", "4", "7", "bass"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", default="padded")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--no-fused", dest="fused", action="store_false")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    arguments = parser.parse_args()
    device, console = torch.device("cuda"), Console(width=150, highlight=False)
    peaks = measure_peaks(device, torch.bfloat16)
    console.print(
        f"{torch.cuda.get_device_name()}: reads {peaks.bandwidth / 1e12:.2f} TB/s, bf16 products {peaks.flops / 1e12:.0f} TFLOP/s"
    )
    results: dict[str, Any] = {}
    table = Table("pair", "k", "batch", "ms/token", "asked", "first", "last", "spread", "tokens/s", "tau", "MBU", "MFU", "step ms", "parts")
    for name in arguments.pairs:
        models = pair_of(name, device, arguments.fused)
        for length in arguments.lengths:
            for batch in arguments.batches:
                cost = LLM(models, engine_for(models, "7", batch, arguments).parts, batch)._cost()
                k = int(length) if length.isdigit() else 7
                tau = (1 - ACCEPTANCE ** (k + 1)) / (1 - ACCEPTANCE)
                kv = batch * (PROMPT + NEW / 2)
                target, draft = (m.weight_bytes + kv * m.kv_bytes_per_position for m in (cost.target, cost.draft))
                bound = (target + k * draft) / peaks.bandwidth / tau * 1e3
                console.print(f"{name}, k={length}, batch {batch}: bound by bytes {bound:.2f} ms/token (tau {tau:.2f})")
                r = results[f"{name} k={length} b={batch}"] = measure(models, length, batch, arguments) | {"bound_ms_per_token": bound}
                asked = dict(zip((1, 2, 4, 8, 16), ASKED.get((name, length), ()), strict=False)).get(batch)
                ms, parts = r["ms_per_token"], r.get("parts_ms", {})
                console.print(
                    f"    {ms['all']:.2f} ms/token, step {r['step_ms']:.2f} ms + {r['between_ms']:.2f}, warm-up {r['warm_up_s']:.1f} s"
                )
                table.add_row(
                    name,
                    length,
                    str(batch),
                    f"{ms['all']:.2f}",
                    "" if asked is None else f"{asked:.2f}",
                    f"{ms['first']:.2f}",
                    f"{ms['last']:.2f}",
                    "-".join(f"{x:.2f}" for x in r["spread"]),
                    f"{r['tokens_per_second']:.0f}",
                    f"{r['tau']:.2f}",
                    f"{r['mbu']:.0%}",
                    f"{r['mfu']:.1%}",
                    f"{r['step_ms']:.2f}",
                    " ".join(f"{part} {t:.2f}" for part, t in parts.items()),
                )
        del models
    console.print(table)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    record = {"benchmark": "gpu_step", "commit": commit, "torch": torch.__version__, "machine": platform.machine()}
    record |= {"device": torch.cuda.get_device_name(), "bandwidth": peaks.bandwidth, "flops": peaks.flops, "config": vars(arguments)}
    print(json.dumps(record | {"results": results}))


if __name__ == "__main__":
    main()
