"""How fast is the embedded pair on a CPU, compared with `transformers` on the same weights?

    BASS_DATA=FOLDER python benchmarks/cpu_pair.py [--threads 2] [--repeats 5] [--new-tokens 128]
    [--temperature 0.2]

FOLDER holds HumanEval.jsonl.gz. Its first prompts are continued in float32, each to the same number
of tokens. In one process, in turn, after a warm-up of each, it times our autoregressive decoding,
our speculative decoding, `transformers` generate, and `transformers` with `assistant_model` (batch
1 only). Prints the processor and the bound first, a table, and one JSON line last. "tokens/s"
includes prefills, "decoding" is from the end of each to the last token. llama.cpp's rates of
decoding follow if `convert_hf_to_gguf.py`, in llama.cpp's source, `llama-batched-bench` and
`llama-speculative-simple` are on the PATH.
"""

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command_line as cli
import torch
from provenance import commit
from rich.console import Console
from rich.table import Table

import bass
from bass import pair
from bass.engine.cost import measure_peaks
from bass.ops import dispatch
from bass.process import cpu_name
from bass.text import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def read_prompts(count: int) -> list[list[int]]:
    """The first HumanEval prompts as token ids."""
    path = cli.data_file(os.environ.get("BASS_DATA"), "HumanEval.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["prompt"] for line in lines][:count]
    tokenizer = Tokenizer.read(pair.TARGET)
    assert tokenizer is not None
    return [tokenizer.encode(text) for text in texts]


def ours(
    llm: bass.LLM, prompts: list[list[int]], batch: int, options: dict[str, Any]
) -> list[bass.Stats]:
    """Continue the prompts, `batch` at a time; return the statistics of the calls."""
    return [
        llm.generate(prompts[first : first + batch], ignore_eos=True, **options).stats
        for first in range(0, len(prompts), batch)
    ]


def decoding_rate(calls: list[bass.Stats], new_tokens: int) -> float:
    """Tokens per second from the end of each call's prefill to its last token."""
    seconds = sum((call.last or 0.0) * new_tokens for call in calls)
    return sum(call.tokens for call in calls) / seconds


def theirs(
    model: "PreTrainedModel",
    assistant: "PreTrainedModel | None",
    prompts: list[list[int]],
    batch: int,
    options: dict[str, Any],
) -> None:
    """The same with `transformers`, which pads on the left."""
    sampling = {"do_sample": options["temperature"] > 0}
    if sampling["do_sample"]:
        sampling |= {"temperature": options["temperature"], "top_p": options["top_p"], "top_k": 0}
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        extra = {} if assistant is None else {"assistant_model": assistant}
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=options["max_new_tokens"],
            pad_token_id=0,
            **sampling,
            **extra,
        )
        assert out.shape[1] == longest + options["max_new_tokens"], "the reference stopped early"


