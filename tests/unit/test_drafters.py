"""What each drafter proposes, by hand; and through the public interface, on tiny checkpoints."""

import copy
import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bass
from bass.attention import SDPA
from bass.caches import PaddedCache
from bass.drafters import Ensemble, ModelDrafter, Ngram, Replay, Suffix
from bass.drafters.ensemble import EnsembleDrafter
from bass.engine.assembly import ModelPair, Storage, Strategies, own_draw
from bass.interfaces import Drafter, DrafterContext, Scorer, StopRule
from bass.ops.noise import step_noise
from bass.policies import Fixed
from bass.records import (
    CacheBudget,
    Draft,
    Observation,
    RowAssignment,
    Scored,
    Sequences,
    Window,
)
from bass.sampling import RowSampling
from bass.stop_rules import Confidence, Entropy
from bass.testing.small_models import SmallLlama
from bass.verifiers import Rejection
from support import block_heads, heads
from support.block_heads import FORMS, WithHead
from support.heads import Headed, eagle
from unit.checkpoints import Pair, write_checkpoint

VOCAB, CPU = 50, torch.device("cpu")
PROMPTS = [[5, 6, 7, 5, 6], [9], [30, 2, 4, 8, 30, 2]]


def bench(device: torch.device = CPU, batch: int = 3) -> Any:
    """The context of drafters that need no model."""
    context = create_autospec(DrafterContext, instance=True)
    context.device, context.batch, context.capacity, context.vocab_size = device, batch, 24, VOCAB
    return context


def in_flight(rows: list[list[int]], capacity: int = 24) -> Sequences:
    """Rows of committed tokens; an empty one is idle.

    Beyond them lies what would be found if it were looked at.
    """
    sequences = Sequences.empty(len(rows), capacity, [], torch.device("cpu"))
    sequences.tokens.copy_(torch.arange(capacity + 1).remainder(3).expand(len(rows), -1))
    for b, row in enumerate(rows):
        sequences.tokens[b, : len(row)] = torch.tensor(row, dtype=torch.int64)
        sequences.lens[b], sequences.limits[b], sequences.active[b] = len(row), capacity, bool(row)
    return sequences


def proposed(
    drafter: Drafter, rows: list[list[int]], lengths: list[int], span: int = 24
) -> list[list[int]]:
    sequences, k = in_flight(rows), max(lengths)
    noise = step_noise(sequences.keys, sequences.steps, sequences.lens, k)
    draft = drafter.propose(sequences, torch.tensor(lengths), k, noise, span)
    assert draft.probs is None
    assert (draft.lengths <= torch.tensor(lengths)).all()
    return [
        tokens[:length].tolist() for tokens, length in zip(draft.tokens, draft.lengths, strict=True)
    ]


def looked_up(row: list[int], longest: int, shortest: int, most: int) -> list[int]:
    """Prompt lookup in the plainest way."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(row) - n - 1, -1, -1):
            if row[start : start + n] == row[len(row) - n :]:
                return row[start + n : start + n + most]
    return []


def test_ngram_gives_each_row_its_own_and_idle_rows_nothing() -> None:
    rows = [[1, 2, 1, 2], [3, 4], [], [5, 6, 7, 5, 6]]
    assert proposed(Ngram(), rows, [3, 3, 0, 1]) == [[1, 2], [], [], [7]]
    assert proposed(Ngram(longest=4, shortest=3), rows, [3, 3, 0, 3]) == [[], [], [], []]


@given(data=st.data())
def test_ngram_is_prompt_lookup(data: st.DataObject) -> None:
    """Against the plainest search, for rows of few distinct tokens, any span that holds them, any
    lengths asked for.
    """
    longest = data.draw(st.integers(1, 5))
    shortest = data.draw(st.integers(1, longest))
    rows = data.draw(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=17), min_size=1, max_size=4)
    )
    lengths = data.draw(
        st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)).filter(any)
    )
    span = data.draw(st.integers(max(map(len, rows)), 24))
    expected = [
        looked_up(row, longest, shortest, most) for row, most in zip(rows, lengths, strict=True)
    ]
    assert proposed(Ngram(longest, shortest), rows, lengths, span) == expected


def shared(one: list[int], other: list[int]) -> int:
    """How many tokens two texts begin with in common."""
    return sum(
        1
        for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )


def decoded(
    row: list[int], texts: list[tuple[bool, list[int]]], drafter: Suffix, most: int
) -> list[int]:
    """SuffixDecoding in the plainest way. texts: with whether they are the row's own."""
    found: list[tuple[Any, ...]] = [(0.0, [])]
    for p in range(1, drafter.longest + 1):
        width = min(int(drafter.factor * p), most)
        places = [
            (own, t, at)
            for t, (own, text) in enumerate(texts)
            for at in range(p, len(text))
            if text[at - p : at] == row[-p:]
        ]
        after = [texts[t][1][at : at + width] for _, t, at in places]
        for (own, t, at), one in zip(places, after, strict=True):
            score = sum(shared(one, other) for other in after) / len(after)
            match = min(shared(texts[t][1][:at][::-1], row[::-1]), drafter.longest)
            found.append((score, p, match, own, t, at, one))
    return max(found, key=lambda one: one[:-1])[-1]


