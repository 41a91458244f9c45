"""Compare the widened pair with the embedded one: greedy tokens and their log-probabilities.

    python examples/widen_pair/check.py --pair /dev/shm/wide --dtype float32

In float32, from a pair that was written in float32, all tokens are equal. In bfloat16 the two
round differently, so this shows how far the widened pair is from the embedded one.
"""

import argparse
from pathlib import Path

import bass
from bass import pair
from bass.api.results import Completion
from bass.errors import BassError

PROMPTS = (
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef find_files(root, suffix):\n",
    "def parse_version(text):\n    parts = text.split",
)


def completions(folder: Path, length: int, tokens: int, dtype: str) -> list[Completion]:
    """Greedy completions of the prompts; `length`: drafted tokens of each step."""
    llm = bass.load(
        str(folder / "target"),
        str(folder / "draft"),
        dtype=dtype,
        num_speculative_tokens=length,
        max_batch_size=len(PROMPTS),
    )
    options = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return list(llm.generate(list(PROMPTS), **options).completions)


def common(one: Completion, other: Completion) -> int:
    """The number of tokens before the first difference."""
    pairs = zip(one.token_ids, other.token_ids, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(one.token_ids))


def main() -> None:
    """Compare, with and without a draft."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    if not (args.pair / "target" / "config.json").is_file():
        parser.error(f"`{args.pair}` has no target/config.json: name an output of widen.py.")
    expected = completions(pair.TARGET.parent, 0, args.tokens, args.dtype)
    for length in (0, 4):
        found = completions(args.pair, length, args.tokens, args.dtype)
        for one, other in zip(expected, found, strict=True):
            equal = common(one, other)
            differences = (
                abs(a - b) for a, b in zip(one.logprobs[:equal], other.logprobs, strict=False)
            )
            print(
                f"{length} drafted tokens, prompt {one.prompt_index}: {equal} of {args.tokens} "
                f"tokens equal, log-probabilities within {max(differences, default=0.0):.1e}"
            )


if __name__ == "__main__":
    try:
        main()
    except (BassError, OSError) as error:
        raise SystemExit(str(error)) from error
