"""How fast does `transformers` decode the embedded pair on a CPU, plain and assisted?

    cd benchmarks
    python -m peers.transformers [--batches 1 8] [--max-new-tokens 128] [--repeats 3] [--threads 2]

The prompts are those of `gpu_step.py`, 150 random tokens, within the pair's vocabulary. Acceptance
cannot be imposed on `transformers`: `assisted`, at batch 1 alone, has that of the pair at
temperature 1. `cpu_pair.py` compares it with `bass` on HumanEval. The last line is JSON.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable

import command_line as cli
import torch
from cpu_pair import Way, named, reference, theirs, timed
from gpu_step import prompts
from provenance import commit, config_of

import bass
from bass import pair


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--batches", nargs="+", type=cli.positive, default=[1, 8])
    parser.add_argument("--max-new-tokens", type=cli.positive, default=128)
    parser.add_argument("--repeats", type=cli.positive, default=3)
    parser.add_argument("--threads", type=cli.threads, default=2)
    arguments = parser.parse_args(argv)
    try:
        import transformers
    except ImportError:
        parser.error("transformers is not installed: `pip install transformers`.")
    transformers.logging.set_verbosity_error()
    arguments.transformers = transformers.__version__
    return arguments


def main(argv: list[str] | None = None) -> None:
    """Measure every batch size."""
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    target, draft = reference(pair.TARGET), reference(pair.DRAFT)
    options = {"max_new_tokens": arguments.max_new_tokens, "temperature": 1.0, "top_p": 1.0}
    runs: dict[Way, Callable[[], list[bass.Stats] | None]] = {}
    for batch in arguments.batches:
        rows = [[token % target.config.vocab_size for token in row] for row in prompts(batch)]
        for name, assistant in (("plain", None), ("assisted", draft)):
            if batch == 1 or assistant is None:
                runs[name, batch] = lambda a=assistant, r=rows: theirs(
                    target, a, r, len(r), options
                )
    seconds, _ = timed(runs, arguments.repeats)
    tokens = arguments.max_new_tokens
    rates = {way: way[1] * tokens / statistics.median(times) for way, times in seconds.items()}
    for (name, batch), rate in rates.items():
        print(f"transformers, {name}, batch {batch}: {rate:.0f} tokens/s", file=sys.stderr)
    about = {"benchmark": "peers.transformers", "commit": commit(), "config": config_of(arguments)}
    print(json.dumps(about | {"tokens_per_second": named(rates)}))


if __name__ == "__main__":
    cli.run(main)
