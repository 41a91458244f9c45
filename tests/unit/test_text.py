"""Text comes as tokens do, never in halves of characters, and ends before a stop string."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

import bass
from bass.errors import CheckpointError, PairingError
from bass.text import ChatTemplates, TextStream, Tokenizer, check_same_tokenizer
from unit.checkpoints import Pair, byte_tokenizer
from unit.text_flavours import build
from unit.text_folders import pieces, write

BYTES = Tokenizer(byte_tokenizer())
BROKEN = "\N{REPLACEMENT CHARACTER}"


def streamed(ids: list[int]) -> list[str]:
    stream = TextStream(BYTES)
    return [*(stream.push(token) for token in ids), stream.flush()]


@given(st.text())
def test_streamed_text_is_the_text(text: str) -> None:
    assert "".join(streamed(BYTES.encode(text))) == text.replace("<eos>", "")


@given(st.lists(st.integers(1, BYTES.fast.get_vocab_size() - 1), max_size=30))
def test_streamed_text_of_any_tokens_is_what_they_decode_to(ids: list[int]) -> None:
    assert "".join(streamed(ids)) == BYTES.decode(ids)


@given(
    st.lists(st.lists(st.integers(1, BYTES.fast.get_vocab_size() - 1), max_size=6), max_size=8),
    st.text(),
)
def test_several_tokens_at_once_give_the_text_that_they_give_one_by_one(
    drawn: list[list[int]], text: str
) -> None:
    ids = BYTES.encode(text)
    for chunks in (drawn, [ids[i : i + 3] for i in range(0, len(ids), 3)]):
        at_once, alone = TextStream(BYTES), TextStream(BYTES)
        for tokens in chunks:
            assert at_once.push(*tokens) == "".join(alone.push(token) for token in tokens)
        assert at_once.flush() == alone.flush()


@given(st.text(alphabet="aé☕𝄞", min_size=1))
def test_a_character_comes_whole_or_not_yet(text: str) -> None:
    assert all(BROKEN not in piece for piece in streamed(BYTES.encode(text)))


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    ids = BYTES.encode("☕")
    assert len(ids) > 1
    assert "".join(streamed(ids[:-1])).startswith(BROKEN)


def test_special_tokens_are_no_text() -> None:
    eos = BYTES.vocabulary["<eos>"]
    assert "".join(streamed([*BYTES.encode("a"), eos, *BYTES.encode("b")])) == "ab"


def test_a_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    assert Tokenizer.read(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    with pytest.raises(CheckpointError, match=r"not a readable tokenizer .*: download it again\.$"):
        Tokenizer.read(tmp_path)


def test_equal_tokenizers_pass_and_others_are_told_apart() -> None:
    twin = Tokenizer(FastTokenizer.from_str(BYTES.fast.to_str()))
    check_same_tokenizer(BYTES, twin)
    check_same_tokenizer(BYTES, None)
    check_same_tokenizer(None, BYTES)
    twin.fast.add_tokens([AddedToken("<extra>")])
    with pytest.raises(PairingError, match=r"<extra>.* is None in the target's"):
        check_same_tokenizer(BYTES, twin)


def changed(**parts: object) -> Tokenizer:
    """The same vocabulary, and something else about it."""
    own = json.loads(BYTES.fast.to_str())
    model = {name: parts.pop(name) for name in list(parts) if name in own["model"]}
    return Tokenizer(
        FastTokenizer.from_str(json.dumps(own | parts | {"model": own["model"] | model}))
    )


MERGES = json.loads(BYTES.fast.to_str())["model"]["merges"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"merges": [MERGES[1], MERGES[0], *MERGES[2:]]}, r"the model's merges, number 0, is \["),
        (
            {"merges": MERGES[:-1]},
            rf"the model's merges, number {len(MERGES) - 1}, is \[.* and null in the draft's",
        ),
        (
            {"byte_fallback": True},
            r"the model's byte_fallback, is false in the target's and true in the draft's",
        ),
        (
            {"normalizer": {"type": "NFC"}},
            r'the normalizer, is null in the target\'s and \{"type": "NFC"\} in the draft\'s',
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, r"the pre-tokenizer, is \{"),
    ],
    ids=["merges in another order", "fewer merges", "byte fallback", "normalizer", "pre-tokenizer"],
)
def test_equal_tokens_that_texts_are_split_into_otherwise_are_told_apart(
    parts: dict[str, object], said: str
) -> None:
    with pytest.raises(PairingError, match=rf"same tokens and different tokenizers: {said}.*\.$"):
        check_same_tokenizer(BYTES, changed(**parts))


def test_a_difference_comes_with_a_text_that_shows_it() -> None:
    words = r'\("hello world" becomes \[.*\] in the target\'s and \[.*\] in the draft\'s\)\.'
    with pytest.raises(PairingError, match=words):
        check_same_tokenizer(BYTES, changed(pre_tokenizer={"type": "Whitespace"}))


def test_a_pair_that_differs_in_legacy_alone_is_told_which_texts_differ(tmp_path: Path) -> None:
    """The ids mean the same, and the target alone splits texts: no error, and no silence."""
    target, draft = (
        Tokenizer.read(
            write(
                tmp_path / str(legacy),
                config={"model_type": "llama"},
                tokenizer=pieces("bpe"),
                tokenizer_config={"tokenizer_class": "LlamaTokenizer", "legacy": legacy},
            )
        )
        for legacy in (False, True)
    )
    assert target is not None
    assert draft is not None
    words = (
        r'`legacy` .*: "<unk>hello" becomes \["<unk>", "h.*\] .* \["<unk>", "▁.*\] in the draft\'s'
    )
    with pytest.warns(UserWarning, match=words):
        check_same_tokenizer(target, draft)
    assert target.encode("hello") == draft.encode("hello")
    plain = json.loads(target.fast.to_str())
    plain["pre_tokenizer"]["prepend_scheme"] = "never"
    with pytest.raises(PairingError, match=r"the pre-tokenizer, is .* \(\"hello world\" becomes"):
        check_same_tokenizer(target, Tokenizer(FastTokenizer.from_str(json.dumps(plain))))


def test_what_stands_around_a_text_or_is_made_of_ids_does_not_tell_tokenizers_apart() -> None:
    post = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    check_same_tokenizer(BYTES, changed(post_processor=post, decoder=None))
    check_same_tokenizer(
        BYTES,
        Tokenizer(BYTES.fast, "vocab.json", clean_up=True, chat=ChatTemplates({"default": ""})),
    )


def test_a_run_of_bytes_is_shown_when_it_has_ended(tmp_path: Path) -> None:
    """A byte that makes the run invalid takes back the characters before it, so none is shown
    before that is known.
    """
    tokenizer = Tokenizer.read(build(tmp_path, "Llama 2, tokenizer.model"))
    assert tokenizer is not None
    cup, a = (
        [tokenizer.vocabulary[f"<0x{byte:02X}>"] for byte in "☕".encode()],
        tokenizer.vocabulary["a"],
    )
    for ids, shown in (
        ([*cup, a], ["", "", "", "☕a", ""]),
        ([*cup, cup[0], a], ["", "", "", "", f"{BROKEN * 4}a", ""]),
        (cup, ["", "", "", "☕"]),
    ):
        stream = TextStream(tokenizer)
        assert [*(stream.push(token) for token in ids), stream.flush()] == shown
        assert "".join(shown) == tokenizer.decode(ids)


def test_the_space_before_the_first_word_is_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(build(tmp_path, "Llama 2, tokenizer.model"))
    assert tokenizer is not None
    stream = TextStream(tokenizer)
    ids = [tokenizer.vocabulary[piece] for piece in ("<s>", "▁", "a", "▁", "▁", "a")]
    assert [stream.push(token) for token in ids] == ["", "", "a", " ", " ", "a"]


@given(st.text(alphabet=" '.,nt svrem\n", max_size=30), st.integers(0, 30))
def test_a_text_can_be_tidied_in_two_parts_where_nothing_that_follows_matters(
    text: str, at: int
) -> None:
    tokenizer = Tokenizer(BYTES.fast, clean_up=True)
    cut = tokenizer.tidied_length(text[:at])
    assert tokenizer.tidy(text[:cut]) + tokenizer.tidy(text[cut:]) == tokenizer.tidy(text)


def test_a_long_row_of_spaces_is_not_held_back() -> None:
    assert Tokenizer(BYTES.fast, clean_up=True).tidied_length("a" + " " * 1000) > 990


def test_reading_a_tokenizer_loads_neither_sentencepiece_nor_jinja() -> None:
    code = (
        "import sys, bass; from pathlib import Path; from bass import pair; from bass.text import "
        "Tokenizer; "
        "assert Tokenizer.read(Path(pair.TARGET)); assert not {'sentencepiece', 'jinja2', "
        "'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, pair.draft)


OPTIONS = {
    "num_return_sequences": 4,
    "max_new_tokens": 30,
    "temperature": 1.0,
    "top_p": 1.0,
    "ignore_eos": True,
}


def test_the_streamed_events_make_up_the_result(llm: bass.LLM) -> None:
    generation = llm.stream(["def f(", "for"], **OPTIONS)
    texts, ids = [""] * 8, [[] for _ in range(8)]
    for event in generation:
        at = event.prompt_index * 4 + event.sample_index
        texts[at] += event.text
        ids[at] += event.token_ids
    completions = generation.result().completions
    assert texts == [c.text for c in completions]
    assert ids == [c.token_ids for c in completions]
    assert [c.text for c in llm.generate(["def f(", "for"], **OPTIONS).completions] == texts


@given(cut=st.integers(0, 28), length=st.integers(1, 6))
def test_text_ends_before_the_first_stop_string(llm: bass.LLM, cut: int, length: int) -> None:
    """The stop string is taken from the unstopped text, so it may lie across tokens and steps."""
    options = OPTIONS | {"num_return_sequences": 1, "seed": cut}
    whole = llm.generate("def f(", **options).completions[0]
    assert whole.text is not None
    stop = whole.text[cut : cut + length] or whole.text[-1]
    if BROKEN in stop:  # a broken character may be mended by the tokens after it
        return
    generation = llm.stream("def f(", stop=["never in it", stop], **options)
    shown = ""
    for event in generation:
        shown += event.text
        assert stop not in shown
    stopped = generation.result().completions[0]
    assert stopped.text == shown == whole.text[: whole.text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert stop in BYTES.decode(stopped.token_ids)
    assert len(stopped.logprobs) == len(stopped.token_ids)


def test_what_could_begin_a_stop_string_is_held_back(llm: bass.LLM) -> None:
    """No event shows a text that the final text does not begin with."""
    options = OPTIONS | {"num_return_sequences": 1}
    whole = llm.generate("def f(", **options).completions[0].text
    assert whole is not None
    first = next(a + b for a, b in pairwise(whole[5:]) if BROKEN not in a + b)
    stops = [first, whole[-1] + "never"]
    generation = llm.stream("def f(", stop=stops, **options)
    shown = ""
    for event in generation:
        shown += event.text
        assert not shown.endswith(first[0]) or event.finish_reason
    assert generation.result().completions[0].text == shown


def test_a_tokenizer_trained_with_dropout_encodes_a_text_in_one_way(tmp_path: Path) -> None:
    said = json.loads(byte_tokenizer().to_str())
    for folder, dropout in (("with", 0.9), ("without", None)):
        (tmp_path / folder).mkdir()
        said["model"]["dropout"] = dropout
        (tmp_path / folder / "tokenizer.json").write_text(json.dumps(said), encoding="utf-8")
    with_dropout, without = (Tokenizer.read(tmp_path / name) for name in ("with", "without"))
    assert with_dropout is not None
    assert without is not None
    text = "def double(value): return 2 * value"
    assert [with_dropout.encode(text) for _ in range(9)] == [without.encode(text)] * 9
