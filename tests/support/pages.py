"""The code blocks of the pages: which there are, what each shows, and what it really prints.

Every block is run, or is the output of the block before it, or says above itself why it is neither:

    <!-- not run: REASON -->     never run; its options and its syntax are checked
    <!-- nightly: REASON -->     run as it stands, but only in the nightly tier

What a block shows as output is compared with what is printed: `...` stands for any text, and
figures of time compare in form alone (`without_times`). `make`, `pip` and `pytest` are not run:
their targets and extras have to exist.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

ROOT = Path(__file__).parents[2]
# `docs/log.md` is a log of the past: its commands are those of its commits
PATTERNS = ("*.md", "docs/**/*.md", "examples/*/README.md", "src/bass/pair/*.md")
PAST = ("docs/log.md", "CHANGELOG.md")
PYTHON, SHELL, OUTPUT, DATA = ("python",), ("sh", "console"), ("text", "output"), ("yaml", "toml")
LANGUAGES = (*PYTHON, *SHELL, *OUTPUT, *DATA, "json")
NOT_RUN, NIGHTLY = "not run", "nightly"
_FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (not run|nightly): (\S[^\n]*?) -->\n\s*\Z")


@final
@dataclass(frozen=True)
class Block:
    """One fenced block. line: of its first line of text. mark: `not run`, `nightly` or nothing.
    marked: it has a mark of its own.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str
    reason: str
    marked: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages with the rules above, by their names within the project."""
    found = {str(path.relative_to(ROOT)) for one in PATTERNS for path in ROOT.glob(one)}
    return sorted(found - {*PAST})


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order. One that continues a block that is not run, as its output
    does, has the mark of that block.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    for one in _FENCE.finditer(text):
        indent, _, language, code = one.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        marked = _MARK.search(text[: one.start()])
        mark, reason = marked.groups() if marked else ("", "")
        if (
            marked is None
            and language in OUTPUT
            and found
            and found[-1].language in (*SHELL, *PYTHON)
        ):
            mark, reason = found[-1].mark, found[-1].reason
        line = text.count("\n", 0, one.start(4)) + 1
        found.append(Block(page, line, language, code, mark, reason, marked is not None))
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


def definitions(page: str) -> str:
    """The imports and definitions of a page, as the file that its reader would have."""
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    nodes = [
        node
        for block in blocks(page)
        if block.language in PYTHON and block.mark != NOT_RUN
        for node in ast.parse(block.text).body
    ]
    return "\n\n".join(ast.unparse(node) for node in nodes if isinstance(node, kinds))


# --- shown output ---------------------------------------------------------------------------------

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
UNIT = r"(?:s|ms|us|µs|min|minutes|seconds|h|tokens/s|[MG]B/s|[MG]iB/s|x)"
_TIMES = re.compile(
    rf"(?P<name>seconds['\"]?[=:] ?){NUMBER}|(?<![\w.]){NUMBER}(?= ?{UNIT}(?![\w/]))"
)
_TIMED = re.compile(rf"(?<![\w/]){UNIT}(?![\w/])|speed|ratio|tokens/s|MBU|MFU|memory")
_CELLS = re.compile("[│┃|]")
_RULES = re.compile("[━─┏┓┡┩└┘┳┻╇┴┬┼├┤╭╮╰╯╞╡═-]{3,}")


def without_times(text: str) -> str:
    """A text without its figures of time and the widths that they give to its columns.

    A figure of time is a number before a unit of time or speed, and every number of a column whose
    heading names one.
    """
    lines, timed = [], set[int]()
    for line in text.strip().splitlines():
        cells = _CELLS.split(line)
        if len(cells) > 2:
            if not any(re.search(r"\d", cell) for cell in cells) or "┃" in line:
                timed = {i for i, cell in enumerate(cells) if _TIMED.search(cell)}
            cells = [re.sub(NUMBER, "#", c) if i in timed else c for i, c in enumerate(cells)]
            line = "|".join(cell.strip() for cell in cells)
        elif not _RULES.search(line):
            timed = set()
        line = _TIMES.sub(lambda found: f"{found['name'] or ''}#", line)
        lines.append(" ".join(_RULES.sub("---", line).split()))
    return "\n".join(lines)


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
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and node.end_lineno is not None
        and value.match(comments.get(node.end_lineno, ""))
    }


def as_a_comment(shown: str, printed: Iterable[str]) -> bool:
    """Whether a comment shows what a call of `print` printed, each time it was called."""
    together = ", then ".join(one.strip() for one in printed)
    shown, real = (re.sub(r"(?<=[\[(]) ", "", without_times(one)) for one in (shown, together))
    return shown == real or shown.startswith((f"{real}: ", f"{real}; "))


# --- commands -------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Command:
    """A command that a block of shell gives, with its words as the shell makes them."""

    block: Block
    folder: Path
    words: tuple[str, ...]


def in_console(block: Block) -> tuple[str, str]:
    """The commands of a block of shell, and what it shows as their output: in the language
    `console` a command is behind `$`, and its output below it.
    """
    if block.language != "console":
        return block.text, ""
    lines = block.text.splitlines()
    of_commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(of_commands), "\n".join(one for one in lines if not one.startswith("$ "))


_NOTED = r"""command_not_found_handle() { printf '%s\0' "$BLOCK" "$PWD" "$#" "$@" >&3; }
exec 3>"$NOTED"
"""
_ENVIRONMENT = re.compile(r"(?<!^\. )(?<!\n\. )(?<![^\s(;|&])\.venv/bin/")


def commands(page: str, folder: Path) -> Iterator[Command]:
    """The commands of a page, in order, in a folder that its commands may change.

    A shell without any program notes what it is told to run: loops, variables, quotes and `cd` are
    the shell's own.
    """
    found = [(i, one) for i, one in enumerate(blocks(page)) if one.language in SHELL]
    if not found:
        return
    script = _NOTED
    for i, one in found:
        script += f"BLOCK={i}\n" + _ENVIRONMENT.sub("", in_console(one)[0]) + "\n"
    noted = folder / "noted"
    bash = shutil.which("bash")
    assert bash is not None
    activate = folder / ".venv/bin/activate"
    activate.parent.mkdir(parents=True, exist_ok=True)
    activate.touch()  # a page may activate the environment that `make` has made
    done = subprocess.run(
        [bash, "-c", script],
        cwd=folder,
        env={"PATH": "/nonexistent", "NOTED": str(noted), "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{page}: {done.stderr}"
    words = noted.read_bytes().decode().split("\0")[:-1]
    noted.unlink()
    every = dict(found)
    while words:
        block, place, count = every[int(words[0])], Path(words[1]), int(words[2])
        yield Command(block, place, tuple(words[3 : 3 + count]))
        del words[: 3 + count]


def targets() -> set[str]:
    """Those of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", text, re.MULTILINE))


def outside_of(folder: Path) -> dict[str, str]:
    """The environment of a process that finds this `bass`, and the modules of the folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])}


def imported(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """The names that a block imports from `bass`, with the node of each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bass":
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node
