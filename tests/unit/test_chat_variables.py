"""Tools, documents, thinking, parts, null contents and continued messages come out as
`transformers` renders them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import bass
from bass.errors import BassError, RequestError
from bass.text import ChatTemplates
from support.matrix import matrix
from unit.checkpoints import Pair, write_checkpoint
from unit.test_chat import TEMPLATES as OLDER
from unit.text_folders import llama3_json, write

transformers.logging.set_verbosity_error()
NAMES = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>"}
# the constructs of the templates that people have, in small
TEMPLATES = {
    "calls": """{%- if tools %}
    {%- for tool in tools %}{{ tool | tojson }}{{ tool.function | tojson(indent=2, sort_keys=true) }}
    {% endfor %}
{%- elif tools is not none %}{{ 'tools: ' ~ tools | length }}
{%- endif %}
{%- for m in messages %}
    {{- '<' ~ m.role ~ '>' }}
    {%- if m.content is string %}{{ m.content | trim }}
    {%- elif m.content is none or m.content is undefined %}{{ '(no content)' }}
    {%- else %}
        {%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
    {%- endif %}
    {%- for call in m.tool_calls or [] %}
        {%- set f = call.function if call.function is defined else call %}
        {{- f.name ~ (f.arguments if f.arguments is string else f.arguments | tojson(separators=(',', ':'))) }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{% endif %}{% endif %}""",
    "namespace": """{{ bos_token }}{% set ns = namespace(last=-1, text='') %}
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% macro shown(c) %}{% if c is mapping or c is none %}{{ c }}{% elif c is string %}{{ c }}{% else %}{% for p in c %}{{ p['text'] if p is mapping else p }}{% endfor %}{% endif %}{% endmacro %}
{% for m in messages %}
{% if loop.index0 > ns.last and m.reasoning_content %}<think>{{ m.reasoning_content.strip('\\n') }}</think>{% endif %}
{% set text = shown(m.content) %}{{ m.role }}: {{ text.split('</think>')[-1].lstrip('\\n') }}
{% if m.tool_calls is defined %}{% for c in m['tool_calls'] %}{% for k, v in c.function.arguments.items() if c.function.arguments is mapping %}
{{ k }}={{ v if v is string else v | tojson }}{% endfor %}{% break %}{% endfor %}{% endif %}
{% endfor %}
{% for d in documents or [] %}[{{ loop.index }}] {{ d.title }}: {{ d['text'] | e }}{% endfor %}
{{ date_string | default('no date') }} {{ 'thinking' if enable_thinking | default(true) else 'not' }}""",
    "generation": """{% for m in messages %}{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}<end>{% else %}{{ m['content'] }}{% endif %}

{% endfor %}{% if tools is not none %}{{ tools }}{% endif %}{{ documents }}""",
}
USER = {"role": "user", "content": "Say <b>\"hé\"</b> & 'go' ☕"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "find", "arguments": {"where": "Zürich", "n": 1}}}
    ],
}
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "<é>", "parameters": {"type": "object"}},
}
ANSWER = {"role": "tool", "name": "find", "content": [{"type": "text", "text": "21°"}]}
REASONED = {
    "role": "assistant",
    "content": "<think>\nx\n</think>\n\n Yes. ",
    "reasoning_content": "hm\n",
}
PARTS = [{"type": "text", "text": "It "}, {"type": "text", "text": "is  "}]
CASES: dict[str, tuple[list[Mapping[str, Any]], dict[str, Any]]] = {
    "tools": ([USER], {"tools": [TOOL]}),
    "an empty list of tools": ([USER], {"tools": []}),
    "a call and its answer": ([USER, CALL, ANSWER], {"tools": [TOOL, TOOL]}),
    "a call without content": (
        [USER, {k: v for k, v in CALL.items() if k != "content"}, ANSWER],
        {},
    ),
    "a developer's message in parts": ([{"role": "developer", "content": PARTS}, USER], {}),
    "null": ([USER, {"role": "assistant", "content": None}, USER], {}),
    "thinking": ([USER, REASONED, USER, REASONED], {"enable_thinking": True}),
    "no thinking": ([USER], {"enable_thinking": False, "add_generation_prompt": True}),
    "documents": ([USER], {"documents": [{"title": "T", "text": "a < b"}]}),
    "variables": ([USER], {"date_string": "1 May", "bos_token": "<own>", "extra": [1, None, {}]}),
    "continued": ([USER, REASONED], {"continue_final_message": True}),
    "continued parts": (
        [USER, {"role": "assistant", "content": [*PARTS, {"type": "other"}]}],
        {"continue_final_message": True},
    ),
    "continued reasoning": ([USER, REASONED], {"continue_final_message": "reasoning_content"}),
}
OWN = ("tools", "documents", "add_generation_prompt", "continue_final_message", "enable_thinking")


def as_ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `render` for those of `transformers`."""
    own = {name: value for name, value in options.items() if name in OWN}
    others = {name: value for name, value in options.items() if name not in OWN}
    return {"add_generation_prompt": False} | own | {"chat_template_kwargs": others}


def theirs(folder: Path, messages: Any, options: Mapping[str, Any]) -> str | None:
    """The text of `transformers`; None if it refuses the conversation."""
    try:
        return AutoTokenizer.from_pretrained(folder).apply_chat_template(
            messages, tokenize=False, **options
        )
    except (ValueError, TypeError):
        return None


@matrix(strength=1, case=CASES, style=TEMPLATES)
def test_a_conversation_with_variables_is_rendered_as_transformers_renders_it(
    tmp_path: Path, case: str, style: str
) -> None:
    messages, options = CASES[case]
    folder = write(
        tmp_path,
        config={"model_type": "llama"},
        tokenizer__json=llama3_json(),
        tokenizer_config=NAMES | {"chat_template": TEMPLATES[style]},
    )
    templates = ChatTemplates({"default": TEMPLATES[style]}, {"bos_token": "<|begin|>"})
    expected = theirs(folder, messages, options)
    if expected is None:
        with pytest.raises(RequestError, match=r"continue.*\.$"):
            templates.render(messages, **as_ours(options))
    else:
        assert templates.render(messages, **as_ours(options)) == expected


ODD: dict[str, list[dict[str, Any]]] = {
    "no content": [USER, {"role": "assistant"}],
    "no role": [{"content": "hello"}],
    "no role and null": [{"content": None}],
    "nothing": [{}],
    "an object": [USER, {"role": "user", "content": {"type": "text", "text": "a"}}],
    "a number": [{"role": "user", "content": 3}],
    "a list of numbers": [{"role": "user", "content": [3, None, "x", ["y"]]}],
    "a flag": [{"role": "user", "content": True}],
    "another type of role": [{"role": None, "content": "x"}, {"role": ["user"], "content": "y"}],
    "other fields alone": [{"name": "x", "parts": [1, {"a": None}]}],
}
MORE = TEMPLATES | OLDER | {
    "needs none": "{% for m in messages %}<{{ m.role }}>{% if 'content' in m %}{{ m.content }}"
    "{% endif %}{% endfor %}",
    "asks for it": "{% for m in messages %}{% if m.content is not defined or m.role is none %}"
    "{{ raise_exception('A message needs\n a content.') }}{% endif %}{{ m.content }}{% endfor %}",
}  # fmt: skip


@matrix(strength=1, odd=ODD, style=MORE)
def test_odd_messages_are_rendered_as_transformers_renders_them(odd: str, style: str) -> None:
    special = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    try:
        texts, _ = render_jinja_template([ODD[odd]], chat_template=MORE[style], **special)
        expected = texts[0]
    except Exception:  # a template may raise anything
        expected = None
    templates = ChatTemplates({"default": MORE[style]}, special)
    if expected is not None:
        assert templates.render(ODD[odd], add_generation_prompt=False) == expected
        return
    with pytest.raises(RequestError, match=r"^The chat template refuses the conversation") as error:
        templates.render(ODD[odd], add_generation_prompt=False)
    assert "\n" not in str(error.value)


def test_a_conversation_with_tools_gets_the_template_for_tools() -> None:
    both = ChatTemplates({"default": "D", "tool_use": "T"})
    assert both.render([USER]) == "D"
    assert both.render([USER], tools=[TOOL]) == both.render([USER], tools=[]) == "T"
    assert both.render([USER], "default", tools=[TOOL]) == "D"
    assert ChatTemplates({"default": "D"}).render([USER], tools=[TOOL]) == "D"


def test_the_template_of_a_processor_is_read_where_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "P"}))
    assert ChatTemplates.read(tmp_path, {}, {}).render([USER]) == "P"
    assert ChatTemplates.read(tmp_path, {"chat_template": "T"}, {}).render([USER]) == "T"


