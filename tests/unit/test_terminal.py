"""What comes from outside is printed by one function, and a terminal is left as it was found."""

import ast
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import bass
from bass.api.results import Completion, StreamEvent
from bass.checkpoints.folder import SINGLE
from bass.cli import main
from bass.cli.display import Rows, completions, show_live
from bass.cli.terminal import console, give, said_printably, say
from bass.printable import printable
from bass.report.drawing import literal
from support.run_folders import write_run
from unit.checkpoints import Pair, Said
from unit.distributions import Offer

Command = Callable[..., Said]
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eabc\u2066\u200b\x7f\r\x08x"
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
CLASSES = f"""
from bass.policies import Fixed
from bass.interfaces import DraftLengthPolicy
EVIL = {EVIL!r}

class Loud(DraftLengthPolicy):
    __doc__ = EVIL
    max_length = 2
    def init(self, batch_size):
        raise ValueError(EVIL)
    def lengths(self, state): return state
    def update(self, state, feedback): return state

class Unmakable(Loud):
    def __init__(self, text: str = EVIL): raise ValueError(EVIL)

class Unfinished(Loud):
    def init(self, batch_size): raise GeneratorExit(EVIL)

class Leaving(Loud):
    def init(self, batch_size): raise SystemExit(EVIL)
"""


def steered(said: Said) -> list[str]:
    return STEERING.findall(said.out + said.err)


def test_text_keeps_its_letters_and_loses_what_steers() -> None:
    sound = "naïve ☕ 漢字\u3000\u00a0👨\u200d👩\u200d👧 ने\u200dप \\x1b [bold]"
    assert printable(sound) == sound
    assert (
        printable("a\x1b[31m\x9b\u202e\udc80\U000e0041\n\t", keep="\n\t")
        == "a\\x1b[31m\\x9b\\u202e\\udc80\\U000e0041\n\t"
    )
    assert not STEERING.search(printable("".join(map(chr, range(0x110000)))))


