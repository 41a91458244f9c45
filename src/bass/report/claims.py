"""Cells whose output does not have the target's distribution, or depends on the batch, as their
verifiers and drafters declare; and what the run says of its prompts.
"""

from bass.report.cells import LOSSY, choices
from bass.runs.records import Manifest

MOST_NAMED = 12


def claims(manifest: Manifest) -> list[str]:
    """Sentences on the prompts; on cells whose verifier is not lossless, one for each reason; and
    on cells with a batch-wide drafter.
    """
    named = choices(manifest)
    lossy: dict[str, list[str]] = {}
    for cell in manifest.cells:
        if not cell.lossless:
            name = named[cell.id].removesuffix(LOSSY)
            lossy.setdefault(cell.caveat, []).append(name)
    reported = [
        f"Not lossless: {_listed(names)}{caveat and f' ({caveat})'}. Their output does "
        "not follow the target's distribution, so their times and acceptance must not be compared "
        "with those of lossless settings."
        for caveat, names in lossy.items()
    ]
    wide = [named[cell.id] for cell in manifest.cells if not cell.batch_invariant]
    if wide:
        reported.append(
            f"Batch-wide: {_listed(wide)}. Tokens of a row depend on its batch there, by the "
            "drafter."
        )
    return [*(manifest.remarks or []), *reported]


def _listed(names: list[str]) -> str:
    unlike = list(dict.fromkeys(names))
    more = len(unlike) - MOST_NAMED
    return ", ".join(unlike[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
