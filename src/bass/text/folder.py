"""Builds a `tokenizers` object from the files of a folder, by the rules of `transformers`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, Unigram

from bass.checkpoints.folder import read_json
from bass.errors import CheckpointError
from bass.text.kinds import Merges, Settings, Vocabulary, kind_of, spaced_decoder

JSON, PIECES, VOCABULARY, MERGES = "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = str | AddedToken
_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_UNIGRAM, _CONTROL, _USER_DEFINED = 1, 3, 4  # of sentencepiece_model.proto


def source(folder: Path) -> str | None:
    """The first existing file that holds a vocabulary; None without any.

    Raises `CheckpointError` for a folder whose only vocabulary is a list of ranks.
    """
    for name in (JSON, PIECES, VOCABULARY):
        if (folder / name).exists():
            return name
    formats = ("tekken.json", "tiktoken.model", "*.tiktoken")
    if ranks := [path.name for pattern in formats for path in folder.glob(pattern)]:
        raise CheckpointError(
            f"`{folder}` has its tokenizer as {ranks[0]} alone, which `bass` does not read: write "
            "tokenizer.json once, with `pip install transformers tiktoken` and "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
        )
    return None


def optional_json(path: Path) -> dict[str, Any]:
    """The content of the file; empty without a file."""
    return read_json(path) if path.exists() else {}


def assemble(folder: Path, file: str, settings: Settings) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer whose vocabulary is in `file`, and its named special tokens.

    settings: tokenizer_config.json. A damaged file raises the errors of the libraries.
    """
    config = optional_json(folder / "config.json")
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    kind = kind_of(config.get("model_type"), named, byte_level=file == VOCABULARY)
    text = (folder / JSON).read_text(encoding="utf-8") if file == JSON else None
    whole = None if text is None else Tokenizer.from_str(text)
    pieces = _sentencepiece(folder / PIECES) if file == PIECES else None
    special = _SpecialTokens.read(folder, settings, kind.special if kind else {}, whole, pieces)
    if kind is not None:
        if text is not None:
            model = _vocabulary_and_merges(json.loads(text)["model"])
        elif pieces is not None:
            model = _vocabulary(pieces), _merges(_vocabulary(pieces))
        else:
            model = BPE.read_file(str(folder / VOCABULARY), str(folder / MERGES))
        fast = kind.build(*model, {**settings, **special.texts})
        if whole is not None and whole.post_processor is not None:
            fast.post_processor = whole.post_processor
    else:
        fast = _of_pieces(pieces, special) if whole is None else whole
    if isinstance(fast.model, BPE):
        fast.model.dropout = None  # of training; it makes encoding random
    fast.no_truncation()  # of training, too: a prompt is never cut
    fast.no_padding()
    fast.encode_special_tokens = bool(settings.get("split_special_tokens"))
    special.join(fast)
    ends = {} if kind is None or kind.add_bos is None else {"add_bos_token": kind.add_bos}
    if file != JSON:
        names = ("add_bos_token", "add_eos_token")
        ends |= {name: bool(settings[name]) for name in names if name in settings}
    if ends or fast.post_processor is None or (kind is not None and kind.replaces_ends):
        special.frame(fast, ends)
    if kind is not None and kind.drops_flags:
        texts = dict.fromkeys(map(str, (*special.named.values(), *special.others)))
        fast.add_tokens([AddedToken(text, special=True) for text in texts])
    return fast, special.texts


