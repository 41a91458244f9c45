"""Options are written once: signatures, settings and hints agree with the dataclasses."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bass
from bass.api.options import (
    COUNTERPARTS,
    ChatFields,
    ChatOptions,
    LoadOptions,
    ModelOptions,
    RequestOptions,
    TemplateFields,
    TemplateOptions,
    counterpart_error,
)
from bass.api.results import Completion, Result
from bass.experiments.settings import Settings
from bass.option import help_of
from bass.sampling_params import SamplingFields, SamplingParams
from support.options_page import PAGES, filled
from unit.checkpoints import Pair

GENERATE = ("prompts", "messages", "progress")  # of one method or the other


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (bass.load, LoadOptions),
        (bass.LLM.generate, RequestOptions),
        (bass.LLM.stream, RequestOptions),
        (bass.LLM.chat, ChatOptions),
        (bass.LLM.apply_chat_template, TemplateOptions),
    ],
    ids=["load", "generate", "stream", "chat", "apply_chat_template"],
)
def test_a_signature_has_every_option_with_its_type_and_default(
    function: Callable[..., Any], options: type
) -> None:
    signature = inspect.signature(function)
    written = {
        name: (parameter.annotation, parameter.default)
        for name, parameter in signature.parameters.items()
        if name not in ("self", *GENERATE)
    }
    assert written == {f.name: (f.type, f.default) for f in fields(options)}


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (SamplingFields, SamplingParams),
        (ChatFields, ChatOptions),
        (TemplateFields, TemplateOptions),
    ],
)
def test_the_types_that_editors_know_are_those_of_the_options(names: type, options: type) -> None:
    written = {f.name: f.type for f in fields(options)}
    assert typing.get_type_hints(names) == written


def test_settings_of_ablations_are_these_options_and_have_help() -> None:
    inherited = {f.name for options in (ModelOptions, SamplingParams) for f in fields(options)}
    assert inherited < {f.name for f in fields(Settings)}
    assert all(help_of(Settings).values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_the_documentation_are_written_by_make_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("| option | default |") == text.count("<!-- options of")
    assert filled(text) == text


def test_every_other_name_stands_for_an_option() -> None:
    """Of Python and the command line, and most also of ablations."""
    options = help_of(LoadOptions) | help_of(ChatOptions)
    for name in COUNTERPARTS:
        assert name in options or counterpart_error(name, options)
    settings = help_of(Settings)
    assert settings.keys().isdisjoint(COUNTERPARTS)
    assert "give `batch`" in str(counterpart_error("max_num_seqs", settings, "setting"))
    assert "give `--max-batch-size` (rows" in str(counterpart_error("--batch", options))
    assert counterpart_error("--batch", {}) is None
    found = str(counterpart_error("--max-tokens", options))
    assert "`--max-tokens`: give `--max-new-tokens`" in found


def test_a_bar_changes_nothing_and_goes_to_standard_error(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = bass.load(pair.target, pair.draft)
    asked: dict[str, Any] = {"num_return_sequences": 2, "max_new_tokens": 8, "stop": "x"}
    quiet = llm.generate(["def f(", "for"], **asked)
    assert capsys.readouterr().err == ""
    shown = llm.generate(["def f(", "for"], progress=True, **asked)
    out, err = capsys.readouterr()
    assert (out, "32/32" in err) == ("", True)
    assert [c.token_ids for c in shown.completions] == [c.token_ids for c in quiet.completions]


def test_results_and_pairs_are_short_in_a_notebook_and_their_text_is_no_markup() -> None:
    texts = ["<script>alert(1)</script>", "a & b\x1b[2J", None]
    completions = [
        Completion(0, i, t, [1, 2], [-0.5, -1.5], "eos", 0.1) for i, t in enumerate(texts)
    ]
    shown = Result(completions, [], lossless=False)._repr_html_()
    assert "<script>" not in shown
    assert "\x1b" not in shown
    for words in ("&lt;script&gt;", "a &amp; b", "[1, 2]", "-1.000", "eos", "NOT LOSSLESS"):
        assert words in shown
    assert shown.count("<tr>") == 3
    many = Result(completions * 100, [])
    table = many._repr_html_()
    assert (table.count("<tr>"), "200 more completions" in table) == (100, True)
    assert repr(many).startswith("Result: 300 completions, 600 tokens, 6,000 tokens/s\n  <script>")
    llm = bass.load(num_speculative_tokens=4, quantization="int8", device="cpu", verifier="typical")
    for words in ("/target, draft ", "cpu, float32, target by Int8, draft by Int8\n", "Fixed(k=4)"):
        assert words in repr(llm)
    assert repr(llm).endswith(" MB; up to 8 rows of 1,024 tokens")
    found = repr(llm.generate("def " * 9, 2, max_new_tokens=40, ignore_eos=True)).splitlines()
    assert found[0].startswith("Result: 2 completions, 80 tokens, tau ")
    assert found[0].endswith(", NOT LOSSLESS")
    assert (len(found), found[1][-4:], len(found[1])) == (2, " ...", 86)