def reference(folder: Path) -> "PreTrainedModel":
    """The checkpoint in `transformers`, in float32, without end-of-sequence tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    return model


PAIRINGS = [
    ("plain over transformers' plain, batch 1", ("bass, plain", 1), ("transformers, plain", 1)),
    ("plain over transformers' plain, batch 8", ("bass, plain", 8), ("transformers, plain", 8)),
    (
        "speculative over transformers' assisted, batch 1",
        ("bass, speculative", 1),
        ("transformers, assisted", 1),
    ),
    ("speculative over our plain, batch 1", ("bass, speculative", 1), ("bass, plain", 1)),
    ("speculative over our plain, batch 8", ("bass, speculative", 8), ("bass, plain", 8)),
    (
        "speculative over transformers' plain, batch 8",
        ("bass, speculative", 8),
        ("transformers, plain", 8),
    ),
]


Way = tuple[str, int]  # in words, and its batch


def ways(
    arguments: argparse.Namespace,
    prompts: list[list[int]],
    target: "PreTrainedModel",
    draft: "PreTrainedModel",
) -> dict[Way, Callable[[], list[bass.Stats] | None]]:
    """What is compared."""
    options = {
        "max_new_tokens": arguments.new_tokens,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
    }
    plain = bass.load(num_speculative_tokens=0, dtype="float32", device="cpu", max_batch_size=8)
    speculative = {}
    for batch, lengths in zip((1, 8), arguments.lengths, strict=True):
        how = {"num_speculative_tokens": int(lengths)} if lengths.isdigit() else {"policy": lengths}
        speculative[batch] = bass.load(dtype="float32", device="cpu", max_batch_size=8, **how)
    runs: dict[Way, Callable[[], list[bass.Stats] | None]] = {}
    for batch in (1, 8):
        runs["bass, plain", batch] = lambda b=batch: ours(plain, prompts, b, options)
        runs["bass, speculative", batch] = lambda b=batch: ours(speculative[b], prompts, b, options)
        runs["transformers, plain", batch] = lambda b=batch: theirs(
            target, None, prompts, b, options
        )
    runs["transformers, assisted", 1] = lambda: theirs(target, draft, prompts, 1, options)
    return runs


def timed(
    runs: dict[Way, Callable[[], list[bass.Stats] | None]], repeats: int
) -> tuple[dict[Way, list[float]], dict[Way, list[bass.Stats]]]:
    """Seconds of each repeat, in turn, and the statistics of our last runs."""
    seconds: dict[Way, list[float]] = {name: [] for name in runs}
    stats: dict[Way, list[bass.Stats]] = {}
    for turn in range(repeats + 1):  # the first is the warm-up
        for name, run in runs.items():
            began = time.perf_counter()
            found = run()
            if turn:
                seconds[name].append(time.perf_counter() - began)
            if found is not None:
                stats[name] = found
    return seconds, stats


def table_of(
    seconds: dict[Way, list[float]],
    stats: dict[Way, list[bass.Stats]],
    prompts: int,
    new_tokens: int,
) -> Table:
    """Rate and spread of each way."""
    tokens = prompts * new_tokens
    table = Table(
        "",
        "batch",
        "tokens/s",
        "spread",
        "decoding",
        "tau",
        "bound share",
        title=f"{prompts} prompts, {new_tokens} new tokens each",
    )
    for (name, batch), times in seconds.items():
        calls = stats.get((name, batch), [])
        spread = f"{tokens / max(times):.0f} - {tokens / min(times):.0f}"
        table.add_row(
            name,
            str(batch),
            f"{tokens / statistics.median(times):.0f}",
            spread,
            f"{decoding_rate(calls, new_tokens):.0f}" if calls else "",
            f"{calls[-1].tau:.2f}" if calls else "",
            f"{calls[-1].mbu:.0%}" if calls else "",
        )
    return table


# The converter knows tokenizers by a checksum. For these figures any splitting of words will do.
CONVERT = """
import runpy, sys
from pathlib import Path
sys.argv = sys.argv[1:]
folder = Path(sys.argv[0]).parent
sys.path[:0] = [str(folder), str(folder / "gguf-py")]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TOOLS = ("convert_hf_to_gguf.py", "llama-batched-bench", "llama-speculative-simple")