def test_the_assistant_s_turn_is_opened_unless_the_last_message_continues() -> None:
    template = "{{ messages[-1].content }}{{ '<end><open>' if add_generation_prompt else '<end>' }}"
    templates = ChatTemplates({"default": template})
    said = [{"role": "assistant", "content": "I am "}]
    assert templates.render(said) == "I am <end><open>"
    assert templates.render(said, add_generation_prompt=False) == "I am <end>"
    assert templates.render(said, continue_final_message=True) == "I am "
    trimmed = ChatTemplates({"default": "{{ messages[-1].content | trim }}<end>"})
    assert trimmed.render(said, continue_final_message=True) == "I am"


# templates that use the last message several times, and the text up to the end of its last use
SEVERAL = {
    "[{{ c }}] {{ c }}": "[ I am ]  I am ",
    "[{{ c | trim }}] {{ c | trim }}<end>": "[I am] I am",
    "{{ c | trim }}|{{ c }}": "I am| I am ",
    "{% for m in messages %}{{ m.content }};{% endfor %}{{ c }}": (
        "END_OF_CONTINUED_MESSAGE_0 x; I am ; I am "
    ),
    "{{ messages[0].content }}{{ c }}": "END_OF_CONTINUED_MESSAGE_0 x I am ",
}


@pytest.mark.parametrize("template", SEVERAL)
def test_a_last_message_that_is_used_several_times_is_continued_without_marks(
    template: str,
) -> None:
    template = "{% set c = messages[-1].content %}" + template
    said = [
        {"role": "user", "content": "END_OF_CONTINUED_MESSAGE_0 x"},
        {"role": "assistant", "content": " I am "},
    ]
    found = ChatTemplates({"default": template}).render(said, continue_final_message=True)
    assert found == SEVERAL[template.partition("%}")[2]]
    (theirs,), _ = render_jinja_template(
        [said], chat_template=template, continue_final_message=True
    )  # leaves its mark in all uses but the last
    assert found == re.sub(
        r"TAG | *TAG(?! )", "", theirs.replace("CONTINUE_FINAL_MESSAGE_TAG", "TAG")
    )


