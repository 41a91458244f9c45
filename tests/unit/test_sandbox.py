"""Generated programs leave the machine as it is, and pass only by giving the right answers."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bass.errors import OptionError
from bass.evaluation.evaluate import Evaluation, score
from bass.evaluation.sandbox import Limits, Outcome, Program, Sandbox, SandboxError
from bass.evaluation.sandbox import judge as sandbox_module
from bass.evaluation.tasks import Problem
from bass.runs.evaluation_folder import Sample, opened
from support.matrix import night
from support.strengths import Strength, landlock_here, strengths
from unit.hostile import PROGRAMS

RIGHT = Program("def f(x):\n    return x + 1\n", "assert f(1) == 2\nassert f(-1) == 0", ("f",))
ENDLESS = Program("def f():\n    while True: pass\n", "f()", ("f",))
QUICK = Sandbox(Limits(seconds=1.0), workers=4)
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

try:
    # The strongest, and where each layer is missing that can be.
    STRENGTHS = [
        s if i == 0 else pytest.param(s, marks=pytest.mark.nightly)
        for i, s in enumerate(strengths({0, landlock_here()}))
    ]
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)


def processes() -> set[str]:
    """Those that run the checker, by process id."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"checker.py" in command and (entry / "stat").exists():
                found.add(entry.name)
    return found


def children() -> set[str]:
    """Of this process, the dead ones too."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


@pytest.mark.parametrize("every", [8, night(1)])
@pytest.mark.parametrize("strength", STRENGTHS, ids=str)
def test_more_than_a_hundred_hostile_programs_fail_and_leave_everything_whole(
    strength: Strength, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside" / "kept.txt"
    outside.parent.mkdir()
    outside.write_text("as it was")
    before = outside.stat()
    listed = {folder: set(os.listdir(folder)) for folder in ("/dev/shm", "/var/tmp")}
    names = [*PROGRAMS][::every]
    programs = [replace(RIGHT, code=PROGRAMS[name].format(outside=str(outside))) for name in names]
    monkeypatch.setattr(sandbox_module, "CHECKER", strength.checker(tmp_path, Path(os.devnull)))
    outcomes = dict(zip(names, QUICK.check_all([*programs]), strict=True))
    assert len(PROGRAMS) > 100
    assert [name for name, outcome in outcomes.items() if outcome.passed] == []
    assert outside.read_text() == "as it was"
    after = outside.stat()
    assert all(
        getattr(after, f"st_{what}") == getattr(before, f"st_{what}")
        for what in ("mode", "uid", "nlink", "mtime_ns", "ino")
    )
    assert not strength.landlock or not [
        name for name, outcome in outcomes.items() if "as it was" in outcome.detail
    ]
    assert {
        folder: {"h"} & (set(os.listdir(folder)) - names) for folder, names in listed.items()
    } == {"/dev/shm": set(), "/var/tmp": set()}
    assert QUICK.check(RIGHT).passed
    assert QUICK.check(RIGHT).layers == strength.layers


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time\ntime.sleep(1e6)", "def f(x):\n    while True: pass"]
)
def test_what_never_ends_is_ended_after_its_time(code: str) -> None:
    began = time.monotonic()
    assert QUICK.check(replace(RIGHT, code=code)).reason == "time"
    assert time.monotonic() - began < QUICK.limits.seconds + sandbox_module.STARTING_SECONDS


def test_the_right_answers_pass_and_wrong_ones_fail() -> None:
    assert QUICK.check(RIGHT) == Outcome("passed")
    assert QUICK.check(replace(RIGHT, code="def f(x):\n    return 2")).reason == "failed"
    assert QUICK.check(replace(RIGHT, code="g = 1")).reason == "raised"


def test_leaving_the_tests_is_no_pass() -> None:
    assert (
        QUICK.check(replace(RIGHT, tests="assert f(1) == 2\nraise SystemExit(0)")).reason
        == "failed"
    )
    assert not QUICK.check(replace(RIGHT, tests="import os\nassert f(1) == 2\nos._exit(0)")).passed


def test_a_program_that_is_gone_does_not_pass_tests_that_catch_everything() -> None:
    caught = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert (
        QUICK.check(
            replace(RIGHT, code="import os\ndef f(x):\n    os._exit(0)", tests=caught)
        ).reason
        == "ended"
    )


@pytest.mark.parametrize(
    "loop",
    [
        "assert all(map(f, [1]))",
        "for got, want in zip(map(f, [1, 2]), [2, 3]):\n    assert got == want",
    ],
)
def test_a_function_cannot_end_a_loop_of_the_tests(loop: str) -> None:
    assert QUICK.check(replace(RIGHT, tests=loop)).passed
    assert (
        QUICK.check(replace(RIGHT, code="def f(x): raise StopIteration", tests=loop)).reason
        == "raised"
    )
    ends = (
        "it = f(0)\nassert next(it) == 1\ntry:\n    next(it)\nexcept StopIteration:\n    "
        "pass\nelse:\n    assert False"
    )
    assert QUICK.check(replace(RIGHT, code="def f(x): yield 1", tests=ends)).passed


def test_helpers_of_the_problem_are_the_tests_own() -> None:
    task = Program(
        "def helper(x):\n    return 0\ndef f(x):\n    return 5",
        "assert helper(f(1)) == 0",
        ("f",),
        "def helper(x):\n    return x - 1",
    )
    assert QUICK.check(task).reason == "failed"


def test_objects_of_the_program_can_be_used_and_values_of_all_plain_types_arrive() -> None:
    code = """