@given(data=st.data(), memory=st.integers(0, 3))
def test_suffix_proposes_the_continuation_that_matches_share_the_most(
    data: st.DataObject, memory: int
) -> None:
    """Of rows that go on, and begin again with other texts, which are found if there is memory."""
    longest, most = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    drafter = Suffix(longest, data.draw(st.sampled_from((0.5, 1.0, 1.5, 4.0))), memory)
    text = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    rows = data.draw(st.lists(text, min_size=2, max_size=2))
    built = drafter.build(bench(batch=2))
    kept: list[list[list[int]]] = [[row] for row in rows]
    for begins in data.draw(st.lists(st.sampled_from(((), (0,), (1,), (0, 1))), max_size=3)):
        proposed(built, rows, [most] * 2)  # as each step, it keeps what the rows hold
        for b in begins:
            rows[b] = data.draw(text)
            kept[b].insert(0, rows[b])
        continuing = np.where(np.isin([0, 1], begins), 0, 24)
        built.reserve(RowAssignment(np.full(2, 24), np.arange(2), continuing))
        for b in {0, 1}.difference(begins):
            rows[b] = kept[b][0] = rows[b] + data.draw(text)[:2]
    expected = [
        decoded(row, [(b == c, t) for c in (0, 1) for t in kept[c][:memory]], drafter, most)
        if memory
        else decoded(row, [(True, row)], drafter, most)
        for b, row in enumerate(rows)
    ]
    assert proposed(built, rows, [most] * 2) == expected


def test_a_row_finds_all_of_a_longer_text_whatever_span_holds_the_present_ones() -> None:
    earlier, rows = [9, 9, 9, 9, 5, 6, 7, 8], [[5, 6], [3, 5, 6]]
    for span in range(3, 25):
        built = Suffix(memory=2).build(bench(batch=2))
        proposed(built, [earlier, [3]], [1, 1])
        built.reserve(RowAssignment(np.full(2, 24), np.arange(2), np.array([0, 24])))
        assert proposed(built, rows, [2, 2], span) == [[7, 8], [7, 8]]


def test_a_memory_of_texts_begins_empty_in_each_call(deep: Path) -> None:
    """More prompts than rows, one of them first long, then short."""
    llm = bass.load(deep, drafter=Suffix(memory=2), max_batch_size=2, device="cpu")
    request: dict[str, Any] = {"max_new_tokens": [20, 3, 11], "temperature": 1.0, "seed": 5}
    first, again = (llm.generate(PROMPTS, num_return_sequences=3, **request) for _ in range(2))
    assert [c.token_ids for c in again.completions] == [c.token_ids for c in first.completions]
    drafted = [[step.drafted.tolist() for step in result.trace] for result in (first, again)]
    assert drafted[0] == drafted[1]
    assert first.stats.drafted


@given(data=st.data())
def test_replay_is_a_search_for_a_prefix(data: st.DataObject) -> None:
    sequences = st.lists(st.integers(0, 1), min_size=1, max_size=6)
    scripts, rows = (data.draw(st.lists(sequences, min_size=1, max_size=4)) for _ in range(2))
    most = data.draw(st.integers(1, 4))
    span = data.draw(st.integers(max(map(len, rows)), 24))
    expected = [
        next((s[len(r) :][:most] for s in scripts if s[: len(r)] == r and len(s) > len(r)), [])
        for r in rows
    ]
    lengths = [most] * len(rows)
    assert proposed(Replay(scripts).build(bench()), rows, lengths, span) == expected


