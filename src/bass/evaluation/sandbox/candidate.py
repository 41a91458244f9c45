"""The process that runs a generated program and answers calls to it. Standard library only.

This process is untrusted once the program has run: the checker treats its output only as answers
to its own questions.
"""

import json
import operator
import os
import sys
from types import ModuleType
from typing import Any

from bass.evaluation.sandbox.confine import Limits, Unconfined, confine, wall
from bass.evaluation.sandbox.values import decode, encode

OPERATIONS = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "len": len,
    "item": operator.getitem,
    "iter": iter,
    "next": next,
    "contains": operator.contains,
    "str": str,
    "bool": bool,
}


def new_module(name: str) -> dict[str, Any]:
    """The namespace of a new module for running code.

    The module is registered by its name, which dataclasses, pickle and type hints require.
    """
    sys.modules[name] = module = ModuleType(name)
    return vars(module)


def serve(questions: int, answers: int, nowhere: int, limits: Limits, scratch: str | None) -> None:
    """Confine this process, run the program that comes first, then answer. Never returns.

    questions, answers: file descriptors, the only ones left open next to three copies of `nowhere`.
    """
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for other in range(3, 64):
        if other not in (questions, answers):
            try:
                os.close(other)
            except OSError:
                continue
    reader, writer = os.fdopen(questions, "rb"), os.fdopen(answers, "wb", buffering=0)

    def answer(what: Any) -> None:
        writer.write(json.dumps(what).encode() + b"\n")

    try:
        confine(limits, wall(scratch) and scratch is not None)
    except Unconfined as error:
        answer({"refused": str(error)})
        os._exit(0)
    answer({"confined": True})
    module = new_module("candidate")
    kept: list[Any] = []
    numbers: dict[int, int] = {}  # by identity: equal handles mean the same object

    def handle(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(kept)
            kept.append(value)
        return numbers[id(value)]

    for line in reader:
        try:
            question = json.loads(line)
            if "program" in question:
                exec(compile(question["program"], "candidate.py", "exec"), module)
                value = {name: encode(module[name], handle) for name in question["names"]}
            else:
                arguments = [decode(a, kept.__getitem__) for a in question["arguments"]]
                value = encode(OPERATIONS[question["do"]](*arguments), handle)
            reply = json.dumps({"value": value}).encode()
        except BaseException as error:
            try:
                kinds = [kind.__name__ for kind in type(error).__mro__]
                reply = json.dumps({"raised": kinds, "text": str(error)[:200]}).encode()
            except BaseException:
                reply = b'{"raised": ["Exception"], "text": ""}'
        try:
            writer.write(reply + b"\n")
        except BaseException:
            break
    os._exit(0)
