"""Compares the policy with others on the embedded pair, at several batch sizes.

    python ablation.py --batches 1 2 4 8 --tokens 64 --repeats 3

Tokens/s are medians over the repeats, in which the policies take turns; the first turn of each is
warm-up and not counted.
"""

import argparse
from pathlib import Path
from statistics import median

from my_policy import MyPolicy
from rich.console import Console
from rich.table import Table

import bass
from bass.errors import BassError

PROMPT = "def read_lines(path):\n"


def plot(path: Path, batches: list[int], speeds: dict[str, list[float]]) -> None:
    """Tokens/s over the batch size, one line for each policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(layout="constrained")
    for name, values in speeds.items():
        axes.plot(batches, values, marker="o", label=name)
    axes.set(xlabel="batch", ylabel="tokens/s", xticks=batches, ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Run, print the table, draw the plot."""
    parser = argparse.ArgumentParser(
        description="Compares MyPolicy with bass, fixed and autoregressive decoding."
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=Path("ablation.png"))
    given = parser.parse_args()
    if min(*given.batches, given.tokens, given.repeats) < 1:
        parser.error("every number must be 1 or more.")
    if not given.plot.absolute().parent.is_dir():
        parser.error(f"--plot: `{given.plot.parent}` is no folder.")

    policies = {
        "my-policy": MyPolicy(),
        "bass": "bass",
        "fixed": "fixed",
        "plain": {"class_path": "fixed", "init_args": {"k": 0}},
    }
    llms = {
        name: bass.load(policy=policy, max_batch_size=max(given.batches))
        for name, policy in policies.items()
    }
    table = Table(
        "batch", "policy", "tau", "accepted of drafted", "tokens/s", title="on the embedded pair"
    )
    speeds: dict[str, list[float]] = {name: [] for name in llms}
    for batch in given.batches:
        runs = {name: [] for name in llms}
        for _ in range(given.repeats + 1):
            for name, llm in llms.items():
                result = llm.generate(
                    PROMPT, num_return_sequences=batch, max_new_tokens=given.tokens, ignore_eos=True
                )
                runs[name].append(result.stats)
        for name, stats in runs.items():
            speeds[name].append(median(s.tokens_per_second for s in stats[1:]))
            rate = stats[0].acceptance_rate  # None where nothing was drafted
            accepted = "–" if rate is None else f"{rate:.0%}"
            table.add_row(
                str(batch), name, f"{stats[0].tau:.2f}", accepted, f"{speeds[name][-1]:.0f}"
            )
        table.add_section()
    Console().print(table)
    plot(given.plot, given.batches, speeds)
    print(f"Plot: {given.plot}")


if __name__ == "__main__":
    try:
        main()
    except BassError as error:
        raise SystemExit(str(error)) from error
