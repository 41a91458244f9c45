"""How fast does llama.cpp decode the embedded pair on a CPU, plain and with the draft?

    cd benchmarks
    python -m peers.llama_cpp [--max-new-tokens 128] [--threads 2]

As `cpu_pair.py` measures it next to `bass`: float32, prompts of 64 tokens at batch 1 and 8, and
four greedy drafts at batch 1 with the pair's own acceptance. The last line is JSON.
"""

import argparse
import json
import sys

import command_line as cli
from cpu_pair import llama_cpp
from provenance import commit, config_of


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=cli.positive, default=128)
    parser.add_argument("--threads", type=cli.threads, default=2)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure it, or say what is missing; returns the exit status."""
    arguments = parse(argv)
    found = llama_cpp(arguments)
    if isinstance(found, str):
        print(f"llama.cpp is not measured: {found}.", file=sys.stderr)
        return cli.FAILED
    for name, rate in found.items():
        print(f"llama.cpp, {name}: {rate:.0f} tokens/s", file=sys.stderr)
    about = {"benchmark": "peers.llama_cpp", "commit": commit(), "config": config_of(arguments)}
    print(json.dumps(about | {"tokens_per_second": found}))
    return 0


if __name__ == "__main__":
    cli.run(main)