from fractions import Fraction
from collections import Counter, deque
class Node:
    def __init__(self, v): self.v, self.next = v, None
    def __len__(self): return 3
    def __getitem__(self, i): return i * 2
def total(n): return n.v + (total(n.next) if n.next else 0)
def back(x): return x
def count(): yield from (1, 2)
def some(): return [2**80, -1.5, 1j, b"x", {1, 2}, (True, None), {"a": [1]}, range(3), Fraction(1, 3), Counter("aab"), deque([1])]
def fail(): raise KeyError("no")
"""
    tests = """
from collections import deque
from fractions import Fraction
a, b = Node(1), Node(2)
a.next = b
assert total(a) == 3 and a.next == b and a != b and len(a) == 3 and a[4] == 8 and list(count()) == [1, 2] and back(str) is str
assert some() == [2**80, -1.5, 1j, b"x", {1, 2}, (True, None), {"a": [1]}, range(3), Fraction(1, 3), {"a": 2, "b": 1}, deque([1])]
assert back(x={1: (2, [3])}) == {1: (2, [3])}
try:
    fail()
except KeyError:
    pass
else:
    assert False
"""
    assert QUICK.check(
        Program(code, tests, ("Node", "total", "back", "count", "some", "fail"))
    ) == Outcome("passed")


@pytest.mark.parametrize("scratch", [16, 0])
def test_a_program_may_write_in_its_own_folder_where_there_is_one_and_nowhere_else(
    scratch: int, tmp_path: Path
) -> None:
    code = (
        f"def f(x):\n    open({str(tmp_path / 'new')!r} if x else 'own', 'w').write('x')\n    "
        "return open('own').read()"
    )
    box = Sandbox(Limits(seconds=5.0, scratch=scratch))
    kept = "scratch folder in memory" in box.layers
    assert kept or scratch == 0 or sys.platform == "linux"
    assert box.check(Program(code, "assert f(0) == 'x'", ("f",))).passed == kept
    assert not box.check(Program(code, "f(1)", ("f",))).passed
    assert not list(tmp_path.iterdir())


def test_nothing_of_the_environment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASS_SECRET", "42")
    code = "import os\ndef f(x):\n    return sorted(set(os.environ) - {'LC_CTYPE'})"
    assert QUICK.check(
        Program(code, f"assert f(0) == {sorted(sandbox_module.ENVIRONMENT)}, f(0)", ("f",))
    ) == Outcome("passed")


def test_both_processes_end_with_the_harness(tmp_path: Path) -> None:
    known = processes()
    script = (
        "from bass.evaluation.sandbox import Limits, Program, Sandbox\n"
        "Sandbox(Limits(seconds=60.0)).check(Program('import time\\ntime.sleep(60)', '', ()))"
    )
    harness = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 30
    while len(processes() - known) < 2 and time.monotonic() < deadline:
        pass
    harness.kill()
    harness.wait()
    while processes() - known and time.monotonic() < deadline:
        pass
    assert not processes() - known


DEAD_CHECKERS = {
    "dies": "raise SystemExit('no module named encodings')",
    "is killed": "import os\nos.kill(os.getpid(), 9)",
    "says nothing": "",
    "says something else": "print('hello')",
    "cannot confine": 'print(\'{"refused": "no seccomp here"}\')',
    "hangs": "import time\ntime.sleep(60)",
}


@pytest.mark.parametrize("way", [*DEAD_CHECKERS, "is not there", "no interpreter", "no folder"])
def test_a_checker_that_cannot_start_is_an_error_and_no_score(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = tmp_path / "checker.py"
    if way in DEAD_CHECKERS:
        checker.write_text(DEAD_CHECKERS[way])
    monkeypatch.setattr(sandbox_module, "STARTING_SECONDS", 0.5)
    if way == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    elif way == "no folder":
        monkeypatch.setattr(sandbox_module.tempfile, "tempdir", str(tmp_path / "nowhere"))
    else:
        monkeypatch.setattr(sandbox_module, "CHECKER", checker)
    box = Sandbox(Limits(seconds=0.1))
    with pytest.raises(SandboxError) as caught:
        box.check(RIGHT)
    assert len(str(caught.value).splitlines()) == 1
    reasons = {
        "dies": "no module named encodings",
        "cannot confine": "no seccomp here",
        "hangs": "without a message",
        "is killed": "without a message",
    }
    assert reasons.get(way, "") in str(caught.value)


def test_a_sandbox_in_which_no_right_program_passes_has_no_layers() -> None:
    with pytest.raises(SandboxError, match=r"does not pass.*raise"):
        print(Sandbox(Limits(seconds=1e-6)).layers)


FORGED = [
    "", "5", "[" * 50_000, '{"refused": "x"}', '{"layers": []}',
        '{"nonce": "another", "reason": "passed", "detail": ""}',
    '{"nonce": NONCE}', '{"nonce": NONCE, "reason": "best", "detail": ""}',
    '{"nonce": NONCE, "reason": "passed", "detail": 5}',
    '{"nonce": NONCE, "reason": [], "detail": ""}', "x" * 10**5,
]  # fmt: skip


@pytest.mark.parametrize("said", FORGED, ids=range(len(FORGED)))
def test_what_the_tests_of_a_data_set_write_in_place_of_a_verdict_is_none(said: str) -> None:
    forged = f"""
