"""A sentencepiece model (tokenizer.model) as a vocabulary with merges."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE, Unigram

from bass.files import read_regular
from bass.text.kinds import Merges, spaced_decoder
from bass.text.limits import MOST_TOKENS, check_splits, check_vocabulary

LARGEST_MODEL = 32 << 20  # bytes; the largest known has 5 MB
_UNIGRAM, _CONTROL, _USER_DEFINED = 1, 3, 4  # of sentencepiece_model.proto


@dataclass(frozen=True)
class Pieces:
    """The content of a tokenizer.model.

    `special`: its tokens for beginning, end and unknown.
    """

    scores: list[tuple[str, float]]
    added: list[AddedToken]  # control and user-defined symbols
    unigram: bool
    byte_fallback: bool
    unknown: tuple[str, int]
    special: dict[str, str]
    charsmap: bytes

    @classmethod
    def read(cls, path: Path) -> "Pieces":
        """Parse the file. Raises the errors of the library."""
        from sentencepiece import sentencepiece_model_pb2  # here, because few checkpoints need it

        model = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
        model.ParseFromString(read_regular(path, LARGEST_MODEL))
        spec = model.trainer_spec
        if not model.pieces:
            raise ValueError("it holds no pieces")
        texts = [piece.piece for piece in model.pieces[: MOST_TOKENS + 1]]
        check_vocabulary(texts)
        check_splits(texts)
        ends = {
            "bos_token": (spec.bos_id, spec.bos_piece),
            "eos_token": (spec.eos_id, spec.eos_piece),
        }
        ends["unk_token"] = (spec.unk_id, spec.unk_piece)
        return cls(
            scores=[(piece.piece, piece.score) for piece in model.pieces],
            added=[
                AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
                for piece in model.pieces
                if piece.type in (_CONTROL, _USER_DEFINED)
            ],
            unigram=spec.model_type == _UNIGRAM,
            byte_fallback=spec.byte_fallback,
            unknown=(spec.unk_piece, spec.unk_id),
            special={name: piece for name, (index, piece) in ends.items() if index >= 0},
            charsmap=model.normalizer_spec.precompiled_charsmap,
        )

    @property
    def vocabulary(self) -> dict[str, int]:
        """Piece -> id."""
        return {piece: index for index, (piece, _) in enumerate(self.scores)}

    def plain(self, vocabulary: dict[str, int]) -> Tokenizer:
        """The tokenizer that `transformers` makes of the file without a specific class."""
        if self.unigram:
            fast = Tokenizer(
                Unigram(self.scores, unk_id=self.unknown[1], byte_fallback=self.byte_fallback)
            )
        else:
            merged = merges(vocabulary)
            options = {
                "unk_token": self.unknown[0],
                "fuse_unk": True,
                "byte_fallback": self.byte_fallback,
            }
            fast = Tokenizer(BPE(vocab=vocabulary, merges=merged, **options))
        first = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        fast.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
        replace = decoders.Sequence([decoders.Replace("▁", " ")])
        fast.decoder = spaced_decoder(strip=False) if self.byte_fallback else replace
        return fast


def merges(vocabulary: dict[str, int]) -> Merges:
    """Every way to split a piece into two others, in the order of the pieces: sentencepiece stores
    only the results of merges.
    """
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(vocabulary, key=vocabulary.__getitem__)
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