def test_an_ensemble_takes_the_first_that_proposes_and_asks_the_others_for_the_rest() -> None:
    asked: list[list[int]] = []

    class Last(Drafter):
        """Proposes 40 for every row that it is asked for, with a distribution, in as few columns as
        it can.
        """

        def propose(
            self, sequences: Any, lengths: torch.Tensor, k: int, noise: Any, span: int
        ) -> Draft:
            asked.append(lengths.tolist())
            width = int(lengths.max())
            return Draft(
                torch.full((len(lengths), width), 40),
                torch.full((len(lengths), width, VOCAB), 1 / VOCAB),
                lengths,
            )

    ensemble = Ensemble((Ngram(), Replay([[3, 4, 5, 6], [1, 2, 1, 2, 9]]), Last())).build(bench())
    sequences = in_flight([[1, 2, 1, 2], [3, 4], [8], []])
    noise = step_noise(sequences.keys, sequences.steps, sequences.lens, 3)
    draft = ensemble.propose(sequences, torch.tensor([3, 3, 2, 0]), 3, noise, 24)
    assert asked == [[0, 0, 2, 0]]
    assert draft.lengths.tolist() == [2, 2, 2, 0]
    assert draft.tokens.tolist() == [[1, 2, 0], [5, 6, 0], [40, 40, 0], [0, 0, 0]]
    assert draft.probs is not None
    one_hot = torch.eye(VOCAB)
    assert torch.equal(draft.probs[:2, :2], one_hot[draft.tokens[:2, :2]])
    assert torch.equal(draft.probs[2, :2], torch.full((2, VOCAB), 1 / VOCAB))
    torch.testing.assert_close(draft.probs.sum(2), torch.ones(4, 3))


@dataclass(frozen=True)
class Anywhere(Scorer):
    """Scores on any device, the one without memory too."""

    def __call__(self, window: Window) -> Scored:
        return Scored(torch.zeros(*window.tokens.shape, VOCAB, device=window.tokens.device))


@pytest.mark.parametrize("rule", [None, Confidence(), Entropy()], ids=repr)
def test_no_drafter_reads_from_the_host(rule: StopRule | None) -> None:
    """On a device without memory whatever asks for a value fails, as it would within a CUDA
    graph.
    """
    meta = torch.device("meta")
    sequences = Sequences.empty(3, 24, [], meta)
    replay = Replay([[1, 2, 3], [4, 5, 6, 7]]).build(bench(meta))
    model = ModelDrafter(Anywhere(), RowSampling(), own_draw, rule)
    noise = step_noise(sequences.keys, sequences.steps, sequences.lens, 4)
    for drafter in (
        Ngram(),
        Suffix().build(bench(meta)),
        Suffix(memory=2).build(bench(meta)),
        replay,
        model,
        EnsembleDrafter((Ngram(), replay, model), VOCAB, ((),) * 3),
    ):
        draft = drafter.propose(sequences, torch.full((3,), 4, device=meta), 4, noise, 16)
        assert draft.tokens.shape == (3, 4)
        assert draft.lengths.device == meta


