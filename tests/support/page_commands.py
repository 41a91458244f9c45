"""Commands of the pages: parsed by the real parsers, or run."""

import argparse
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from bass.cli import main
from bass.cli.parsing import Parser
from bass.prompts.published import SETS
from bass.runs import prompts, settings
from support.pages import NOT_RUN, ROOT, Command, outside_of, targets

PARSED = 77  # exit status of a command whose options are good
_AS_RUN = ("generate", "eval", "bench", "ablate")  # these go on to their strategies or cells
_BUILDS = ("make", "pip", "pytest")  # not run


def _then_end(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    @wraps(function)
    def ended(*arguments: Any, **options: Any) -> Any:
        function(*arguments, **options | fixed)
        raise SystemExit(PARSED)

    return ended


@contextmanager
def parsing_alone() -> Iterator[None]:
    """Within it, `bass` ends with the status `PARSED` after it has read its options: it has made
    the strategies, or the plan of all cells, and has read neither models nor data.
    """
    from bass.cli import ablate, bench, eval, generate

    parse = Parser.parse

    def parsed(parser: Parser, argv: Sequence[str], defaults: bool = True) -> Any:
        found = parse(parser, argv, defaults)
        if parser.command.split()[1] not in _AS_RUN:
            raise SystemExit(PARSED)
        return found

    def without_data(parser: Parser, argv: list[str], own: Any, _: Any) -> Any:
        return eval_options(parser, argv, own)

    def without_files(given: Any, *_: Any) -> Any:
        if isinstance(given, str) and given not in prompts.BUILT_IN:
            assert given in SETS or Path(given).suffix, f"nobody knows the prompts `{given}`"
            given = ["def f():"]
        return prompts.read_prompts(given)

    eval_options = eval.read_options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse", parsed)
        for module in (generate, bench):
            patch.setattr(module, "read_options", _then_end(module.read_options))
        patch.setattr(eval, "read_options", _then_end(without_data))
        patch.setattr(settings, "read_prompts", without_files)
        patch.setattr(ablate, "_executor", _then_end(lambda config: None))
        yield


def check(command: Command) -> None:
    """Parse a command by its own parser. In a block that is not run, programs of others are left
    alone.
    """
    program, *words = command.words
    if program == "python" and words[:2] == ["-m", "bass"]:
        program, words = "bass", words[2:]
    if program == "bass":
        with parsing_alone():
            assert _status(lambda: main(words)) in (0, PARSED)
    elif program == "python" and words and words[0].endswith(".py"):
        assert _status(lambda: _parse_script(_script(command), words[1:])) in (None, 0, PARSED)
    elif program == "make":
        assert {word for word in words if "=" not in word} <= targets()
    elif program == "pip":
        assert words[0] == "install"
        assert {*re.findall(r"[\w-]+", "".join(re.findall(r"\.\[(.*?)\]", " ".join(words))))} <= (
            _extras(command.block.page)
        )
    else:
        assert program == "pytest" or command.block.mark == NOT_RUN, f"nobody knows `{program}`"


def run(command: Command) -> None:
    """Run a command as it stands. What installs or builds is only checked."""
    program, *words = command.words
    if program in _BUILDS:
        check(command)
    elif program == "bass":
        assert _status(lambda: main(words)) == 0
    else:
        assert program == "python", f"nobody knows `{program}`"
        done = subprocess.run(
            [sys.executable, _script(command), *words[1:]],
            cwd=command.folder,
            env=outside_of(command.folder),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        sys.stdout.write(done.stdout + done.stderr)


def _status(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except SystemExit as ended:
        return ended.code


def _script(command: Command) -> Path:
    """A script is in the folder of the command, or of the page."""
    places = (command.folder, (ROOT / command.block.page).parent)
    [first, *_] = [path for place in places if (path := place / command.words[1]).is_file()]
    return first.resolve()


def _parse_script(script: Path, words: list[str]) -> Any:
    """Scripts of `benchmarks/` check their options in `parse`; others with argparse alone."""
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(script.parent))
        if script.parent == ROOT / "benchmarks":
            patch.setattr(torch.cuda, "is_available", lambda: True)
            module = importlib.import_module(script.stem)
            if hasattr(module, "read"):  # that of `bass bench`, which asks the GPU
                patch.setattr(module, "read", _of_bench)
            if hasattr(module, "parse"):
                module.parse(words)
                return PARSED
        ended = _then_end(argparse.ArgumentParser.parse_args)
        patch.setattr(argparse.ArgumentParser, "parse_args", ended)
        patch.setattr(sys, "argv", [str(script), *words])
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            for name in {*sys.modules} - before:
                where = getattr(sys.modules[name], "__file__", None)
                if where is not None and Path(where).parent == script.parent:
                    del sys.modules[name]


def _of_bench(_: Parser, words: list[str]) -> None:
    with parsing_alone():
        assert _status(lambda: main(["bench", *words])) == PARSED


def _extras(page: str) -> set[str]:
    """Those of the package that a page is in."""
    [home, *_] = [
        folder for folder in (ROOT / page).parents if (folder / "pyproject.toml").is_file()
    ]
    project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {*project["optional-dependencies"]}
