"""Training of heads: dense drafts are those of a run, a continued training is that of one call, and
a run accepts what the training says.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import bass
from bass.caches import PaddedCache
from bass.checkpoints.heads import read_head
from bass.checkpoints.weights import load_decoder
from bass.drafters import record_states
from bass.drafters.block import Block
from bass.drafters.eagle import ChainDrafter
from bass.drafters.whole_texts import WholeTexts, states_of_texts, unrolled
from bass.engine.scorer import CachedLayers
from bass.errors import OptionError
from bass.models.decoder import FINAL
from bass.policies import Fixed
from bass.records import AttentionRule, CacheBudget, Projection, Window
from bass.testing.small_models import SmallLlama
from bass.training.data import Rows, read_data, rows_of
from bass.training.heads import Blocks, Eagle3
from bass.training.model import SmallModel
from bass.training.options import TrainOptions
from bass.training.train import TRAINEES, Training, train_draft
from bass.training.trainee import TEMPERATURES, Lesson, at
from support.engines import FIRST_PAIRING
from support.heads import FORMS, loaded, published
from support.matrix import night
from unit.checkpoints import Pair

CPU = torch.device("cpu")
WORLD = SmallLlama(layers=3)
DRAFTS = 3


def nothing(*_: Any) -> None:
    """Watches nothing."""


class OnlyEmbedding:
    """What a drafter that is fed by a test reads of its context."""

    def __init__(self, embed: Tensor) -> None:
        self.embed = embed


@pytest.mark.usefixtures("unchecked")  # of the context
@pytest.mark.parametrize("form", FORMS)
def test_the_states_of_training_are_those_of_a_run(form: str) -> None:
    """From each position: true features up to it, then the head's own states."""
    target: Any = WORLD.models["target"]
    head: Any = loaded(published(form, WORLD.vocab, target.config.hidden_size), CPU, torch.float32)
    tokens = torch.randint(WORLD.vocab, (1, 9), generator=torch.Generator().manual_seed(5))
    layers = (FINAL,) if form == "eagle" else (0, 1, 2)
    features = states_of_texts(target, tokens, layers)
    dense = [*unrolled(head, target.embed, tokens, features, DRAFTS)]
    for anchor in range(9 - DRAFTS):
        budget = CacheBudget.of(np.array([12]))
        cache = PaddedCache.allocate(head.shape, budget, CPU, torch.float32)
        kept = CachedLayers(cache, FIRST_PAIRING[1](), head.shape.rules, 1)
        drafter: Any = ChainDrafter(head, kept, OnlyEmbedding(target.embed), None, None)
        seen = torch.arange(anchor + 1)[None]
        fed = Window(tokens[:, 1 : anchor + 2], seen, 12)
        u = drafter._states(fed, head.fused_features(tuple(x[:, : anchor + 1] for x in features)))
        for j, states in enumerate(dense):
            torch.testing.assert_close(states[0, anchor], u[0, -1], rtol=1e-4, atol=1e-4)
            at = anchor + j + 1
            drafted = Window(tokens[:, at + 1 : at + 2], torch.tensor([[at]]), 12)
            u = drafter._states(drafted, u[:, -1:]) if at < 8 else u


PROMPTS = [f"def {name}(value):" for name in ("double", "item", "print", "caf", "vu", "na")]


@pytest.fixture(scope="module")
def llm(pair: Pair) -> bass.LLM:
    return bass.load(pair.target, num_speculative_tokens=0, device="cpu")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TrainOptions:
    """A training on the target's greedy answers."""
    folder = tmp_path_factory.mktemp("training")
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS * 4]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    return TrainOptions(
        data=[str(folder / "prompts.jsonl")], output=str(folder / "head"), steps=60, batch_size=8,
        learning_rate=1e-2, unroll=DRAFTS, max_length=48, draft_vocab_size=200, max_new_tokens=24,
        temperature=[0.0], save_every=20,
    )  # fmt: skip


WHOLE = {"draft_vocab_size": 32_000}  # all token ids
FORMS_TRAINED: list[tuple[str, dict[str, int]]] = [
    ("eagle3", {"intermediate_size": 24}),
    ("mtp", WHOLE),
    ("block", {}),
    ("model", WHOLE),
    ("block", {"draft_vocab_size": 10_000, "markov_rank": 0, "anchors": 16}),
    ("model", WHOLE | {"hidden_size": 16, "layers": 2}),
    ("eagle3", {"hidden_size": 16}),
]


