"""`bass ablate` and `bass report` on configs, classes and files that nobody should have written: a
sentence, and nothing lost.
"""

import importlib.metadata
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bass.errors import DISTRIBUTION, RunFolderError
from bass.experiments.cells import Task
from bass.experiments.config import examined, plan
from bass.experiments.config_files import with_overrides
from bass.experiments.executors import Ray
from bass.plain_yaml import MOST_LEVELS, PlainYamlError, read_yaml
from bass.provenance import environment
from bass.report.cells import read_cells
from bass.runs.records import RequestLine, StepLine, Summary
from bass.runs.run_folder import RunFolder
from support.run_folders import write_run
from unit.checkpoints import Pair, Said

Command = Callable[..., Said]
CLASSES = """
from dataclasses import dataclass
import numpy as np
from bass.drafters import ModelDraft
from bass.interfaces import DraftLengthPolicy, StopRule, Verifier

@dataclass(frozen=True)
class Base(DraftLengthPolicy):
    max_length: int = 4
    def init(self, batch_size): return np.full(batch_size, 2)
    def lengths(self, state): return state
    def update(self, state, feedback): return state

class Exits(Base):
    def update(self, state, feedback): raise SystemExit(3)

class HalfACharacter(Base):
    def update(self, state, feedback): raise ValueError("half \\udc80")

class Unspeakable(Base):
    def update(self, state, feedback):
        class Silent(Exception):
            def __str__(self): raise TypeError("nothing to say")
        raise Silent

class Own(BaseException):
    pass

class PolicyGeneratorExit(Base):
    def lengths(self, state): raise GeneratorExit

class PolicyOwn(Base):
    def update(self, state, feedback): raise Own("bare")

class RuleGeneratorExit(StopRule):
    def __call__(self, *arguments, **more): raise GeneratorExit

class DrafterGeneratorExit(ModelDraft):
    def build(self, bench): raise GeneratorExit

class JudgeGeneratorExit(Verifier):
    lossless = True
    def __call__(self, *arguments, **more): raise GeneratorExit

class ExitsAtOnce(Base):
    def __init__(self): raise SystemExit(3)
"""