import gc, json, os
nonce = next(o["nonce"] for o in gc.get_objects() if isinstance(o, dict) and isinstance(o.get("nonce"), str))
data = {said!r}.replace("NONCE", json.dumps(nonce)).encode()
for fd in range(3, 64):
    try:
        os.set_blocking(fd, True)
        while data: data = data[os.write(fd, data):]
    except OSError:
        pass
os._exit(0)
"""
    assert QUICK.check(Program("", forged, ())).reason == "ended"


def test_no_process_is_left_to_whom_orphans_come() -> None:
    """As to process 1 of a container."""
    libc = ctypes.CDLL(None)
    was = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        known = children()
        for program in (
            RIGHT,
            replace(RIGHT, code="while True: pass"),
            replace(RIGHT, tests="import os\nos._exit(0)"),
        ):
            QUICK.check(program)
        assert children() == known
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


@pytest.mark.parametrize(
    ("limits", "workers", "says"),
    [(Limits(seconds=0), 1, "seconds"), (Limits(memory=1), 1, "memory"), (Limits(), 0, "workers")],
)
def test_limits_that_make_no_sense_are_refused(limits: Limits, workers: int, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Sandbox(limits, workers)


def test_programs_that_nobody_waits_for_any_more_are_ended_at_once() -> None:
    patient = Sandbox(Limits(seconds=60), workers=2)
    outcomes = patient.check_all([Program("def f(): pass", "f()", ("f",)), *[ENDLESS] * 3])
    began = time.monotonic()
    assert next(outcomes).passed
    outcomes.close()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(patient.check_all([ENDLESS] * 3))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 10  # of 60 seconds for each


def test_scoring_that_is_interrupted_ends_the_programs(tmp_path: Path) -> None:
    problems = [Problem(str(i), "p", (), tests=f"f({i})", names=("f",)) for i in range(3)]
    asked = Evaluation(
        "humaneval", problems, {"num_return_sequences": 1}, sandbox=Sandbox(Limits(seconds=60))
    )
    code = "def f(n):\n    while n: pass\n"
    samples = {p.task_id: [Sample(p.task_id, 0, code, [1], 0.0, "eos", 1.0, 1.0)] for p in problems}

    def interrupt(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    began = time.monotonic()
    with opened(tmp_path / "out", {}, {}) as folder, pytest.raises(KeyboardInterrupt) as caught:
        score(asked, "batched", samples, folder, interrupt)
    assert caught.value is not None  # and its traceback, which holds on to what was running
    assert time.monotonic() - began < 10
    assert not any("ThreadPoolExecutor" in thread.name for thread in threading.enumerate())
