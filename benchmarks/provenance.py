"""What a benchmark records of itself: the code that it measures, and its options."""

import argparse
import subprocess
from pathlib import Path
from typing import Any


def commit() -> str:
    """The checked-out commit; empty without a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def config_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options, as JSON has them."""
    return {
        option: str(value) if isinstance(value, Path) else value
        for option, value in vars(arguments).items()
    }
