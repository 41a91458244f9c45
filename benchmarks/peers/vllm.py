"""How fast does vLLM decode the shapes of a pair on a GPU, plain and with drafts?

    cd benchmarks
    python -m peers.vllm [--pair llama] [--method plain|eagle3|draft_model] [--batch 8]
        [--max-new-tokens 128] [--repeats 3]

The prompts, random weights and imposed acceptance are those of `gpu_step.py`: drafted token i is
accepted with probability 0.8^i. `eagle3` drafts with a random EAGLE-3 head of one layer;
`draft_model` is vLLM's slow path (docs/performance.md). The time of a call of one new token, the
least of three, is subtracted from that of a call of one more than asked. The last line is JSON with
vLLM's whole configuration. Each setting needs a process of its own.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import command_line as cli
from gpu_step import ACCEPTANCE, LENGTHS, folders, prompts
from provenance import commit, config_of
from write_shapes import PAIRS

METHODS = ("plain", "eagle3", "draft_model")
VOCABULARY = 32000  # of the EAGLE-3 head's drafts
SHARED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta",
)  # fmt: skip


def head(target: str, folder: str) -> str:
    """The folder of an EAGLE-3 head: one layer in the shape of the target's."""
    whole = json.loads(Path(target, "config.json").read_text(encoding="utf-8"))
    own = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    own |= {name: whole[name] for name in SHARED if name in whole}
    own |= {"num_hidden_layers": 1, "draft_vocab_size": VOCABULARY, "tie_word_embeddings": False}
    Path(folder, "config.json").write_text(json.dumps(own), encoding="utf-8")
    return folder


def configuration(arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The arguments of vLLM's `LLM`. folder: for an EAGLE-3 head."""
    pair, k = folders(arguments.pair), LENGTHS.get(arguments.pair, 4)
    found: dict[str, Any] = {
        "model": pair["target"],
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "gpu_memory_utilization": 0.7,
        "enable_prefix_caching": False,
        "max_num_seqs": max(32, arguments.batch),
    }
    if arguments.method != "plain":
        eagle = arguments.method == "eagle3"
        found["speculative_config"] = {
            "model": head(pair["target"], folder) if eagle else pair["draft"],
            "method": arguments.method,
            "num_speculative_tokens": k,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [ACCEPTANCE ** (i + 1) for i in range(k)],
            "draft_sample_method": "greedy",
        }
    return found


def calls(options: dict[str, Any], batch: int) -> Callable[[int], float]:
    """What decodes the prompts to a number of new tokens, and returns the seconds."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(**options)
    rows = [{"prompt_token_ids": tokens} for tokens in prompts(batch)]

    def call(new_tokens: int) -> float:
        sampling = vllm.SamplingParams(
            temperature=1.0, top_p=1.0, ignore_eos=True, detokenize=False, max_tokens=new_tokens
        )
        began = time.perf_counter()
        engine.generate(rows, sampling, use_tqdm=False)
        return time.perf_counter() - began

    return call


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--pair", default="llama", choices=PAIRS)
    parser.add_argument("--method", default="plain", choices=METHODS)
    parser.add_argument("--batch", type=cli.positive, default=8)
    parser.add_argument("--max-new-tokens", type=cli.positive, default=128)
    parser.add_argument("--repeats", type=cli.positive, default=3)
    arguments = parser.parse_args(argv)
    try:
        arguments.vllm = version("vllm")
    except PackageNotFoundError:
        parser.error("vLLM is not installed: run it where `pip install vllm` did.")
    return arguments


def main(argv: list[str] | None = None) -> None:
    """Measure one setting."""
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        options = configuration(arguments, folder)
        call, new, batch = (
            calls(options, arguments.batch),
            arguments.max_new_tokens,
            arguments.batch,
        )
        call(new + 1)  # a warm-up
        prefill = min(call(1) for _ in range(3))
        found = sorted(1e3 * (call(new + 1) - prefill) / new for _ in range(arguments.repeats))
    median = statistics.median(found)
    print(
        f"vLLM {arguments.vllm}, {arguments.pair}, {arguments.method}, batch {batch}: {median:.2f} "
        f"ms per token ({found[0]:.2f} to {found[-1]:.2f}), {1e3 * batch / median:,.0f} tokens/s",
        file=sys.stderr,
    )
    about = {"benchmark": "peers.vllm", "commit": commit(), "config": config_of(arguments)}
    print(json.dumps(about | {"vllm": options, "ms_per_token": found, "prefill_s": prefill}))


if __name__ == "__main__":
    cli.run(main)
