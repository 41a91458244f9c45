"""The process that decides: it starts the process of the program, then runs the tests on the
returned values. Only this process holds the tests.

Run as a script, with the standard library alone. On standard input: {"nonce", "program", "before",
"names", "tests"}. On standard output two lines: {"layers"} or {"refused"}, when both processes are
confined; {"nonce", "reason", "detail"}, in the end. The order is what makes it safe:

    1. the process for the program is forked before a byte of standard input is read: the tests and
       the nonce were never in its memory
    2. it closes its copies of standard input and output, confines itself, and only then is sent the
       program
    3. the tests are run here, on values of built-in types; the verdict goes out on a pipe that the
       other process does not have
"""

import builtins
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # the folder of `bass`, instead of this folder, whose files are not top-level modules
    sys.path[0] = str(Path(__file__).parents[3])

from bass.evaluation.sandbox.candidate import new_module, serve
from bass.evaluation.sandbox.confine import (
    Limits,
    Unconfined,
    confine,
    die_with_parent,
    hide,
    layers,
    mount_scratch,
    wall,
)
from bass.evaluation.sandbox.values import decode, encode

LONGEST_ANSWER = 2**25  # bytes


class Gone(BaseException):
    """The process with the program has ended, or answers nonsense.

    Not an Exception, so that tests do not catch it.
    """


class Line:
    """Questions to the process with the program, one at a time."""

    def __init__(self, questions: int, answers: int) -> None:
        self._out, self._in, self._rest, self.broken = questions, answers, b"", ""

    def read(self) -> dict[str, Any]:
        """The next line that it sends."""
        pieces = [self._rest]
        size = len(self._rest)
        while b"\n" not in pieces[-1]:
            piece = os.read(self._in, 2**16)
            size += len(piece)
            if not piece or size > LONGEST_ANSWER:
                self.lose("the program ended" if not piece else "the answer is too long")
            pieces.append(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self.lose("the answer is none")
        return reply

    def lose(self, why: str) -> NoReturn:
        """Stop the communication and raise `Gone`."""
        self.broken = self.broken or why
        raise Gone(why)

    def ask(self, question: dict[str, Any]) -> Any:
        """The coded value of the answer; re-raises the reported exception."""
        if self.broken:
            raise Gone(self.broken)
        try:
            data = json.dumps(question).encode() + b"\n"
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            self.lose("the program ended")
        reply = self.read()
        if "value" in reply:
            return reply["value"]
        names = reply.get("raised")
        kinds = (
            [getattr(builtins, n, None) for n in names if isinstance(n, str)]
            if isinstance(names, list)
            else []
        )
        # SystemExit and the like become errors; so does a function's StopIteration, as in a
        # generator (PEP 479), since it would silently end a test's loop over `map`.
        kind = next(
            (k for k in kinds if isinstance(k, type) and issubclass(k, Exception)), RuntimeError
        )
        if issubclass(kind, StopIteration | StopAsyncIteration) and question.get("do") != "next":
            kind = RuntimeError
        try:
            error = kind(str(reply.get("text")))
        except TypeError:  # such as UnicodeDecodeError, which needs more arguments
            error = RuntimeError(str(reply.get("text")))
        raise error

    def do(self, operation: str, *arguments: Any) -> Any:
        """The value of an operation on an object of the program."""
        coded = self.ask({"do": operation, "arguments": [encode(a, _number) for a in arguments]})
        try:
            return decode(coded, lambda number: Remote(self, number))
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError):
            return self.lose("the answer is none")


class Remote:
    """An object in the other process.

    It equals only itself; the program's own definition of equality is ignored.
    """

    def __init__(self, line: Line, number: int) -> None:
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._line.do("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return self._line.do("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._line.do("set", self, name, value)

    def __len__(self) -> int:
        return self._line.do("len", self)

    def __bool__(self) -> bool:
        return self._line.do("bool", self)

    def __getitem__(self, key: Any) -> Any:
        return self._line.do("item", self, key)

    def __contains__(self, key: Any) -> bool:
        return self._line.do("contains", self, key)

    def __iter__(self) -> Iterator[Any]:
        return self._line.do("iter", self)

    def __next__(self) -> Any:
        return self._line.do("next", self)

    def __str__(self) -> str:
        return self._line.do("str", self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)


def _number(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise TypeError(f"a test passes {type(value).__name__}, which cannot be sent to the program")


def judge(line: Line, task: dict[str, Any]) -> tuple[str, str]:
    """Run the tests on the program; returns a reason and its detail.

    `passed` only if every statement of the tests was run to its end.
    """
    stage = "program"
    try:
        try:
            coded = line.ask({"program": task["program"], "names": task["names"]})
            if not isinstance(coded, dict):
                line.lose("the answer is none")
            stage = "tests"
            space = new_module("tests")
            exec(compile(task["before"], "before.py", "exec"), space)
            for name in task["names"]:
                space[name] = decode(coded.get(name), lambda number: Remote(line, number))
            exec(compile(task["tests"], "tests.py", "exec"), space)
        except Gone:
            raise
        except AssertionError as error:
            return ("failed" if stage == "tests" else "raised"), str(error)[:200]
        except SystemExit:
            return "failed", "the tests ended early"
        except BaseException as error:
            return "raised", f"{type(error).__name__} in the {stage}: {str(error)[:150]}"
        if line.broken:
            raise Gone(line.broken)
    except Gone as error:
        return "ended", str(error)
    return "passed", ""


def main() -> None:
    """Judge one program."""
    harness = os.getppid()
    die_with_parent(harness)
    limits = Limits(**json.loads(sys.argv[1]))
    folder = os.getcwd()
    scratch = folder if mount_scratch(folder, limits.scratch) else None
    hide()
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        walled = wall(scratch)
    except Unconfined as error:
        send(1, {"refused": str(error)})
        return
    writes = walled and scratch is not None
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    checker = os.getpid()
    if os.fork() == 0:
        die_with_parent(checker)
        serve(their_in, their_out, nowhere, limits, scratch)
    os.close(their_in)
    os.close(their_out)
    with os.fdopen(0, "rb", closefd=False) as source:
        task = json.load(source)
    verdict = os.dup(1)
    line = Line(our_out, our_in)

    def end(reason: str, detail: str) -> NoReturn:
        send(verdict, {"nonce": task["nonce"], "reason": reason, "detail": detail})
        os._exit(0)

    try:
        reply = line.read()
        if "confined" not in reply:
            raise Unconfined(str(reply.get("refused")))
        confine(limits, writes)
    except (Unconfined, Gone) as error:
        send(verdict, {"refused": str(error)})
        return
    send(verdict, {"layers": layers(walled, writes)})
    # descriptor 0 is a deleted file with the tests; closing it frees the file
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    signal.signal(signal.SIGALRM, lambda *_: end("time", f"more than {limits.seconds:g} seconds"))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    reason, detail = judge(line, task)
    signal.setitimer(signal.ITIMER_REAL, 0)
    end(reason, detail)


def send(pipe: int, result: dict[str, Any]) -> None:
    """Send one line of JSON."""
    os.write(pipe, json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