@pytest.mark.parametrize(
    ("method", "changes"),
    [form if i < 4 else night(*form) for i, form in enumerate(FORMS_TRAINED)],
)
def test_a_run_accepts_what_the_training_says(
    method: str, changes: Any, options: TrainOptions, llm: bass.LLM, pair: Pair, tmp_path: Path
) -> None:
    """The draft learns, its folder loads, and each step of a greedy run accepts exactly the drafts
    that the dense pass of training accepts from that position.
    """
    options = replace(options, method=method, output=str(tmp_path / "draft"), **changes)
    target = llm.models.target
    figures = train_draft(options, llm, nothing)
    log = Path(options.output, "training", "log.jsonl").read_text(encoding="utf-8")
    losses = [json.loads(line)["loss"] for line in log.splitlines()]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert figures["tau"]["0"] > 1  # on answers to a prompt that was not trained
    trainee: Any = TRAINEES[method].new(
        target, options, torch.ones(target.shape.vocab_size, dtype=torch.int64)
    )
    index = read_head(Path(options.output))
    own = index and index.raw["transformer_layer_config"]["intermediate_size"]
    assert method == "model" or own == (options.intermediate_size or 64)
    if index is None:
        assert Path(options.output, "tokenizer.json").exists()
        head: Any = load_decoder(Path(options.output), CPU, torch.float32)
    else:
        head = index.load(CPU, torch.float32, target.shape.max_positions)
    trainee = replace(trainee, head=head)
    if trainee.token_ids is not None:
        assert len(trainee.token_ids.unique()) == 200
    pair_of_both = bass.load(pair.target, draft=options.output, policy=Fixed(DRAFTS), device="cpu")
    seen, total = 0, 0
    for prompt in PROMPTS:
        result = pair_of_both.generate(prompt, max_new_tokens=24, temperature=0)
        [done] = result.completions
        ids = [*llm.models.tokenizer.encode(prompt), *done.token_ids]
        rows = Rows.of([(0, 0, ids)])
        _, survived = Lesson.of(trainee, target, rows).survival()
        at = done.prompt_tokens
        for step in result.trace:
            accepted, drafted = int(step.accepted[0]), int(step.drafted[0])
            expected = survived[0, :drafted, 0, at - trainee.first].sum()
            assert accepted == expected
            at, seen, total = at + accepted + 1, seen + drafted, total + accepted
    assert 0.05 * seen < total < seen


def test_a_confidence_head_learns_the_acceptance_of_each_slot(
    options: TrainOptions, llm: bass.LLM, pair: Pair, tmp_path: Path
) -> None:
    """On average over the texts, what it expects is within 0.15 of the acceptance; a run ends
    drafts by it.
    """
    options = replace(options, method="block", confidence=True, output=str(tmp_path / "draft"))
    train_draft(options, llm, nothing)
    index = read_head(Path(options.output))
    assert index is not None
    head: Any = index.load(CPU, torch.float32, 64)
    rows = Rows(**load_file(Path(options.output, "training", "rows.safetensors")))
    lesson = Lesson.of(Blocks(head, DRAFTS, head.config.features), llm.models.target, rows)
    probs = {t: lesson.probs(t) for t in TEMPERATURES}
    for behind, own, expected in lesson.drafts():
        assert expected is not None
        common = [
            torch.minimum(at(p, lesson.anchors + behind), (own / t).softmax(-1)).sum(-1)
            for t, p in probs.items()
        ]
        counted = rows.trained(lesson.anchors, 1, behind)
        apart = torch.stack(common).mean(0) - expected.sigmoid()
        assert abs(float(apart[counted].mean())) < 0.15
    drafted = [
        bass.load(
            pair.target, draft=options.output, policy=Fixed(DRAFTS), drafter=method, device="cpu"
        ).generate(PROMPTS[0], max_new_tokens=24, temperature=0).stats.drafted
        for method in (Block(), Block(survival=0.9))
    ]  # fmt: skip
    assert drafted[1] < drafted[0]


def test_a_continued_training_is_that_of_one_call(
    options: TrainOptions, llm: bass.LLM, tmp_path: Path
) -> None:
    def weights(name: str, *kills: int) -> dict[str, Tensor]:
        own = replace(options, output=str(tmp_path / name), steps=8, save_every=3)

        def kill(text: str, done: int, total: int) -> None:
            if done in kills:
                raise KeyboardInterrupt

        for _ in kills:
            with pytest.raises(KeyboardInterrupt):
                train_draft(own, llm, kill)
            kills = kills[1:]
        train_draft(own, llm, nothing)
        with pytest.raises(OptionError, match="another `seed` "):
            train_draft(replace(own, seed=1), llm, nothing)
        state = torch.load(tmp_path / name / "training" / "state.pt", weights_only=True)
        return state["head"]

    whole, continued = weights("whole"), weights("killed", 2, 7)
    assert all(torch.equal(tensor, continued[name]) for name, tensor in whole.items())


