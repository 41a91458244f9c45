"""The share of completions of held-out functions that parse as Python.

    python examples/train_pair/parse_share.py --corpus .data/corpus

The prompt is a function of the held-out packages from its `def` to the end of its docstring, the
completion is the embedded target's at temperature 0.2. It is cut where the function ends: before
the first line that is not indented. A completion that reaches its length limit first is cut after
its last whole line.
"""

import argparse
import ast
import json
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path

import arguments

import bass


def signatures(text: str) -> Iterator[str]:
    """Each documented function of a file up to the end of its docstring, moved to the left
    margin.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if (
            not isinstance(node, ast.FunctionDef)
            or not ast.get_docstring(node)
            or len(node.body) < 2
        ):
            continue
        docstring = node.body[0]
        if docstring.lineno == node.lineno or (docstring.end_lineno or 0) == node.body[1].lineno:
            continue
        prompt = textwrap.dedent("".join(lines[node.lineno - 1 : docstring.end_lineno]))
        if prompt.startswith("def ") and len(prompt) <= 1200:
            yield prompt


def cut(completion: str, finished: bool) -> str:
    """The completion up to the function's end."""
    lines = completion.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if line.strip() and not line.startswith((" ", "\t", "#", ")", "]", "}")):
            return "".join(lines[:index])
    return completion if finished else "".join(lines[:-1])


def parses(source: str) -> bool:
    """Whether `source` is Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> None:
    """Print the share as one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--count", type=arguments.positive, default=200)
    parser.add_argument("--new-tokens", type=arguments.positive, default=256)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--show", type=arguments.integer(0), default=0, help="completions to print")
    args = parser.parse_args()
    texts = (args.corpus / "heldout.txt").read_bytes().decode().split("\0")
    prompts = sorted({prompt for text in texts for prompt in signatures(text)})
    random.Random(0).shuffle(prompts)
    prompts = prompts[: args.count]
    llm = bass.load(max_batch_size=8)
    result = llm.generate(
        prompts, max_new_tokens=args.new_tokens, temperature=args.temperature, seed=0
    )
    parsed = ended = parsed_ended = 0
    for number, completion in enumerate(result.completions):
        prompt, finished = prompts[completion.prompt_index], completion.finish_reason != "length"
        body = cut(completion.text, finished)
        whole = finished or body != "".join(completion.text.splitlines(keepends=True)[:-1])
        good = parses(prompt + body)
        parsed, ended, parsed_ended = parsed + good, ended + whole, parsed_ended + (good and whole)
        if number < args.show:
            print(prompt + body, "\n" + "=" * 40, good)
    count = len(result.completions)
    print(
        json.dumps(
            {
                "functions": count,
                "temperature": args.temperature,
                "new_tokens": args.new_tokens,
                "ended": round(ended / count, 3),
                "parse": round(parsed / count, 3),
                "parse_of_ended": round(parsed_ended / max(1, ended), 3),
            }
        )
    )


if __name__ == "__main__":
    arguments.run(main)
