"""Conversations come out as `transformers` renders them; what a template cannot use is an error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import bass
from bass.errors import BassError, CheckpointError, RequestError
from bass.text import ChatTemplates, Tokenizer
from unit.checkpoints import Pair, write_checkpoint
from unit.text_folders import build, llama3_json, write

transformers.logging.set_verbosity_error()
# the constructs of the templates that people have, in small
TEMPLATES = {
    "Llama 3": """{{- bos_token }}{%- set today = strftime_now('%Y') | length %}
{%- for message in messages -%}
    {{- '<|head|>' ~ message['role'] ~ '<|/head|>\\n\\n' ~ message['content'] | trim ~ '<|turn|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|head|>assistant<|/head|>\\n\\n' ~ today -}}{%- endif -%}
""",
    "Gemma": """{{ bos_token }}{% set ns = namespace(first=true) %}
{% for message in messages %}
{% if message.role == 'system' %}{% continue %}{% endif %}
{% set who = 'model' if message.role == 'assistant' else message.role %}
<start_of_turn>{{ who }}
{{ message.content | trim }}<end_of_turn>{{ '' if ns.first else ' ' }}{% set ns.first = false %}

{% if loop.index > 20 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
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
}
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|turn|>"}
NAMES = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
USER = {"role": "user", "content": "  Say <b>\"hé\"</b> & 'go' in ☕ words \n"}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": " Gladly. "}
CALLED = {
    "type": "function",
    "function": {"name": "find", "arguments": {"where": "Zürich", "n": 1}},
}
CALL = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
FUNCTION = {"name": "find", "description": "<é>", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
ANSWER = {"role": "tool", "name": "find", "content": [{"type": "text", "text": "21°"}]}
THOUGHT = "<think>\nx\n</think>\n\n Yes. "
REASONED = {"role": "assistant", "content": THOUGHT, "reasoning_content": "hm\n"}
PARTS = [{"type": "text", "text": "It "}, {"type": "text", "text": "is  "}]
CASES: dict[str, tuple[list[Mapping[str, Any]], dict[str, Any]]] = {
    "one message": ([USER], {"add_generation_prompt": True}),
    "a system message": ([SYSTEM, USER], {}),
    "three turns": ([USER, SAID, USER | {"content": "{{ bos_token }}{% raw %}"}], {}),
    "tools": ([USER], {"tools": [TOOL]}),
    "a call and its answer": ([USER, CALL, ANSWER], {"tools": [TOOL, TOOL]}),
    "a developer's message in parts": ([{"role": "developer", "content": PARTS}, USER], {}),
    "null": ([USER, {"role": "assistant", "content": None}, USER], {}),
    "thinking": ([USER, REASONED, USER, REASONED], {"enable_thinking": True}),
    "no thinking": ([USER], {"enable_thinking": False, "add_generation_prompt": True}),
    "documents": ([USER], {"documents": [{"title": "T", "text": "a < b"}]}),
    "variables": ([USER], {"date_string": "1 May", "bos_token": "<own>"}),
    "continued": ([USER, REASONED], {"continue_final_message": True}),
    "continued reasoning": ([USER, REASONED], {"continue_final_message": "reasoning_content"}),
}
OWN = ("add_generation_prompt", "continue_final_message", "tools", "documents", "enable_thinking")
MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # `transformers` leaves it in earlier uses of the message


def read(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    return tokenizer


def folder_with(path: Path, template: Any) -> Path:
    settings = NAMES | {"chat_template": template}
    return write(path, tokenizer__json=llama3_json(), tokenizer_config=settings)


@pytest.mark.parametrize("style", TEMPLATES)
def test_conversations_are_rendered_as_transformers_renders_them(style: str) -> None:
    template = TEMPLATES[style]
    templates = ChatTemplates({"default": template}, SPECIAL)
    for messages, options in CASES.values():
        try:
            [expected], _ = render_jinja_template(
                [messages], chat_template=template, **{**SPECIAL, **options}
            )
        except Exception:  # a template may raise anything
            expected = None
        own = {"add_generation_prompt": False} | {n: v for n, v in options.items() if n in OWN}
        own["chat_template_kwargs"] = {n: v for n, v in options.items() if n not in OWN}
        named = {name for name, value in options.items() if value != []} - {*OWN[:2], "bos_token"}
        if all(name in template for name in named) and expected is not None:
            assert templates.render(messages, **own) == expected.replace(MARK, "")
        else:
            with pytest.raises(RequestError, match=r"never reads|refuses|leaves out|needs a text"):
                templates.render(messages, **own)


def test_ids_and_templates_of_a_folder_are_those_of_transformers(tmp_path: Path) -> None:
    listed = [
        {"name": "default", "template": TEMPLATES["Llama 3"]},
        {"name": "tool_use", "template": "T"},
    ]
    folder = folder_with(tmp_path / "listed", listed)
    for text in (None, "file{{ messages[0].content }}\n"):
        if text is not None:
            (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
        ours, theirs = read(folder), AutoTokenizer.from_pretrained(folder)
        ids = theirs.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
        assert ours.encode(ours.chat.render([USER]), add_special_tokens=False) == ids
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("é", encoding="utf-8")
    assert read(folder).chat.render([USER], "rag") == "é"
    known = r"no chat template `tool_use` \(it has default, rag\): .*\.$"
    with pytest.raises(CheckpointError, match=known):
        read(folder).chat.render([USER], "tool_use")
    with pytest.raises(CheckpointError, match=r"no chat template `default` \(it has none\): .*\.$"):
        read(build(tmp_path, "GPT-2")).chat.render([USER])
    (tmp_path / "chat_template.json").write_text('{"chat_template": "P"}')  # of a processor
    assert ChatTemplates.read(tmp_path, {}, {}).render([USER]) == "P"
    assert ChatTemplates.read(tmp_path, {"chat_template": "T"}, {}).render([USER]) == "T"


# templates that use the last message, " I am ", and the text up to the end of its last use
CONTINUED = {
    "{{ c }}{{ '<end><open>' if add_generation_prompt else '<end>' }}": " I am ",
    "{{ c | trim }}<end>": "I am",
    "[{{ c }}] {{ c }}": "[ I am ]  I am ",
    "[{{ c | trim }}] {{ c | trim }}<end>": "[I am] I am",
    "{{ c | trim }}|{{ c }}": "I am| I am ",
    "{{ messages[0].content }}{{ c }}": "Hi. I am ",
    "no message": None,
}


@pytest.mark.parametrize("template", CONTINUED)
def test_a_last_message_is_continued_without_marks(template: str) -> None:
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": " I am "}]
    templates = ChatTemplates({"default": "{% set c = messages[-1].content %}" + template})
    if (expected := CONTINUED[template]) is not None:
        assert templates.render(messages, continue_final_message=True) == expected
        return
    with pytest.raises(RequestError, match="leaves out the last message"):
        templates.render(messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('No user.') }}", r"\(No user\.\)"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined"),
    ],
)
def test_what_a_template_raises_is_told_and_it_sees_no_internals(template: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ChatTemplates({"default": template}).render([USER])


CONTINUE: dict[str, Any] = {"continue_final_message": True}
NO_THOUGHT: dict[str, Any] = {"enable_thinking": False}
BARE = "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}"
NO_TEXT = "needs a text in the field"
WRONG: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a function as tool": (
        [USER],
        {"tools": [len]},
        "refuses the conversation (Object of type builtin_function",
    ),
    "a near miss": (
        [USER],
        {"chat_template_kwargs": {"enable_thinkin": False}},
        "never reads `enable_thinkin`, so it would change nothing: did you mean `enable_thinking`?",
    ),
    "unseen calls": ([USER, CALL], {"name": "bare"}, "`bare` does not show `tool_calls`, so"),
    "unseen answers": (
        [USER, CALL | {"tool_calls": None}, ANSWER],
        {"name": "bare"},
        "`bare` does not show messages of the role `tool`, so",
    ),
    "tools that are not read": ([USER], {"name": "bare", "tools": [TOOL]}, "never reads `tools`"),
    "nothing to continue": ([CALL], CONTINUE, NO_TEXT),
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
    templates = ChatTemplates({"default": TEMPLATES["calls"], "bare": BARE})
    with pytest.raises(BassError) as error:
        templates.render(messages, **options)
    assert words in str(error.value)
    assert str(error.value).endswith((".", "?"))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair that adds a beginning to every text, and has a template that writes it itself."""
    from tokenizers import Tokenizer as FastTokenizer

    tokenizer, root = FastTokenizer.from_str(llama3_json()), tmp_path_factory.mktemp("chatty")
    settings = NAMES | {"chat_template": "{{ bos_token }}" + TEMPLATES["calls"] + "{{ date }}"}
    for folder, hidden, layers in ((root / "target", 32, 2), (root / "draft", 16, 1)):
        write_checkpoint(folder, tokenizer, hidden, layers, tokenizer.get_vocab_size(), context=512)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Pair(root / "target", root / "draft")


def test_a_chat_takes_the_options_of_its_template_and_has_one_beginning(chatty: Pair) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    own: dict[str, Any] = {"tools": [TOOL], "enable_thinking": False}
    shown = own | {"chat_template_kwargs": {"date": "1 May"}}
    ids = llm.apply_chat_template([USER], **shown)
    assert ids == AutoTokenizer.from_pretrained(chatty.target).apply_chat_template(
        [USER], **own, date="1 May", add_generation_prompt=True, return_dict=False
    )
    begin = ids[0]
    assert ids.count(begin) == 1
    said = llm.chat([[USER], [USER, CALL, ANSWER]], max_new_tokens=3, **shown)
    expected = [ids, llm.apply_chat_template([USER, CALL, ANSWER], **shown)]
    assert [c.token_ids for c in said.completions] == [
        c.token_ids for c in llm.generate(expected, max_new_tokens=3).completions
    ]
    with pytest.raises(BassError, match="`thinking`: give `chat_template_kwargs`"):
        llm.chat([USER], thinking=False)
    tokenizer = llm.models.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("<|begin|>x") == tokenizer.encode("x")
    assert tokenizer.encode("<|begin|>") == tokenizer.encode("") == [begin]
    assert tokenizer.encode("<|begin|><|begin|>x")[:3].count(begin) == 2  # as it was written
    assert tokenizer.encode("<|begin|>x", add_special_tokens=False)[0] == begin


OTHER = [{"role": "user", "content": "hello"}]


def test_a_conversation_needs_a_tokenizer_and_a_template(pair: Pair, silent_pair: Pair) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        bass.load(pair.target, pair.draft).chat([USER])
    with pytest.raises(RequestError, match="no tokenizer"):
        bass.load(silent_pair.target, silent_pair.draft).chat([USER])


def test_the_command_line_takes_tools_and_continues_a_message(
    bass_command: Any, chatty: Pair, tmp_path: Path
) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    tools, talk = (tmp_path / f"{name}.json" for name in ("tools", "talk"))
    tools.write_text(json.dumps([TOOL]))
    talk.write_text(json.dumps({"messages": [*OTHER, SAID]}))
    switched = ["--tools", str(tools), "--enable-thinking", "false"]
    for arguments, expected in (
        (
            ["--chat", "hello", *switched],
            llm.apply_chat_template(OTHER, tools=[TOOL], **NO_THOUGHT),
        ),
        (
            ["--messages", str(talk), "--continue-final-message", "true"],
            llm.apply_chat_template([*OTHER, SAID], **CONTINUE),
        ),
    ):
        said = bass_command("generate", *chatty.options, "--json", *arguments)
        completion = llm.generate(expected, max_new_tokens=8).completions[0]
        assert said.lines[0]["token_ids"] == completion.token_ids
    for arguments in (["hello", "--tools", str(tools)], ["--messages", str(talk), "hello"]):
        said = bass_command("generate", *chatty.options, *arguments)
        assert (said.status, said.out) == (2, "")
        assert arguments[1] in said.err or arguments[0] in said.err
