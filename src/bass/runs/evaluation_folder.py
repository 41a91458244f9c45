"""The folder of an evaluation: written line by line, locked, and continued after any interruption.

FOLDER/manifest.json        what is evaluated, and how
FOLDER/METHOD/made_with.json  before its samples: `MadeWith`
FOLDER/METHOD/samples.jsonl one `Sample` per line; an `End` after those of each problem
FOLDER/METHOD/conditions.jsonl  one `ConditionLine` per problem, whose `repeat` is the problem's
                            number from 0; a folder of an older evaluation has none
FOLDER/METHOD/scores.jsonl  one `Score` per line
FOLDER/summary.json         written last
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from bass.errors import RequestError, RunFolderError
from bass.files import append, file_lines, read_regular, write_atomically
from bass.plain_json import parse_json
from bass.provenance.fingerprints import UNREADABLE
from bass.runs import made_with
from bass.runs.changes import notes
from bass.runs.conditions import CONDITIONS, ConditionLine
from bass.runs.lines import jsonl
from bass.runs.made_with import MadeWith
from bass.runs.own_files import (
    check_lock,
    check_room_for,
    holder,
    holds_other_files,
    inside,
    take_lock,
)
from bass.runs.strict import Json, checked, parsed

FORMAT = 1
LARGEST_JSON = 2**24  # bytes of a manifest or a summary
MANIFEST, SUMMARY, SAMPLES, SCORES = (
    "manifest.json",
    "summary.json",
    "samples.jsonl",
    "scores.jsonl",
)
# ways to decode the problems, and names of the folders of samples: see `bass.evaluation.evaluate`
METHODS = ("batched", "plain", "single")
MOST_BUDGETS = 100  # also values of k; a report draws and bootstraps each
# fields of the manifest that all samples share, next to the config
IN_COMMON = ("bass", "torch", "device", "inputs")

L = TypeVar("L", bound=Json)


@dataclass(frozen=True)
class Sample(Json):
    """One completion of one problem.

    Both times are on the problem's own clocks, in seconds until the sample's last token:
    `from_prefill` from the end of the problem's first prefill, `from_start` from the request.
    `finish`: as in `bass.api.results.Completion`.
    """

    task_id: str
    sample: int
    text: str
    tokens: list[int]
    mean_logprob: float
    finish: str
    from_prefill: float
    from_start: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.mean_logprob, self.from_prefill, self.from_start))):
            raise RunFolderError("its log-probability and its times must be finite")

    @property
    def finished(self) -> bool:
        """Whether it ended by itself: at an end-of-sequence token, a stop string, or its number of
        tokens.
        """
        return self.finish in ("eos", "stop", "length")

    def seconds(self, clock: str) -> float:
        """By one of `CLOCKS`."""
        return self.from_start if clock == "start" else self.from_prefill


@final
@dataclass(frozen=True)
class End(Json):
    """Marks that all samples of a problem are written, and their number."""

    task_id: str
    end: int


@final
@dataclass(frozen=True)
class Score(Json):
    """The score of a sample, from 0 to 1.

    `text`: the scored text, by `digest`. `reason`, `detail`: for a program, see `Outcome`.
    """

    task_id: str
    sample: int
    text: str
    value: float
    reason: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise RunFolderError("a score must be from 0 to 1")


def digest(text: str) -> str:
    """A hash to distinguish texts."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _made_with(manifest: Mapping[str, Any], method: str) -> MadeWith:
    """The hash for the samples of this evaluation by a method."""
    common = (manifest.get(name) for name in IN_COMMON)
    return MadeWith.of(method, manifest["config"], *common)


def check_own(path: Path, manifest: Mapping[str, Any], method: str) -> None:
    """Raise an error for samples of another evaluation or method in the folder of a method.

    Raises `RequestError`.
    """
    file = inside(path, method, made_with.FILE)
    if not file.exists():
        return
    try:
        found = MadeWith.from_json(read_regular(file, LARGEST_JSON).decode(), str(file))
    except (OSError, ValueError, RunFolderError):
        found = None
    if found != _made_with(manifest, method):
        raise RequestError(
            f"`{path / method}` holds samples of another evaluation or method: delete it, and run "
            "the same `bass eval` again, which generates its samples again."
        )


@final
@dataclass(frozen=True)
class Folder:
    """An output folder that this process has locked. lock: the process that the lock names."""

    path: Path
    lock: str

    def samples(self, method: str) -> dict[str, list[Sample]]:
        """The samples of finished problems, in order of completion; those of an unfinished problem
        are removed.
        """
        check_own(self.path, read_manifest(self.path), method)
        file = inside(self.path, method, SAMPLES)
        done = read_samples(file)
        _replace(file, [line for task_id, group in done.items() for line in _group(task_id, group)])
        _replace(inside(self.path, method, CONDITIONS), read_conditions(self.path, method))
        return done

    def add_conditions(self, method: str, line: ConditionLine) -> None:
        """Append the state of the machine during a problem, before its samples are added."""
        self._append(inside(self.path, method, CONDITIONS), [line])

    def add_samples(self, method: str, task_id: str, group: list[Sample]) -> None:
        """Append all samples of one problem."""
        file = inside(self.path, method, SAMPLES)
        if not file.exists():
            check_lock(self.path, self.lock)
            file.parent.mkdir(exist_ok=True)
            mark = _made_with(read_manifest(self.path), method)
            write_atomically(inside(self.path, method, made_with.FILE), mark.to_json() + "\n")
        self._append(file, _group(task_id, group))

    def scores(self, method: str) -> dict[tuple[str, int, str], float]:
        """The scores, by problem, sample, and digest of the text."""
        file = inside(self.path, method, SCORES)
        lines = read_lines(file, Score)
        _replace(file, lines)
        return {(line.task_id, line.sample, line.text): line.value for line in lines}

    def add_score(self, method: str, line: Score) -> None:
        """Append the score of one sample."""
        self._append(inside(self.path, method, SCORES), [line])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        _write(self.path / SUMMARY, summary)

    def _append(self, file: Path, lines: Sequence[Json]) -> None:
        check_lock(self.path, self.lock)
        file.parent.mkdir(exist_ok=True)
        text = jsonl(lines)
        check_room_for(file, text, "evaluate fewer problems or samples, or name another folder")
        append(file, text)


