"""Applies mutants to copies of the source, runs the tests on each copy, and tells which test killed
it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from support.mutants import MUTANTS, select
from support.mutants.mutant import Mutant
from support.planting import SOURCE, planted

TESTS = Path(__file__).resolve().parents[1]
AT_ONCE = 2
TIMEOUT = 150.0  # seconds: a mutant that never ends is a dead one


@dataclass(frozen=True)
class Outcome:
    """`killer`: the test that failed, or None for a survivor."""

    mutant: Mutant
    killer: str | None
    seconds: float
    error: str = ""


def attempt(mutant: Mutant) -> Outcome:
    """Run the mutant's tests on a copy of the source with the edit in it."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bass-mutant-") as folder:
        copy = Path(folder) / "bass"
        shutil.copytree(
            SOURCE,
            copy,
            ignore=shutil.ignore_patterns("__pycache__", "*.safetensors", "tokenizer.json"),
        )
        for large in SOURCE.glob("pair/*/*"):
            place = copy / large.relative_to(SOURCE)
            if large.parent.name != "__pycache__" and not place.exists():
                place.symlink_to(large)
        file, text = planted(mutant)
        (copy / file).write_text(text, encoding="utf-8")
        environment = os.environ | {
            "PYTHONPATH": folder,
            "BASS_EXPECTED_SOURCE": str(
                copy
            ),  # conftest.py asserts that it is this copy which is imported
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HYPOTHESIS_PROFILE": "mutants",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            *mutant.tests,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=TESTS,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(mutant, f"no end within {TIMEOUT:.0f} s", time.perf_counter() - began)
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"The tests of mutant `{mutant.name}` did not "
            f"run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    killer = failed.group(1) if failed else "unknown test" if done.returncode else None
    error = re.search(r"^\S+:\d+: (.*)$", done.stdout, re.MULTILINE)
    return Outcome(mutant, killer, time.perf_counter() - began, error.group(1) if error else "")


def main() -> int:
    """Print one line per mutant as it is decided, then the table; 1 if any survived."""
    parser = argparse.ArgumentParser(prog="python -m support.mutants", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="only mutants whose name contains one of these"
    )
    chosen = select(parser.parse_args().only)
    if not chosen:
        print("No mutant has such a name. They are:", *(m.name for m in MUTANTS), sep="\n  ")
        return 2
    for mutant in chosen:
        planted(mutant)
    outcomes: list[Outcome] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(attempt, chosen):
            outcomes.append(outcome)
            verdict = "killed" if outcome.killer else "SURVIVED"
            progress = f"[{len(outcomes):>2}/{len(chosen)}] {outcome.seconds:5.1f} s  {verdict:8}"
            print(f"{progress}  {outcome.mutant.name}: {outcome.error[:100]}", flush=True)
    survivors = [o for o in outcomes if o.killer is None]
    width = max(len(o.mutant.name) for o in outcomes)
    print(f"\n{'mutant':{width}}  trap  killed by")
    for o in outcomes:
        print(f"{o.mutant.name:{width}}  {o.mutant.trap or '-':>4}  {_short(o.killer)}")
    print(
        f"\n{len(outcomes) - len(survivors)} of {len(outcomes)} killed in "
        f"{time.perf_counter() - began:.0f} s."
    )
    return 1 if survivors else 0


def _short(killer: str | None) -> str:
    return "SURVIVED" if killer is None else killer if len(killer) <= 150 else killer[:147] + "..."
