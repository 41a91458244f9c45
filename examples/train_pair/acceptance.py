"""Acceptance and tau of the embedded pair, measured with the engine, for the model card.

    python examples/train_pair/acceptance.py --corpus .data/corpus [--functions 32] [--new-tokens
    128]

Continues held-out functions from their signature and docstring, at temperatures 0, 0.2, 0.8 and
1.0, without top-p, for k = 4 and for the BASS policy, at batch 1 and 8. Prints one JSON line per
setting, and a table for the model card with, in each cell: the acceptance of a drafted token that
was put to the test (those after a refused one are not), the share of all drafted tokens that was
accepted, and tau.
"""

import argparse
import json
import random
from pathlib import Path

import arguments
from parse_share import signatures

import bass

TEMPERATURES = (0.0, 0.2, 0.8, 1.0)


def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--functions", type=arguments.positive, default=32)
    parser.add_argument("--new-tokens", type=arguments.positive, default=128)
    args = parser.parse_args()
    texts = (args.corpus / "heldout.txt").read_bytes().decode().split("\0")
    prompts = sorted({prompt for text in texts for prompt in signatures(text)})
    random.Random(1).shuffle(prompts)
    prompts = prompts[: args.functions]

    rows = []
    for name, how in (("k = 4", {"num_speculative_tokens": 4}), ("bass", {"policy": "bass"})):
        for batch in (1, 8):
            llm = bass.load(max_batch_size=batch, **how)
            for temperature in TEMPERATURES:
                stats = llm.generate(
                    prompts, max_new_tokens=args.new_tokens, temperature=temperature, top_p=1.0
                ).stats
                found = {
                    "lengths": name,
                    "batch": batch,
                    "temperature": temperature,
                    "acceptance": round(stats.token_acceptance_rate, 3),
                    "accepted_of_drafted": round(stats.acceptance_rate, 3),
                    "acceptance_by_position": [
                        a and round(a, 3) for a in stats.acceptance_by_position[:8]
                    ],
                    "tau": round(stats.tau, 3),
                    "drafted": int(stats.drafted),
                }
                rows.append(found)
                print(json.dumps(found), flush=True)
    print(
        "\n| lengths | batch | "
        + " | ".join(f"T = {t}" for t in TEMPERATURES)
        + " |\n|---|---|"
        + "---|" * len(TEMPERATURES)
    )
    for first in range(0, len(rows), len(TEMPERATURES)):
        part = rows[first : first + len(TEMPERATURES)]
        cells = (
            f"{r['acceptance']:.3f} / {r['accepted_of_drafted']:.3f} / {r['tau']:.2f}" for r in part
        )
        print(f"| {part[0]['lengths']} | {part[0]['batch']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    arguments.run(main)
