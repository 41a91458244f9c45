"""How fast is a speculative step on a GPU, compared with the bound by its bytes?

    python benchmarks/gpu_step.py [--pairs paper llama] [--batches 1 2 4 8 16 32] [--lengths 0 4 7
        bass] [--repeats 5] [--quantization none int8 fp8 int8-weight] [--results FILE] [--warm-up]
        [--host] [--no-graphs]

The pairs have the shapes of real models and random weights in bfloat16: "paper", a target of 7.7B
with a draft of 310M as in the BASS paper; "llama", Llama 3.1 8B with Llama 3.2 1B. Acceptance is
imposed by position (`Synthetic(0.8)`: position i is accepted with 0.8^i), so the text is
meaningless. Prompts have 150 random tokens and 256 new ones each, at temperature 1. Times start at
the end of the prefill and exclude captures. Every setting runs once to warm up and capture its
graphs, then `--repeats` times. Parts of a step are timed as separate graphs, see `gpu_parts.py`. A
quantization applies to both models.

Prints the bound first, at the bandwidth of a copy, a table, and one JSON line last. `--results`
saves every setting to FILE as soon as it is measured; settings in FILE of the same source and
device are not measured again. `--warm-up` times `LLM.warm_up` for lengths 0 to 16, in a new engine
and in a second one, whose kernels are compiled. `--host` counts the host's waits in a step.
"""

import argparse
import dataclasses
import gc
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_parts import Results, copy_bandwidth, parts_in_ms, synchronisations
from provenance import commit, config_of
from rich.console import Console
from rich.table import Table

from bass.api.llm import LLM
from bass.api.loading import Models
from bass.api.plan import Strategies, backend_for, layout_for
from bass.api.resolve import make
from bass.drafters import ModelDraft, NoDrafter
from bass.engine.cost import measure_peaks
from bass.models.decoder import CausalDecoder
from bass.models.llama import Llama, LlamaConfig
from bass.quantization import quantize, quantize_head
from bass.verifiers import Synthetic

PROMPT, NEW, ACCEPTANCE, LONGEST = 150, 256, 0.8, 16
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
GOALS = {  # goals in ms per token of all rows, at batch 1, 2, 4, 8, 16
    ("paper", "0"): (4.3, 4.3, 4.4, 4.6, 5.0),
    ("paper", "7"): (1.35, 1.38, 1.42, 1.50, 1.80),
    ("llama", "0"): (4.1, 4.1, 4.15, 4.25, 4.45),
    ("llama", "4"): (2.10, 2.12, 2.16, 2.25, 2.45),
}
OPTIONS = {"max_new_tokens": NEW, "temperature": 1.0, "top_p": 1.0, "ignore_eos": True}
COLUMNS = (
    "pair,k,batch,ms/token,goal,first,last,spread,bound,share,tokens/s,tau,MBU,MFU,GB,step "
    "ms,draft,verify,sample,host,sampling"
)


def random_model(
    config: LlamaConfig, device: torch.device, arguments: argparse.Namespace, draft: bool = False
) -> CausalDecoder:
    """A model with random weights that preserve the scale of the residual stream, quantized as by
    `load`.
    """
    model = Llama(config, device, torch.bfloat16).requires_grad_(False)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.fill_(1)
        else:
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
    if arguments.quantization != "none":
        quantization = make("quantization", arguments.quantization)
        quantize(model, quantization)
        if draft:
            quantize_head(model, quantization)
    return model


def llm_for(models: Models, length: str, batch: int, arguments: argparse.Namespace) -> LLM:
    """The pair with one policy; autoregressive decoding has no draft."""
    fixed = {"class_path": "fixed", "init_args": {"k": length}}
    policy = make("policy", fixed if length.isdigit() else length)
    plain = length == "0"
    cache = layout_for(arguments.cache, arguments.attention, models.device)
    backend = backend_for(arguments.attention, cache, models.device)
    parts = Strategies(
        policy, cache, backend, Synthetic(ACCEPTANCE), NoDrafter() if plain else ModelDraft()
    )
    return LLM(
        dataclasses.replace(models, draft=None) if plain else models,
        parts,
        batch,
        "auto" if arguments.graphs else False,
    )