@pytest.fixture
def ablate(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bass_command: Command
) -> Command:
    """`bass ablate` with a config of this text, into `out`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_classes.py").write_text(CLASSES, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "hostile_classes", raising=False)
    base = {"prompts": ["def f("], "batch": 2, "max_new_tokens": 4, "repeats": 1, "warm_up": False}
    base |= {"target": str(pair.target), "draft": str(pair.draft)}

    def run(text: str, *more: str) -> Said:
        (tmp_path / "c.yaml").write_text(f"base: {json.dumps(base)}\n{text}", encoding="utf-8")
        return bass_command("ablate", "c.yaml", "--output", "out", *more)

    return run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: {x: 1, y: 2, x: 3}", "`x` occurs twice in the mapping that begins in line 2"),
        ("{1: a, '1': b}", "`1` occurs twice"),
        ("[" * 5000, f"deeper than {MOST_LEVELS} levels"),
        ("a: &a [*a]", f"deeper than {MOST_LEVELS} levels"),
        ("a: &a [x]\n" + "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a,
            b in itertools.pairwise("abcdefgh")), "more than"),
        ('a: "\\uDC80"', "a lone surrogate"),
        ("a: 2020-02-31", "day is out of range"),
        ("a: " + "9" * 5000, "a number of 5000 characters"),
    ],
)  # fmt: skip
def test_traps_of_yaml_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlainYamlError, match=re.escape(words)):
        read_yaml(text)


def test_numbers_with_exponents_are_numbers_and_anchors_serve() -> None:
    assert read_yaml("a: &x {t: [1e-3, 2E+3, 1.5e2, 1]}\nb: {<<: *x, u: '1e3'}\nc: 1e999") == {
        "a": {"t": [0.001, 2000.0, 150.0, 1]},
        "b": {"t": [0.001, 2000.0, 150.0, 1], "u": "1e3"},
        "c": float("inf"),
    }


WRONG = {
    "an infinite limit": ({"base": {"time_budget": float("inf")}},
        "`base.time_budget: inf` must be a finite number"),
    "an infinite parameter": (
        {"points": [{"policy": {"class_path": "goodput", "init_args": {"decay": 1e999}}}]},
        "`points.0.policy.init_args.decay: inf`",
    ),
    "a label that is no number": ({"axes": {"how": {float("nan"): {"seed": 1}}}},
        "`axes.how: nan` must be a finite number"),
    "a label that is a list": ({"axes": {"how": {(1, 2): {"seed": 1}}}},
        "has the label (1, 2): give a text or a number"),
    "a number as a text": ({"axes": {"batch": [1, "2"]}},
        "`batch: '2'` is of the wrong type: give an integer"),
    "a list for axes": ({"axes": []}, "`axes: []` must be a mapping"),
    "two classes of one name": ({"axes": {"policy": ["a:P", "b:P"]}},
        "two values of one name: leave one out, or give a mapping"),
    "the folder above": ({"name": ".."}, "it names the run's folder"),
    "a list to read": ({"about": ["x"]}, "`about: ['x']` must be a text"),
    "a large seed": ({"base": {"seed": 2**63 - 2, "repeats": 3}}, "must fit into 64 bits"),
    "an unknown dtype": ({"base": {"dtype": "float31"}},
        "Unknown dtype `float31`. Did you mean `float32`"),
    "a lost parameter": ({"base": {"policy": "fixed", "policy.k": 3},
        "axes": {"policy": ["fixed"]}}, "`base.policy.k` would have no effect"),
    "a parameter lost to labels": (
        {"base": {"policy": "fixed", "policy.k": 3}, "axes": {"how": {"a": {"policy": "fixed"}}}},
        "since the axis `how` replaces the `policy`",
    ),
    "a number for a name": ({"axes": {"how": {"a": {1: 2}}}}, "Unknown setting `1`"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_hostile_config_is_refused_in_a_sentence(case: str) -> None:
    raw, words = WRONG[case]
    told = examined({"name": "x"} | raw)[1].sentences
    assert words in " ".join(told)
    assert all(sentence.count("\n") == 0 for sentence in told)


def test_keys_values_pairings_and_checkpoints_are_told_together(
    ablate: Command, tmp_path: Path
) -> None:
    axes = "axes: {batsh: [1], seed: [x], policy: [baas, fixed], drafter: [self]}"
    said = ablate(
        f"{axes}\nnam: y", "--cache", "split", "--attention", "sdpa", "--max_new_tokens", "1000"
    )
    assert said.status == 2
    assert said.err.count("\n") == 1 + 7
    for words in (
        "Unknown key `nam`",
        "exceeds the context",
        "`batsh`",
        "`seed: 'x'`",
        "Unknown policy `baas`",
        "Cannot pair `SDPA` with `SplitCache`",
    ):
        assert words in said.err
    said = ablate("nam: y", "--max_new_tokens", "1000")
    assert "Unknown key `nam`" in said.err
    assert "exceeds the context" in said.err
    assert not (tmp_path / "out").exists()


def test_token_ids_beyond_the_vocabulary_are_refused_before_anything_runs(
    ablate: Command, tmp_path: Path
) -> None:
    said = ablate("", "--prompts", "[[1, 99999999]]")
    assert (said.status, "the token id 99999999, which is outside the vocabulary" in said.err) == (
        2,
        True,
    )
    assert not (tmp_path / "out").exists()


def test_overrides_do_not_depend_on_their_order_and_none_is_ignored() -> None:
    raw = {
        "name": "x",
        "axes": {"policy": ["bass", "fixed"], "my-way": {"a": {"seed": 1}, "b": {"seed": 2}}},
    }
    both = [("base.policy", "fixed"), ("axes.policy", None), ("axes.my_way", None)]
    for order in (both, both[::-1]):
        assert [cell.settings.policy for cell in plan(with_overrides(raw, False, order)).cells] == [
            "fixed"
        ]
    for override, words in (
        (("axes.polcy", None), "In `axes.polcy`: Unknown key `polcy`. Did you mean `policy`"),
        (("base.seed", 3), "`seed` is set by every label of the axis `my-way`"),
    ):
        with pytest.raises(Exception, match=re.escape(words)):
            with_overrides(raw, False, [override])


def test_labels_that_look_like_markup_are_shown_as_they_are(ablate: Command) -> None:
    text = "about: '[/x] [bold]'\naxes: {seed: {'[red]a[/b]': 1, ü: 2}, '[/how]': {a: {batch: 1}}}"
    for more in ((), ("--dry_run",)):
        said = ablate(text, *more)
        assert said.status == 0, said.err
        assert "[red]a[/b]" in said.out
        assert "[/how]" in said.out


def test_whatever_a_class_raises_is_its_cell_s_failure(ablate: Command, tmp_path: Path) -> None:
    """But for a KeyboardInterrupt, which is taken for one of the user's."""
    axis = {"sound": {"policy": "fixed"}}
    for kind, inner in (
        ("policy", "Policy"),
        ("stop_rule", "Rule"),
        ("drafter", "Drafter"),
        ("verifier", "Judge"),
    ):
        for error in ("GeneratorExit", "Own") if kind == "policy" else ("GeneratorExit",):
            axis[f"{kind}-{error}"] = {kind: f"hostile_classes:{inner}{error}"}
    said = ablate(f"axes: {{how: {json.dumps(axis)}}}")
    assert said.status == 2, said.err
    found = {
        summary.settings["how"]: summary
        for summary in RunFolder(tmp_path / "out").summaries().values()
    }
    assert found.keys() == axis.keys()
    assert {name for name, summary in found.items() if summary.state == "done"} == {"sound"}
    assert all(
        name.rpartition("-")[2] in str(summary.error)
        for name, summary in found.items()
        if name != "sound"
    )


