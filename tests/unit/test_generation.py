"""What `load`, `generate` and `stream` promise, on a tiny random pair with a byte-level
tokenizer.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import bass
from bass.api.generation import Generation
from bass.checkpoints.weights import save_decoder
from bass.models.llama import Llama, LlamaConfig
from support.matrix import matrix

PROMPTS = ["def f(x):", "a", "import numpy as np\n"]


def save_pair_member(folder: Path, seed: int, noise: float) -> None:
    """A random checkpoint over bytes: its own weights, plus `noise` times others, so that members
    agree in part.
    """
    # printable ASCII, space, newline, the two bytes of é
    alphabet = [*map(chr, range(33, 127)), "Ġ", "Ċ", "Ã", "©"]
    config = LlamaConfig(
        len(alphabet) + 2, 32, 48, 2, 4, 2, 8, max_position_embeddings=256, tie_word_embeddings=True
    )
    decoder = Llama(config)
    for i, (_, parameter) in enumerate(decoder.named_parameters()):
        own = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
        other = torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(1000 * seed + i)
        )
        torch.nn.init.ones_(parameter) if parameter.dim() == 1 else parameter.data.copy_(
            0.25 * (own + noise * other)
        )
    save_decoder(decoder, folder, torch.float32, eos_token_id=[0, 1])
    vocabulary = {"<|end|>": 0, "<|stop|>": 1} | {c: i + 2 for i, c in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|stop|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Target and draft folders."""
    root = tmp_path_factory.mktemp("pair")
    save_pair_member(root / "target", 1, 0.0)
    save_pair_member(root / "draft", 2, 0.15)
    return root / "target", root / "draft"


@pytest.fixture(scope="module")
def llm(folders: tuple[Path, Path]) -> bass.LLM:
    """The pair with three rows, so that more samples than rows have to wait."""
    return bass.load(*folders, num_speculative_tokens=3, max_batch_size=3)


def tokens_of(result: bass.Result) -> list[list[int]]:
    return [c.token_ids for c in result.completions]


def test_completions_come_in_the_order_of_prompts_and_samples(llm: bass.LLM) -> None:
    result = llm.generate(PROMPTS, num_return_sequences=4, max_new_tokens=12, temperature=1.0)
    assert [(c.prompt_index, c.sample_index) for c in result.completions] == [
        (p, s) for p in range(3) for s in range(4)
    ]
    assert len({tuple(t) for t in tokens_of(result)}) == 12, "samples of one prompt must differ"


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(llm: bass.LLM) -> None:
    once, again, other = (
        llm.generate(PROMPTS, max_new_tokens=20, temperature=1.0, seed=s) for s in (7, 7, 8)
    )
    assert tokens_of(once) == tokens_of(again) != tokens_of(other)


def test_a_prompt_gives_the_same_tokens_alone_and_in_company(llm: bass.LLM) -> None:
    together = llm.generate(PROMPTS, num_return_sequences=2, max_new_tokens=20, temperature=1.0)
    for i, prompt in enumerate(PROMPTS):
        alone = llm.generate(prompt, num_return_sequences=2, max_new_tokens=20, temperature=1.0)
        assert tokens_of(alone) == tokens_of(together)[2 * i : 2 * i + 2]


@pytest.mark.parametrize("k", [pytest.param(0, marks=pytest.mark.nightly), 3])
def test_a_row_ends_with_the_first_of_several_end_tokens(
    folders: tuple[Path, Path], k: int
) -> None:
    llm = bass.load(*folders, num_speculative_tokens=k)
    result = llm.generate(
        PROMPTS * 3, num_return_sequences=4, max_new_tokens=100, temperature=1.5, top_p=1.0
    )
    ended = [c for c in result.completions if c.finish_reason == "eos"]
    assert {c.token_ids[-1] for c in ended} == {0, 1}
    for completion in result.completions:
        assert not {0, 1} & set(completion.token_ids[:-1])
        assert (completion.finish_reason == "eos") == (completion.token_ids[-1] in (0, 1))
    endless = llm.generate(
        PROMPTS,
        num_return_sequences=4,
        max_new_tokens=100,
        temperature=1.5,
        top_p=1.0,
        ignore_eos=True,
    )
    assert {len(t) for t in tokens_of(endless)} == {100}
    assert any({0, 1} & set(t[:-1]) for t in tokens_of(endless))


def test_a_stream_adds_up_to_the_result(llm: bass.LLM) -> None:
    options = {
        "num_return_sequences": 3,
        "max_new_tokens": 40,
        "temperature": 0.9,
        "stop": ["zz", "q"],
    }
    texts: dict[tuple[int, int], str] = {}
    ids: dict[tuple[int, int], list[int]] = {}
    ends = 0
    generation = llm.stream(PROMPTS, **options)
    for event in generation:
        key = event.prompt_index, event.sample_index
        texts[key] = texts.get(key, "") + event.text
        ids.setdefault(key, []).extend(event.token_ids)
        ends += event.finish_reason is not None
    result = generation.result()
    assert ends == 9
    assert texts == {(c.prompt_index, c.sample_index): c.text for c in result.completions}
    assert ids == {(c.prompt_index, c.sample_index): c.token_ids for c in result.completions}
    assert tokens_of(result) == tokens_of(llm.generate(PROMPTS, **options))


