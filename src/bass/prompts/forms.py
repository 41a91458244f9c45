"""The texts that problems become, the same for evaluations and for ablations."""

import textwrap
from collections.abc import Sequence


def mbpp(text: str, tests: Sequence[str]) -> str:
    """The text and the tests of an MBPP problem, as a docstring."""
    quoted = f"{text}\n{chr(10).join(tests)}".replace("\\", "\\\\").replace('"""', "'''")
    return f'"""\n{quoted}\n"""\n'


def question(text: str) -> str:
    """A question, up to its answer."""
    return f"Question: {text}\nAnswer:"


def document(text: str) -> str:
    """A document, up to its summary."""
    return f"Document: {text.strip()}\nSummary:"


def whole(code: str) -> str:
    """Code without the carriage returns that some records have."""
    return textwrap.dedent(code.replace("\r\n", "\n"))
