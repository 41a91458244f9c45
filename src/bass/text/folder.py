"""Builds a `tokenizers` object from the files of a checkpoint folder, by the rules of
`transformers`.
"""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from bass.checkpoints.folder import read_json
from bass.files import read_regular
from bass.plain_json import parse_json
from bass.text.kinds import BYTE_LEVEL, KINDS, Merges, class_name
from bass.text.limits import LARGEST_FILE, check_json, check_merges, check_vocabulary
from bass.text.pieces import Pieces, merges
from bass.text.ranks import KIMI, TEKKEN, Ranks, is_tiktoken
from bass.text.special import SpecialTokens, optional_json

JSON, PIECES, VOCABULARY, MERGES = "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"


def source(folder: Path) -> str | None:
    """The first existing file that holds a vocabulary."""
    ranks = [TEKKEN, KIMI, *sorted(path.name for path in islice(folder.glob("*.tiktoken"), 10))]
    names = (JSON, PIECES, *ranks, VOCABULARY)
    return next((name for name in names if (folder / name).exists()), None)


def assemble(
    folder: Path, file: str, settings: dict[str, Any]
) -> tuple[FastTokenizer, dict[str, str]]:
    """The tokenizer whose vocabulary is in `file`, and its named special tokens.

    settings: tokenizer_config.json. A damaged file raises the errors of the libraries.
    """
    config = optional_json(folder / "config.json")
    name = class_name(
        config.get("model_type"), settings.get("tokenizer_class") or config.get("tokenizer_class")
    )
    kind = KINDS.get("GPT2Tokenizer" if file == VOCABULARY and name not in BYTE_LEVEL else name)
    data = parse_json(read_regular(folder / JSON, LARGEST_FILE)) if file == JSON else None
    check_json(data)
    if isinstance(data, dict) and isinstance(model := data.get("model"), dict):
        model.pop("dropout", None)  # a training option, which makes encoding random
    # of a duplicate key, the checked one
    loaded = FastTokenizer.from_str(json.dumps(data)) if file == JSON else None
    ranks = _ranks(folder / file, config.get("model_type"), settings)
    if ranks is not None:
        kind, loaded = None, ranks.build()
    pieces = Pieces.read(folder / PIECES) if file == PIECES and ranks is None else None
    defaults = next((part.special for part in (kind, pieces) if part), ranks.named if ranks else {})
    own = loaded.get_added_tokens_decoder() if loaded else {}
    special = SpecialTokens.read(folder, settings, defaults, own, pieces.added if pieces else None)
    if kind is not None:
        vocabulary, merged = _pieces_and_merges(folder, data, pieces)
        fast = kind.build(vocabulary, merged, settings | special.texts)
        if loaded is not None and loaded.post_processor is not None:
            fast.post_processor = loaded.post_processor
    elif loaded is not None:
        fast = loaded
    else:
        assert pieces is not None
        fast = pieces.plain(_renamed(pieces.vocabulary, special))
    requested = (
        {}
        if file == JSON
        else {
            name: bool(settings[name])
            for name in ("add_bos_token", "add_eos_token")
            if name in settings
        }
    )
    if kind is not None and kind.add_bos is not None:
        requested = {"add_bos_token": kind.add_bos} | requested
    if ranks is not None:
        requested = {"add_bos_token": ranks.add_bos} | requested
    fast.no_truncation()  # a stored training setting; prompts are not truncated
    fast.no_padding()
    fast.encode_special_tokens = bool(settings.get("split_special_tokens"))
    special.join(fast)
    if requested or fast.post_processor is None or (kind is not None and kind.own_ends):
        special.frame(
            fast, requested.get("add_bos_token", False), requested.get("add_eos_token", False)
        )
    if kind is not None and kind.special_again:
        special.forget_flags(fast)
    return fast, special.texts


def _ranks(path: Path, model_type: Any, settings: dict[str, Any]) -> Ranks | None:
    """The content of a file of ranks; None for any other."""
    if path.name in (JSON, VOCABULARY) or (path.name == PIECES and not is_tiktoken(path)):
        return None
    return Ranks.read(path, model_type, settings)


def _pieces_and_merges(
    folder: Path, data: dict[str, Any] | None, pieces: Pieces | None
) -> tuple[dict[str, int], Merges]:
    """The pieces and merges of tokenizer.model, of tokenizer.json (with the content `data`), or
    else of vocab.json and merges.txt.
    """
    if pieces is not None:
        return pieces.vocabulary, merges(pieces.vocabulary)
    if data is None:
        check_vocabulary(read_json(folder / VOCABULARY, LARGEST_FILE))
        check_merges(read_regular(folder / MERGES, LARGEST_FILE).count(b"\n"))
        return BPE.read_file(str(folder / VOCABULARY), str(folder / MERGES))
    model = data["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # a unigram model: pieces with their scores
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    return vocabulary, [
        _pair(*(merge.split(" ") if isinstance(merge, str) else merge))
        for merge in model.get("merges", ())
    ]


def _renamed(vocabulary: dict[str, int], special: SpecialTokens) -> dict[str, int]:
    """The vocabulary with pieces renamed by the folder's added tokens, such as placeholders."""
    by_id = {index: piece for piece, index in vocabulary.items()}
    for index, token in special.by_id.items():
        if index in by_id and str(token) not in vocabulary:
            vocabulary[str(token)] = vocabulary.pop(by_id[index])
            by_id[index] = str(token)
    return vocabulary


def _pair(left: str, right: str) -> tuple[str, str]:
    return left, right