def test_data_of_each_kind(options: TrainOptions, llm: bass.LLM, tmp_path: Path) -> None:
    """Texts are cut, a chat that the assistant ends is a text, and a prompt is answered."""
    talk = [{"role": "user", "content": "print"}, {"role": "assistant", "content": "print(item)"}]
    records = [{"text": "double value"}, {"messages": talk}, {"messages": talk[:1]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    (tmp_path / "b.txt").write_text("for item in items: print(item) " * 9, encoding="utf-8")
    data = [str(tmp_path / name) for name in ("a.jsonl", "b.txt")]
    own = replace(options, data=data)
    rows = rows_of(*read_data(own), own, llm, tmp_path / "answers.jsonl", nothing)
    texts = [
        llm.models.tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rows.tokens, rows.lens, strict=True)
    ]
    assert texts[0] == "double value"
    assert texts[1].endswith("print(item)")
    assert "".join(texts[2:-1]).strip() == ("for item in items: print(item) " * 9).strip()
    assert rows.lens[2:-2].tolist() == [48] * (len(texts) - 4)
    assert texts[-1].startswith("User: print")
    assert rows.starts.tolist() == [0] * (len(texts) - 1) + [int(rows.starts[-1])]
    assert rows.records.tolist() == [0, 1, *[2] * (len(texts) - 3), 3]
    assert int(rows.starts[-1]) < int(rows.lens[-1]) <= int(rows.starts[-1]) + 24
    counts = rows.counts(llm.models.target.shape.vocab_size)
    assert int(counts.sum()) == int((rows.lens - rows.starts).sum())
    with pytest.raises(OptionError, match=r"`data: .*missing.txt` cannot be read"):
        read_data(replace(options, data=[str(tmp_path / "missing.txt")]))


def test_answers_outlive_a_kill(options: TrainOptions, llm: bass.LLM, tmp_path: Path) -> None:
    """The target answers the other prompts alone, and what it had said is trained."""
    own = replace(options, output=str(tmp_path / "head"), steps=1, temperature=[0.0, 1.0])
    folder, totals = tmp_path / "head" / "training", list[int]()

    def kill(text: str, done: int, total: int) -> None:
        totals.append(total)
        if done == 5 and total == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_draft(own, llm, kill)
    with pytest.raises(OptionError, match="another `max_new_tokens` "):
        train_draft(replace(own, max_new_tokens=8), llm, nothing)
    kept = (folder / "answers.jsonl").read_text(encoding="utf-8")
    assert kept.count("\n") == 5
    (folder / "answers.jsonl").write_text(kept + kept[:20], encoding="utf-8")  # half a line
    train_draft(own, llm, kill)
    assert totals == [24] * 5 + [19] * 19 + [1]
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    assert "".join(lines[:5]) == kept
    answers = {i: ids for _, i, ids, _ in map(json.loads, lines)}
    rows = Rows(**load_file(folder / "rows.safetensors"))
    assert [answers[i] for i in range(24)] == [
        ids[start:end].tolist()
        for ids, start, end in zip(rows.tokens, rows.starts, rows.lens, strict=True)
    ]


def held_out(options: TrainOptions, llm: bass.LLM, records: list[int], answers: int) -> Training:
    """A training on texts of these records, the last ones of which are answers."""
    target, count = llm.models.target, len(records)
    starts = [0] * (count - answers) + [2] * answers
    rows = Rows.of((record, starts[i], [1, 2, 3, 4]) for i, record in enumerate(records))
    trainee = Eagle3.new(target, options, rows.counts(target.shape.vocab_size))
    return Training(trainee, target, rows, options, Path(options.output), "")


def test_whole_records_are_held_out(options: TrainOptions, llm: bass.LLM) -> None:
    """Of answers, if there are some; a record of more than a quarter of the texts is split."""
    records = [i // 3 for i in range(60)]
    for answers in (0, 30):
        found = held_out(options, llm, records, answers)
        apart = {*found.held_out.records.tolist()}
        assert (len(found.held_out.lens), len(found.rows.lens)) == (3, 57)
        assert not apart & {*found.rows.records.tolist()}
        assert bool(found.held_out.starts.all()) == bool(answers)
    whole = held_out(options, llm, [0] * 40, 0)
    assert (len(whole.held_out.lens), len(whole.rows.lens)) == (2, 38)


def test_rates_are_probabilities_on_texts_that_the_target_did_not_write(
    options: TrainOptions, llm: bass.LLM
) -> None:
    """At temperature 1, of each draft the overlap of both distributions, after the text's tokens,
    which may be improbable in the one and probable in the other.
    """
    target: Any = llm.models.target
    vocab, random = target.shape.vocab_size, torch.Generator().manual_seed(0)
    counts = torch.ones(vocab, dtype=torch.int64)
    trainee: Any = SmallModel.new(target, replace(options, method="model", **WHOLE), counts)
    rows = Rows.of([(0, 0, torch.randint(vocab, (24,), generator=random).tolist())])
    lesson = Lesson.of(trainee, target, rows)
    _, survived = lesson.survival()
    drafts = next(iter(lesson.drafts()))[1]
    p, q = (logits[0].double().softmax(-1) for logits in (lesson.logits, drafts))
    overlap = torch.minimum(p, q).sum(-1)
    torch.testing.assert_close(survived[1, 0, 0].double(), overlap, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        survived[1, 1, 0, :-1].double(), overlap[:-1] * overlap[1:], atol=1e-5, rtol=0
    )
    assert (survived[:, 1:] <= survived[:, :-1]).all()


def test_attention_of_whole_texts_is_in_the_type_of_the_layer_though_its_sums_are_wider() -> None:
    """As kernels leave the partial sums of a few rows, those of one short text."""
    parts = torch.randn(2, 1, 5, 4, 8, generator=torch.Generator().manual_seed(1))
    attend = WholeTexts((AttentionRule(1.0),))
    for _ in range(2):  # the text, then a draft from each of its positions
        assert attend(0, Projection(parts, 2, 1, torch.bfloat16)).dtype == torch.bfloat16


def test_recorded_states_may_have_gradients() -> None:
    """They are those of each text alone, and of no token elsewhere."""
    target: Any = WORLD.models["target"]
    window, (state, final) = record_states(target, [[1, 2, 3, 4], [5, 6]], (1, FINAL))
    assert window.positions.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    _, (alone,) = record_states(target, [[5, 6]], (1,))
    torch.testing.assert_close(state[1, :2], alone[0])
    assert target.unembed(final).shape == (2, 4, WORLD.vocab)
    weight = torch.ones(state.shape[-1], requires_grad=True)
    (state @ weight).sum().backward()
    assert weight.grad is not None


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(OptionError, match="`eagle3`"):
        TrainOptions(method="eagel3")


def test_mistakes_are_errors_and_leave_no_training_behind(
    options: TrainOptions, llm: bass.LLM, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="`markov_rank` has no effect on `method=eagle3`"):
        TrainOptions(markov_rank=8)
    with pytest.raises(OptionError, match="`intermediate_size` has no effect on `method=mtp`"):
        TrainOptions(method="mtp", intermediate_size=24)
    own = replace(options, output=str(tmp_path / "head"), steps=1)
    with pytest.raises(OptionError, match="`features` has state 9, and the target has 2 layers"):
        train_draft(replace(own, features=[1, 9]), llm, nothing)
    with pytest.raises(OptionError, match="cannot be read"):
        train_draft(replace(own, data=["missing.txt"]), llm, nothing)
    (tmp_path / "few.txt").write_text("a", encoding="utf-8")
    few = replace(own, data=[str(tmp_path / "few.txt")], temperature=None)
    with pytest.raises(OptionError, match="`max_new_tokens` is of the target's answers"):
        train_draft(few, llm, nothing)
    few = replace(few, max_new_tokens=256)
    with pytest.raises(OptionError, match="`temperature` is of the target's answers"):
        train_draft(replace(few, temperature=[1.0]), llm, nothing)
    with pytest.raises(OptionError, match="no text of 4 tokens"):
        train_draft(few, llm, nothing)
    with pytest.raises(OptionError, match="holds a checkpoint that no training here began"):
        train_draft(replace(own, output=llm.models.specs[0].checkpoint), llm, nothing)
    train_draft(own, llm, nothing)
    assert (tmp_path / "head" / "model.safetensors").stat().st_mode & 0o044 == 0o044
    copy = tmp_path / "other"
    shutil.copytree(llm.models.specs[0].checkpoint, copy)
    other = bass.load(copy, num_speculative_tokens=0, device="cpu")
    with pytest.raises(OptionError, match="holds a training with another `target` "):
        train_draft(own, other, nothing)


def test_a_batch_of_texts_that_are_too_short_has_a_loss(
    options: TrainOptions, llm: bass.LLM
) -> None:
    """Of answers of one token, only the first drafts count."""
    target = llm.models.target
    rows = Rows.of([(0, 4, [1, 2, 3, 4, 5]), (1, 3, [6, 7, 8, 9])])
    counts = torch.ones(target.shape.vocab_size, dtype=torch.int64)
    trainee = Eagle3.new(target, replace(options, unroll=6), counts)
    lesson = Lesson.of(trainee, target, rows)
    counts = [rows.trained(lesson.anchors, 2, behind).sum().item() for behind in range(1, 7)]
    assert counts == [4, 2, 0, 0, 0, 0]
    loss = lesson.loss()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(
        torch.isfinite(p.grad).all() for p in trainee.head.parameters() if p.grad is not None
    )
