"""Every family computes what `transformers` computes from the same folder, in every variant, and
writes what it reads.
"""

import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import bass
from bass.api.plan import backend_for
from bass.caches import CACHES
from bass.checkpoints.multimodal import MULTIMODAL
from bass.checkpoints.weights import load_decoder, save_decoder
from bass.models import FAMILIES
from models.cases import CASES, Case, cases_by_day
from models.reference import deviation, greedy, make
from support.matrix import by_day

# the laws have all of them
PAIRINGS = [
    (cache, type(backend_for("auto", cache, torch.device("cpu")))) for cache in CACHES.values()
]
PROMPTS = [[5, 17, 3], [88], [9, 9, 2, 41, 60, 7, 33, 12, 70]]
NEW = 32
WAYS = [(pairing, k) for k in (3, 0) for pairing in PAIRINGS]  # speculative and plain


@dataclass
class Made:
    """A reference and its folder."""

    case: Case
    model: PreTrainedModel
    folder: Path

    def said(self, guess: list[list[int]]) -> list[list[int]]:
        """What it says to the prompts."""
        return [greedy(self.model, *pair) for pair in zip(PROMPTS, guess, strict=True)]

    @functools.cached_property
    def draft(self) -> Path:
        """The folder of a draft that agrees with it now and then."""
        like = make(self.case)
        for parameter in like.parameters():
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
        folder = self.folder / "draft"
        like.save_pretrained(folder)
        return folder


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, model = tmp_path_factory.mktemp("target"), make(request.param)
    model.save_pretrained(folder)
    return Made(request.param, model, folder)


def number(case: Case) -> int:
    """Of a variant in its family."""
    return [other for other in CASES if other.family == case.family].index(case)


every = pytest.mark.parametrize("made", CASES, ids=str, indirect=True)
some = pytest.mark.parametrize("made", cases_by_day(), ids=str, indirect=True)


@every
def test_logits_equal_those_of_transformers(made: Made) -> None:
    assert deviation(made.case, made.folder, made.model) <= 1e-4


@some
@pytest.mark.parametrize("turn", by_day(range(len(WAYS)), [0]))
def test_greedy_decoding_equals_that_of_transformers(made: Made, turn: int) -> None:
    """Three prompts of different lengths in one batch.

    By day a variant of each family is decoded speculatively, in a layout that the families share
    out; every night each variant in every way. A model that says one token for ever would agree
    with almost any other.
    """
    layout = ([*FAMILIES, *MULTIMODAL].index(made.case.family) + number(made.case) + turn) % len(
        PAIRINGS
    )
    pairing, k = WAYS[turn // len(PAIRINGS) * len(PAIRINGS) + layout]
    llm = bass.load(
        made.folder,
        made.draft,
        cache=pairing[0],
        attention=pairing[1],
        num_speculative_tokens=k,
        device="cpu",
    )
    result = llm.generate(PROMPTS, max_new_tokens=NEW, temperature=0, ignore_eos=True)
    said = [c.token_ids for c in result.completions]
    assert said == made.said(said)
    assert len({token for tokens in said for token in tokens}) >= 6
    if k:
        assert 0 < result.stats.accepted < result.stats.drafted


@some
def test_a_checkpoint_of_ours_loads_in_transformers(made: Made, tmp_path: Path) -> None:
    decoder = load_decoder(made.folder, torch.device("cpu"), torch.float32)
    save_decoder(decoder, tmp_path, torch.float32)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.tensor(PROMPTS[-1:])
    assert torch.equal(again(tokens).logits, made.model(tokens).logits)
    same = load_decoder(tmp_path, torch.device("cpu"), torch.float32)
    assert all(torch.equal(p, decoder.get_parameter(name)) for name, p in same.named_parameters())


def test_every_family_has_at_least_three_variants() -> None:
    for family in FAMILIES | MULTIMODAL:
        assert sum(case.family == family for case in CASES) >= 3, family


def test_the_pages_have_every_family_and_how_many_variants_are_compared() -> None:
    docs = Path(__file__).parents[2] / "docs"
    families, compared = (
        (docs / page).read_text(encoding="utf-8") for page in ("models.md", "correctness.md")
    )
    for family, count in Counter(case.family for case in CASES).items():
        assert f"`{family}`" in families
        assert re.search(rf"\b{family} +{count}  ", compared), f"run `make families`: {family}"
