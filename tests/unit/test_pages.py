"""Every code block of every page: run, or compared with what is printed, or exempt with a reason.

The rules are those of `support.pages`. Pages run with the embedded pair, as their reader runs
them, in a folder of their own.
"""

import ast
import contextlib
import io
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bass import pair as embedded
from bass.api.options import KINDS
from bass.models import FAMILIES
from support.matrix import night
from support.pages import (
    LANGUAGES,
    NIGHTLY,
    NOT_RUN,
    OUTPUT,
    PARSED,
    PYTHON,
    ROOT,
    SHELL,
    Block,
    as_a_comment,
    blocks,
    check,
    commands,
    equal,
    files,
    in_comments,
    pages,
    parsing_alone,
    status,
)
from unit.distributions import Offer

PAGES = pages()
BLOCKS = {page: blocks(page) for page in PAGES}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
# what a reader has done before; `lengths.yaml` is that of docs/ablations.md
BEFORE = {"docs/report.md": "ablate lengths.yaml"}


def with_(languages: tuple[str, ...], *marks: str) -> list[str]:
    """The pages that have such a block."""
    return [
        page
        for page in PAGES
        if any(one.language in languages and one.mark in marks for one in BLOCKS[page])
    ]


@pytest.fixture
def place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    unchecked: None,
    offer: Offer,
) -> Iterator[Path]:
    """The folder of a reader: the names of checkpoints that pages use are there, and the policy of
    the tutorial, which the pages of its package find installed.
    """
    folder = tmp_path / "reader"
    (folder / "runs").mkdir(parents=True)
    names = {"TARGET": embedded.TARGET, "DRAFT": embedded.DRAFT, "FOLDER": embedded.TARGET}
    names |= {name: ROOT / name for name in ("benchmarks", "examples")}
    for name, path in names.items():
        (folder / name).symlink_to(path)
    shutil.copytree(embedded.TARGET, folder / "CHECKPOINT", copy_function=os.symlink)
    (folder / "CHECKPOINT/chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    talk = [{"role": "user", "content": "What is a monad?"}]
    for name, value in {"talk.json": talk, "tools.json": []}.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    package = "examples/my_policy" in request.node.name
    home = offer("bass.policies", **{"my-policy": "my_policy:MyPolicy"}) if package else folder
    shutil.copy(ROOT / "examples/my_policy/my_policy.py", home)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    families, own = dict(FAMILIES), ("mine", "my_policy")
    for module in own:
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield folder
    FAMILIES.clear()
    FAMILIES.update(families)
    for module in own:
        sys.modules.pop(module, None)


def prepare(page: str, folder: Path) -> None:
    """The files that a page shows, and configs next to it, which its commands name."""
    for path in (ROOT / page).parent.glob("*.yaml"):
        shutil.copy(path, folder)
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_an_output_or_says_why_not(page: str) -> None:
    """`CONTRIBUTING.md` says how."""
    before = ""
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES, f"{block.place}: name a language of {LANGUAGES}"
        if block.language in PYTHON:
            compile(block.text, block.place, "exec")
        if block.language == "json":
            json.loads(block.text)
        if block.language in OUTPUT and not block.mark:
            assert before in (*PYTHON, *SHELL), f"{block.place}: no output of a block before it"
        before = block.language
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
    assert fences == 2 * len(BLOCKS[page]), f"{page}: a fence without its end"


def within(do: Callable[[], None], words: list[str], place: str, out: io.StringIO) -> None:
    """Check or run a command; both its streams go to `out`, which a failure shows."""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            do()
        except (AssertionError, IndexError, OSError) as error:
            pytest.fail(f"{place}: `{' '.join(words)}`: {error}\n{out.getvalue()}")


@pytest.mark.parametrize("page", with_(SHELL, "", NIGHTLY, NOT_RUN))
def test_every_command_has_options_that_there_are(page: str, place: Path) -> None:
    prepare(page, place)
    for block in BLOCKS[page]:
        for words in commands(block) if block.language in SHELL else ():
            within(lambda b=block, w=words: check(b, w), words, block.place, io.StringIO())


@pytest.mark.parametrize("page", with_(("yaml",), "", NIGHTLY, NOT_RUN))
def test_every_config_can_be_planned(page: str, place: Path) -> None:
    """One with cells is planned, with its `quick` part too; any other has options of `generate`."""
    prepare(page, place)
    for block in BLOCKS[page]:
        if block.language != "yaml":
            continue
        (place / "shown.yaml").write_text(block.text, encoding="utf-8")
        shown = yaml.safe_load(block.text)
        cells = {"base", "axes", "quick"} & {*shown}
        options = ["ablate", "shown.yaml"] if cells else ["generate", "--config", "shown.yaml", ""]
        for more in ([], ["--quick"]) if "quick" in shown else ([],):
            with parsing_alone():
                assert status([*options, *more]) == PARSED, block.place


@pytest.mark.parametrize("page", with_(("toml",), "", NIGHTLY, NOT_RUN))
def test_entry_points_that_are_shown_are_in_groups_that_are_read(page: str) -> None:
    groups = {kind.group for kind in KINDS.values()} | {"bass.families"}
    for text in [one.text for one in BLOCKS[page] if one.language == "toml"]:
        assert {*tomllib.loads(text)["project"].get("entry-points", {})} <= groups


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Run a block; what it prints. Values in comments behind `print` are compared."""
    shown, file = in_comments(block), str(ROOT / block.page)
    printed: dict[tuple[int, int], list[str]] = {lines: [] for lines in shown}

    def noting(*values: Any, **options: Any) -> None:
        caller = sys._getframe(1)
        line = caller.f_lineno - block.line + 1
        for first, last in printed:
            if caller.f_code.co_filename == file and first <= line <= last:
                said = io.StringIO()
                print(*values, **options | {"file": said})
                printed[first, last].append(said.getvalue())
        print(*values, **options)

    tree = ast.increment_lineno(ast.parse(block.text), block.line - 1)
    out = io.StringIO()
    names["print"] = noting
    with contextlib.redirect_stdout(out):
        exec(compile(tree, file, "exec"), names)
    for lines, text in shown.items():
        place = f"{block.page}:{block.line + lines[0] - 1}"
        assert as_a_comment(text, printed[lines]), f"{place}: printed {printed[lines]}"
    return out.getvalue()


def run_shell(block: Block) -> str:
    """Run the commands of `bass` in a block, check the others; what they print, on both streams."""
    out = io.StringIO()

    def run(words: list[str]) -> None:
        if words[0] == "bass":
            assert status(words[1:]) == 0
        else:
            check(block, words)

    for words in commands(block):
        within(lambda words=words: run(words), words, block.place, out)
    if block.language == "console":
        shown = [line for line in block.text.splitlines() if not line.startswith("$ ")]
        assert equal("\n".join(shown), out.getvalue()), f"{block.place}: printed\n{out.getvalue()}"
    return out.getvalue()


def read(page: str, place: Path, left_out: tuple[str, ...]) -> None:
    """Do what a reader of the page does, without the blocks of these marks."""
    prepare(page, place)
    names: dict[str, Any] = {"__name__": "example"}
    printed = ""
    for block in BLOCKS[page]:
        if block.mark in left_out:
            continue
        if block.language in PYTHON:
            printed = run_python(block, names)
        elif block.language in SHELL:
            printed = run_shell(block)
        elif block.language in OUTPUT:
            assert equal(block.text, printed), f"{block.place}: printed\n{printed}"


@pytest.mark.parametrize("page", with_((*PYTHON, *SHELL), ""))
def test_a_page_runs(page: str, place: Path) -> None:
    read(page, place, (NOT_RUN, NIGHTLY))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [night(page) for page in with_((*PYTHON, *SHELL), NIGHTLY)])
def test_a_page_runs_with_what_takes_long(page: str, place: Path) -> None:
    if page in BEFORE:
        prepare("docs/ablations.md", place)
        assert status(BEFORE[page].split()) == 0
    read(page, place, (NOT_RUN,))


def test_figures_of_time_compare_in_form_alone() -> None:
    assert equal("8 rows in 1.25 s, 31 tokens/s", "8 rows in 0.3 s,  1,024.5 tokens/s")
    assert not equal("8 rows in 1.25 s", "9 rows in 1.25 s")
    assert equal("def area(r):\n...\ntau 3.1", "def area(r):\n    return r\n    # x\ntau 3.1")
    assert not equal("tau 3.1", "tau 3.1, of 8 rows")
    assert not equal("", "tau 3.1")
