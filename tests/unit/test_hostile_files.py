"""Files that are made to hang or to fill the memory: one sentence within two seconds of processor
time.
"""

import base64
import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer

from bass.checkpoints.folder import INDEX, SINGLE
from bass.errors import BassError, CheckpointError
from bass.text import ChatTemplates, Tokenizer, limits
from unit.checkpoints import Pair, Said
from unit.text_flavours import build

Command = Callable[..., Said]
pytestmark = pytest.mark.timeout(60)
USER = {"role": "user", "content": "hello"}


@contextmanager
def at_once(seconds: float = 2.0) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def sequence(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


def replace(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


DOUBLE = replace({"String": "a"}, "aa")
SPLIT = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
TOKEN = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}
TABLE = struct.pack("<I", 0) + b"x" * 100_000 + b"\0"
LONG = [TOKEN | {"id": 400 + i, "content": "x" * 250} for i in range(1000)]
TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "an id of a billion": ({"model.vocab.c": 10**9}, "its largest id is 1000000000"),
    "an added token with an id of a billion": ({"added_tokens": [TOKEN | {"id": 10**9,
        "content": "x"}]}, "added token is 1000000000"),
    "text that doubles": ({"normalizer": sequence("normalizers", [DOUBLE] * 40)},
        "may become of one"),
    "text that doubles, nested": ({"normalizer": sequence("normalizers",
        [sequence("normalizers", [DOUBLE] * 6)] * 6)}, "may become"),
    "nothing that becomes much": ({"normalizer": replace({"String": ""}, "x" * 2000)},
        "may become of one"),
    "an expression that becomes much": ({"normalizer": replace({"Regex": ""}, "x" * 2000)},
        "may become of one"),
    "prefixes": ({"normalizer": sequence("normalizers",
        [{"type": "Prepend", "prepend": "ab"}] * 20)}, "may become of one"),
    "a table that becomes much": (
        {"normalizer": {"type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(TABLE).decode()}},
        "may become of one",
    ),
    "unfolding and folding": (
        {"normalizer": sequence("normalizers",
            [{"type": "NFKD"}, replace({"String": "aaaaaa"}, "bbbbbb")] * 9)},
        "may become of one",
    ),
    "bytes of bytes": ({"pre_tokenizer": sequence("pretokenizers", [BYTES] * 30)},
        "may become of one"),
    "a decoder that doubles": ({"decoder": sequence("decoders", [DOUBLE] * 40)},
        "may become of one by its decoders"),
    "a decoder that strips more": (
        {"decoder": {"type": "Strip", "content": "a", "start": 3, "stop": 0}},
        "characters are stripped from the start of a text"),
    "bytes after the text is joined": ({"decoder": sequence("decoders",
        [{"type": "Fuse"}, {"type": "ByteFallback"}])},
        "the decoder ByteFallback comes after Fuse, which is not supported"),
    "a word replaced after the text is joined": ({"decoder": sequence("decoders",
        [{"type": "ByteFallback"}, replace({"String": "ab"}, "a")])},
        "the decoder Replace comes after ByteFallback"),
    "bytes of words": ({"decoder": sequence("decoders", [{"type": "WordPiece", "prefix": "##",
        "cleanup": True}, {"type": "ByteFallback"}])},
        "the decoder ByteFallback comes after WordPiece"),
    "a decoder with an expression": ({"decoder": replace({"Regex": "(a|aa)+$"}, "")},
        "a decoder has a regular expression"),
    "a normalizer with an expression": ({"normalizer": replace({"Regex": "(a|aa)+$"}, "")},
        "only simple ones are supported"),
    "normalizers by the thousand": ({"normalizer": sequence("normalizers",
        [{"type": "NFC"}] * 5000)}, "in one sequence"),
    "a text said a thousand times": (
        {"post_processor": TEMPLATE | {"single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1000}},
        "put around a text",
    ),
    "a long token": ({"model.vocab.long": {"x" * 5000: 0}}, "characters in a token"),
    "a sequence hidden in a part": ({"normalizer": replace({"String": "a"},
        "a" * 2000) | {"normalizers": []}}, "may become of one"),
    "a part that names no type": ({"normalizer": {"pattern": {"String": "a"}, "content": "aa"}},
        "unknown type"),
    "a part of another type": ({"normalizer": DOUBLE | {"type": "replace"}}, "unknown type"),
    "a decoder between all characters": ({"decoder": sequence("decoders",
        [{"type": "BPEDecoder", "suffix": ""}] * 20)}, "by its decoders"),
    "long expressions": ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": r"[\pL&&[^\pN]]" * 1000}}},
        "in its regular expressions"),
    "added tokens that become much": (
        {"normalizer": replace({"String": "x"}, "x" * 150), "added_tokens": LONG},
        "of all added tokens by the normalizers",
    ),
    "an expression for long tokens": (
        {"normalizer": replace({"Regex": "a+b"}, ""),
            "added_tokens": [TOKEN | {"id": 400, "content": "a" * 5000}]},
        "characters in an added token",
    ),
    "deep nesting": ({"normalizer": json.loads("[" * 500 + "]" * 500)}, "not a readable tokenizer"),
}  # fmt: skip


def edited(folder: Path, changes: dict[str, Any]) -> None:
    """tokenizer.json with values at these places; a mapping for `model.vocab.long` joins the
    vocabulary.
    """
    said = json.loads((folder / "tokenizer.json").read_text())
    for place, value in changes.items():
        *path, last = place.split(".")
        holder = said
        for key in path:
            holder = holder[key]
        holder.update(value) if last == "long" else holder.update({last: value})
    (folder / "tokenizer.json").write_text(json.dumps(said))


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_that_asks_for_too_much_is_refused(
    pair: Pair, tmp_path: Path, case: str
) -> None:
    folder = pair.copy(tmp_path).target
    changes, words = TOKENIZERS[case]
    edited(folder, changes)
    with at_once(), pytest.raises(CheckpointError, match=words):
        Tokenizer.read(folder)


COUNTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tokens": ("MOST_TOKENS", {}, "tokens, and the limit is 10"),
    "merges": ("MOST_MERGES", {}, "merges, and the limit is 10"),
    "letters": ("MOST_LETTERS", {}, "characters in all tokens, and the limit is 10"),
    "added tokens": (
        "MOST_ADDED",
        {"added_tokens": [TOKEN | {"id": 400 + i, "content": f"<{i}>"} for i in range(11)]},
        "added tokens, and the limit is 10",
    ),
}


@pytest.mark.parametrize("case", COUNTS)
def test_a_tokenizer_of_too_many_parts_is_refused(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    folder = pair.copy(tmp_path).target
    name, changes, words = COUNTS[case]
    edited(folder, changes)
    assert Tokenizer.read(folder) is not None
    monkeypatch.setattr(limits, name, 10)
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.read(folder)


def test_added_tokens_of_other_files_count(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_ADDED", 10)
    listed = [f"<{i}>" for i in range(11)]
    files: dict[str, Any] = {
        "tokenizer_config.json": {"additional_special_tokens": listed},
        "special_tokens_map.json": {"additional_special_tokens": listed},
        "added_tokens.json": {name: 400 + i for i, name in enumerate(listed)},
    }
    for i, (name, content) in enumerate(files.items()):
        folder = pair.copy(tmp_path / str(i)).target
        (folder / name).write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match="added tokens, and the limit is 10"):
            Tokenizer.read(folder)


def test_pieces_of_sentencepiece_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path, "unigram, tokenizer.model")
    assert Tokenizer.read(folder) is not None
    monkeypatch.setattr("bass.text.limits.MOST_SPLITS", 10)
    with pytest.raises(CheckpointError, match=r"can be split in .* ways, and the limit is 10"):
        Tokenizer.read(folder)


def test_patterns_that_do_not_end_are_given_up(pair: Pair, tmp_path: Path) -> None:
    folder = pair.copy(tmp_path).target
    edited(folder, {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "a*a*a*b"}}})
    tokenizer = Tokenizer.read(folder)
    assert tokenizer is not None
    with (
        at_once(2.5),
        pytest.raises(
            CheckpointError, match=r"takes more than 1\.5 seconds for a text of \d+ characters"
        ),
    ):
        tokenizer.encode("a" * 350 + "cb")


