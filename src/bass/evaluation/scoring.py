"""Scores of completions that are not code: exact match and ROUGE-2."""

import functools
from typing import Any

from bass.errors import OptionError, install
from bass.evaluation.tasks import Problem, final_number


def exact_match(problem: Problem, text: str) -> float:
    """1 if the number after `####`, or else the last number, is the answer."""
    _, marked, after = text.partition("####")
    return float(final_number(after.split("\n")[0] if marked else text) == problem.answer)


def rouge2(problem: Problem, text: str) -> float:
    """F-measure of the common stemmed bigrams of summary and reference (Lin, 2004), by the library
    rouge-score.
    """
    return float(_rouge().score(problem.reference, text)["rouge2"].fmeasure)


@functools.cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise OptionError(
            f"ROUGE-2 needs the package rouge-score: install it with {install('eval')}."
        ) from error
    return RougeScorer(["rouge2"], use_stemmer=True)