@contextmanager
def opened(path: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Folder]:
    """The folder for this configuration, new or continued. `about`: further fields of the manifest.

    Raises `RequestError` if it holds other files or an evaluation with another configuration, and
    `RunFolderError` if another process writes to it or its files are links.
    """
    manifest = inside(path, MANIFEST)
    try:
        if holds_other_files(path, MANIFEST):
            raise RequestError(
                f"`{path}` holds files that are not of an evaluation: name a new folder."
            )
        path.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path)
    except OSError as error:
        raise RequestError(
            f"`{path}` cannot be written ({error.strerror}): name another folder."
        ) from error
    with lock:
        requested = json.loads(json.dumps(config))
        if manifest.exists():
            held = read_manifest(path)
            _check(path, held, requested, about)
            if reported := notes(held, about):
                _write(manifest, held | {"notes": reported})
        else:
            _write(manifest, {"format": FORMAT, "kind": "evaluation", **about, "config": requested})
        yield Folder(path, holder(lock))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the evaluation. Raises `RequestError`."""
    file = inside(path, MANIFEST)
    try:
        found = parse_json(read_regular(file, LARGEST_JSON))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"`{file}` cannot be read ({reason}): name another folder.") from error
    if (
        not isinstance(found, dict)
        or found.get("kind") != "evaluation"
        or not isinstance(found.get("config"), dict)
        or not _are_texts(found.get("notes", []))
    ):
        raise RequestError(f"`{file}` is no manifest of an evaluation: name another folder.")
    if found.get("format") != FORMAT:
        raise RequestError(
            f"`{file}` has the format version {found.get('format')!r}, and this `bass` reads "
            f"version {FORMAT}: use the `bass` that "
            f"wrote it ({found.get('bass', 'unknown version')}), or name another folder."
        )
    return found


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with each of its `options` under its own name."""
    options = config.get("options")
    if not isinstance(options, dict):
        return dict(config)
    return {
        **config,
        **{f"options.{key}": value for key, value in options.items()},
        "options": None,
    }


def _check(
    path: Path, manifest: dict[str, Any], requested: dict[str, Any], about: Mapping[str, Any]
) -> None:
    kept, requested = _flat(manifest["config"]), _flat(requested)
    for name in dict.fromkeys([*requested, *kept]):
        if requested.get(name) != kept.get(name):
            raise RequestError(
                f"`{path}` holds an evaluation with {name}={kept.get(name)!r:.80}, and "
                f"{requested.get(name)!r:.80} is requested: "
                "name another folder, or give the same options as before to continue."
            )
    for name in IN_COMMON:
        then, now = manifest.get(name), about.get(name)
        if then is None or now is None:  # older folders have fewer fields
            continue
        if then != now or (isinstance(now, Mapping) and UNREADABLE in now.values()):
            raise RequestError(
                f"`{path}` holds samples that were made with other inputs "
                f"({_change(name, then, now)}): name another folder."
            )


def _change(name: str, then: Any, now: Any) -> str:
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return f"{name} was {then!s:.80} and is {now!s:.80}"
    return (
        f"the {next(key for key in {**then, **now} if _other(then.get(key), now.get(key)))} has "
        "changed, or cannot be read"
    )


def _other(then: Any, now: Any) -> bool:
    return then != now or now == UNREADABLE


def read_samples(file: Path) -> dict[str, list[Sample]]:
    """The samples of every complete problem, in the order of the file."""
    found: dict[str, list[Sample]] = {}
    done: dict[str, list[Sample]] = {}
    for line in read_lines(file, Sample, End):
        if isinstance(line, Sample):
            found.setdefault(line.task_id, []).append(line)
        elif isinstance(line, End) and len(group := found.pop(line.task_id, [])) == line.end:
            done[line.task_id] = group
    return done


def read_conditions(path: Path, method: str) -> list[ConditionLine]:
    """The state of the machine during each problem; of a problem that was sampled again, the last
    one.
    """
    lines = read_lines(inside(path, method, CONDITIONS), ConditionLine)
    return list({line.repeat: line for line in lines}.values())


def read_lines(file: Path, kind: type[L], other: type[L] | None = None) -> list[L]:
    """The complete lines of a file; a crash may have cut off the last one. Raises `RequestError`
    for other damage.

    `other`: the type of a line with `end`.
    """
    lines = []
    try:
        for number, line in enumerate(file_lines(file), 1):
            if not line.endswith(b"\n"):
                break
            where = f"Line {number} of `{file}`"
            try:
                data = parsed(line.decode(), where)
                lines.append(checked(other if other and "end" in data else kind, data, where))
            except (ValueError, RecursionError, RunFolderError) as error:
                raise RequestError(
                    f"{where} is damaged: remove it, and the command that wrote it writes it again."
                ) from error
    except OSError as error:
        raise RequestError(
            f"`{file}` cannot be read ({error.strerror}): name another folder."
        ) from error
    return lines


def _group(task_id: str, group: Sequence[Sample]) -> list[Json]:
    return [*group, End(task_id, len(group))]


def _replace(file: Path, lines: Sequence[Json]) -> None:
    if file.exists():
        write_atomically(file, jsonl(lines))


def _write(file: Path, value: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(value, indent=1) + "\n")
