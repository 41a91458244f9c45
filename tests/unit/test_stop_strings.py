"""A completion ends with the first token for which the decoding of all tokens up to it contains a
stop string, or a special token with whose text one ends.
"""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

import bass
from bass.api.llm import LLM
from bass.text import StopStrings, Tokenizer, Transcript
from unit.checkpoints import write_checkpoint
from unit.text_folders import FLAVOURS, build, strings

BROKEN = "\N{REPLACEMENT CHARACTER}"
# Bytes as tokens with and without a leading space, cleaning of spaces, WordPiece, byte-level.
KINDS = ("Llama 2, tokenizer.model", "unigram, tokenizer.model", "Phi 2", "StarCoder 2")
COMMON = [
    "\n", "\n\n", " ", " '", "'s", "n't", " .", ".", "a", "é", "☕", "never in it", BROKEN,
    "a" + BROKEN, BROKEN * 2,
]  # fmt: skip
CASES = 60


@cache
def tokenizer_of(root: Path, flavour: str) -> Tokenizer:
    tokenizer = Tokenizer.read(build(root, flavour))
    assert tokenizer is not None
    return tokenizer


def expected(
    tokenizer: Tokenizer, ids: list[int], prefixes: list[str], stops: list[str]
) -> tuple[int, str, bool]:
    """(tokens kept, text, whether a stop string ended it), from what each prefix of the tokens
    decodes to.
    """
    for count, text in enumerate(prefixes):
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return count, text[: min(found)], True
        special = tokenizer.silent.get(ids[count - 1]) if count else None
        begun = [one[: -len(special)] for one in stops if special and one.endswith(special)]
        if before := [len(text) - len(one) for one in begun if text.endswith(one)]:
            return count, text[: min(before)], True
    return len(prefixes) - 1, prefixes[-1], False


def drawn_stops(draw: random.Random, tokenizer: Tokenizer, prefixes: list[str]) -> list[str]:
    """Parts of what prefixes of the tokens decode to, most often of their ends, some with one
    character changed; and special tokens.
    """
    silent = tokenizer.silent.values()
    stops = [draw.choice([*COMMON, *silent])] * draw.randrange(2)
    while not stops or draw.random() < 0.5:
        text = draw.choice(prefixes)
        end = draw.choice([len(text), draw.randrange(len(text) + 1)])
        part = text[max(end - draw.randrange(1, 7), 0) : end]
        ends = [part[-1:], part[-1:], " ", "x", part[-1:] + draw.choice([*silent, ""])]
        stops += [part[:-1] + draw.choice(ends) if part else "\n"]
    return stops


def drawn_ids(draw: random.Random, tokenizer: Tokenizer, length: int = 25) -> list[int]:
    """The tokens of a text, or any, with many bytes, special tokens and ids beyond the vocabulary;
    or bytes of characters among others.
    """
    size = tokenizer.fast.get_vocab_size()
    broken = [token for token in range(size) if tokenizer.decode([token]).endswith(BROKEN)]
    odd = draw.choice([broken, broken[:1], sorted(tokenizer.bytes), sorted(tokenizer.silent)])
    kind = draw.randrange(4)
    if kind == 0 and size > 256:
        return tokenizer.encode(draw.choice(strings()))[:40]
    if kind == 1 and tokenizer.bytes:
        some = ["☕", "é", "\n", " ", "😀", "a", " .", "n't"]
        text = "".join(draw.choice(some) for _ in range(draw.randrange(1, 9)))
        ids = [tokenizer.vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]
        for _ in range(draw.randrange(3)):
            ids.insert(draw.randrange(len(ids) + 1), draw.randrange(size))
        return ids
    share = draw.random()
    return [
        draw.choice(odd or [size + 5]) if draw.random() < share else draw.randrange(size)
        for _ in range(draw.randrange(1, length))
    ]