def random_prompts(models: Models, batch: int) -> list[list[int]]:
    """Random prompts, the same for every setting of a batch size."""
    return (
        np.random.default_rng(0)
        .integers(0, models.target.shape.vocab_size, (batch, PROMPT))
        .tolist()
    )


def free() -> None:
    """Free the graphs and caches of the last setting and the weights of the last pair."""
    gc.collect()
    torch.cuda.empty_cache()


def bound_of(
    models: Models, length: str, batch: int, bandwidth: float, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return (ms per token by bytes alone, tau) of a step at the mean length of a row.

    A policy is taken at length 7.
    """
    k = int(length) if length.isdigit() else 7
    cost = llm_for(models, "7", batch, arguments)._cost()
    tau = (1 - ACCEPTANCE ** (k + 1)) / (1 - ACCEPTANCE)
    kv = batch * (PROMPT + NEW // 2)
    target, draft = (
        m.weight_bytes + kv * m.kv_bytes_per_position for m in (cost.target, cost.draft)
    )
    return (target + k * draft) / bandwidth / tau * 1e3, tau


def measure(
    models: Models, length: str, batch: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run one setting; returns medians over the repeats."""
    free()
    torch.cuda.reset_peak_memory_stats()
    llm, prompts = llm_for(models, length, batch, arguments), random_prompts(models, batch)
    began = time.perf_counter()
    llm.generate(prompts, **OPTIONS, seed=0)
    first_run = time.perf_counter() - began
    results = [
        llm.generate(prompts, **OPTIONS, seed=seed) for seed in range(1, arguments.repeats + 1)
    ]
    runs, steps = [r.stats for r in results], [s for r in results for s in r.trace]

    def median(name: str) -> float:
        return statistics.median(getattr(stats, name) for stats in runs)

    found: dict[str, Any] = {
        "ms_per_token": {name: median(name) * 1e3 for name in ("first", "last", "all")},
        "spread": [min(s.all for s in runs) * 1e3, max(s.all for s in runs) * 1e3],
        "tokens_per_second": batch
        * NEW
        / statistics.median(s.seconds - s.prefill_seconds for s in runs),
        "tau": median("tau"),
        "mbu": median("mbu"),
        "mfu": median("mfu"),
        "mfu_kept": median("mfu_kept"),
        "step_ms": statistics.median(s.seconds for s in steps) * 1e3,
        "between_us": {
            q: float(np.quantile([s.host_seconds for s in steps], p)) * 1e6
            for q, p in (("median", 0.5), ("p90", 0.9))
        },
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_run_s": first_run,
        "captured_later_s": sum(s.capture_seconds for s in runs),
    }
    if arguments.host:
        found["synchronisations_per_step"] = synchronisations(llm, prompts, OPTIONS)
    return found | parts_in_ms(llm, steps, PROMPT + NEW // 2)


def measure_warm_up(models: Models, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds to capture lengths 0 to 16, with the kernels as cached, then with all compiled."""

    def warm_up() -> tuple[float, int]:
        free()
        llm = llm_for(models, "measured", batch, arguments)
        began = time.perf_counter()
        llm.warm_up()
        torch.cuda.synchronize()
        engines = llm._engines.engines
        return time.perf_counter() - began, 0 if engines is None else engines.captured

    (seconds, graphs), (again, _) = warm_up(), warm_up()
    return {"seconds": seconds, "again": again, "graphs": graphs}


def row_of(name: str, length: str, batch: int, r: dict[str, Any]) -> list[str]:
    """A line of the table."""
    goal = dict(zip((1, 2, 4, 8, 16), GOALS.get((name, length), ()), strict=False)).get(batch)
    ms, parts = r["ms_per_token"], r.get("parts_ms", {})
    figures = [
        f"{ms['all']:.2f}",
        "" if goal is None else f"{goal:.2f}",
        f"{ms['first']:.2f}",
        f"{ms['last']:.2f}",
    ]
    figures += [
        "-".join(f"{x:.2f}" for x in r["spread"]),
        f"{r['bound_ms_per_token']:.2f}",
        f"{r['share_of_bound']:.0%}",
    ]
    figures += [
        f"{r['tokens_per_second']:.0f}",
        f"{r['tau']:.2f}",
        f"{r['mbu']:.0%}",
        f"{r['mfu']:.1%}",
        f"{r['peak_gb']:.1f}",
    ]
    figures += [
        f"{r['step_ms']:.2f}",
        *(f"{parts[part]:.2f}" if parts else "" for part in ("draft", "verify", "sample", "host")),
    ]
    return [name, length, str(batch), *figures, f"{r['sampling_share']:.1%}" if parts else ""]


def told_of_warm_up(r: dict[str, Any]) -> str:
    """The record of a warm-up, as text."""
    times = f"in {r['seconds']:.1f} s, again in {r['again']:.1f} s"
    return f"{r['graphs']} graphs of lengths 0 to {LONGEST} {times}"


def told(r: dict[str, Any], host: bool) -> str:
    """The record of a setting, as a line of text."""
    line = (
        f"    {r['ms_per_token']['all']:.2f} ms/token, step {r['step_ms']:.2f} "
        f"ms, first run {r['first_run_s']:.1f} s"
    )
    line += (
        f", host {r['between_us']['median']:.0f} us between steps (p90 "
        f"{r['between_us']['p90']:.0f})"
    )
    if host:
        line += f", {r['synchronisations_per_step']:.2f} synchronisations per step"
    return line


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--lengths", nargs="*", default=["0", "4", "7", "bass"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--quantization", nargs="+", default=["none"])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    return parser.parse_args()


def main() -> None:
    """Run the settings."""
    parsed = parse()
    device, console = torch.device("cuda"), Console(width=190, highlight=False)
    bandwidth, peaks = copy_bandwidth(device), measure_peaks(device, torch.bfloat16)
    results = Results(parsed.results, torch.cuda.get_device_name())
    console.print(
        f"{torch.cuda.get_device_name()}: copies {bandwidth / 1e12:.2f} TB/s, reads "
        f"{peaks.bandwidth / 1e12:.2f} TB/s, "
        f"bf16 products {peaks.flops / 1e12:.0f} TFLOP/s"
    )
    table = Table(*COLUMNS.split(","))
    how = f"{parsed.cache} {parsed.attention}" + (" eager" if not parsed.graphs else "")
    for name in parsed.pairs:
        for quantization in parsed.quantization:
            arguments = argparse.Namespace(**vars(parsed) | {"quantization": quantization})
            free()
            target, draft = PAIRS[name]
            pair = (
                random_model(target, device, arguments),
                random_model(draft, device, arguments, draft=True),
            )
            models = Models(*pair, None, [], device, torch.bfloat16)
            shown = name if quantization == "none" else f"{name} {quantization}"
            for batch in parsed.batches if parsed.warm_up else ():
                r = results.measured(
                    f"warm-up {shown} {how} batch {batch}",
                    lambda m=models, b=batch, a=arguments: measure_warm_up(m, b, a),
                )
                console.print(f"{shown}, batch {batch}: {told_of_warm_up(r)}")
            for length in parsed.lengths:
                for batch in parsed.batches:
                    bound, tau = bound_of(models, length, batch, bandwidth, arguments)
                    console.print(
                        f"{shown}, k={length}, batch {batch}: bound by bytes {bound:.2f} ms/token "
                        f"(tau {tau:.2f})"
                    )
                    key = f"{shown} {how} k={length} batch {batch} repeats {parsed.repeats}" + (
                        " host" if parsed.host else ""
                    )
                    r = results.measured(
                        key, lambda m=models, n=length, b=batch, a=arguments: measure(m, n, b, a)
                    )
                    r |= {
                        "bound_ms_per_token": bound,
                        "share_of_bound": bound / r["ms_per_token"]["all"],
                    }
                    console.print(told(r, parsed.host))
                    table.add_row(*row_of(shown, length, batch, r))
            del pair, models, arguments
    if parsed.lengths:
        console.print(table)
    record = {
        "benchmark": "gpu_step",
        "commit": commit(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    record |= {"copy_bandwidth": bandwidth, "bandwidth": peaks.bandwidth, "flops": peaks.flops}
    print(json.dumps(results.write(record | {"config": config_of(parsed)})))


if __name__ == "__main__":
    main()