@pytest.mark.parametrize(
    "method", [Headed("eagle3, reduced vocabulary"), *map(WithHead, FORMS)], ids=lambda m: m.form
)
@torch.inference_mode()
def test_no_head_reads_from_the_host(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = torch.device("meta")
    for module in (heads, block_heads):  # its table of ids is checked where it is loaded
        made = partial(
            lambda read, head, *_: read(head, CPU, torch.float32).to(meta), module.loaded
        )
        monkeypatch.setattr(module, "loaded", made)
    target: Any = copy.deepcopy(SmallLlama(layers=3).models["target"]).to(meta)
    budget, models = CacheBudget.of(np.full(3, 24)), ModelPair(target, None, meta, torch.float32)
    parts = Strategies(Fixed(4), PaddedCache, SDPA(), Rejection(), method)
    engine = Storage(models, parts, budget, 1, False).engine_for(budget, 1)
    s, drafter = engine.sequences, engine.step.drafter
    four = torch.full((3,), 4, device=meta)
    draft = drafter.propose(s, four, 4, step_noise(s.keys, s.steps, s.lens, 4), 16)
    assert draft.probs is not None
    window = Window(*torch.zeros(2, 3, 5, dtype=torch.int64, device=meta), 16)
    states = tuple(torch.zeros(3, 5, 32, device=meta) for _ in method.target_features)
    drafter.observe(Observation(window, window.tokens, states, four))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of three layers."""
    return write_checkpoint(tmp_path_factory.mktemp("deep") / "target", None, 32, 3, VOCAB)


def tokens_of(llm: bass.LLM, **options: Any) -> list[list[int]]:
    given = {"max_new_tokens": [20, 3, 11], "temperature": 0, "ignore_eos": True} | options
    return [c.token_ids for c in llm.generate(PROMPTS, **given).completions]


@pytest.mark.parametrize("cache", ["padded", "split", "paged"])
@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        ("ngram", None),
        ("self", None),
        ("self", "confidence"),
        (
            {"class_path": "self", "init_args": {"layers": 1}},
            {"class_path": "entropy", "init_args": {"threshold": 0.9}},
        ),
        ({"class_path": "replay", "init_args": {"scripts": [[9, 9, 9, 9]]}}, None),
        ({"class_path": "ensemble", "init_args": {"methods": ["ngram", "self"]}}, "entropy"),
    ],
    ids=str,
)
def test_drafters_without_a_draft_model_give_plain_greedy_decoding(
    deep: Path, drafter: Any, rule: Any, cache: str
) -> None:
    plain = bass.load(deep, num_speculative_tokens=0, device="cpu")
    llm = bass.load(
        deep,
        drafter=drafter,
        stop_rule=rule,
        cache=cache,
        num_speculative_tokens=4,
        max_batch_size=2,
        device="cpu",
    )
    assert llm.models.draft is None
    assert tokens_of(llm) == tokens_of(plain)


@pytest.mark.parametrize(
    "drafter",
    [
        "ensemble",
        {"class_path": "ensemble", "init_args": {"methods": ["ngram", "model"]}},
        {"class_path": "choice", "init_args": {"methods": ["model", "ngram", "suffix"]}},
        "model",
    ],
)
def test_drafters_with_a_draft_model_give_plain_greedy_decoding(
    silent_pair: Pair, drafter: Any
) -> None:
    plain = bass.load(silent_pair.target, num_speculative_tokens=0, device="cpu")
    llm = bass.load(
        silent_pair.target, silent_pair.draft, drafter=drafter, stop_rule="confidence", device="cpu"
    )
    assert tokens_of(llm) == tokens_of(plain)


@pytest.mark.parametrize(
    "drafter",
    ["ensemble", {"class_path": "ensemble", "init_args": {"methods": ["ngram", "eagle"]}}],
    ids=str,
)
def test_an_ensemble_drafts_with_a_head_where_no_text_matches(
    deep: Path, drafter: Any, tmp_path: Path
) -> None:
    """It reads the states that the head's config names, and observes what others drafted."""
    head = eagle(VOCAB, 32).write(tmp_path / "head")
    llm = bass.load(deep, head, drafter=drafter, num_speculative_tokens=4, device="cpu")
    alone = bass.load(deep, drafter="ngram", num_speculative_tokens=4, device="cpu")
    plain = tokens_of(bass.load(deep, num_speculative_tokens=0, device="cpu"))
    assert tokens_of(llm) == tokens_of(alone) == plain
    options = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
    drafted, by_ngram = (one.generate(PROMPTS, **options).stats.drafted for one in (llm, alone))
    assert drafted > by_ngram


def test_a_script_of_the_greedy_output_is_accepted_whole(deep: Path) -> None:
    plain = tokens_of(bass.load(deep, num_speculative_tokens=0, device="cpu"))
    scripts = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]
    drafter = {"class_path": "replay", "init_args": {"scripts": scripts}}
    result = bass.load(deep, drafter=drafter, num_speculative_tokens=4, device="cpu").generate(
        PROMPTS, max_new_tokens=[20, 3, 11], temperature=0, ignore_eos=True
    )
    assert [c.token_ids for c in result.completions] == plain
    assert result.stats.accepted == result.stats.drafted == sum(n - -(-n // 5) for n in (20, 3, 11))
