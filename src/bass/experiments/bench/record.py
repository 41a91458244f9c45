"""What a benchmark measured, as a file keeps it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from bass.errors import RunFolderError
from bass.files import write_atomically
from bass.runs.own_files import content, decoded
from bass.runs.strict import Json


@final
@dataclass(frozen=True)
class Machine:
    """The device and its peaks, per second; data_sheet_bandwidth: None where it is not known."""

    device: str
    copy_bandwidth: float
    read_bandwidth: float
    flops: float
    data_sheet_bandwidth: float | None

    def __post_init__(self) -> None:
        _check_positive(self, "copy_bandwidth", "read_bandwidth", "flops")


@final
@dataclass(frozen=True)
class WarmUp:
    """What came before the timed calls: `LLM.warm_up`, then one whole call."""

    seconds: float
    graphs: int
    first_call_seconds: float
    first_call_captures: float  # seconds


@final
@dataclass(frozen=True)
class Call:
    """One timed call. first, last, all: seconds per token, as in `Stats`. bytes, flops: of all
    steps.
    """

    seed: int
    wall_seconds: float  # from the end of the prefill to the last token, captures included
    capture_seconds: float
    prefill_seconds: float
    first: float
    last: float
    all: float
    steps: int
    row_steps: int
    drafted: int
    accepted: int
    emitted: int
    draft_passes: int
    bytes: int
    flops: int
    flops_kept: int
    step_seconds: float  # of all steps on the device
    step_median: float
    between_median: float  # host, between steps
    between_p90: float

    def __post_init__(self) -> None:
        _check_positive(self, "wall_seconds", "step_seconds", "steps", "row_steps", "emitted")


@final
@dataclass(frozen=True)
class Parts:
    """Seconds of the parts of a step that drafts k tokens, timed separately (`parts_of`).

    draft_sampling: the share of `draft` that warps and draws take.
    """

    k: int
    draft: float
    verify: float
    sample: float
    draft_sampling: float


@final
@dataclass(frozen=True)
class ExpertsRead:
    """Experts of a layer that the target's pass touches in a step of k drafted tokens: means of its
    layers and of several steps.

    experts, chosen: of a layer, and of a token. expected: if all tokens choose at random.
    """

    k: int
    experts: int
    chosen: int
    expected: float
    measured: float

    def __post_init__(self) -> None:
        _check_positive(self, "experts", "chosen", "expected", "measured")


@final
@dataclass(frozen=True)
class Setting:
    """One method at one batch size, and in one category of prompts; empty: of all, without one.

    policy: its full description. length: its draft length, None where it varies. target_bytes,
    draft_bytes: of a pass of the target and of the drafter at the mean length of a row. peak_bytes:
    the most memory of the device, weights included. experts: None where the target is no mixture.
    """

    method: str
    policy: str
    batch: int
    length: int | None
    target_bytes: int
    draft_bytes: int
    peak_bytes: int | None
    warm_up: WarmUp
    calls: list[Call] = field(default_factory=list)
    parts: Parts | None = None
    experts: ExpertsRead | None = None
    category: str = ""

    def __post_init__(self) -> None:
        _check_positive(self, "batch", "target_bytes")


@final
@dataclass
class BenchRecord(Json):
    """A benchmark. about: everything that its figures depend on, by name. notes: sentences on its
    prompts.
    """

    REMEDY: ClassVar[str] = "restore it, delete it, or name another file with `--output`"

    about: dict[str, Any]
    machine: Machine | None = None
    settings: list[Setting] = field(default_factory=list)
    notes: list[str] | None = None

    def find(self, policy: str, batch: int, category: str = "") -> Setting | None:
        """The setting, if it was measured."""
        key = policy, batch, category
        found = (s for s in self.settings if (s.policy, s.batch, s.category) == key)
        return next(found, None)

    def put(self, setting: Setting) -> None:
        """Add the setting, or replace it."""
        old = self.find(setting.policy, setting.batch, setting.category)
        others = [s for s in self.settings if s is not old]
        self.settings = [*others, setting]

    def save(self, path: Path) -> None:
        """Write the file."""
        write_atomically(path, self.to_json(indent=1) + "\n")

    @classmethod
    def opened(cls, path: Path, about: dict[str, Any]) -> "BenchRecord":
        """The record of the file, or an empty one without a file.

        Raises `RunFolderError` for a damaged file, and for one about something else.
        """
        if not path.exists():
            return cls(about)
        found = cls.from_json(decoded(content(path), str(path), cls.REMEDY), str(path))
        names = dict.fromkeys((*about, *found.about))
        if other := [name for name in names if found.about.get(name) != about.get(name)]:
            raise RunFolderError(
                f"`{path}` holds a benchmark with another value of {', '.join(other)}: name "
                "another file with `--output`, or delete it."
            )
        return found


def _check_positive(record: Any, *names: str) -> None:
    """Raise `RunFolderError` for a figure that no measurement has."""
    if wrong := [name for name in names if getattr(record, name) <= 0]:
        raise RunFolderError(f"`{wrong[0]}` is {getattr(record, wrong[0])!r:.60}, and must be > 0")
