"""The folder of an evaluation: written line by line, locked, and gone on with after an interruption of whatever kind.

FOLDER/manifest.json        what is evaluated, and how
FOLDER/METHOD/samples.jsonl one line per sample; a line {"task_id", "end": true} after those of each problem
FOLDER/METHOD/scores.jsonl  one line per sample
FOLDER/summary.json         written last
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bass.errors import RequestError
from bass.evaluation.scores import Sample
from bass.files import append, whole_lines, write_atomically

FORMAT = 1


@final
@dataclass(frozen=True)
class Folder:
    """An output folder that this process holds the lock of."""

    path: Path

    def samples(self, method: str) -> dict[str, list[Sample]]:
        """Those of the problems that were finished, in the order in which they were; what came of an unfinished one is dropped for good."""
        file = self.path / method / "samples.jsonl"
        found: dict[str, list[Sample]] = {}
        done: dict[str, list[Sample]] = {}
        for line in _lines(file):
            if line.get("end"):
                done[line["task_id"]] = found.pop(line["task_id"], [])
            else:
                found.setdefault(line["task_id"], []).append(Sample.from_json(line))
        _replace(file, [line for task_id, group in done.items() for line in _group(task_id, group)])
        return done

    def add_samples(self, method: str, task_id: str, group: list[Sample]) -> None:
        """All samples of one problem."""
        self._append(self.path / method / "samples.jsonl", _group(task_id, group))

    def scores(self, method: str) -> dict[tuple[str, int], dict[str, Any]]:
        """The lines of the samples that have a score, by problem and sample."""
        file = self.path / method / "scores.jsonl"
        lines = _lines(file)
        _replace(file, lines)
        return {(line["task_id"], line["sample"]): line for line in lines}

    def add_score(self, method: str, line: Mapping[str, Any]) -> None:
        """The score of one sample."""
        self._append(self.path / method / "scores.jsonl", [dict(line)])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        _write(self.path / "summary.json", summary)

    def _append(self, file: Path, lines: list[dict[str, Any]]) -> None:
        file.parent.mkdir(exist_ok=True)
        append(file, _jsonl(lines))


@contextmanager
def opened(path: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Folder]:
    """The folder for this configuration, new or begun before. `about`: what the manifest says beside it.

    Raises `RequestError` if another process writes to it, it holds something else, or an evaluation that was asked otherwise.
    """
    manifest = path / "manifest.json"
    try:
        if path.exists() and not manifest.exists() and any(p.name not in ("lock", "manifest.json.part") for p in path.iterdir()):
            raise RequestError(f"`{path}` holds something that is no evaluation: name a new folder.")
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("w")
    except OSError as error:
        raise RequestError(f"`{path}` cannot be written ({error.strerror}): name another folder.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(f"`{path}` is being written by another process: wait for it, or name another folder.") from error
        asked = json.loads(json.dumps(config))
        if manifest.exists():
            _check(path, _manifest(manifest), asked)
        else:
            _write(manifest, {"format": FORMAT, "kind": "evaluation", **about, "config": asked})
        yield Folder(path)


def _manifest(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"`{file}` cannot be read ({error}): name a new folder.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("kind") != "evaluation":
        raise RequestError(f"`{file}` is no manifest of an evaluation of format {FORMAT}: name a new folder.")
    return found


def _check(path: Path, manifest: dict[str, Any], asked: dict[str, Any]) -> None:
    kept = manifest.get("config")
    kept = kept if isinstance(kept, dict) else {}
    for name in dict.fromkeys([*asked, *kept]):
        if asked.get(name) != kept.get(name):
            raise RequestError(
                f"`{path}` holds an evaluation with {name}={kept.get(name)!r:.80}, and {asked.get(name)!r:.80} is asked: "
                "name another folder, or ask as before to go on with it."
            )


def _group(task_id: str, group: list[Sample]) -> list[dict[str, Any]]:
    return [*(sample.to_json() for sample in group), {"task_id": task_id, "end": True}]


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; the last one may have been cut off by a crash. Raises `RequestError` for any other damage."""
    lines = []
    for number, text in enumerate(whole_lines(file)[0], 1):
        try:
            line = json.loads(text)
            line["task_id"]
        except (ValueError, TypeError, KeyError) as error:
            raise RequestError(f"Line {number} of `{file}` is damaged: remove it, and the same command fills the gap.") from error
        lines.append(line)
    return lines


def _replace(file: Path, lines: list[dict[str, Any]]) -> None:
    if file.exists():
        write_atomically(file, _jsonl(lines))


def _jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _write(file: Path, value: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(value, indent=1) + "\n")
