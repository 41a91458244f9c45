"""How near does each family come to its bound by bytes?

    python benchmarks/families.py [--families NAME ...] [--batches 1 8] [--hidden 4096]
        [--layers 12] [--vocabulary 65536] [--new-tokens 64] [--device cuda] [--results FILE]

Plain decoding of every family with random weights in one size, so that only the kinds of blocks
differ. Per step: the bytes that it moves at the bandwidth of a read (the bound), and the wall
time from the end of the prefill to the last token over the number of steps (median of three calls).
Prints the machine, a Markdown table as it grows, and one JSON line last.
"""

import argparse
import gc
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line as cli
import torch
from provenance import commit, config_of
from random_families import CONTEXT, families

import bass
from bass.analysis import METRICS
from bass.api.llm import LLM
from bass.api.options import RequestOptions
from bass.engine.cost import measure_peaks
from bass.experiments.bench import Timing
from bass.experiments.provenance import device_name

PROMPT_LENGTH, CALLS = 150, 3
DTYPE = torch.bfloat16


def loaded(config: dict[str, Any], batch: int, device: str) -> LLM:
    """The family without a draft."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return bass.load(
            folder,
            num_speculative_tokens=0,
            load_format="dummy",
            device=device,
            dtype="bfloat16",
            cuda_graphs="lazy" if device.startswith("cuda") else False,
            max_batch_size=batch,
        )


def measured(llm: LLM, batch: int, new_tokens: int) -> dict[str, float]:
    """Milliseconds of a step, and its bound."""
    drawn = torch.Generator().manual_seed(0)
    vocabulary = llm.models.target.shape.vocab_size
    prompts = torch.randint(1, vocabulary, (batch, PROMPT_LENGTH), generator=drawn).tolist()
    request = RequestOptions(max_new_tokens=new_tokens, temperature=1.0, ignore_eos=True)
    one = LLM(llm.models, replace(llm.plan, max_batch_size=batch))
    timing = Timing(one, [prompts], request)
    timing.warm_up()
    for repeat in range(1, CALLS + 1):
        timing.call(repeat)
    calls = [*zip(timing.walls, timing.calls, strict=True)]
    wall = statistics.median(seconds / len(call.steps) for seconds, call in calls)
    bound = statistics.median(METRICS["bound_seconds"](m) / len(m.steps) for _, m in calls)
    return {"bound_ms": bound * 1e3, "wall_ms": wall * 1e3, "share": bound / wall}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    known = [*families(1024, 1, 2)]
    parser.add_argument("--families", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 8])
    parser.add_argument("--hidden", type=cli.integer(128, 1 << 16, 128), default=4096)
    parser.add_argument("--layers", type=cli.layers, default=12)
    parser.add_argument("--vocabulary", type=cli.integer(2), default=65536)
    parser.add_argument("--new-tokens", type=cli.integer(1, CONTEXT - PROMPT_LENGTH), default=64)
    parser.add_argument("--device", type=cli.device, default="cuda")
    parser.add_argument("--results", type=cli.results_file)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure every family, and print its row as soon as it is known."""
    arguments = parse(argv)
    device = torch.device(arguments.device)
    name_of_device, peaks = device_name(device), measure_peaks(device, DTYPE)
    print(f"{name_of_device}: reads {peaks.bandwidth / 1e12:.2f} TB/s\n", flush=True)
    heads = [f"{what}, b={batch}" for batch in arguments.batches for what in ("ms", "of bound")]
    print(f"| family | {' | '.join(heads)} |\n|---{'|--:' * len(heads)}|", flush=True)
    found: dict[str, Any] = {}
    configs = families(arguments.hidden, arguments.layers, arguments.vocabulary)
    for name in arguments.families:
        llm = loaded(configs[name], max(arguments.batches), arguments.device)
        sizes = arguments.batches
        found[name] = {batch: measured(llm, batch, arguments.new_tokens) for batch in sizes}
        cells = [f"{one['wall_ms']:.2f} | {one['share']:.0%}" for one in found[name].values()]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
        del llm
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    record = {"benchmark": "families", "commit": commit(), "torch": torch.__version__}
    record |= {"device": name_of_device, "config": config_of(arguments), "results": found}
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    cli.run(main)
