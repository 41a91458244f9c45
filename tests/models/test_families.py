"""Every family computes what `transformers` computes from the same folder, in every variant, and
writes what it reads.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import bass
from bass.api.plan import backend_for
from bass.caches import CACHES
from bass.checkpoints.weights import load_decoder, save_decoder
from bass.models import FAMILIES
from models.cases import CASES, Case
from models.reference import deviation, greedy, make

# the laws have all of them
PAIRINGS = [
    (cache, type(backend_for("auto", cache, torch.device("cpu")))) for cache in CACHES.values()
]
PROMPTS = [[5, 17, 3], [88], [9, 9, 2, 41, 60, 7, 33, 12, 70]]
NEW = 32
WAYS = [(pairing, k) for k in (3, 0) for pairing in PAIRINGS]  # speculative and plain


@dataclass(frozen=True)
class Made:
    """A reference, its folder, the folder of a draft that agrees with it now and then, and what it
    says to the prompts.
    """

    case: Case
    model: PreTrainedModel
    folder: Path
    draft: Path
    said: list[list[int]]


@pytest.fixture(params=CASES, ids=str, scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    case: Case = request.param
    folder, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    model = make(case)
    model.save_pretrained(folder)
    said = [greedy(model, prompt, NEW) for prompt in PROMPTS]
    like = make(case)
    for parameter in like.parameters():
        parameter.add_(
            torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            * 0.01
        )
    like.save_pretrained(draft)
    return Made(case, model, folder, draft, said)


def test_logits_equal_those_of_transformers(made: Made) -> None:
    assert deviation(made.case, made.folder, made.model) <= 1e-4


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(i, marks=pytest.mark.nightly) for i in range(1, len(WAYS)))]
)
def test_greedy_decoding_equals_that_of_transformers(made: Made, turn: int) -> None:
    """Three prompts of different lengths in one batch.

    By day each variant is decoded speculatively in one layout, and a family's variants in all of
    them; every night each in every way.
    """
    layout = (CASES.index(made.case) + turn) % len(PAIRINGS)
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
    assert [c.token_ids for c in result.completions] == made.said
    if k:
        assert 0 < result.stats.accepted < result.stats.drafted


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


def test_the_reference_does_not_repeat_itself(made: Made) -> None:
    """A model that says one token for ever would agree with almost any other."""
    assert len({token for said in made.said for token in said}) >= 6


def test_every_family_has_at_least_three_variants() -> None:
    for family in FAMILIES:
        assert sum(case.family == family for case in CASES) >= 3, family


def test_the_page_of_families_lists_every_variant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    for case in CASES:
        assert any(
            f"`{case.family}`" in line and case.variant in line for line in page.splitlines()
        ), f"run `make families`: {case}"
