"""The special and added tokens of a folder's files, and how to add them to a vocabulary."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from bass.checkpoints.folder import read_json
from bass.text.limits import check_added, grown

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = str | AddedToken
_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens by id, by name (such as `bos_token`), and without either."""

    by_id: Mapping[int, AddedToken]
    named: Mapping[str, Token]
    others: list[Token]

    @classmethod
    def read(
        cls,
        folder: Path,
        settings: Mapping[str, Any],
        defaults: Mapping[str, str],
        own: Mapping[int, AddedToken],
        pieces: list[AddedToken] | None,
    ) -> "SpecialTokens":
        """Gather them from the files.

        settings: tokenizer_config.json. defaults: of the class. own: the added tokens of
        tokenizer.json. pieces: the control and user-defined symbols of tokenizer.model. A list of
        the same tokens in a later file counts only where the earlier ones have none.
        """
        given = _tokens_of(settings)
        lists = [
            settings[name]
            for name in ("extra_special_tokens", "additional_special_tokens")
            if name in settings
        ]
        extra = (lists[0] or []) if lists else None  # None: not given, unlike an empty list
        others: Any = pieces or []
        by_id: dict[int, AddedToken] = {}
        if "added_tokens_decoder" in settings:
            check_added(settings["added_tokens_decoder"])  # before the tokens are built
            by_id = {
                int(index): _added(token)
                for index, token in settings["added_tokens_decoder"].items()
            }
        else:
            legacy = optional_json(folder / "special_tokens_map.json")
            given |= {
                name: _added(v, special=True) if isinstance(v, dict) else v
                for name, v in _tokens_of(legacy).items()
            }
            if isinstance(more := legacy.get("extra_special_tokens"), list):
                extra = [*(extra if isinstance(extra, list) else []), *more]
            if pieces is None:
                others = legacy.get("additional_special_tokens") or []
        if isinstance(extra, Mapping):
            given |= extra
            extra = None
        values: dict[str, Any] = {**defaults, **given}
        listed = [_token(token) for token in (others if extra is None else extra)]
        named = {
            name: _token(values[name]) for name in (*NAMES, *values) if values.get(name) is not None
        }
        if "added_tokens_decoder" not in settings:
            # as written in the files; an object in tokenizer_config.json does not count
            special = {str(given[name]) for name in NAMES if given.get(name)} | {
                str(token) for token in extra or ()
            }
            by_id = {**_listed_ids(folder, special), **own}
        flagged = {str(token): token for token in by_id.values()}
        named = {
            name: flagged.get(str(token), token) if name in NAMES else token
            for name, token in named.items()
        }
        return cls(by_id, named, listed)

    @property
    def texts(self) -> dict[str, str]:
        """Name -> token."""
        return {name: str(token) for name, token in self.named.items()}

    def join(self, fast: Tokenizer) -> None:
        """Add the missing tokens to the tokenizer: those with ids first, so that they keep their
        ids.
        """
        adding: list[Token] = [token for _, token in sorted(self.by_id.items())]
        known = {token.content for token in fast.get_added_tokens_decoder().values()} | {
            str(token) for token in adding
        }
        more = dict.fromkeys(
            token for token in (*self.named.values(), *self.others) if str(token) not in known
        )
        adding += more
        check_added(adding, grown(fast.normalizer))
        names = set(self.texts.values())
        tokens = [
            AddedToken(token, special=True) if isinstance(token, str) else token for token in adding
        ]
        for token in tokens:
            token.special = token.special or str(token) in names
        fast.add_tokens(tokens)

    def forget_flags(self, fast: Tokenizer) -> None:
        """Make all of them plain special tokens, which do not absorb adjacent spaces."""
        texts = dict.fromkeys(str(token) for token in (*self.named.values(), *self.others))
        fast.add_tokens([AddedToken(text, special=True) for text in texts])

    def frame(self, fast: Tokenizer, add_bos: bool, add_eos: bool) -> None:
        """Make `fast` add the beginning and the end of a sequence to a text."""
        texts = self.texts
        bos = [texts["bos_token"]] if add_bos and "bos_token" in texts else []
        eos = [texts["eos_token"]] if add_eos and "eos_token" in texts else []
        unknown = fast.token_to_id(texts.get("unk_token", ""))
        ids = [
            (token, index if (index := fast.token_to_id(token)) is not None else unknown)
            for token in (*bos, *eos)
        ]
        fast.post_processor = processors.TemplateProcessing(
            single=[*bos, "$A", *eos], pair=None, special_tokens=ids
        )


def optional_json(path: Path) -> dict[str, Any]:
    """The content of the file; empty without a file."""
    return read_json(path) if path.exists() else {}


def _listed_ids(folder: Path, special: Set[str]) -> dict[int, AddedToken]:
    """The tokens of added_tokens.json, by id."""
    listed = optional_json(folder / "added_tokens.json")
    return {
        index: AddedToken(text, normalized=text not in special, special=text in special)
        for text, index in listed.items()
    }


def _tokens_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that name a token; others, such as `add_bos_token`, are booleans."""
    return {
        name: v
        for name, v in settings.items()
        if name in NAMES or (name.endswith("_token") and isinstance(v, str | dict))
    }


def _token(value: Any) -> Token:
    if isinstance(value, str | AddedToken):
        return value
    return _added(value)


def _added(value: Any, **flags: Any) -> AddedToken:
    """A token with its flags, from an object of a file."""
    if isinstance(value, AddedToken):
        return value
    return AddedToken(**{name: flag for name, flag in value.items() if name in _FIELDS} | flags)
