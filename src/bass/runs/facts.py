"""What a cell's summary has besides metrics: costs of its pair, and peaks of the device."""

from dataclasses import dataclass, fields
from typing import final

from bass.engine.cost import ModelCost, PairCost, Peaks
from bass.errors import RunFolderError
from bass.runs.strict import Json


@final
@dataclass(frozen=True)
class Facts(Json):
    """Facts beyond steps and requests: costs of the pair per pass, peaks of the device, memory."""

    target: dict[str, int]  # fields of a ModelCost
    draft: dict[str, int]
    bandwidth: float  # bytes per second
    flops: float  # per second
    peak_memory_bytes: int | None
    # of a step, measured by `bass.experiments.parts`: draft, verify, sample, host
    parts_ms: dict[str, float] | None = None
    parts_k: int | None = None  # tokens that this step drafts for a row
    device: str | None = None  # its name; None in older runs

    def __post_init__(self) -> None:
        for name, cost in (("target", self.target), ("draft", self.draft)):
            if not {*ModelCost.ALWAYS} <= {*cost} <= {f.name for f in fields(ModelCost)}:
                raise RunFolderError(f"`{name}` must have {', '.join(ModelCost.ALWAYS)}")

    @classmethod
    def of(
        cls,
        cost: PairCost,
        peaks: Peaks,
        peak_memory_bytes: int | None,
        parts: tuple[int, dict[str, float]] | None = None,
        device: str | None = None,
    ) -> "Facts":
        """As the engine has them. `parts`: parts_k and parts_ms."""
        k, ms = parts or (None, None)
        return cls(
            cost.target.stored(),
            cost.draft.stored(),
            peaks.bandwidth,
            peaks.flops,
            peak_memory_bytes,
            ms,
            k,
            device,
        )

    @property
    def cost(self) -> PairCost:
        """Bytes and FLOPs of target and draft."""
        return PairCost(ModelCost(**self.target), ModelCost(**self.draft))

    @property
    def peaks(self) -> Peaks:
        """Peak bandwidth and FLOPs of the device."""
        return Peaks(self.bandwidth, self.flops)
