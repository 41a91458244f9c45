"""The share of samples that pass, problem by problem, of an evaluation.

python examples/widen_pair/solved.py runs/small-problems
"""

import argparse

from bass.errors import BassError
from bass.experiments.pass_at_k import Evaluation


def main() -> None:
    """Print a line for each family, and the mean of each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="output of `bass eval`")
    shares = Evaluation(parser.parse_args().folder).pass_at(1)  # a row a problem, a column a method
    families = shares.groupby([name.split("/")[0] for name in shares.index], sort=False)
    for method in shares:
        print(f"{method}: {shares[method].mean():.3f}")
        for family, values in families[method]:
            print(f"  {family:16}", *(f"{share:.2f}" for share in values))


if __name__ == "__main__":
    try:
        main()
    except BassError as error:
        raise SystemExit(str(error)) from error
