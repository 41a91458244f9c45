"""A small ablation, and what its run folder holds."""

from pathlib import Path

from bass.runs.run_folder import RunFolder

CONFIG = """
name: small
base: {prompts: [def f(, "for item"], batch: 2, max_new_tokens: 6, repeats: 2, temperature: 0.8,
       seed: 3}
axes:
  method:
    plain: {policy: fixed, policy.k: 0}
    bass: {policy: bass, policy.start: 3}
    ngram: {drafter: ngram}
  cache: [padded, split]
"""


def texts(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.js*"))
    }


def tokens(folder: Path) -> dict[str, list[tuple[int, int, list[int]]]]:
    run = RunFolder(folder)
    return {
        cell.id: [(line.repeat, line.request, line.tokens) for line in run.lines(cell.id).requests]
        for cell in run.cells
    }