def llama_cpp(arguments: argparse.Namespace) -> dict[str, float] | str:
    """llama.cpp's tokens/s with the pair's float32 weights: autoregressive at batch 1 and 8, and
    with 4 drafted tokens, greedy, at batch 1. A text says why there are none.
    """
    found = [shutil.which(name) for name in TOOLS]
    if None in found:
        return f"{TOOLS[found.index(None)]} is not on the PATH"
    convert, bench, speculate = map(str, found)
    new, threads = str(arguments.new_tokens), ["-t", str(arguments.threads)]
    with tempfile.TemporaryDirectory() as folder:
        target, draft = f"{folder}/target.gguf", f"{folder}/draft.gguf"
        code = [sys.executable, "-c", CONVERT, convert]
        try:
            for checkpoint, file in ((pair.TARGET, target), (pair.DRAFT, draft)):
                output([*code, str(checkpoint), "--outtype", "f32", "--outfile", file])
            sizes = ["-npp", "64", "-ntg", new, "-npl", "1,8", "-c", "8192"]
            lines = output([bench, "-m", target, *threads, *sizes, "--output-format", "jsonl"])
            rates = [json.loads(line)["speed_tg"] for line in lines.splitlines() if line[:1] == "{"]
            options = ["-n", new, "--temp", "0", "--ignore-eos", "-p", "def add(a, b):"]
            lengths = [*threads, "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
            drafted = output([speculate, "-m", target, "-md", draft, *lengths, *options])
            speeds = re.findall(r"decoded .* speed: +([0-9.]+) t/s", drafted)
        except subprocess.CalledProcessError as error:
            return f"{Path(error.cmd[-1]).name} failed: {error.stderr.strip()[-200:]}"
    return {
        "plain, batch 1": rates[0],
        "plain, batch 8": rates[1],
        "speculative, batch 1": float(speeds[0]),
    }


def output(command: list[str]) -> str:
    """What a command writes. Raises `CalledProcessError`."""
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return ended.stdout + ended.stderr


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--threads", type=cli.threads, default=2)
    parser.add_argument("--repeats", type=cli.positive, default=5)
    parser.add_argument("--prompts", type=cli.positive, default=8)
    parser.add_argument("--new-tokens", type=cli.positive, default=128)
    parser.add_argument("--temperature", type=cli.temperature, default=0.2)
    parser.add_argument("--top-p", type=cli.share, default=0.95)
    parser.add_argument(
        "--lengths",
        nargs=2,
        default=("auto", "auto"),
        help="at batch 1 and 8: a fixed draft length, or a policy",
    )
    return parser.parse_args(argv)


def name_of(way: Way) -> str:
    """A way in words."""
    return f"{way[0]}, batch {way[1]}"


def named(rates: dict[Way, float]) -> dict[str, float]:
    """Rates by the words for their ways."""
    return {name_of(way): round(rate, 1) for way, rate in rates.items()}


def main(argv: list[str] | None = None) -> None:
    """Run the comparison."""
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    console, prompts = Console(), read_prompts(arguments.prompts)
    import transformers  # takes seconds

    transformers.logging.set_verbosity_error()
    target, draft = reference(pair.TARGET), reference(pair.DRAFT)

    peaks = measure_peaks(torch.device("cpu"), torch.float32)
    weights = [sum(p.numel() for p in m.parameters()) * 4 for m in (target, draft)]
    console.print(f"{cpu_name()}; commit {commit()}.")
    console.print(
        f"Read bandwidth {peaks.bandwidth / 1e9:.1f} GB/s, {arguments.threads} threads. Bound by "
        "bytes of weights:"
    )
    console.print(
        f"  autoregressive {weights[0] / peaks.bandwidth * 1e3:.2f} ms a step, one draft token "
        f"{weights[1] / peaks.bandwidth * 1e3:.2f} ms"
    )

    runs = ways(arguments, prompts, target, draft)
    seconds, stats = timed(runs, arguments.repeats)
    tokens = len(prompts) * arguments.new_tokens
    rate = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    console.print(table_of(seconds, stats, len(prompts), arguments.new_tokens))
    llama = llama_cpp(arguments)
    if isinstance(llama, str):
        console.print(f"  llama.cpp: not measured ({llama})")
    else:
        for what, value in llama.items():
            console.print(f"  llama.cpp, {what}: {value:.0f} tokens/s")
    console.print(f"  bass's products: {dispatch.cpu_kernels_in_words()}")
    ratios = {what: round(rate[a] / rate[b], 3) for what, a, b in PAIRINGS}
    decoding = {way: decoding_rate(calls, arguments.new_tokens) for way, calls in stats.items()}
    for what, a, b in PAIRINGS:
        alone = f" ({decoding[a] / decoding[b]:.2f}x decoding)" if b in decoding else ""
        console.print(f"  {ratios[what]:5.2f}x  {what}{alone}")
    record = {
        "benchmark": "cpu_pair",
        "commit": commit(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "processor": cpu_name(),
        "products": dispatch.cpu_kernels_in_words(),
        "llama_cpp": llama,
        "bandwidth": peaks.bandwidth,
        "config": vars(arguments),
        "tokens_per_second": named(rate),
        "decoding_tokens_per_second": named(decoding),
        "seconds": {name_of(way): [round(t, 3) for t in times] for way, times in seconds.items()},
        "ratios": ratios,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    cli.run(main)
