"""The prompt files that papers use, by name: how each is published, and how it is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from bass.errors import OptionError
from bass.prompts.entries import Entry
from bass.prompts.files import is_records

DATA = "BASS_DATA"  # environment variable: the folder, where none is named
# Spec-Bench reports the categories that it has from MT-bench as one
_MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip


@final
@dataclass(frozen=True, eq=False)  # by identity: each exists once
class PromptSet:
    """A published file of prompts.

    about, source, licence: for people. files: its name in a folder of data, the published one
    first, each relative to the folder. groups: categories that the publisher reports under another
    name. task: the task of `bass eval` whose problems it has.
    """

    name: str
    about: str
    files: tuple[str, ...]
    source: str
    licence: str
    groups: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None

    def grouped(self, category: str) -> str:
        """The category as the publisher reports it."""
        return self.groups.get(category, category)

    def path(self, folder: str | None) -> Path:
        """Its file in the folder, by default that of the environment variable `BASS_DATA`.

        Raises `OptionError`, which says what is expected where.
        """
        named = folder or os.environ.get(DATA)
        if not named:
            raise OptionError(
                f"The prompts `{self.name}` are read from {self._wanted()}, and no folder is "
                f"named: give `--data FOLDER`, or set {DATA}. {self._origin()}"
            )
        if not Path(named).is_dir():
            what = "is a file" if Path(named).exists() else "does not exist"
            raise OptionError(
                f"The prompts `{self.name}` are read from {self._wanted()} in a folder, and "
                f"`{named}` {what}: name the folder with `--data`. {self._origin()}"
            )
        found = self.within(Path(named))
        if found is None:
            raise OptionError(
                f"The prompts `{self.name}` are read from {self._wanted()}, and the folder "
                f"`{named}` has no such file: add it, or name another folder with `--data`. "
                f"{self._origin()}"
            )
        return found

    def within(self, folder: Path) -> Path | None:
        """Its file in the folder; None if there is none."""
        return next((p for name in self.files if (p := folder / name).exists()), None)

    def _wanted(self) -> str:
        first, *others = self.files
        return f"`{first}`" + (f" (or {', '.join(others)})" if others else "")

    def _origin(self) -> str:
        return f"It is published as {self.source}."


def _speed_bench(split: str, about: str) -> PromptSet:
    name = "speed-bench" if split == "qualitative" else f"speed-bench-{split.split('_')[1]}"
    files = (
        f"speed/{split}/test.parquet",
        f"{split}.jsonl",
        f"{split}/test.parquet",
        f"{split}/test-00000-of-00001.parquet",
        f"speed_bench/{split}.jsonl",
    )
    return PromptSet(
        name,
        about,
        files,
        f"the split {split} of nvidia/SPEED-Bench on the Hugging Face hub, which prepare_data.py "
        "of examples/specdec_bench in NVIDIA/Model-Optimizer completes",
        "NVIDIA evaluation dataset license; parts under their own",
    )


_ALL = (
    PromptSet(
        "spec-bench",
        "480 prompts of 6 categories, of which 80 of MT-bench have two turns",
        ("spec_bench/question.jsonl", "spec_bench_question.jsonl"),
        "data/spec_bench/question.jsonl of hemingkx/Spec-Bench on GitHub",
        "Apache-2.0; parts under their own",
        dict.fromkeys(_MT_BENCH, "mt_bench"),
    ),
    PromptSet(
        "mt-bench",
        "80 conversations of two turns, of 8 categories",
        ("mt_bench/question.jsonl", "mt_bench_question.jsonl"),
        "fastchat/llm_judge/data/mt_bench/question.jsonl of lm-sys/FastChat on GitHub",
        "Apache-2.0",
    ),
    _speed_bench("qualitative", "880 prompts of 11 categories, some with several turns"),
    *(
        _speed_bench(f"throughput_{size}", f"1,536 prompts of about {size} tokens, of 3 categories")
        for size in ("1k", "2k", "8k", "16k", "32k")
    ),
    PromptSet(
        "humaneval",
        "164 functions to complete",
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
        "data/HumanEval.jsonl.gz of openai/human-eval on GitHub",
        "MIT",
        task="humaneval",
    ),
    PromptSet(
        "humaneval-plus",
        "the functions of HumanEval, with more tests",
        ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"),
        "HumanEvalPlus.jsonl.gz in the releases of evalplus/humanevalplus_release on GitHub",
        "Apache-2.0",
    ),
    PromptSet(
        "mbpp",
        "974 small programs",
        ("mbpp.jsonl",),
        "mbpp/mbpp.jsonl of google-research/google-research on GitHub",
        "CC-BY-4.0",
        task="mbpp",
    ),
    PromptSet(
        "mbpp-sanitized",
        "427 of them, verified by hand",
        ("sanitized-mbpp.json",),
        "mbpp/sanitized-mbpp.json of google-research/google-research on GitHub",
        "CC-BY-4.0",
    ),
    PromptSet(
        "gsm8k",
        "1,319 questions of grade-school mathematics",
        ("grade_school_math/data/test.jsonl", "gsm8k_test.jsonl"),
        "grade_school_math/data/test.jsonl of openai/grade-school-math on GitHub",
        "MIT",
        task="gsm8k",
    ),
    PromptSet(
        "cnn-dm",
        "80 articles of CNN/DailyMail to summarize, as in the evaluation of EAGLE",
        ("sum/question.jsonl", "eagle_sum_question.jsonl"),
        "eagle/data/sum/question.jsonl of SafeAILab/EAGLE on GitHub",
        "Apache-2.0; the texts under their own",
        task="summaries",
    ),
)
SETS: Mapping[str, PromptSet] = {one.name: one for one in _ALL}


def of_task(task: str, path: Path | None) -> Path | None:
    """The file of a task's problems: the path, or the published file in it if it is a folder;
    without a path, that in the folder of `BASS_DATA`. None if neither is there.

    Raises `OptionError` for a folder without it.
    """
    known = next((one for one in _ALL if one.task == task), None)
    if path is None:
        return None if known is None or not os.environ.get(DATA) else known.path(None)
    if known is None or is_records(path) or not path.is_dir():
        return path
    return known.path(str(path))


def check_data(data: str | None, prompts: str) -> None:
    """Raise `OptionError` for a folder of published sets that these prompts are not read from."""
    if data is not None and prompts not in SETS:
        raise OptionError(
            f"`data: {data}` is not used by `prompts: {prompts}`: leave it out, or give the name "
            f"of a published set as `prompts`: {', '.join(SETS)}."
        )


def with_groups(entry: Entry, known: PromptSet | None) -> Entry:
    """The entry with its category as the publisher reports it."""
    if known is None or not known.groups:
        return entry
    return Entry(entry.prompt, entry.messages, known.grouped(entry.category))