def test_a_decoder_that_panics_is_told(pair: Pair, tmp_path: Path) -> None:
    folder = pair.copy(tmp_path).target
    edited(folder, {"decoder": {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63}})
    tokenizer = Tokenizer(FastTokenizer.from_file(str(folder / "tokenizer.json")))
    with pytest.raises(
        CheckpointError, match=r"cannot decode its own tokens \(.*\): download it again\.$"
    ):
        tokenizer.decode([tokenizer.vocabulary["a"]])


def test_sound_tokenizers_are_far_below_the_limits(pair: Pair) -> None:
    tokenizer = Tokenizer.read(pair.target)
    assert tokenizer is not None
    assert tokenizer.encode("x " * 100_000)
    for pattern in (" {2,}", r"\s+", "[ \t]+", r"\\n", "^ ", "``|''", r"\p{Zs}+"):
        assert limits.is_simple(pattern), pattern
    for pattern in (
        "(a|aa)+$",
        "a*a*b",
        r"(?<n>a\g<n>?b)",
        r"(a)\1",
        "[a-z&&[aeiou]]+",
        "(?=a)",
        "a{2}b{3}",
    ):
        assert not limits.is_simple(pattern), pattern


TEMPLATES = {
    "a loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long text": "{{ 'x' * 10000000000 }}",
    "text that doubles": (
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% "
        "endfor %}{{ ns.x }}"
    ),
    "a list of lists": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}{{ ns.x }}"
    ),
    "a number": "{{ 10 ** (10 ** 8) }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "an indent": "{{ 'x' | indent(10000000000) }}",
    "a filler": "{{ 'x'.center(10000000000) }}",
    "filler text": "{{ lipsum(n=100000000) }}",
    "a text for a long prompt": "{{ 'x' * 900000 }}",
    "a long reason": "{{ raise_exception('xy ' * 20000000) }}",
    "a long name": "{{ ['x' * 100000000].pop().y.z }}",
    "an expression of brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
}

