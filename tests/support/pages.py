"""The code blocks of the pages and the commands in them.

Every block is run, or is the output of the block before it, or says above itself why it is neither:

    <!-- not run: REASON -->     never run; its options and its syntax are checked
    <!-- nightly: REASON -->     run as it stands, but only in the nightly tier

What a block shows as output is compared with what is printed: `...` stands for any text, and
figures of time compare in form alone (`without_times`).
"""

import ast
import io
import re
import shlex
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch

from bass.api import plan
from bass.api.resolve import make
from bass.cli import main
from bass.cli.options import Parser
from bass.experiments import grid, prompts, runner, settings

ROOT = Path(__file__).parents[2]
# `docs/log` is a log of the past: its commands are those of its commits
PATTERNS = ("*.md", "docs/**/*.md", "examples/*/README.md", "src/bass/pair/*.md")
PAST = (*(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/log/20*.md")), "CHANGELOG.md")
PYTHON, SHELL, OUTPUT, DATA = ("python",), ("sh", "console"), ("text", "output"), ("yaml", "toml")
LANGUAGES = (*PYTHON, *SHELL, *OUTPUT, *DATA, "json")
NOT_RUN, NIGHTLY = "not run", "nightly"
PARSED = 77  # exit status of a command whose options are good
_FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (not run|nightly): \S[^\n]*? -->\n\s*\Z")


@final
@dataclass(frozen=True)
class Block:
    """One fenced block. line: of its first line of text. mark: `not run`, `nightly` or nothing."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages with the rules above, by their names within the project."""
    found = {str(path.relative_to(ROOT)) for one in PATTERNS for path in ROOT.glob(one)}
    return sorted(found - {*PAST})


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order. An output has the mark of the block that prints it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    for one in _FENCE.finditer(text):
        indent, _, language, code = one.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        marked = _MARK.search(text[: one.start()])
        mark = marked[1] if marked else ""
        if not marked and language in OUTPUT and found and found[-1].language in (*SHELL, *PYTHON):
            mark = found[-1].mark
        found.append(Block(page, text.count("\n", 0, one.start(4)) + 1, language, code, mark))
    return found


def files(page: str) -> dict[str, str]:
    """The files that a page shows: blocks that begin with a name, such as `# mine.py`; blocks of
    one name are one file, in order.
    """
    found: dict[str, str] = {}
    for block in blocks(page):
        if name := re.match(r"# ([\w-]+\.\w+)\n", block.text):
            before = f"{found[name[1]]}\n\n" if name[1] in found else ""
            found[name[1]] = before + block.text
    return found


# --- shown output ---------------------------------------------------------------------------------

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
UNIT = r"(?:s|ms|us|µs|min|minutes|seconds|h|tokens/s|[MG]B/s|[MG]iB/s|x)"
_TIMES = re.compile(
    rf"(?P<name>seconds['\"]?[=:] ?){NUMBER}|(?<![\w.]){NUMBER}(?= ?{UNIT}(?![\w/]))"
)


def without_times(text: str) -> str:
    """A text in which a number before a unit of time or speed is `#`, and blanks are one."""
    lines = [_TIMES.sub(lambda found: f"{found['name'] or ''}#", x) for x in text.splitlines()]
    return "\n".join(" ".join(line.split()) for line in lines).strip()


def equal(shown: str, real: str) -> bool:
    """Whether a page shows what is printed; `...` in it stands for any text."""
    parts = [re.escape(part.strip()) for part in without_times(shown).split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), without_times(real), re.DOTALL) is not None


def in_comments(block: Block) -> dict[tuple[int, int], str]:
    """The values that comments behind calls of `print` show, by the lines of the call.

    A comment that begins like a value is one: `print(x)  # [0.5 0.5]`. A remark may follow after a
    colon or a semicolon; several values of a loop are separated by ", then ".
    """
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(block.text).readline)
        if token.type == tokenize.COMMENT
    }
    value = re.compile(r"""[\[({\-\d'"]|(?:True|False|None|tensor|array)\b""")
    return {
        (node.lineno, node.end_lineno): comments[node.end_lineno]
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "print"
        and node.end_lineno is not None
        and value.match(comments.get(node.end_lineno, ""))
    }


def as_a_comment(shown: str, printed: Sequence[str]) -> bool:
    """Whether a comment shows what a call of `print` printed, each time it was called."""
    together = ", then ".join(one.strip() for one in printed)
    shown, real = (re.sub(r"(?<=[\[(]) ", "", without_times(one)) for one in (shown, together))
    return shown == real or shown.startswith((f"{real}: ", f"{real}; "))


# --- commands -------------------------------------------------------------------------------------


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block of shell.

    In the language `console` a command is behind `$`, and its output below it. Variables have the
    values that the block gives them; loops and changes of the folder are left out.
    """
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    known: dict[str, str] = {}
    for line in lines:
        if given := re.match(r"(\w+)=(.*)", line):
            known[given[1]] = given[2].strip("\"'")
            continue
        text = re.sub(r"\$(\w+)", lambda found: known.get(found[1], "1"), line)
        words = shlex.split(text, comments=True)
        if words and words[0] in ("bass", "make", "pip", "python"):
            yield words


@contextmanager
def parsing_alone() -> Iterator[None]:
    """Within it, `bass` ends with the status `PARSED` after it has read its options and made the
    strategies, or the plan of all cells. It has read neither models nor data.
    """
    read = Parser.read

    def ending(parser: Parser, argv: Sequence[str]) -> Any:
        found = read(parser, argv)
        for name, kind in parser.strategies.items():
            if found[name] not in (None, "auto", "none"):
                make(kind, found[name])
        return found if parser.prog == "bass ablate" else end()

    def end(*_: Any) -> Any:
        raise SystemExit(PARSED)

    def without_files(given: Any, *_: Any) -> Any:
        if isinstance(given, str) and given != "python":
            assert given in prompts.SETS or Path(given).suffix, f"there are no prompts `{given}`"
            given = ["def f():"]
        return prompts.read_prompts(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "read", ending)
        patch.setattr(settings, "read_prompts", without_files)
        patch.setattr(plan, "find_device", lambda _: torch.device("cpu"))  # of another machine
        patch.setattr(grid, "fitting", lambda cells: (cells, []))
        patch.setattr(runner, "preview", end)
        yield


def status(words: Sequence[str]) -> Any:
    """The exit status of `bass`."""
    try:
        return main(words)
    except SystemExit as ended:
        return ended.code


def check(block: Block, words: list[str]) -> None:
    """Parse a command of `bass` by its own parser; of others, look for targets, extras, scripts."""
    program, *rest = words
    home = (ROOT / block.page).parent
    if program == "bass":
        with parsing_alone():
            assert status(rest) in (0, PARSED)
    elif program == "python":
        assert any((folder / rest[0]).is_file() for folder in (Path.cwd(), home, ROOT))
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert {*rest} <= {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    else:
        project = next(one for one in (home, *home.parents) if (one / "pyproject.toml").is_file())
        declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
        extras = re.findall(r"[\w-]+", "".join(re.findall(r"\.\[(.*?)\]", " ".join(rest))))
        assert rest[0] == "install"
        assert {*extras} <= {*declared["optional-dependencies"]}
