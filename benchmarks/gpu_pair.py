"""What does speculation gain with the embedded pair on a GPU, with real text and acceptance?

    [BASS_DATA=FOLDER] python benchmarks/gpu_pair.py [--batches 1 4 8 16 32] [--policies 4 bass
        measured] [--repeats 5] [--new-tokens 256] [--temperature 0.2] [--top-p 0.95] [--device
        cuda] [--results FILE]

FOLDER holds HumanEval.jsonl.gz; a batch takes as many of its prompts as it has rows. Without it,
the script generates prompts. A policy is a name, or a number for that fixed length. Autoregressive
decoding by the same code is timed first, in the same process. Every setting runs once to warm up
and capture its graphs, then `--repeats` times. Times start at the end of the prefill and exclude
captures; those of the parts are measured as in `gpu_parts.py`, at the median draft length. Every
row runs to its limit. Prints a table, and one JSON line last.
"""

import argparse
import gzip
import itertools
import json
import os
import platform
import statistics
from typing import Any

import command_line as cli
import torch
from gpu_parts import Results, parts_in_ms
from provenance import commit, config_of
from rich.console import Console
from rich.table import Table

import bass
from bass.analysis.metrics import number
from bass.api.resolve import make

VERBS, NOUNS = (
    ("count", "sort", "merge", "parse", "validate", "format"),
    ("words", "numbers", "lines", "dates", "paths", "records"),
)
COLUMNS = (
    "policy,batch,ms/token,first,last,spread,speed-up,tokens/s,tau,accepted,step "
    "ms,k,draft,verify,sample,host,MBU"
)


def read_prompts(count: int) -> tuple[str, list[str]]:
    """Return (the prompts' source, `count` prompts)."""
    folder = os.environ.get("BASS_DATA")
    if folder:
        path = cli.data_file(folder, "HumanEval.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return "HumanEval", [json.loads(line)["prompt"] for line in lines][:count]
    made = (
        (
            f'def {verb}_{noun}(items):\n    """{verb.capitalize()} the {noun} in items and return '
            "the "
            'result."""\n'
        )
        for verb, noun in itertools.product(VERBS, NOUNS)
    )
    return "own", list(itertools.islice(made, count))


def loaded(policy: str, arguments: argparse.Namespace) -> bass.LLM:
    """The embedded pair with one policy."""
    how = (
        {"num_speculative_tokens": int(policy)}
        if policy.isdigit()
        else {"policy": make("policy", policy)}
    )
    return bass.load(
        device=arguments.device,
        cache=arguments.cache,
        attention=arguments.attention,
        max_batch_size=max(arguments.batches),
        **how,
    )


def measure(llm: bass.LLM, prompts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one setting; returns medians over the repeats."""
    options = {
        "max_new_tokens": arguments.new_tokens,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "ignore_eos": True,
    }
    llm.generate(prompts, **options)
    results = [
        llm.generate(prompts, **options, seed=seed) for seed in range(1, arguments.repeats + 1)
    ]
    runs, steps = [r.stats for r in results], [s for r in results for s in r.trace]

    def median(name: str) -> Any:
        values = [value for stats in runs if (value := getattr(stats, name)) is not None]
        # None, for example, for an acceptance rate without drafts
        return statistics.median(values) if values else None

    assert llm.models.tokenizer is not None
    mean = statistics.mean(len(llm.models.tokenizer.encode(prompt)) for prompt in prompts)
    return {
        "ms_per_token": {name: median(name) * 1e3 for name in ("first", "last", "all")},
        "spread": [min(s.all for s in runs) * 1e3, max(s.all for s in runs) * 1e3],
        "tokens_per_second": len(prompts)
        * arguments.new_tokens
        / statistics.median(s.seconds - s.prefill_seconds for s in runs),
        "tau": median("tau"),
        "acceptance_rate": median("acceptance_rate"),
        "mbu": median("mbu"),
        "step_ms": statistics.median(s.seconds for s in steps) * 1e3,
        "mean_k": statistics.mean(s.k for s in steps),
        "lossless": llm.parts.verifier.lossless,
    } | parts_in_ms(llm, steps, int(mean) + arguments.new_tokens // 2)


def row_of(policy: str, batch: int, r: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """A line of the table."""
    ms, parts = r["ms_per_token"], r.get("parts_ms", {})
    times = [f"{ms[name]:.3f}" for name in ("all", "first", "last")] + [
        "-".join(f"{x:.3f}" for x in r["spread"])
    ]
    figures = [
        f"{plain['ms_per_token']['all'] / ms['all']:.2f}x",
        f"{r['tokens_per_second']:.0f}",
        f"{r['tau']:.2f}",
    ]
    figures += [
        f"{number(r['acceptance_rate'], 'share')} %",
        f"{r['step_ms']:.2f}",
        f"{r['mean_k']:.1f}",
    ]
    figures += [
        f"{parts[part]:.2f}" if parts else "" for part in ("draft", "verify", "sample", "host")
    ]
    return [policy, str(batch), *times, *figures, f"{r['mbu']:.0%}"]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 4, 8, 16, 32])
    parser.add_argument("--policies", nargs="+", default=["4", "bass", "auto"])
    parser.add_argument("--repeats", type=cli.positive, default=5)
    parser.add_argument("--new-tokens", type=cli.positive, default=256)
    parser.add_argument("--temperature", type=cli.temperature, default=0.2)
    parser.add_argument("--top-p", type=cli.share, default=0.95)
    parser.add_argument("--device", type=cli.device, default="cuda")
    parser.add_argument("--cache", default="padded")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--results", type=cli.results_file)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the settings."""
    arguments = parse(argv)
    console = Console(width=170, highlight=False)
    device = (
        torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.machine()
    )
    results, (kind, prompts) = (
        Results(arguments.results, device),
        read_prompts(max(arguments.batches)),
    )
    if len(prompts) < max(arguments.batches):
        raise SystemExit(
            f"There are {len(prompts)} prompts for a batch of {max(arguments.batches)}: give "
            "smaller batches."
        )
    models = {policy: loaded(policy, arguments) for policy in ("0", *arguments.policies)}
    table = Table(
        *COLUMNS.split(","),
        title=f"the embedded pair, {kind} prompts, temperature {arguments.temperature}, {device}",
    )
    config = config_of(arguments)
    how = json.dumps(
        {
            name: config[name]
            for name in ("new_tokens", "temperature", "top_p", "cache", "attention", "repeats")
        }
    )
    for batch in arguments.batches:
        plain: dict[str, Any] = {}
        for policy, llm in models.items():
            r = results.measured(
                f"{policy} batch {batch} {kind} {how}",
                lambda m=llm, b=batch: measure(m, prompts[:b], arguments),
            )
            if policy == "0":
                plain = r
            r["speed_up"] = plain["ms_per_token"]["all"] / r["ms_per_token"]["all"]
            table.add_row(*row_of("plain" if policy == "0" else policy, batch, r, plain))
    console.print(table)
    record = {
        "benchmark": "gpu_pair",
        "commit": commit(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "prompts": kind,
    }
    print(json.dumps(results.write(record | {"config": config})))


if __name__ == "__main__":
    cli.run(main)
