"""The picture of launches: the order in which the loop of `Run` launches steps, reads reports and
updates the policy, recorded from runs of the embedded pair. The widths are a sketch.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

import bass
from bass.api.options import RequestOptions
from bass.engine.step import Step, StepReport
from bass.interfaces import DraftLengthPolicy
from bass.policies import Fixed, RowAdaptive
from bass.records import Feedback, Sequences
from support.pictures.svg import ASSETS, MARGIN, WIDTH, box, document, line, text

FILE = ASSETS / "overlap.svg"
STEPS = 3
CASES = {
    "a policy that learns: bass-per-row": RowAdaptive(start=4, max_length=4),
    "a constant length: fixed": Fixed(4),
}
# in arbitrary units: of the host's work, and of a step on the device
COST = {"launch": 1.0, "report": 0.6, "update": 1.2, "emit": 2.2}
DEVICE = 10.0
RULES = (
    "rect.device { fill: var(--accepted-soft); stroke: var(--accepted); stroke-width: 1.5; }",
    "rect.idle { fill: var(--rejected-soft); stroke: var(--rejected); stroke-dasharray: 4 2; }",
    "rect.launch { fill: var(--correction); } rect.report { fill: var(--bonus); }",
    "rect.update { fill: var(--rejected); } rect.emit { fill: var(--faint); }",
    "line.base { stroke: var(--line); } text.middle { text-anchor: middle; }",
)
NAMES = ("accepted", "accepted-soft", "rejected", "rejected-soft", "correction", "bonus")
LEFT = 62  # pixels for the names of the lanes
Event = tuple[str, int]


@final
class Logged(Step):
    """A step that overlaps with the host, as that of a GPU does, and records its calls."""

    overlaps: ClassVar[bool] = True

    def __init__(self, step: Step, events: list[Event]) -> None:
        self.inner, self.events, self.count = step, events, 0
        self.target, self.drafter, self.verifier = step.target, step.drafter, step.verifier
        self.warp, self.vocab_size, self.log = step.warp, step.vocab_size, step.log

    def launch(
        self, sequences: Sequences, lengths: list[int], k: int, span: int
    ) -> Callable[[], StepReport]:
        number = self.count = self.count + 1
        self.events.append(("launch", number))
        collect = self.inner.launch(sequences, lengths, k, span)

        def read() -> StepReport:
            self.events.append(("report", number))
            return collect()

        return read


class Asked(DraftLengthPolicy[Any]):
    """A policy that records its updates."""

    def __init__(self, policy: DraftLengthPolicy[Any], events: list[Event]) -> None:
        self.policy, self.events, self.count = policy, events, 0
        self.max_length = policy.max_length

    def init(self, batch_size: int) -> Any:
        return self.policy.init(batch_size)

    def reset(self, state: Any, rows: np.ndarray) -> Any:
        return self.policy.reset(state, rows)

    def lengths(self, state: Any) -> Any:
        return self.policy.lengths(state)

    def update(self, state: Any, feedback: Feedback) -> Any:
        self.count += 1
        self.events.append(("update", self.count))
        return self.policy.update(state, feedback)


class AskedConstant(Asked):
    """Such a policy, of a constant length."""

    constant_length: ClassVar[bool] = True


def measured() -> dict[str, list[Event]]:
    """For each case the events of the first steps, in their order."""
    llm = bass.load(policy=Fixed(4), device="cpu", dtype="float32", max_batch_size=2)
    found: dict[str, list[Event]] = {}
    for name, policy in CASES.items():
        events: list[Event] = []
        run = llm.start(["def area(r):", "class Stack:"], RequestOptions(max_new_tokens=60)).run
        kind = AskedConstant if policy.constant_length else Asked
        asked, step = kind(policy, events), Logged(run.step, events)
        emitted = 0
        for emission in replace(run, step=step, policy=asked):
            if emission.request == 0:
                emitted += 1
                events.append(("emit", emitted))
            if emitted == STEPS:
                break
        found[name] = [(kind, number) for kind, number in events if number <= STEPS]
    return found


def timeline(events: list[Event]) -> tuple[list[tuple[str, int, float]], list[float]]:
    """The host's events with their times, and the time at which each step starts on the device.

    A report waits for its step, and a step for the step before it.
    """
    now, timed, starts = 0.0, [], []
    for kind, number in events:
        if kind == "report":
            now = max(now, starts[number - 1] + DEVICE)
        timed.append((kind, number, now))
        now += COST[kind]
        if kind == "launch":
            starts.append(max(now, starts[-1] + DEVICE if starts else 0.0))
    return timed, starts


def drawn(data: Any) -> str:
    """Both orders as SVG."""
    cases = {name: timeline([(k, n) for k, n in events]) for name, events in data.items()}
    longest = max(timed[-1][2] + COST[timed[-1][0]] for timed, _ in cases.values())
    unit = (WIDTH - 2 * MARGIN - LEFT) / longest
    body, y = [*_legend()], 116
    for name, (timed, starts) in cases.items():
        body.append(text(MARGIN, y, name, "step"))
        body += [text(MARGIN, y + 25, "device", "note"), text(MARGIN, y + 52, "host", "note")]
        body += _device(starts, y + 25, unit)
        body.append(line(MARGIN + LEFT, y + 58, WIDTH - MARGIN, y + 58, "base"))
        body += [
            box(MARGIN + LEFT + at * unit, y + 52, COST[kind] * unit - 0.5, kind)
            for kind, _, at in timed
        ]
        y += 94
    return document(
        "When the next step is launched",
        " ".join(
            f"{name}: {', then '.join(f'{kind} {number}' for kind, number in events)}."
            for name, events in data.items()
        ),
        data,
        y - 12,
        body,
        RULES,
        NAMES,
    )


def _legend() -> Iterator[str]:
    meaning = {
        "launch": "launch a step",
        "report": "read its report",
        "update": "policy, plan",
        "emit": "emit tokens",
        "idle": "the device waits",
    }
    for i, (kind, said) in enumerate(meaning.items()):
        x, y = MARGIN + 204 * (i % 2), 28 + 25 * (i // 2)
        yield box(x, y, 22.0, kind)
        yield text(x + 28, y, said, "legend")


def _device(starts: list[float], y: float, unit: float) -> Iterator[str]:
    for i, start in enumerate(starts):
        x = MARGIN + LEFT + start * unit
        if i and start > starts[i - 1] + DEVICE + 1e-9:
            end = MARGIN + LEFT + (starts[i - 1] + DEVICE) * unit
            yield box(end, y, x - end, "idle")
        yield box(x, y, DEVICE * unit, "device")
        yield text(x + DEVICE * unit / 2, y, f"step {i + 1}", "legend middle")