def test_what_a_time_budget_cuts_off_is_returned_and_marked(llm: bass.LLM) -> None:
    options = {"num_return_sequences": 2, "max_new_tokens": 80, "ignore_eos": True}
    whole = llm.generate(PROMPTS, **options)
    cut = llm.generate(PROMPTS, time_budget=1e-9, **options)
    assert {c.finish_reason for c in cut.completions} == {"time"}
    assert not any(c.finished for c in cut.completions)
    assert sum(map(len, tokens_of(cut))) > 0
    for partial, full in zip(tokens_of(cut), tokens_of(whole), strict=True):
        assert partial == full[: len(partial)]


def test_the_last_events_of_a_time_budget_have_the_text_that_was_held_back(llm: bass.LLM) -> None:
    """A beginning of a stop string, and samples that never started, included."""
    options = {"max_new_tokens": 60, "temperature": 1.5, "ignore_eos": True}
    stop = [
        c.text[:50] + "never" for c in llm.generate(PROMPTS * 3, **options).completions if c.text
    ]
    generation = llm.stream(PROMPTS * 3, stop=stop, time_budget=1e-9, **options)
    pieces: dict[tuple[int, int], str] = {}
    last: dict[tuple[int, int], str] = {}
    for event in generation:
        key = event.prompt_index, event.sample_index
        assert key not in last, "an event after the last"
        pieces[key] = pieces.get(key, "") + event.text
        if event.finish_reason is not None:
            last[key] = event.finish_reason
    completions = generation.result().completions
    assert set(last.values()) == {"time"}
    assert pieces == {(c.prompt_index, c.sample_index): c.text for c in completions}


ENDINGS: dict[str, Callable[[Generation], bass.Result]] = {
    "the result": lambda generation: generation.result(),
    "an interruption": lambda generation: generation.result(interrupted=True),
    "closed": lambda generation: generation.close() or generation.result(),
    "closed, then interrupted": lambda generation: (
        generation.close() or generation.result(interrupted=True)
    ),
    "interrupted, then closed": lambda generation: (
        (generation.result(True) and generation.close()) or generation.result()
    ),
    "events closed": lambda generation: iter(generation).close() or generation.result(),
    # type: ignore[attr-defined]
}


@matrix(ending=ENDINGS, events=(0, 2, 1000), budget=(None, 1e-9, 1e9))
def test_the_finish_reason_says_what_ended_a_generation(
    llm: bass.LLM, budget: float | None, events: int, ending: str
) -> None:
    """`time` is said where the budget has ended the run, and nowhere else."""
    generation = llm.stream(
        PROMPTS, max_new_tokens=[2, 12, 12], ignore_eos=True, time_budget=budget
    )
    taken = len(list(itertools.islice(generation, events)))
    to_its_end = ending == "the result" or taken < events
    for result in (
        (ENDINGS[ending](generation), generation.result())
        if ending != "an interruption"
        else (ENDINGS[ending](generation),)
    ):
        for completion in result.completions:
            unfinished = "time" if budget == 1e-9 and to_its_end else "interrupted"
            whole = len(completion.token_ids) == [2, 12, 12][completion.prompt_index]
            assert completion.finish_reason == ("length" if whole else unfinished)
        assert not to_its_end or budget == 1e-9 or all(c.finished for c in result.completions)


ACCOUNTS = {
    "": {},
    "ends": {"ignore_eos": True},
    "stop": {"stop": ["e"]},
    "greedy": {"temperature": 0},
}


@matrix(strength=1, options=ACCOUNTS, policy=["bass", "fixed"])
def test_the_accounts_add_up(folders: tuple[Path, Path], options: str, policy: str) -> None:
    llm = bass.load(*folders, policy=policy, max_batch_size=3)
    result = llm.generate(
        PROMPTS,
        **(
            {"num_return_sequences": 3, "max_new_tokens": 60, "temperature": 1.0}
            | ACCOUNTS[options]
        ),
    )
    stats, trace = result.stats, result.trace
    assert stats.steps == len(trace)
    assert stats.row_steps == sum((step.requests >= 0).sum() for step in trace)
    assert stats.emitted == sum(step.emitted.sum() for step in trace)
    assert stats.accepted == sum(step.accepted.sum() for step in trace)
    assert stats.tokens == sum(map(len, tokens_of(result)))
    assert stats.tokens <= stats.emitted
    assert options == "stop" or stats.tokens == stats.emitted
    assert sum(stats.reached_by_position) >= stats.accepted
    for step in trace:
        assert (step.accepted <= step.drafted).all()
        assert (step.drafted <= step.k).all()
        assert (step.emitted <= step.accepted + 1).all()
        active = step.requests >= 0
        assert (step.emitted[active] >= 1).all()
        assert not (step.emitted | step.drafted)[~active].any()
        assert step.seconds > 0
    if options == "ends":
        # Every row-step emits its accepted tokens and one more: nothing is cut when there are only
        # limits.
        assert stats.emitted == stats.accepted + stats.row_steps
    assert stats.first > 0
    assert stats.lossless
    assert np.isfinite([v for v in stats.as_dict().values() if isinstance(v, float)]).all()