def test_classes_that_exit_or_raise_what_cannot_be_said_fail_alone(
    ablate: Command, tmp_path: Path, bass_command: Command
) -> None:
    names = ("Exits", "HalfACharacter", "Unspeakable")
    said = ablate(
        f"axes: {{policy: [fixed, {', '.join(f'hostile_classes:{name}' for name in names)}]}}"
    )
    assert said.status == 2
    run = RunFolder(tmp_path / "out")
    assert {cell: summary.state for cell, summary in run.summaries().items()} == {
        "0000-fixed": "done", "0001-Exits": "failed", "0002-HalfACharacter": "failed",
        "0003-Unspeakable": "failed",
    }  # fmt: skip
    errors = [str(summary.error) for summary in run.summaries().values()][1:]
    assert errors[0] == "SystemExit: 3"
    assert "half \\udc80" in errors[1]
    assert "Silent" in errors[2]
    assert bass_command("report", "out").status == 0
    said = ablate("axes: {policy: ['hostile_classes:ExitsAtOnce']}", "--output", "other")
    assert (said.status, "Cannot make policy `ExitsAtOnce`: 3" in said.err) == (2, True)


DAMAGED = {
    "an endless number": (
        "requests.jsonl",
        rb'"seconds": [0-9.e-]+',
        b'"seconds": 1e999',
        "the number 1e999 is too large",
    ),
    "an endless summary": (
        "summary.json",
        rb'"seconds": [0-9.e-]+',
        b'"seconds": 1e999',
        "the number 1e999 is too large",
    ),
    "a deep line": (
        "steps.jsonl",
        rb"^",
        b'{"a":' * 100_000,
        "is damaged (it is nested too deeply",
    ),
    "a huge integer": (
        "steps.jsonl",
        rb'"span": \d+',
        b'"span": ' + b"9" * 400,
        "must fit into 64 bits",
    ),
    "half a number": ("steps.jsonl", rb"\[\d+", b"[9223372036854775808", "must fit into 64 bits"),
    "a long draft": ("steps.jsonl", rb'"drafted": \[\d+', b'"drafted": [1' + b"0" * 15, "than k="),
    "a huge k": ("steps.jsonl", rb'"k": \d+', b'"k": 1' + b"0" * 15, "at most 4,096"),
    "an end twice": (
        "requests.jsonl",
        rb"\Z",
        b'{"repeat": 0, "end": true}\n',
        "ends a repeat twice",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_told_and_kept(tmp_path: Path, bass_command: Command, case: str) -> None:
    name, old, new, words = DAMAGED[case]
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    path = run.cell_folder(run.cells[1].id) / name
    damaged = re.sub(old, new, path.read_bytes(), count=1)
    path.write_bytes(damaged)
    said = bass_command("report", str(run.path))
    assert said.status == 2
    assert re.fullmatch(r"bass: [^\n]+\.\n", said.err), said.err[:300]
    assert words in said.err
    assert path.read_bytes() == damaged


def test_cells_whose_manifest_is_gone_or_damaged_are_taken_for_nobody_elses(
    ablate: Command, tmp_path: Path
) -> None:
    assert ablate("").status == 0
    manifest = tmp_path / "out/manifest.json"
    before = (tmp_path / "out/cells/0000/summary.json").read_bytes()
    for damage, words in (
        (lambda: manifest.write_text("{"), "): restore it, or name another folder"),
        (lambda: manifest.write_bytes(b"\xff"), "): restore it, or name another folder"),
        (lambda: manifest.unlink(), "holds cells of a run without its manifest.json: restore it"),
    ):
        damage()
        said = ablate("", "--seed", "1")
        assert said.status == 2
        assert words in said.err
        assert (tmp_path / "out/cells/0000/summary.json").read_bytes() == before


def test_what_a_worker_of_a_cluster_finds_damaged_is_told_in_its_own_words(tmp_path: Path) -> None:
    class RayTaskError(Exception):
        cause = RunFolderError("steps.jsonl, line 1 is damaged.")

    def get(reference: object) -> None:
        raise RayTaskError("Traceback of the worker")

    fake = SimpleNamespace(
        get=get, exceptions=SimpleNamespace(RayTaskError=RayTaskError, RayError=RayTaskError)
    )
    [cell] = plan({"name": "x"}).cells
    with pytest.raises(RunFolderError, match=r"^steps.jsonl, line 1 is damaged\.$"):
        Ray()._result(fake, None, Task(cell.id, cell.labels, cell.settings, str(tmp_path)))


def test_a_text_with_half_a_character_is_reported(tmp_path: Path, bass_command: Command) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    manifest = json.loads((run.path / "manifest.json").read_text())
    (run.path / "manifest.json").write_text(
        json.dumps(manifest | {"config": {"name": "x", "about": "\udc80"}})
    )
    assert bass_command("report", str(run.path)).status == 0
    assert "\\udc80" in (run.path / "report.html").read_text(encoding="utf-8")


def test_lines_and_summaries_are_strict_about_numbers() -> None:
    for kind in (StepLine, RequestLine, Summary):
        for text in ('{"a": 1e999}', '{"a": -1e999}', '{"a": NaN}', "[" * 100_000):
            with pytest.raises(Exception, match="is damaged"):
                kind.from_json(text)


def test_the_value_of_a_cell_is_one_wherever_it_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", batches=(4,), repeats=3)
    for cell in read_cells(run):
        summary = run.summary(cell.entry.id)
        assert summary is not None
        assert {name: cell.value(name) for name in summary.metrics} == summary.metrics


def test_a_source_tree_that_is_not_installed_has_a_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = importlib.metadata.version(DISTRIBUTION)
    assert environment.bass_version() == installed

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", missing)
    assert environment.bass_version() == installed  # as pyproject.toml says
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "a/b/c/d.py"))
    assert environment.bass_version() == "unknown"