def rename_tensors(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    save_file(
        {f"{name}{EVIL}": tensor for name, tensor in tensors.items()},
        folder / SINGLE,
        metadata={"format": "pt"},
    )


def edited(**changes: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return edit


CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "tensor names": rename_tensors,
    "a family": edited(model_type=EVIL),
    "an activation": edited(hidden_act=EVIL),
    "a size": edited(hidden_size=EVIL),
    "an eos": edited(eos_token_id=[EVIL]),
    "a sound one": lambda folder: None,
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_strings_of_a_checkpoint_steer_no_terminal(
    bass_command: Command, pair: Pair, tmp_path: Path, case: str
) -> None:
    own = pair.copy(tmp_path / EVIL.replace("/", ""))
    CHECKPOINTS[case](own.target)
    for arguments in (
        ["info", str(own.target), "--draft", str(own.draft)],
        ["generate", *own.options, "def f("],
    ):
        said = bass_command(*arguments)
        if said.status == 0 and arguments[0] == "generate":
            said = Said(0, "", said.err)  # generated text, for a pipe
        assert not steered(said)
        assert said.out + said.err


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "steering_classes", raising=False)
    (tmp_path / "steering_classes.py").write_text(CLASSES, encoding="utf-8")
    return "steering_classes"


@pytest.mark.parametrize("name", ["Loud", "Unmakable", "Unfinished", "Leaving", f"No{EVIL}"])
def test_a_class_of_a_user_s_own_steers_no_terminal(
    bass_command: Command, pair: Pair, classes: str, name: str
) -> None:
    said = bass_command("generate", *pair.options, "def f(", "--policy", f"{classes}:{name}")
    assert said.status in (1, 2)
    assert "\\x1b]0;owned" in said.err
    assert not steered(said)


def test_help_about_a_class_steers_no_terminal(
    classes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--policy", f"{classes}:Unmakable", "--help"])
    said = capsys.readouterr().out
    assert "\\x1b" in said
    assert not STEERING.search(said)


def test_configs_and_cells_steer_no_terminal(
    bass_command: Command, pair: Pair, classes: str, tmp_path: Path
) -> None:
    base = {"prompts": ["def f("], "batch": 2, "max_new_tokens": 4, "repeats": 1, "warm_up": False}
    base |= {"target": str(pair.target), "draft": str(pair.draft)}
    axes = {
        "how": {f"{EVIL}a": {"policy": "fixed"}, f"{EVIL}[red]b": {"policy": f"{classes}:Loud"}},
        f"{EVIL}[bold]": {EVIL: {"seed": 1}},
    }
    config = {"about": EVIL, "base": base, "axes": axes}
    (tmp_path / "c.yaml").write_text(json.dumps(config), encoding="utf-8")
    runs = [
        bass_command("ablate", "c.yaml", "--output", f"out{EVIL}", *more)
        for more in (["--dry_run"], [], ["--batch", EVIL])
    ]
    assert [said.status for said in runs] == [0, 2, 2]
    assert "FAILED: ValueError: \\x1b]0;owned" in runs[1].err
    for said in runs:
        assert not steered(said)
    assert not STEERING.search(literal(EVIL))  # what a plot is labelled with


def test_warnings_steer_no_terminal() -> None:
    before = warnings.formatwarning
    with said_printably():
        assert not STEERING.search(warnings.formatwarning(EVIL, UserWarning, "file.py", 3))
    assert warnings.formatwarning is before


def test_names_of_installed_packages_steer_no_terminal(bass_command: Command, offer: Offer) -> None:
    site = offer("bass.policies", loud="steering_offer:Loud", broken="steering_broken:P")
    (site / "steering_offer.py").write_text(CLASSES, encoding="utf-8")
    (site / "steering_broken.py").write_text(f"raise ValueError({EVIL!r})", encoding="utf-8")
    said = bass_command("list", "policy")
    assert "\\x1b" in said.out
    assert not steered(said)


def test_a_damaged_run_folder_steers_no_terminal(bass_command: Command, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", batches=(1,), repeats=1)
    manifest = json.loads((run.path / "manifest.json").read_text())
    for damage in ({"format": EVIL}, {EVIL: 1}, {"bass": 3}, {"axes": [EVIL]}):
        (run.path / "manifest.json").write_text(json.dumps(manifest | damage))
        assert not steered(bass_command("report", str(run.path)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_generated_text_keeps_lines_and_tabs_on_a_terminal_and_is_untouched_elsewhere(
    unchecked: None,
) -> None:
    text = f"a\tb\nc{EVIL}"
    completion = Completion(0, 0, text, [1], [0.0], "length", 1.0)
    result: object = type("R", (), {"completions": [completion]})()
    pipe, shown = io.StringIO(), Terminal()
    completions(console(file=pipe, force_terminal=False), result, [f"p{EVIL}"])  # pyright: ignore[reportArgumentType]
    assert pipe.getvalue() == f"{text}\n"
    completions(
        console(file=shown, force_terminal=True, color_system=None, soft_wrap=True),
        result,
        [f"p{EVIL}"],
    )  # pyright: ignore[reportArgumentType]
    assert "\nc\\x1b]0;owned" in shown.getvalue()
    assert not STEERING.search(shown.getvalue().replace("\x1b[2m", ""))
    rows = Rows.of(["p"], 1, 8, f"title{EVIL}")
    live = Terminal()
    event = StreamEvent(0, 0, text, [1], [0.0], None)
    show_live(
        [event],
        rows,
        console(file=live, force_terminal=True, color_system=None, width=80, height=20),
    )  # pyright: ignore[reportArgumentType]
    assert not STEERING.search(re.sub(r"\x1b\[(\?25[lh]|\d*[AK]|2K)|\r", "", live.getvalue()))


@pytest.mark.parametrize("columns", ["0", "1", "-5", "x", "²", "1e9", "", "9" * 30, "1000000000"])
def test_a_width_that_is_none_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    out = io.StringIO()
    with monkeypatch.context() as patch:  # not for pytest's own lines
        patch.setenv("COLUMNS", columns)
        patch.setenv("LINES", columns)
        shown = console(file=out)
    shown.print("a sentence of some length")
    assert out.getvalue() == "a sentence of some length\n"
    assert 20 <= shown.width <= 1000
    assert 1 <= shown.height <= 1000


def test_only_the_terminal_module_prints() -> None:
    """Everything else asks it to.

    The exceptions: loading weights and the bar of `generate` have consoles of their own, and a
    process answers by a pipe.
    """
    found = set()
    for path in sorted(Path(bass.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "Console",
                "sys.stdout.write",
                "sys.stderr.write",
            ):
                found.add(path.name)
    processes = {"template_process.py", "convert_process.py", "match_process.py"}
    assert found <= {"terminal.py", "weights.py", "progress.py"} | processes


def test_every_command_runs_with_the_signals_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(
        "bass.cli._dispatch", lambda argv: taken.append(signal.getsignal(signal.SIGTERM)) or 0
    )
    assert main([]) == 0
    assert callable(taken[0])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_standard_output_that_is_closed_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    give("{}\n")
    say("text")


def test_a_reader_who_has_gone_is_told_to_who_prints() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):  # after which every command ends with status 0
        console(file=Gone()).print("text")


LIVE = """
import sys, time
from bass.cli.terminal import console, left_as_found
from rich.live import Live
with left_as_found(), Live("x", console=console(), auto_refresh=False):
    print("ready")
    sys.stdout.flush()
    for _ in range(300):  # a signal just before a sleep does not end it
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP], ids=lambda n: n.name
)
def test_a_signal_shows_the_cursor_before_it_ends_or_stops_the_process(
    number: signal.Signals,
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said = read_until(ours, b"ready")
        assert b"\x1b[?25l" in said
        process.send_signal(number)
        assert b"\x1b[?25h" in read_until(ours, b"\x1b[?25h")
        if number != signal.SIGTSTP:
            assert process.wait(timeout=10) == -number
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(handle: int, wanted: bytes, seconds: float = 20) -> bytes:
    said, ends = b"", time.monotonic() + seconds
    while wanted not in said and time.monotonic() < ends:
        if select.select([handle], [], [], 0.1)[0]:
            said += os.read(handle, 10_000)
    return said
