"""Conversations come out as `transformers` renders them, and a template from a checkpoint can do no
harm.
"""

import contextlib
import itertools
import json
import shutil
import time
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer

import bass
from bass.errors import CheckpointError, RequestError
from bass.text import ChatTemplates, Tokenizer
from bass.text.chat import LONGEST
from bass.text.conversation import MOST_MESSAGES, checked_messages
from support.matrix import by_day, matrix
from unit.checkpoints import Pair, write_checkpoint
from unit.text_flavours import build
from unit.text_folders import llama3_json, write

transformers.logging.set_verbosity_error()
TEMPLATES = {
    "ChatML": """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "Llama 2": """{% if messages[0].role == 'system' %}{% set rules = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' %}
{% set turns = messages[1:] %}{% else %}{% set rules = '' %}{% set turns = messages %}{% endif %}
{% for turn in turns %}
  {% if (turn.role == 'user') != (loop.index0 is even) %}
    {{ raise_exception('roles must take turns, beginning with the user') }}
  {% endif %}
  {% if turn.role == 'user' %}
{{ bos_token ~ '[INST] ' ~ (rules if loop.first else '') ~ turn.content.strip() ~ ' [/INST]' }}
  {% else %}
{{ ' ' ~ turn.content | trim ~ ' ' ~ eos_token }}
  {% endif %}
{% endfor %}""",
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
    "Zephyr": """{% for message in messages %}
<|{{ message['role'] }}|>
{% if message.role == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}
{{ eos_token }}
{% if loop.last and add_generation_prompt %}<|assistant|>{% endif %}
{% endfor %}""",
    "everything as JSON": """{% macro line(m) %}{{ m | tojson(indent=2) }}{% endmacro %}{{ tools is none and documents is none }}
{% for m in messages | selectattr('role', 'ne', 'system') %}{{ line(m) }}{{ m.content | upper | replace('<', '&lt;') }}{% endfor %}
{{ unk_token }}{{ undefined_name }}""",
}
USER = {"role": "user", "content": "  Say <b>\"hé\"</b> & 'go' in ☕ words \n"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [
        USER,
        {"role": "assistant", "content": " Gladly. "},
        {"role": "user", "content": "{{ bos_token }}{% raw %}"},
    ],
    [
        {"role": "system", "content": ""},
        USER,
        {"role": "assistant", "content": "1\n\n2", "name": "x"},
        {"role": "user", "content": ""},
    ],
]
NAMES = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|begin|>",
    "eos_token": "<|turn|>",
}


def folder_with(path: Path, template: Any, **files: Any) -> Path:
    return write(
        path,
        config={"model_type": "llama"},
        tokenizer__json=llama3_json(),
        tokenizer_config=NAMES | {"chat_template": template},
        **files,
    )


def read(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    return tokenizer


@matrix(strength=1, messages=range(len(CONVERSATIONS)), style=TEMPLATES)
def test_a_conversation_is_rendered_as_transformers_renders_it(
    tmp_path: Path, messages: int, style: str
) -> None:
    conversation = CONVERSATIONS[messages]
    folder = folder_with(tmp_path, TEMPLATES[style])
    ours, theirs = read(folder), AutoTokenizer.from_pretrained(folder)
    for prompt in (True, False):
        expected = theirs.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=prompt
        )
        assert ours.chat.render(conversation, add_generation_prompt=prompt) == expected
    assert (
        any(message["content"].strip() in expected for message in conversation)
        or style == "everything as JSON"
    )
    ids = theirs.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert ours.encode(ours.chat.render(conversation), add_special_tokens=False) == ids


def test_named_templates_and_files_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    listed = [
        {"name": "default", "template": "D{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T"},
    ]
    folder = folder_with(tmp_path / "listed", listed)
    assert read(folder).chat.render([USER]) == AutoTokenizer.from_pretrained(
        folder
    ).apply_chat_template([USER], tokenize=False)
    assert read(folder).chat.render([USER], "tool_use") == "T"
    (folder / "chat_template.jinja").write_text("file\n", encoding="utf-8")
    assert (
        read(folder).chat.render([USER])
        == AutoTokenizer.from_pretrained(folder).apply_chat_template([USER], tokenize=False)
        == "file"
    )
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("é", encoding="utf-8")
    assert read(folder).chat.render([USER], "rag") == "é"
    with pytest.raises(
        CheckpointError,
        match=r"no chat template `tool_use` \(its templates are default, rag\): .*\.$",
    ):
        read(folder).chat.render([USER], "tool_use")


def test_a_checkpoint_without_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no chat template `default` \(it has none\): .*\.$"):
        read(build(tmp_path, "GPT-2")).chat.render([USER])


@pytest.mark.parametrize(
    "template", [3, [1], [{"name": "default"}], {"default": None}, [["a", "b"]]], ids=str
)
def test_what_is_no_template_is_refused(tmp_path: Path, template: Any) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        read(folder_with(tmp_path, template))
    folder_with(tmp_path, None)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja` is not readable as text"):
        read(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{",
        "{% unknown %}",
        "{% endfor %}",
        "{{ x | no_such_filter }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_that_is_no_jinja_is_refused(template: str) -> None:
    with pytest.raises((CheckpointError, RequestError), match=r"chat template.*\.$"):
        ChatTemplates({"default": template}).render([USER])


ESCAPES = {
    "attributes of a class": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "an attribute by filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "an attribute by format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "an attribute by format_map": "{{ '{x.__class__}'.format_map({'x': messages}) }}",
    "globals of a function": "{{ raise_exception.__globals__['json'] }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__globals__.os }}",
    "the frame of a generator": "{% set g = messages | map('upper') %}{{ g.gi_frame.f_globals['os'].system('false') }}",
    "a changed list": "{{ messages.append(1) }}",
    "a changed message": "{{ messages[0].update({'content': ''}) }}",
    "an import": "{% import 'os' as os %}",
    "an endless range": "{% for i in range(10**12) %}{{ i }}{% endfor %}",
    "endless output": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "division by nothing": "{{ 1 / 0 }}",
    "an attribute of what is not there": "{{ nothing.at.all }}",
    "an exception of its own": "{{ raise_exception('no system message, please') }}",
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_hostile_template_is_refused(escape: str) -> None:
    messages, said = [dict(USER)], ""
    began = time.monotonic()
    with contextlib.suppress(RequestError, CheckpointError):
        said = ChatTemplates({"default": ESCAPES[escape]}).render(messages)
    assert said.strip() == ""  # refused; or what the sandbox hides is as if it were not there
    assert messages == [USER]
    assert time.monotonic() - began < 20


def test_what_a_template_says_against_the_messages_is_told() -> None:
    with pytest.raises(RequestError, match=r"\(roles must take turns, beginning with the user\)"):
        ChatTemplates({"default": TEMPLATES["Llama 2"]}, {"bos_token": "", "eos_token": ""}).render(
            [USER, USER]
        )


def test_what_a_template_says_in_several_lines_is_one_sentence() -> None:
    said = "{{ raise_exception('No user.\\n\\n  Add one:\\tplease') }}"
    with pytest.raises(RequestError) as error:
        ChatTemplates({"default": said}).render([USER])
    assert "conversation (No user. Add one: please): change" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_long_conversation_is_no_attack() -> None:
    content = "x" * (LONGEST // 20)
    text = ChatTemplates({"default": TEMPLATES["ChatML"]}).render(
        [{"role": "user", "content": content}] * 10
    )
    assert len(text) > LONGEST // 2


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user"},
        ["hello"],
        [{"role": "user", "content": "x"}, 3],
        [{"role": "user", "content": {"type": "image"}}],
        None,
        [None],
    ],
    ids=str,
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match=r"\.$"):
        checked_messages(messages)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair that adds a beginning to every text, and has a template that writes it itself."""
    from tokenizers import Tokenizer as FastTokenizer

    tokenizer, root = FastTokenizer.from_str(llama3_json()), tmp_path_factory.mktemp("chatty")
    for folder, hidden, layers in ((root / "target", 32, 2), (root / "draft", 16, 1)):
        write_checkpoint(folder, tokenizer, hidden, layers, tokenizer.get_vocab_size(), context=256)
        (folder / "tokenizer_config.json").write_text(
            json.dumps(NAMES | {"chat_template": TEMPLATES["Llama 3"]})
        )
    return Pair(root / "target", root / "draft")


def test_a_conversation_becomes_ids_with_one_beginning(chatty: Pair) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    tokenizer = llm.models.tokenizer
    assert tokenizer is not None
    ids = llm.apply_chat_template([USER])
    begin = tokenizer.vocabulary["<|begin|>"]
    assert ids[0] == begin
    assert ids.count(begin) == 1
    assert tokenizer.encode("x")[0] == begin
    assert ids == AutoTokenizer.from_pretrained(chatty.target).apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    answer = llm.chat([USER], max_new_tokens=4)
    generated = llm.generate(ids, max_new_tokens=4)
    assert answer.completions[0].token_ids == generated.completions[0].token_ids


OTHER = [{"role": "user", "content": "hello"}]
FORMS: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: tuple(OTHER),
    "an iterator": lambda: iter(OTHER),
    "a generator": lambda: (message for message in OTHER),
    "mappings of another class": lambda: [UserDict(message) for message in OTHER],
    "a list of one": lambda: [OTHER],
    "a generator of tuples": lambda: (tuple(one) for one in [OTHER]),
    "a tuple of generators": lambda: ((message for message in one) for one in [OTHER]),
}


@pytest.mark.parametrize(
    "form", by_day(FORMS, ("an iterator", "a generator of tuples", "a tuple of generators"))
)
def test_a_conversation_may_come_in_any_iterable(chatty: Pair, form: str) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    expected = llm.chat(OTHER, max_new_tokens=3).completions[0].token_ids
    assert [c.token_ids for c in llm.chat(FORMS[form](), max_new_tokens=3).completions] == [
        expected
    ]
    if form in ("a tuple", "an iterator", "a generator"):
        assert llm.apply_chat_template(FORMS[form]()) == llm.apply_chat_template(OTHER)


def test_several_conversations_may_come_in_any_iterable(chatty: Pair) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    talks = [OTHER, [USER]]
    expected = [c.token_ids for c in llm.chat(talks, max_new_tokens=3).completions]
    for given in (iter(talks), tuple(map(tuple, talks)), (iter(one) for one in talks)):
        assert [c.token_ids for c in llm.chat(given, max_new_tokens=3).completions] == expected


WRONG_CALLS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "sampling options in vLLM's place": (OTHER, ({"temperature": 0},), "`template={'temp.*keyword"),
    "a list in its place": (OTHER, (["default"],), r"`template=\['default'\]` must be the name"),
    "a template's text": (OTHER, ("{% for m in messages %}",), "and not its text: write the text"),
    "an unknown template": (OTHER, ("rag",), "has no chat template `rag`"),
    "a message among conversations": ([OTHER, OTHER[0]], (), "^Message 0 is"),
    "an empty conversation": ([OTHER, []], (), "^Conversation 1: A conversation is a list"),
    "a bad message": ([OTHER, [OTHER]], (), "^Conversation 1: Message 0 is .*: give a mapping"),
    "no end of messages": (itertools.repeat(OTHER[0]), (), f"more than {MOST_MESSAGES} messages"),
    "no end of conversations": (itertools.repeat(OTHER), (), f"more than {MOST_MESSAGES} messages"),
    "an empty iterator": (iter(()), (), "^A conversation is a list of messages"),
    "one message": (OTHER[0], (), "^A conversation is a list of messages"),
    "bytes": (b"hello", (), "^A conversation is a list of messages"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_call_that_cannot_be_meant_is_one_sentence(chatty: Pair, case: str) -> None:
    messages, more, words = WRONG_CALLS[case]
    with pytest.raises(bass.BassError, match=words) as error:
        bass.load(chatty.target, chatty.draft).chat(messages, *more)
    assert str(error.value).endswith(".")


def test_a_conversation_needs_a_tokenizer_and_a_template(pair: Pair, silent_pair: Pair) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        bass.load(pair.target, pair.draft).chat([USER])
    with pytest.raises(RequestError, match="no tokenizer"):
        bass.load(silent_pair.target, silent_pair.draft).chat([USER])


def test_the_command_line_talks(bass_command: Any, chatty: Pair, tmp_path: Path) -> None:
    llm = bass.load(chatty.target, chatty.draft)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    said = bass_command(
        "generate", *chatty.options, "--chat", "--system", "Be brief.", "hello", "--json"
    )
    assert (
        said.lines[0]["token_ids"] == llm.chat(messages, max_new_tokens=8).completions[0].token_ids
    )
    said = bass_command("generate", *chatty.options, "--chat", "hello", "world", "--json")
    talks = [[{"role": "user", "content": text}] for text in ("hello", "world")]
    assert [c["token_ids"] for c in said.lines[:-1]] == [
        c.token_ids for c in llm.chat(talks, max_new_tokens=8).completions
    ]
    own = shutil.copytree(chatty.target, tmp_path / "target")
    (own / "tokenizer_config.json").write_text(json.dumps(NAMES))
    for arguments, words in (
        (["--chat", "--token_ids", "[1]"], "token ids"),
        (["--system", "x", "hello"], "`--chat`"),
        (["--target", str(own), "--chat", "hello"], "chat template"),
    ):
        said = bass_command("generate", *chatty.options, *arguments)
        assert (said.status, said.out) == (2, "")
        assert words in said.err
        assert said.err.count("\n") == 1