def check_transcript(draw: random.Random, tokenizer: Tokenizer, length: int = 25) -> bool:
    """One drawn case; whether a stop string ended it."""
    ids = drawn_ids(draw, tokenizer, length)
    prefixes = [tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    stops = drawn_stops(draw, tokenizer, prefixes)
    count, text, stopped = expected(tokenizer, ids, prefixes, stops)
    transcript, taken, given = Transcript(tokenizer, StopStrings(stops)), 0, ""
    while taken < len(ids) and not transcript.stopped:
        tokens = ids[taken : taken + draw.randrange(1, 6)]
        kept, piece = transcript.push(tokens)
        taken, given = taken + kept, given + piece
        assert transcript.text == (text if transcript.stopped else prefixes[taken]), (stops, ids)
        assert text.startswith(given), (stops, ids)
    given += "" if transcript.stopped else transcript.finish()
    found = (taken, given, transcript.text, transcript.stopped)
    assert found == (count, text, text, stopped), (stops, ids)
    return stopped


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_stop_string_ends_a_text_as_the_decoding_of_every_prefix_says(
    tmp_path_factory: pytest.TempPathFactory, flavour: str
) -> None:
    tokenizer, draw = tokenizer_of(tmp_path_factory.getbasetemp(), flavour), random.Random(flavour)
    ended = sum(check_transcript(draw, tokenizer) for _ in range(CASES))
    assert CASES // 4 < ended < CASES


def test_tokens_that_end_within_characters_make_the_text_of_every_prefix() -> None:
    """Every piece of the bytes of two characters as a token: long rows of tokens that are no text
    so far, which one token may complete.
    """
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    [(spelled, _)] = to_bytes.pre_tokenize_str("😀é")
    ends = [(start, end) for start in range(6) for end in range(start + 1, min(start + 5, 7))]
    pieces = sorted({spelled[start:end] for start, end in ends})
    fast = FastTokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    fast.decoder = decoders.ByteLevel()
    tokenizer, draw = Tokenizer(fast), random.Random(0)
    assert sum(check_transcript(draw, tokenizer, length=60) for _ in range(10 * CASES)) > CASES


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> bass.LLM:
    """A draft that is the target itself, so that steps commit several tokens; more ids than any of
    the tokenizers has.
    """
    folder = write_checkpoint(tmp_path_factory.mktemp("target"), None, 32, 2, 470)
    return bass.load(folder, folder, num_speculative_tokens=5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_ends_with_the_token_that_completes_a_stop_string(
    llm: bass.LLM, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    tokenizer = tokenizer_of(tmp_path_factory.getbasetemp(), kind)
    draw, stopped = random.Random(kind), 0
    with_text = LLM(replace(llm.models, tokenizer=tokenizer), llm.plan)
    options: dict[str, Any] = {"num_return_sequences": 6, "max_new_tokens": 24}
    options |= {"temperature": 5.0, "top_p": 1.0, "ignore_eos": True}
    for seed in range(4):
        whole = with_text.generate([[7]], seed=seed, **options).completions
        prefixes = [
            [tokenizer.decode(c.token_ids[:t]) for t in range(len(c.token_ids) + 1)] for c in whole
        ]
        assert [c.text for c in whole] == [own[-1] for own in prefixes]
        stops = [stop for own in prefixes for stop in drawn_stops(draw, tokenizer, own)[-1:]]
        generation = with_text.stream([[7]], seed=seed, stop=stops, **options)
        events = list(generation)
        result = generation.result()
        for i, (free, cut) in enumerate(zip(whole, result.completions, strict=True)):
            count, text, stop = expected(tokenizer, free.token_ids, prefixes[i], stops)
            reason = "stop" if stop else "length"
            kept = free.token_ids[:count], text, reason
            assert (cut.token_ids, cut.text, cut.finish_reason) == kept, (stops, free.token_ids)
            own = [event for event in events if event.sample_index == i]
            assert "".join(event.text for event in own) == text
            assert [token for event in own for token in event.token_ids] == cut.token_ids
            logprobs = [p for event in own for p in event.logprobs]
            assert logprobs == cut.logprobs == free.logprobs[:count]
            assert [event.finish_reason for event in own if event.finish_reason] == [reason]
            stopped += stop
        assert result.stats.tokens == sum(len(c.token_ids) for c in result.completions)
    assert stopped > 8