def _vocabulary_and_merges(model: Mapping[str, Any]) -> tuple[Vocabulary, Merges]:
    """Those of the `model` in tokenizer.json; a unigram model has pieces with scores instead."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    pairs = (m.split(" ") if isinstance(m, str) else m for m in model.get("merges", ()))
    return vocabulary, [(left, right) for left, right in pairs]


def _sentencepiece(path: Path) -> Any:
    """The ModelProto in a tokenizer.model, BPE or unigram."""
    from sentencepiece import sentencepiece_model_pb2  # here, because few checkpoints need it

    model = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    model.ParseFromString(path.read_bytes())
    return model


def _vocabulary(pieces: Any) -> Vocabulary:
    return {piece.piece: index for index, piece in enumerate(pieces.pieces)}


def _merges(vocabulary: Vocabulary) -> Merges:
    """Every split of a piece into two others, in order: sentencepiece stores only results."""
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(vocabulary, key=vocabulary.__getitem__)
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]


def _of_pieces(pieces: Any, special: "_SpecialTokens") -> Tokenizer:
    """The tokenizer that `transformers` makes of a sentencepiece model without a specific class."""
    spec, charsmap = pieces.trainer_spec, pieces.normalizer_spec.precompiled_charsmap
    options = {"byte_fallback": spec.byte_fallback}
    if spec.model_type == _UNIGRAM:
        scores = [(piece.piece, piece.score) for piece in pieces.pieces]
        fast = Tokenizer(Unigram(scores, unk_id=spec.unk_id, **options))
    else:
        vocabulary = special.renamed(_vocabulary(pieces))
        options |= {"unk_token": spec.unk_piece, "fuse_unk": True}
        fast = Tokenizer(BPE(vocabulary, _merges(vocabulary), **options))
    first = [normalizers.Precompiled(charsmap)] if charsmap else []
    fast.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    to_spaces = decoders.Sequence([decoders.Replace("▁", " ")])
    fast.decoder = spaced_decoder(strip=False) if spec.byte_fallback else to_spaces
    return fast


@dataclass(frozen=True)
class _SpecialTokens:
    """Special and added tokens of a folder: by id, by name (such as `bos_token`), and others."""

    by_id: Mapping[int, AddedToken]
    named: Mapping[str, Token]
    others: list[Token]

    @classmethod
    def read(
        cls,
        folder: Path,
        settings: Settings,
        defaults: Mapping[str, str],
        whole: Tokenizer | None,
        pieces: Any,
    ) -> "_SpecialTokens":
        """Gather them from the files.

        defaults: of the class; without any, those of `pieces` (tokenizer.model). whole: the content
        of tokenizer.json. special_tokens_map.json and added_tokens.json count only where
        tokenizer_config.json has no `added_tokens_decoder`.
        """
        given, decoder = _names_of(settings), settings.get("added_tokens_decoder")
        lists = ("extra_special_tokens", "additional_special_tokens")
        # the first list that is given, though it be empty
        extra = next((settings[name] or [] for name in lists if name in settings), None)
        others: Iterable[Any] = () if pieces is None else _symbols(pieces)
        if decoder is None:
            earlier = optional_json(folder / "special_tokens_map.json")
            given |= {
                name: _added(value, special=True) if isinstance(value, dict) else value
                for name, value in _names_of(earlier).items()
            }
            if isinstance(more := earlier.get("extra_special_tokens"), list):
                extra = [*(extra if isinstance(extra, list) else []), *more]
            if pieces is None:
                others = earlier.get("additional_special_tokens") or ()
        if isinstance(extra, Mapping):  # tokens with names of the checkpoint's own
            given |= extra
            extra = None
        if decoder is None:
            known = {str(given[name]) for name in NAMES if given.get(name)}
            known |= {str(token) for token in extra or ()}
            by_id = {
                index: AddedToken(text, normalized=text not in known, special=text in known)
                for text, index in optional_json(folder / "added_tokens.json").items()
            } | ({} if whole is None else whole.get_added_tokens_decoder())
        else:
            by_id = {int(index): _added(token) for index, token in decoder.items()}
        if pieces is not None and not defaults:
            defaults = _ends(pieces.trainer_spec)
        values = dict.fromkeys(NAMES) | dict(defaults) | given  # in the order of their ids
        named = {name: _token(value) for name, value in values.items() if value is not None}
        flagged = {str(token): token for token in by_id.values()}
        named |= {n: flagged.get(str(token), token) for n, token in named.items() if n in NAMES}
        return cls(by_id, named, [_token(token) for token in (others if extra is None else extra)])

    @property
    def texts(self) -> dict[str, str]:
        """Name -> token."""
        return {name: str(token) for name, token in self.named.items()}

    def renamed(self, vocabulary: Vocabulary) -> Vocabulary:
        """The vocabulary with pieces renamed by the folder's added tokens, such as placeholders."""
        names = {i: str(token) for i, token in self.by_id.items() if str(token) not in vocabulary}
        return {names.get(i, piece): i for piece, i in vocabulary.items()}

    def join(self, fast: Tokenizer) -> None:
        """Add the missing tokens to the tokenizer: those with ids first, so that they keep them."""
        tokens: list[Token] = [token for _, token in sorted(self.by_id.items())]
        known = {token.content for token in fast.get_added_tokens_decoder().values()}
        known |= set(map(str, tokens))
        more = dict.fromkeys((*self.named.values(), *self.others))
        tokens += [token for token in more if str(token) not in known]
        adding = [AddedToken(t, special=True) if isinstance(t, str) else t for t in tokens]
        names = set(self.texts.values())
        for token in adding:
            token.special = token.special or str(token) in names
        fast.add_tokens(adding)

    def frame(self, fast: Tokenizer, ends: Mapping[str, bool]) -> None:
        """Make `fast` add the beginning and the end of a sequence to a text, if `ends` says so."""
        bos, eos = (
            [token] if ends.get(f"add_{name}") and (token := self.texts.get(name)) else []
            for name in ("bos_token", "eos_token")
        )
        fast.post_processor = processors.TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=None,
            special_tokens=[(token, fast.token_to_id(token)) for token in (*bos, *eos)],
        )


def _names_of(settings: Settings) -> dict[str, Any]:
    """The entries that name a token; others, such as `add_bos_token`, are booleans."""
    return {
        name: value
        for name, value in settings.items()
        if name in NAMES or (name.endswith("_token") and isinstance(value, str | dict))
    }


def _symbols(pieces: Any) -> list[AddedToken]:
    """The control and user-defined symbols of a sentencepiece model."""
    return [
        AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
        for piece in pieces.pieces
        if piece.type in (_CONTROL, _USER_DEFINED)
    ]


def _ends(spec: Any) -> dict[str, str]:
    """The tokens of a sentencepiece model for beginning, end and unknown."""
    ends = {
        "bos_token": (spec.bos_id, spec.bos_piece),
        "eos_token": (spec.eos_id, spec.eos_piece),
        "unk_token": (spec.unk_id, spec.unk_piece),
    }
    return {name: piece for name, (index, piece) in ends.items() if index >= 0}


def _token(value: Any) -> Token:
    return value if isinstance(value, str | AddedToken) else _added(value)


def _added(value: Mapping[str, Any], **flags: Any) -> AddedToken:
    """A token with its flags, from an object of a file."""
    return AddedToken(**{name: flag for name, flag in value.items() if name in _FIELDS} | flags)