# each takes much of the second that it may
SECOND = ("a list of lists", "a number", "filler text", "a long name", "a loop", "a long reason")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.nightly if case in SECOND else ()) for case in TEMPLATES],
)
def test_a_template_that_does_not_end_is_refused(case: str) -> None:
    began = sum(os.times()[:4])
    with pytest.raises(BassError, match=r"chat template.*: .*\.$") as caught:
        ChatTemplates({"default": TEMPLATES[case]}).render([USER])
    assert sum(os.times()[:4]) - began < 3
    assert len(str(caught.value)) < 1000


def many_tensors(folder: Path) -> None:
    header = (
        b"{"
        + b",".join(
            b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(101_000)
        )
        + b"}"
    )
    (folder / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header)


def long_header(folder: Path) -> None:
    header = b"{" + b" " * (33 << 20) + b"}"
    (folder / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header)


def many_headers(folder: Path) -> None:
    header = b"{" + b" " * (9 << 20) + b"}"
    names = [f"{i}.safetensors" for i in range(20)]
    (folder / names[0]).write_bytes(len(header).to_bytes(8, "little") + header)
    for name in names[1:]:
        (folder / name).symlink_to(names[0])
    index(folder, {f"t{i}": name for i, name in enumerate(names)})


def index(folder: Path, places: dict[str, str]) -> None:
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def config(**changes: Any) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        said = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(said | changes))

    return edit


def deep_model(folder: Path) -> None:
    header = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5_000)}
    text = json.dumps(header).encode()
    (folder / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text)
    config(num_hidden_layers=5_000)(folder)


def wide_model(folder: Path) -> None:
    header = {"t": {"dtype": "F32", "shape": [2**31, 0], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (folder / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text)
    config(
        num_attention_heads=2**28,
        num_key_value_heads=2**28,
        head_dim=4,
        num_hidden_layers=1,
        hidden_size=2**30,
    )(folder)


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "many tensors": (many_tensors, "101,000 tensors, and the limit is 100,000"),
    "a long header": (long_header, "take more than 32 MiB"),
    "many long headers": (many_headers, "take more than 32 MiB"),
    "many shards": (
        lambda f: index(f, {f"t{i}": f"{i}.safetensors" for i in range(300_000)}),
        "names 300,000 tensors",
    ),
    "as many shards": (
        lambda f: index(f, {f"t{i}": f"{i}.safetensors" for i in range(50_000)}),
        "names 50,000 files",
    ),
    "many values": (config(layer_types=[[]] * 5_000_000), "values, and the limit is 4,000,000"),
    "a long file": (config(x="x" * (40 << 20)), "larger than the limit of 32 MiB"),
    "deep nesting": (lambda f: (f / "config.json").write_text("[" * 10**6), "not readable as JSON"),
    "many ends": (config(eos_token_id=list(range(100_000))), "100,000 ids in its eos_token_id"),
    "a deep model": (deep_model, "num_hidden_layers=5000"),
    "a wide model": (wide_model, "in its config.json, and the limit is"),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_that_asks_for_too_much_is_refused(
    bass_command: Command, pair: Pair, tmp_path: Path, case: str
) -> None:
    folder = pair.copy(tmp_path).target
    damage, words = CHECKPOINTS[case]
    damage(folder)
    with at_once():
        said = bass_command("info", str(folder))
    assert (said.status, said.out) == (2, "")
    assert words in said.err
    assert len(said.err) < 6000
