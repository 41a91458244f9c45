"""What must not be in the training text: passages of the evaluation problems, and what it already
holds.
"""

import gzip
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WORD = re.compile(rb"[a-z0-9]+")
MIX = np.uint64(0x9E3779B97F4A7C15)


def windows(items: list[bytes], width: int) -> np.ndarray:
    """A 64-bit hash of each run of `width` consecutive items, uint64 [len(items) - width + 1]."""
    hashes = np.fromiter(map(zlib.crc32, items), dtype=np.uint64, count=len(items))
    count = max(0, len(items) - width + 1)
    mixed = np.zeros(count, dtype=np.uint64)
    for offset in range(width):
        mixed = (mixed ^ hashes[offset : offset + count]) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed


@dataclass(frozen=True)
class ProblemPassages:
    """Runs of ten words of the problems' texts, solutions and tests, and their telling function
    names.
    """

    hashes: np.ndarray  # uint64, sorted
    names: frozenset[bytes]
    width: int = 10

    @classmethod
    def load(cls, folder: Path) -> "ProblemPassages":
        """Read HumanEval.jsonl.gz and mbpp.jsonl of `folder`."""
        with gzip.open(folder / "HumanEval.jsonl.gz", "rt") as stream:
            human = [json.loads(line) for line in stream]
        mbpp = [json.loads(line) for line in (folder / "mbpp.jsonl").read_text().splitlines()]
        passages = [p["prompt"] + p["canonical_solution"] for p in human] + [
            p["test"] for p in human
        ]
        passages += [p["text"] + "\n" + p["code"] for p in mbpp]
        grams: list[np.ndarray] = []
        for passage in passages:
            words = WORD.findall(passage.lower().encode())
            telling = [
                len({w for w in words[i : i + cls.width] if len(w) > 2 and w.isalpha()}) >= 6
                for i in range(len(words))
            ]
            found = windows(words, cls.width)
            grams.append(found[np.array(telling[: len(found)], dtype=bool)])
        names = {p["entry_point"].encode() for p in human} | {
            name.encode()
            for p in mbpp
            for name in re.findall(r"^def (\w+)", p["code"], re.MULTILINE)
        }
        return cls(
            np.unique(np.concatenate(grams)), frozenset(n for n in names if n.count(b"_") >= 2)
        )

    def found_in(self, text: str) -> bool:
        """Whether `text` shares a passage or defines a function under a problem's name of three
        words or more.
        """
        content = text.encode()
        if any(name in self.names for name in re.findall(rb"^def (\w+)", content, re.MULTILINE)):
            return True
        found = windows(WORD.findall(content.lower()), self.width)
        places = np.searchsorted(self.hashes, found).clip(max=len(self.hashes) - 1)
        return bool((self.hashes[places] == found).any())


@dataclass
class Repetition:
    """Remembers a quarter of all runs of four stripped lines; a text is a repetition when it shares
    most of its runs.
    """

    threshold: float = 0.5
    seen: set[int] = field(default_factory=set)

    def add(self, text: str) -> bool:
        """Whether `text` repeats earlier texts; when it does not, it is remembered."""
        lines = [line.strip() for line in text.encode().split(b"\n")]
        runs = windows([line for line in lines if len(line) > 1], 4)
        chosen = set(runs[runs % np.uint64(4) == 0].tolist()) or set(runs[:1].tolist())
        repeated = len(chosen & self.seen) > self.threshold * len(chosen)
        if not repeated:
            self.seen |= chosen
        return repeated
