"""What a config of `bass ablate` stands for, and the problems that it may have."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from bass import pair
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan
from bass.errors import BassError, OptionError, ProblemsError
from bass.experiments.cell import Cell
from bass.experiments.grid import CONFIGS, Plan, plan, read_config
from bass.experiments.runner import turns, work_of
from bass.experiments.settings import Settings, request_of
from bass.policies import POLICIES, Auto, Fixed, Lagged
from bass.trims import TRIMS
from bass.verifiers import VERIFIERS
from unit.checkpoints import Pair, write_checkpoint


def made(**raw: Any) -> Plan:
    return plan({"name": "x"} | raw)


def cells(**raw: Any) -> list[Cell]:
    return made(**raw).cells


def problems(**raw: Any) -> list[str]:
    """The sentences that a config is rejected with."""
    with pytest.raises(BassError) as caught:
        made(**raw)
    lines = str(caught.value).splitlines()
    return lines[1:] if isinstance(caught.value, ProblemsError) else lines


def test_a_grid_has_every_combination_and_ids_name_them() -> None:
    found = cells(base={"temperature": 0.5}, axes={"policy": ["bass", "fixed"], "batch": [1, 8]})
    assert [re.sub("-[0-9a-f]{6}$", "", cell.id) for cell in found] == [
        "bass-b1", "bass-b8", "fixed-b1", "fixed-b8",
    ]  # fmt: skip
    assert found[3].labels == {"policy": "fixed", "batch": 8}
    assert {cell.settings.temperature for cell in found} == {0.5}
    [alone] = cells(base={"batch": 2})
    assert (alone.labels, alone.settings) == ({}, Settings(batch=2))


def test_a_cell_keeps_its_id_in_a_larger_and_a_smaller_grid_and_with_more_repeats() -> None:
    axes = {"policy": ["bass", "fixed"], "batch": [1, 8]}
    ids = {cell.id for cell in cells(axes=axes)}
    assert len(ids) == 4
    assert ids < {cell.id for cell in cells(axes=axes | {"batch": [1, 8, 16]})}
    assert ids > {cell.id for cell in cells(axes=axes, exclude=[{"batch": 1}])}
    assert ids == {cell.id for cell in cells(axes=axes, base={"repeats": 9})}
    assert ids == {cell.id for cell in cells(axes=axes, base={"temperature": 0.2})}  # the default
    assert ids.isdisjoint(cell.id for cell in cells(axes=axes, base={"temperature": 0.3}))


STRATEGIES = {
    "a parameter": ({"policy.k": 2, "policy": "fixed"}, Fixed(2)),
    "a class path": (
        {"policy": {"class_path": "bass.policies:Fixed", "init_args": {"k": 2}}},
        Fixed(2),
    ),
    "one in another": (
        {
            "policy": {"class_path": "lagged", "init_args": {"policy": "fixed"}},
            "policy.policy.k": 3,
        },
        Lagged(Fixed(3)),
    ),
    "the default's parameter": ({"policy.max_length": 3}, Auto(max_length=3)),
    "a class": ({"policy": Fixed}, Fixed(4)),
    "an object": ({"policy": Fixed(7)}, Fixed(7)),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_strategies_have_their_parameters(case: str) -> None:
    base, policy = STRATEGIES[case]
    [cell] = cells(base=base)
    assert cell.load_plan.parts.policy == policy


def test_axes_of_parameters_and_of_several_settings() -> None:
    layouts = {"pad": {"cache": "padded", "attention": "sdpa"}, "split": {"cache": "split"}}
    found = cells(base={"policy": "fixed"}, axes={"policy.k": [0, 2], "layout": layouts})
    assert [cell.load_plan.parts.policy for cell in found] == [Fixed(0)] * 2 + [Fixed(2)] * 2
    assert [(c.labels["layout"], c.settings.cache) for c in found[:2]] == [
        ("pad", "padded"), ("split", "split"),
    ]  # fmt: skip


def test_exclusions_are_left_out() -> None:
    found = cells(
        axes={"cache": ["padded", "split"], "attention": ["sdpa", "per-row"]},
        exclude=[
            {"cache": "padded", "attention": "per-row"},
            {"cache": "split", "attention": ["sdpa"]},
        ],
    )
    assert [tuple(cell.labels.values()) for cell in found] == [
        ("padded", "sdpa"), ("split", "per-row"),
    ]  # fmt: skip


def test_rows_share_a_prompt_unless_samples_are_given() -> None:
    [one] = cells(base={"prompts": ["a", "b"], "batch": 3, "seed": 5})
    groups = [(group.prompts, group.samples, group.first_sample) for group in one.settings.groups]
    assert groups == [([0], 3, 0), ([1], 3, 0)]
    assert request_of(one.settings, 1, 3).seed == 6
    [one] = cells(base={"prompts": ["a", "b"], "batch": 3, "samples": 2})
    assert [(group.prompts, group.samples) for group in one.settings.groups] == [([0, 1], 2)]
    repeated: list[Any] = ["a", [1, 2], "a", [1, 2], "a"]
    [one] = cells(base={"prompts": repeated, "batch": 3})
    assert [group.first_sample for group in one.settings.groups] == [0, 0, 3, 3, 6]


def test_a_group_of_conversations_has_a_call_for_each_turn() -> None:
    talks = [{"turns": ["a", "b", "c"]}, "d", {"turns": ["e", "f"]}]
    [one] = cells(base={"prompts": talks, "max_new_tokens": 8, "samples": 2})
    assert [group.turns for group in one.settings.groups] == [3]
    [one] = cells(base={"prompts": talks, "max_new_tokens": 8, "batch": 2})
    assert [group.turns for group in one.settings.groups] == [3, 1, 2]


def test_compared_cells_take_turns_and_a_round_loads_each_pair_once() -> None:
    one = cells(
        base={"policy": "fixed", "repeats": 2},
        axes={"policy.k": [0, 2], "dtype": ["float32", "bfloat16"]},
    )
    order = turns(one, {cell.id: 0 for cell in one}, {cell.id: work_of(cell) for cell in one})
    assert [(c.labels["dtype"], c.labels["policy.k"], repeat) for c, repeat in order] == [
        (dtype, k, repeat) for dtype in ("float32", "bfloat16") for repeat in (0, 1) for k in (2, 0)
    ]
    # a repeat that is done is left out, and a cell that lacks its summary alone has its last one
    order = turns(one[:2], {one[0].id: 1, one[1].id: 2}, dict.fromkeys([c.id for c in one], "w"))
    assert [(cell.labels["dtype"], repeat) for cell, repeat in order] == [
        ("float32", 1), ("bfloat16", 1),
    ]  # fmt: skip
    # two drafts of one target are compared: each round loads each pair once, for all batches
    two = cells(base={"repeats": 2}, axes={"batch": [1, 2], "draft_quantization": ["none", "int8"]})
    order = turns(two, {cell.id: 0 for cell in two}, {cell.id: work_of(cell) for cell in two})
    loads = [key for key, _ in itertools.groupby(c.labels["draft_quantization"] for c, _ in order)]
    assert loads == ["none", "int8"] * 2


def test_work_is_what_compared_cells_share() -> None:
    def work(**base: Any) -> str:
        return work_of(cells(base={"prompts": ["a"]} | base)[0])

    same = [
        {"policy": "fixed", "policy.k": 0}, {"drafter": "ngram"}, {"verifier": "coupled"},
        {"cache": "paged"}, {"repeats": 9}, {"prompts": [{"prompt": "a", "category": "c"}]},
    ]  # fmt: skip
    other = [
        {"prompts": ["b"]}, {"batch": 2}, {"samples": 2}, {"temperature": 0.0}, {"seed": 1},
        {"max_new_tokens": 9}, {"dtype": "bfloat16"}, {"quantization": "int8"},
        {"queue": 4}, {"queue": 4, "lengths": [2, 8]},
    ]  # fmt: skip
    assert {work(**base) for base in same} == {work()}
    assert len({work(), *(work(**base) for base in other)}) == len(other) + 1


@pytest.mark.parametrize("name", CONFIGS)
def test_every_packaged_config_has_autoregressive_decoding_of_each_work(name: str) -> None:
    found = plan(read_config(name, quick=True))
    assert found.about
    plains = [cell for cell in found.cells if cell.load_plan.parts.policy.max_length == 0]
    assert {work_of(cell) for cell in plains} == {work_of(cell) for cell in found.cells}


def test_the_packaged_configs_have_every_policy_verifier_and_trim() -> None:
    policies = {cell.labels["policy"] for cell in plan(read_config("policies")).cells}
    assert policies - {"plain"} == set(POLICIES) - {"lagged"}  # which wraps another
    verifiers = {cell.labels["method"] for cell in plan(read_config("verifiers")).cells}
    assert verifiers - {"plain", "plain-coupled"} == set(VERIFIERS) - {"synthetic"}
    trims = {type(cell.load_plan.parts.trim) for cell in plan(read_config("trims")).cells}
    assert trims - {type(None)} == set(TRIMS.values())


def test_the_embedded_target_has_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {cell.labels["method"]: cell.load_plan for cell in plan(read_config("drafters")).cells}
    drafts = {name: one.draft for name, one in plans.items()}
    for name, head in {"eagle3": "eagle3", "block": "block", "ensemble": "eagle3"}.items():
        assert (found := drafts[name]) is not None
        assert found.checkpoint == str(pair.HEADS[head])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "block").mkdir()  # a folder of the user's
    own = LoadPlan.of(LoadOptions(draft="block")).draft
    assert own is not None
    assert own.checkpoint == "block"


CONFIG = """
about: an example
base: {policy: fixed, policy.k: 4, top_p: 0.9}
axes: {batch: [1, 2], how: {a: {cache: padded}, b: {cache: split}}}
quick: {base: {max_new_tokens: 4}, axes: {batch: [1]}}
"""


def test_a_config_of_a_file_with_its_quick_part_and_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    raw = read_config(str(path))
    assert (raw["name"], raw["axes"]["batch"], "quick" in raw) == ("mine", [1, 2], False)
    raw = read_config(str(path), {"base.policy": "bass", "axes.how": None}, quick=True)
    assert raw["base"] == {"top_p": 0.9, "max_new_tokens": 4, "policy": "bass"}
    assert raw["axes"] == {"batch": [1]}
    # the command line overrides the quick part, whatever the order
    raw = read_config(str(path), {"base.batch": 8, "axes.batch": None}, quick=True)
    assert (raw["base"]["batch"], [*raw["axes"]]) == (8, ["how"])
    for override in ({"base.batch": 4}, {"base.cache": "paged"}, {"axes.bats": None}):
        with pytest.raises(OptionError, match=r"`batch` is set by|`cache` is set by|`bats`"):
            read_config(str(path), override)
    path.write_text("[1, 2]", encoding="utf-8")
    for name in (str(path), "comparson", str(tmp_path / "no.yaml")):
        with pytest.raises(OptionError, match="comparison"):
            read_config(name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"Did you mean `mine\.yaml`"):
        read_config("mine")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a setting": ({"base": {"temprature": 1}}, "`temprature`. Did you mean `temperature`"),
    "a name of vLLM": ({"base": {"max_tokens": 9}}, "give `max_new_tokens` (most new tokens"),
    "a type": (
        {"base": {"batch": "many"}},
        "`batch: 'many'` is of the wrong type: expected int",
    ),
    "no rows": ({"axes": {"batch": [0, 1]}}, "integer in [1, inf). (cell b0)"),
    "a policy": ({"axes": {"policy": ["baas"]}}, "Unknown policy `baas`. Did you mean `bass`"),
    "a parameter": ({"base": {"policy": "fixed", "policy.kk": 1}}, "policy `fixed` `kk`"),
    "a parameter of nothing": ({"base": {"stop_rule.threshold": 1}}, "without a strategy"),
    "a parameter that an axis replaces": (
        {"base": {"policy": "fixed", "policy.k": 4}, "axes": {"policy": ["fixed", "bass"]}},
        "`base.policy.k` has no effect",
    ),
    "two axes of one setting": (
        {"axes": {"batch": [1], "how": {"a": {"batch": 2}}}},
        "The axes `batch` and `how` both set `batch`",
    ),
    "nothing left": ({"axes": {"batch": [1]}, "exclude": [{"batch": 1}]}, "leaves out every cell"),
    "an axis of one value": ({"axes": {"batch": 3}}, "`axes.batch: 3` must be a list"),
    "an axis without settings": ({"axes": {"how": {"a": 1}}}, "to mappings of settings"),
    "samples of a queue": ({"base": {"queue": 4, "samples": 2}}, "leave `samples` out"),
    "arrivals without a queue": ({"base": {"rate": 4.0}}, "`rate` is for `queue`: give it too"),
    "limits without a queue": ({"base": {"ttft_limit": 1.0}}, "`ttft_limit` is for `queue`"),
    "lengths of a queue": ({"base": {"queue": 4, "lengths": [9, 3]}}, "the smaller one first"),
    "an unknown axis": ({"axes": {"bach": [1]}}, "Did you mean `batch`"),
    "layers of a cell after a plain one": (
        {"axes": {"how": {
            "plain": {"policy": "fixed", "policy.k": 0},
            "own": {"drafter": "self", "drafter.layers": 99},
        }}},
        "A draft of the first 99 layers needs a larger target",
    ),
    "no checkpoint": ({"base": {"target": "./nowhere"}}, "nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_rejected_in_a_sentence(case: str) -> None:
    raw, words = WRONG[case]
    [sentence] = problems(**raw)
    assert words in sentence


def test_a_cell_that_occurs_twice_runs_once() -> None:
    raw = {"name": "twice", "axes": {"batch": [1, 1]}}
    assert len(plan(raw).cells) == 1


def test_all_problems_are_reported_at_once() -> None:
    base = {
        "temprature": 1, "batch": "x", "top_p": 7, "max_new_tokens": 0, "repeats": 0,
        "verifier": "rejecton", "prompts": "nowhere.jsonl", "target": "./no-target",
    }  # fmt: skip
    found = problems(
        base=base, axes={"policy": ["bass"], "top_k": ["y"]}, exclude=[{"polcy": "bass"}]
    )
    words = [*base, "`top_k: 'y'`", "`polcy`"]
    words[words.index("target")] = "no-target"
    assert len(found) == len(words), found
    for word in words:
        assert any(word in sentence for sentence in found), (word, found)


def test_prompts_fit_the_context_of_both_models_or_are_left_out(
    pair: Pair, silent_pair: Pair, tmp_path: Path
) -> None:
    base = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": 8}
    prompts = ["def f(", [5] * 5000, "x"]
    [sentence] = problems(base=base | {"prompts": prompts})
    assert "5000 tokens" in sentence
    assert "1 of 3 prompts do not fit; `skip_long: true` leaves them out" in sentence
    found = made(base=base | {"prompts": prompts, "skip_long": True}, axes={"batch": [1, 2]})
    assert [len(cell.settings.entries) for cell in found.cells] == [2, 2]
    assert found.remarks == [
        "1 of 3 prompts are left out: they do not fit the context next to the new tokens."
    ]
    [sentence] = problems(base=base | {"prompts": ["x"], "queue": 2, "lengths": [1, 4999]})
    assert "4999 new ones follow" in sentence
    found = made(base=base | {"num_prompts": 9, "prompts": ["a"]})
    assert found.remarks == ["`num_prompts` is 9, and there are 1."]
    [sentence] = problems(base=base | {"draft": str(silent_pair.draft)})
    assert "vocabular" in sentence or "tokenizer" in sentence
    alone = write_checkpoint(tmp_path / "alone", None, 32, 2, 50)
    [sentence] = problems(base={"target": str(alone), "prompts": [[1]]})
    assert "needs a draft" in sentence
