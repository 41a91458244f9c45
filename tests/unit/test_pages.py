"""Every code block of every page: run, or compared with what is printed, or exempt with a reason.

The rules are those of `support.pages`. Pages run with the embedded pair, as their reader runs
them, in a folder of their own.
"""

import ast
import contextlib
import io
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import bass
from bass import pair as embedded
from bass.api.kinds import KINDS
from bass.cli import main
from bass.models import FAMILIES
from support import page_commands
from support.matrix import night
from support.pages import (
    LANGUAGES,
    NIGHTLY,
    NOT_RUN,
    OUTPUT,
    PYTHON,
    ROOT,
    SHELL,
    Block,
    Command,
    as_a_comment,
    blocks,
    commands,
    definitions,
    equal,
    files,
    in_comments,
    in_console,
    pages,
)
from unit.distributions import Offer

PAGES = pages()
BLOCKS = {page: blocks(page) for page in PAGES}
EVERY = [block for page in PAGES for block in BLOCKS[page]]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
# what the commands of pages read, and no page shows
FILES = {
    "talk.json": json.dumps([{"role": "user", "content": "What is a monad?"}]),
    "tools.json": "[]",
}
# what a reader has done before; `lengths.yaml` is that of docs/ablations.md
BEFORE = {
    "docs/report.md": [
        "ablate lengths.yaml",
        "ablate lengths.yaml --output runs/lengths-again",
    ],
}


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
    for name in ("benchmarks", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for name, model in {"TARGET": "TARGET", "DRAFT": "DRAFT", "FOLDER": "TARGET"}.items():
        (folder / name).symlink_to(getattr(embedded, model))
    (folder / "CHECKPOINT").mkdir()
    for file in embedded.TARGET.iterdir():
        (folder / "CHECKPOINT" / file.name).symlink_to(file)
    (folder / "CHECKPOINT/chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    package = "examples/my_policy" in request.node.name
    home = offer("bass.policies", **{"my-policy": "my_policy:MyPolicy"}) if package else folder
    shutil.copy(ROOT / "examples/my_policy/my_policy.py", home)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    families = dict(FAMILIES)
    own = ("mine", "my_policy")
    for module in own:
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield folder
    FAMILIES.clear()
    FAMILIES.update(families)
    for module in own:
        sys.modules.pop(module, None)


def prepare(page: str, folder: Path) -> None:
    """The files that a page shows, which its commands name."""
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")


# --- that nothing is forgotten --------------------------------------------------------------------


def check_marks(page: str) -> None:
    """Each block is run, or the output of the one before it, or has a mark."""
    found = blocks(page)
    before: Block | None = None
    for block in found:
        assert block.language in LANGUAGES, f"{block.place}: name a language of {LANGUAGES}"
        if block.language in PYTHON:
            compile(block.text, block.place, "exec")
        if block.language == "json":
            json.loads(block.text)
        if block.language in OUTPUT and not block.mark:
            assert getattr(before, "language", None) in (*PYTHON, *SHELL), (
                f"{block.place}: no output of a block before it; "
                "put `<!-- not run: REASON -->` above it"
            )
        before = block
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page}: a fence without its end"
    own = [block for block in found if block.marked]
    marks = re.findall(r"^ *<!--\s*(?:not run|nightly)", text, re.MULTILINE)
    assert len(marks) == len(own), (
        f"{page}: a mark is `<!-- not run: REASON -->`, directly above its block"
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_an_output_or_says_why_not(page: str) -> None:
    """`CONTRIBUTING.md` says how."""
    check_marks(page)


WRONG = {
    "```\nprint(1)\n```\n": "name a language",
    "```text\n1\n```\n": "no output of a block",
    "```yaml\na: 1\n```\n```text\n1\n```\n": "no output of a block",
    "<!-- not run -->\n```python\nprint(1)\n```\n": "a mark is",
    "<!-- not run: a drawing -->\nwords\n```python\nprint(1)\n```\n": "a mark is",
    "```python\nprint(1)\n": "without its end",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_block_that_is_none_of_these_is_an_error(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match=WRONG[text]):
        check_marks(str(page))
    page.write_text("<!-- not run: a drawing -->\n```text\n1\n```\n", encoding="utf-8")
    check_marks(str(page))


def within_its_folder(do: Callable[[Command], None], command: Command, out: io.StringIO) -> None:
    """Check or run a command; both its streams go to `out`, which a failure shows."""
    with (
        contextlib.chdir(command.folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            do(command)
        except AssertionError as error:
            words = " ".join(command.words)
            pytest.fail(f"{command.block.place}: `{words}`: {error}\n{out.getvalue()}")


@pytest.mark.parametrize("page", with_(SHELL, "", NIGHTLY, NOT_RUN))
def test_every_command_has_options_that_there_are(page: str, place: Path) -> None:
    prepare(page, place)
    found = list(commands(page, place))
    assert found
    for command in found:
        within_its_folder(page_commands.check, command, io.StringIO())


@pytest.mark.parametrize("page", with_(("yaml",), "", NIGHTLY, NOT_RUN))
def test_every_config_can_be_planned(page: str, place: Path) -> None:
    """One with cells is planned, with its `quick` part too; any other has options of `generate`."""
    prepare(page, place)
    for block in BLOCKS[page]:
        if block.language != "yaml":
            continue
        (place / "shown.yaml").write_text(block.text, encoding="utf-8")
        shown = yaml.safe_load(block.text)
        cells = {"base", "axes", "points", "quick"} & {*shown}
        options = ["ablate", "shown.yaml"] if cells else ["generate", "--config", "shown.yaml", ""]
        for more in ([], ["--quick"]) if "quick" in shown else ([],):
            with page_commands.parsing_alone(), pytest.raises(SystemExit) as ended:
                pytest.fail(f"{block.place}: {main([*options, *more])}")
            assert ended.value.code == page_commands.PARSED


@pytest.mark.parametrize(
    "page", [*with_(("toml",), "", NIGHTLY, NOT_RUN), "examples/my_policy/pyproject.toml"]
)
def test_entry_points_that_are_shown_are_in_groups_that_are_read(page: str) -> None:
    groups = {kind.group for kind in KINDS.values()} | {"bass.families"}
    own = page.endswith(".toml")
    source = (
        (ROOT / page).with_name("my_policy.py").read_text("utf-8") if own else definitions(page)
    )
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    texts = [one.text for one in BLOCKS.get(page, ()) if one.language == "toml"]
    for text in [(ROOT / page).read_text("utf-8")] if own else texts:
        for group, points in tomllib.loads(text)["project"].get("entry-points", {}).items():
            assert group in groups
            assert {target.partition(":")[2] for target in points.values()} <= classes


OWN = re.compile(r"\b(mine|my_policy):(\w+)")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if OWN.search((ROOT / page).read_text("utf-8"))]
)
def test_the_file_of_a_class_that_is_named_is_on_its_page(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved as it stands, it defines the class; its import prints and loads nothing."""
    monkeypatch.setattr(bass, "load", None, raising=False)
    home = ROOT / "examples/my_policy/my_policy.py"
    known = {"my_policy.py": home.read_text("utf-8")} | files("README.md") | files(page)
    for module, name in OWN.findall((ROOT / page).read_text("utf-8")):
        if module == "my_policy" or not page.startswith("docs/extend/"):
            text = known[f"{module}.py"]
        else:
            text = files(page)["mine.py"]
        said, found = io.StringIO(), dict[str, Any]({"__name__": module})
        with contextlib.redirect_stdout(said):
            exec(compile(text, f"{page}: {module}.py", "exec", dont_inherit=True), found)
        assert isinstance(found[name], type)
        assert said.getvalue() == ""


# --- running --------------------------------------------------------------------------------------


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
    for (first, _), text in shown.items():
        found = printed[next(lines for lines in printed if lines[0] == first)]
        assert as_a_comment(text, found), f"{block.page}:{block.line + first - 1}: printed {found}"
    return out.getvalue()


def run_shell(block: Block, given: list[Command]) -> str:
    """Run the commands of a block; what they print, on both streams."""
    out = io.StringIO()
    for command in given:
        within_its_folder(page_commands.run, command, out)
    if shown := in_console(block)[1]:
        assert equal(shown, out.getvalue()), f"{block.place}: printed\n{out.getvalue()}"
    return out.getvalue()


def read(page: str, place: Path, left_out: tuple[str, ...]) -> None:
    """Do what a reader of the page does, without the blocks of these marks."""
    prepare(page, place)
    given = list(commands(page, place))
    names: dict[str, Any] = {"__name__": "example"}
    printed = ""
    for block in BLOCKS[page]:
        if block.mark in left_out:
            continue
        if block.language in PYTHON:
            printed = run_python(block, names)
        elif block.language in SHELL:
            printed = run_shell(block, [one for one in given if one.block == block])
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
        for words in BEFORE[page]:
            assert main(words.split()) == 0
    read(page, place, (NOT_RUN,))


# --- the rules of comparison ----------------------------------------------------------------------


def test_figures_of_time_compare_in_form_alone() -> None:
    table = "┃ policy ┃ ms per token ┃ tau ┃\n┡━━━━━━╇━━━╇━━━┩\n│ bass │ {} │ {} │\n└──┴──┴──┘"
    assert equal(table.format("1.90", "3.2"), table.format("12.34", "3.2"))
    assert not equal(table.format("1.90", "3.2"), table.format("1.90", "3.3"))
    assert equal("8 rows in 1.25 s, 31 tokens/s", "8 rows in 0.3 s,  1,024.5 tokens/s")
    assert not equal("8 rows in 1.25 s", "9 rows in 1.25 s")
    assert equal("{'tau': 3.1, 'seconds': 0.25}", "{'tau': 3.1, 'seconds': 1.5}")
    assert equal("def area(r):\n...\ntau 3.1", "def area(r):\n    return r\n    # x\ntau 3.1")
    assert not equal("def area(r):\n...\ntau 3.1", "def area(r):\n    return r\ntau 3.2")
    assert not equal("tau 3.1", "tau 3.1, of 8 rows")
    assert not equal("", "tau 3.1")


def test_values_in_comments_are_those_of_their_prints(place: Path) -> None:
    def block(text: str) -> Block:
        return Block("README.md", 1, "python", text, "", "")

    for text in (
        "print(1, 2)  # 1 2",
        "print([0.5])  # [0.5]; the target has [0.25]",
        "print([1, 0])  # [1, 0]: the last is not used",
        "for i in (1, 2):\n    print(\n        i\n    )  # 1, then 2",
        "print(3)  # per row, at most 4",
        "def say():\n    print(7)  # 7\nsay()",
    ):
        run_python(block(text), {})
    for text in ("print(1)  # 2", "print(1)  # 11", "for i in (1, 2):\n    print(i)  # 1"):
        with pytest.raises(AssertionError, match="printed"):
            run_python(block(text), {})
