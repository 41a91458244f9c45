"""Names that metrics had in run folders of earlier versions."""

from collections.abc import Mapping

_NOW = {
    "mean_acceptance_length": "tau",
    "mean_acceptance_length_of_requests": "tau_of_requests",
    "draft_acceptance_rate": "acceptance_rate",
}


def renamed(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics by the names that they have now."""
    return {_NOW.get(name, name): value for name, value in metrics.items()}
