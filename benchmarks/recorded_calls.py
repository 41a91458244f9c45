"""How near does a policy come to the best fixed length of a call, on recorded acceptance?

    python benchmarks/recorded_calls.py FILE --record [--seeds 6] [--temperatures 0.2 0.8]
    python benchmarks/recorded_calls.py FILE [--policies auto goodput] [--batches 1 4 8 16]

The first command decodes the built-in prompts with the embedded pair on this machine: acceptance by
position, and the seconds of a step by batch size and longest draft. By the verifier `coupled` the
text does not depend on the drafts, nor whether a token is accepted on the draft before it. So one
text gives the acceptance of all lengths. The second replays calls of groups of these rows, which
end with their slowest row, in simulated time, and prints tokens/s over no drafts and over the best
of k = 0, 1, 2, 3, 4, 6, 8: of whole calls, and from token 64 of a row on. `oracle` knows what will
be accepted: each step has the length that is worth most for its time. It is no strict
bound, since a call ends with its slowest row.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_line as cli
import numpy as np

import bass
from bass.experiments.prompts import PYTHON
from bass.host_records import Feedback
from bass.interfaces import DraftLengthPolicy
from bass.policies import POLICIES, Fixed

ROWS, NEW, START, LONGEST, LAG = 16, 128, 64, 16, 4.0
FIXED, TIMED, BATCHES = (0, 1, 2, 3, 4, 6, 8), (0, 1, 2, 4, 8), (1, 4, 8, 16)


def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """Whether the draft's token at each position is the text's, and the seconds of steps."""
    llm = bass.load(verifier="coupled", device="cpu", max_batch_size=ROWS)
    prompts = (PYTHON * ROWS)[:ROWS]

    def decode(batch: int, k: int, seed: int, temperature: float) -> Any:
        llm._engines.parts = replace(llm.parts, policy=Fixed(k))
        options = {"seed": seed, "temperature": temperature, "max_new_tokens": NEW}
        return llm.generate(prompts[:batch], ignore_eos=True, **options).trace

    accepted = dict[str, Any]()
    for temperature in arguments.temperatures:
        texts = []
        for seed in range(arguments.seeds if temperature else 1):
            equal = np.ones((ROWS, NEW), dtype=bool)  # also of tokens that no draft had
            for k in (8, 3):
                done = np.zeros(ROWS, dtype=int)
                for step in decode(ROWS, k, seed, temperature):
                    for i in np.flatnonzero(step.requests >= 0):
                        row = step.requests[i]
                        missed = done[row] + step.accepted[i]
                        if step.accepted[i] < step.drafted[i] and missed < NEW:
                            equal[row, missed] = False
                        done[row] += step.emitted[i]
            texts += equal.tolist()
        accepted[f"{temperature:g}"] = texts
    seconds = dict[str, Any]()
    for batch in BATCHES:
        found = defaultdict[int, list[float]](list)
        for seed in range(3):
            for k in TIMED:
                for step in decode(batch, k, seed, 0.8)[3:]:
                    found[max(step.drafted)].append(step.seconds)
        seconds[str(batch)] = [float(np.median(found[k])) for k in TIMED]
    return {"accepted": accepted, "seconds": seconds}


def times_of(measured: list[float]) -> np.ndarray:
    """Seconds of a step by its longest draft, on the lines between the measured lengths."""
    times = np.interp(np.arange(LONGEST + 1), TIMED, measured)
    slope = (measured[-1] - measured[-2]) / (TIMED[-1] - TIMED[-2])
    times[TIMED[-1] :] = measured[-1] + slope * np.arange(LONGEST + 1 - TIMED[-1])
    return np.maximum.accumulate(times)


def runs_of(equal: np.ndarray) -> np.ndarray:
    """Tokens of a draft that begins at each position which are accepted, int [rows, positions]."""
    runs = np.zeros(equal.shape, dtype=int)
    for at in range(equal.shape[1] - 1, -1, -1):
        after = runs[:, at + 1] if at + 1 < equal.shape[1] else 0
        runs[:, at] = np.where(equal[:, at], 1 + after, 0)
    return runs


@dataclass(frozen=True)
class Hindsight(DraftLengthPolicy[np.ndarray]):
    """The length with the most accepted tokens for the time of the coming step, which are known.

    price: seconds of a token of each row. The state is the tokens of the rows, int [batch].
    """

    runs: np.ndarray
    times: np.ndarray
    price: float
    max_length: int = LONGEST

    def init(self, batch_size: int) -> np.ndarray:
        return np.zeros(batch_size, dtype=int)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(state < NEW)
        most = np.minimum(self.runs[rows, state[rows]], NEW - state[rows] - 1)
        weights = np.exp((state[rows].min() - state[rows]) / LAG)  # a call ends with its last row
        tokens = weights @ np.minimum(most[:, None], np.arange(LONGEST + 1)) / weights.sum()
        return np.full(len(state), np.argmin(self.times - self.price * tokens))

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        return state + (feedback.accepted + 1) * feedback.active


TimeOf = Callable[[np.ndarray], Any]  # the seconds of a step by the lengths of its rows


def replayed(
    policy: DraftLengthPolicy[Any], runs: np.ndarray, times: np.ndarray, time_of: TimeOf | None
) -> tuple[float, float]:
    """Seconds of a call of these rows, and per token from token `START` of all rows on.

    After a step without drafts the draft has one more pass. time_of: in place of `times`, which is
    by the longest draft.
    """
    batch = len(runs)
    rows, done, before = np.arange(batch), np.zeros(batch, dtype=int), 1
    state, seconds, reached = policy.init(batch), 0.0, (0.0, 0)
    while (done < NEW).any():
        active, left = done < NEW, NEW - done
        lengths = np.minimum(np.asarray(policy.lengths(state)), left - 1) * active
        accepted = np.minimum(runs[rows, done.clip(max=NEW - 1)], lengths)
        longest = int(lengths.max())
        took = times[longest] + (times[1] - times[0]) * (longest > 0 and not before)
        took = took if time_of is None else time_of(lengths)
        seconds, before = seconds + took, longest
        done = done + (accepted + 1) * active
        if not reached[1] and done.sum() >= START * batch:
            reached = seconds, int(done.sum())
        given = lengths.astype(np.int32), accepted.astype(np.int32), active
        state = policy.update(state, Feedback(*given, took))
    return seconds, (seconds - reached[0]) / (batch * NEW - reached[1])


def main(argv: list[str] | None = None) -> int:
    """Record, or replay what is recorded; returns the exit status."""
    parser = cli.Parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--seeds", type=cli.positive, default=6)
    parser.add_argument("--temperatures", nargs="+", type=cli.temperature, default=[0.2, 0.8])
    parser.add_argument(
        "--policies", nargs="+", choices=[*POLICIES, "oracle"], default=["auto", "oracle"]
    )
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=BATCHES)
    arguments = parser.parse_args(argv)
    if arguments.record:
        arguments.file.write_text(json.dumps(record(arguments)), encoding="utf-8")
        return 0
    data = json.loads(arguments.file.read_text(encoding="utf-8"))
    print("| policy | temperature | batch | over no drafts | over the best | from 64 on | |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for temperature, texts in data["accepted"].items():
        runs = runs_of(np.array(texts))
        for batch in arguments.batches:
            times = times_of(data["seconds"][str(batch)])
            groups = groups_of(runs, batch)
            fixed = {k: total(Fixed(k), groups, times) for k in FIXED}
            for name in arguments.policies:
                if name == "oracle":
                    own = in_hindsight(groups, times, min(one[0] for one in fixed.values()))
                else:
                    own = total(POLICIES[name](), groups, times)
                words = list[str]()
                for i in range(2):
                    best = min(fixed, key=lambda k, i=i: fixed[k][i])
                    words.append(f"{fixed[0][i] / own[i]:.3f}")
                    words.append(f"{fixed[best][i] / own[i]:.3f} (k={best})")
                print(f"| {name} | {temperature} | {batch} | {' | '.join(words)} |")
    return 0


def groups_of(runs: np.ndarray, batch: int) -> np.ndarray:
    """The rows of each call, int [calls, batch, positions]. Exits if there are too few."""
    if batch > len(runs):
        raise SystemExit(f"Only {len(runs)} texts are recorded: give smaller `--batches`.")
    return runs[: len(runs) // batch * batch].reshape(-1, batch, NEW)


def total(
    policy: DraftLengthPolicy[Any],
    groups: np.ndarray,
    times: np.ndarray,
    time_of: TimeOf | None = None,
) -> np.ndarray:
    """The sums of `replayed` over the groups [2]."""
    policy = policy.timed(tuple(times[: policy.max_length + 1]), times[1] - times[0], True)
    return np.sum([replayed(policy, runs, times, time_of) for runs in groups], axis=0)


def in_hindsight(groups: np.ndarray, times: np.ndarray, seconds: float) -> np.ndarray:
    """`total` of `Hindsight`. seconds: of all calls by the best fixed length."""
    price = seconds / len(groups) / NEW
    each = [replayed(Hindsight(runs, times, price), runs, times, None) for runs in groups]
    return np.sum(each, axis=0)


if __name__ == "__main__":
    cli.run(main)