def test_a_last_message_that_is_changed_in_one_of_its_uses_is_not_continued() -> None:
    for change in (
        "{{ c | lower }}",
        "{{ c | length }}{{ c }}",
        "{{ c | replace('_', '') }}{{ c }}",
    ):
        template = "{% set c = messages[-1].content %}" + change + "{{ c }}"
        with pytest.raises(RequestError, match="uses the last message several times and changes"):
            ChatTemplates({"default": template}).render([USER], continue_final_message=True)


WRONG: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a function as tool": ([USER], {"tools": [len]}, "`tools` has <built-in function len>"),
    "one tool": ([USER], {"tools": TOOL}, "`tools` has {'type'"),
    "texts as documents": ([USER], {"documents": ["x"]}, "`documents` has 'x'"),
    "variables in a list": ([USER], {"chat_template_kwargs": [1]}, "must be a mapping of names"),
    "a variable with an argument": (
        [USER],
        {"chat_template_kwargs": {"tools": []}},
        "`tools` is an argument of its own",
    ),
    "a value that is no JSON": (
        [USER],
        {"chat_template_kwargs": {"x": object()}},
        "a value that JSON cannot represent",
    ),
    "thinking in words": ([USER], {"enable_thinking": "no"}, "enable_thinking"),
    "two ends": (
        [USER],
        {"add_generation_prompt": True, "continue_final_message": True},
        "give one of them",
    ),
    "nothing to continue": ([CALL], {"continue_final_message": True}, "needs a text in the field"),
    "parts without text": (
        [{"role": "user", "content": [{"type": "other"}]}],
        {"continue_final_message": True},
        "needs a text in the field",
    ),
    "an unknown field": ([USER], {"continue_final_message": "thoughts"}, "reads no field"),
    "no content to continue": (
        [{"role": "assistant"}],
        {"continue_final_message": True},
        "needs a text in the field",
    ),
    "an object to continue": (
        [{"role": "assistant", "content": {"text": "x"}}],
        {"continue_final_message": True},
        "needs a text in the field",
    ),
    "an image": (
        [USER, {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        {},
        "Message 1 has a part of the type 'image_url'",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", WRONG)
def test_what_no_template_can_be_given_is_one_sentence(case: str) -> None:
    messages, options, words = WRONG[case]
    with pytest.raises(BassError) as error:
        ChatTemplates({"default": TEMPLATES["calls"]}).render(messages, **options)
    assert words in str(error.value)
    assert str(error.value).endswith(".")


def test_a_template_that_changes_the_last_message_cannot_continue_it() -> None:
    templates = ChatTemplates({"default": "{{ messages[-1].content | upper | replace('_', '') }}"})
    with pytest.raises(RequestError, match="leaves out or changes the last message"):
        templates.render([USER], continue_final_message=True)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair with a template that reads tools and further variables."""
    from tokenizers import Tokenizer as FastTokenizer

    tokenizer, root = FastTokenizer.from_str(llama3_json()), tmp_path_factory.mktemp("chatty")
    for folder, hidden, layers in ((root / "target", 32, 2), (root / "draft", 16, 1)):
        write_checkpoint(folder, tokenizer, hidden, layers, tokenizer.get_vocab_size(), context=512)
        (folder / "tokenizer_config.json").write_text(
            json.dumps(NAMES | {"chat_template": TEMPLATES["calls"] + "{{ date }}"})
        )
    return Pair(root / "target", root / "draft")


def test_a_chat_takes_the_options_of_its_template(chatty: Pair) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    shown: dict[str, Any] = {
        "tools": [TOOL],
        "enable_thinking": False,
        "chat_template_kwargs": {"date": "1 May"},
    }
    ids = llm.apply_chat_template([USER], **shown)
    assert ids == AutoTokenizer.from_pretrained(chatty.target).apply_chat_template(
        [USER],
        tools=[TOOL],
        enable_thinking=False,
        date="1 May",
        add_generation_prompt=True,
        return_dict=False,
    )
    said = llm.chat([[USER], [USER, CALL, ANSWER]], max_new_tokens=3, **shown)
    expected = [ids, llm.apply_chat_template([USER, CALL, ANSWER], **shown)]
    assert [c.token_ids for c in said.completions] == [
        c.token_ids for c in llm.generate(expected, max_new_tokens=3).completions
    ]
    with pytest.raises(BassError, match="`thinking`: give `chat_template_kwargs`"):
        llm.chat([USER], thinking=False)


def test_a_text_with_a_beginning_gets_no_second_one(chatty: Pair) -> None:
    tokenizer = bass.load(chatty.target, chatty.draft).models.tokenizer
    assert tokenizer is not None
    begin = tokenizer.vocabulary["<|begin|>"]
    assert tokenizer.encode("<|begin|>x") == tokenizer.encode("x")
    assert tokenizer.encode("<|begin|>") == tokenizer.encode("") == [begin]
    assert tokenizer.encode("<|begin|><|begin|>x")[:3].count(begin) == 2  # as it was written
    assert tokenizer.encode("<|begin|>x", add_special_tokens=False)[0] == begin
    assert tokenizer.encode("<|begin|><|begin|>", add_special_tokens=False) == [begin, begin]


def test_the_command_line_takes_the_options_of_the_template(
    bass_command: Any, chatty: Pair, tmp_path: Path
) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    tools, talk = (tmp_path / f"{name}.json" for name in ("tools", "talk"))
    tools.write_text(json.dumps([TOOL]))
    talk.write_text(json.dumps({"messages": [USER, {"role": "assistant", "content": "I am"}]}))
    common = ["generate", *chatty.options, "--json"]
    said = bass_command(
        *common, "--chat", "hello", "--tools", str(tools), "--enable-thinking", "false",
        "--chat-template-kwargs", '{"date": "1 May"}',
    )  # fmt: skip
    expected = llm.chat(
        [{"role": "user", "content": "hello"}],
        tools=[TOOL],
        enable_thinking=False,
        chat_template_kwargs={"date": "1 May"},
        max_new_tokens=8,
    )
    assert said.lines[0]["token_ids"] == expected.completions[0].token_ids
    said = bass_command(*common, "--messages", str(talk), "--continue-final-message", "true")
    expected = llm.chat(
        [USER, {"role": "assistant", "content": "I am"}],
        continue_final_message=True,
        max_new_tokens=8,
    )
    assert said.lines[0]["token_ids"] == expected.completions[0].token_ids
    for arguments, words in (
        (["hello", "--tools", str(tools)], "`--tools`"),
        (["--chat", "hello", "--tools", str(tmp_path / "none")], "--tools"),
        (["--messages", str(talk), "--system", "x"], "--system"),
        (["--messages", str(talk), "hello"], "--messages"),
    ):
        said = bass_command(*common, *arguments)
        assert (said.status, said.out) == (2, "")
        assert words in said.err
        assert said.err.count("\n") == 1
