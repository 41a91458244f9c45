"""What a config of `bass ablate` stands for, and how a wrong one is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bass.errors import OptionError
from bass.experiments.cells import Task
from bass.experiments.checkpoints import check_checkpoints
from bass.experiments.config import MOST_CELLS, plan
from bass.experiments.config_files import read_config, shipped, with_overrides
from bass.experiments.turns import by_models
from bass.policies import POLICIES, BatchAdaptive, Fixed, Lagged
from bass.runs.settings import DEFAULTS, Call, Settings
from bass.verifiers import VERIFIERS
from unit.test_package import TRAINED


def planned(**raw: Any) -> list[Any]:
    return plan({"name": "x"} | raw).cells


def test_a_grid_has_every_combination_and_names_it() -> None:
    cells = planned(base={"temperature": 0.5}, axes={"policy": ["bass", "fixed"], "batch": [1, 8]})
    assert [cell.id for cell in cells] == [
        "0000-bass-b1",
        "0001-bass-b8",
        "0002-fixed-b1",
        "0003-fixed-b8",
    ]
    assert cells[3].labels == {"policy": "fixed", "batch": 8}
    assert {cell.settings.temperature for cell in cells} == {0.5}


def test_a_config_without_axes_is_the_base_run() -> None:
    [cell] = planned(base={"batch": 2})
    assert (cell.id, cell.labels, cell.settings) == ("0000", {}, Settings(batch=2))


STRATEGIES = {
    "a name": ({"policy": "fixed"}, Fixed(4)),
    "a parameter": ({"policy.k": 2, "policy": "fixed"}, Fixed(2)),
    "a class path": (
        {"policy": {"class_path": "bass.policies.Fixed", "init_args": {"k": 2}}},
        Fixed(2),
    ),
    "one in another": (
        {
            "policy": {"class_path": "lagged", "init_args": {"policy": "fixed"}},
            "policy.policy.k": 3,
        },
        Lagged(Fixed(3)),
    ),
    "the default's parameter": ({"policy.start": 3}, BatchAdaptive(start=3)),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_strategies_are_named_with_their_parameters(case: str) -> None:
    said, policy = STRATEGIES[case]
    [cell] = planned(base=said)
    assert cell.settings.load_plan().parts.policy == policy


def test_a_parameter_may_be_an_axis_of_its_own() -> None:
    cells = planned(base={"policy": "fixed"}, axes={"policy.k": [0, 2]})
    assert [cell.settings.load_plan().parts.policy for cell in cells] == [Fixed(0), Fixed(2)]
    assert [cell.id for cell in cells] == ["0000-policy.k-0", "0001-policy.k-2"]


def test_an_axis_may_label_several_settings_at_once() -> None:
    axes = {
        "layout": {
            "pad": {"cache": "padded", "attention": "sdpa"},
            "split": {"cache": "split", "attention": "per-row"},
        }
    }
    assert [
        (c.labels["layout"], c.settings.cache, c.settings.attention) for c in planned(axes=axes)
    ] == [
        ("pad", "padded", "sdpa"),
        ("split", "split", "per-row"),
    ]


def test_values_that_are_mappings_have_short_labels() -> None:
    values = ["bass", {"class_path": "bass.policies.Fixed", "init_args": {"k": 2}}]
    assert [cell.labels["policy"] for cell in planned(axes={"policy": values})] == [
        "bass",
        "Fixed(k=2)",
    ]


def test_points_are_cells_beside_the_grid_and_have_a_value_on_every_axis() -> None:
    cells = planned(axes={"batch": [1, 2]}, points=[{"batch": 4, "temperature": 1.0}])
    assert [cell.labels for cell in cells] == [
        {"batch": 1, "temperature": 0.2},
        {"batch": 2, "temperature": 0.2},
        {"batch": 4, "temperature": 1.0},
    ]
    assert [cell.settings.batch for cell in planned(points=[{"batch": 4}, {"batch": 5}])] == [4, 5]


def test_excluded_combinations_are_left_out() -> None:
    cells = planned(
        axes={"cache": ["padded", "split"], "attention": ["sdpa", "per-row"]},
        exclude=[
            {"cache": "padded", "attention": "per-row"},
            {"cache": "split", "attention": ["sdpa"]},
        ],
    )
    assert [tuple(cell.labels.values()) for cell in cells] == [
        ("padded", "sdpa"),
        ("split", "per-row"),
    ]


def texts(call: Call) -> list[Any]:
    return [entry.prompt for entry in call.prompts]


def test_rows_share_a_prompt_unless_samples_are_counted() -> None:
    [own] = planned(base={"prompts": ["a", "b"], "batch": 3, "repeats": 2, "seed": 5})
    assert [(texts(call), call.samples, call.seed) for call in own.settings.calls] == [
        (["a"], 3, 5),
        (["b"], 3, 5),
        (["a"], 3, 6),
        (["b"], 3, 6),
    ]
    assert {call.first_sample for call in own.settings.calls} == {0}
    [together] = planned(base={"prompts": ["a", "b"], "batch": 3, "repeats": 1, "samples": 2})
    assert [(texts(call), call.samples) for call in together.settings.calls] == [(["a", "b"], 2)]


def test_a_prompt_that_is_repeated_gets_further_samples_in_each_repeat() -> None:
    prompts: list[Any] = ["a", [1, 2], "a", [1, 2], "a"]
    [cell] = planned(base={"prompts": prompts, "batch": 3, "repeats": 2})
    firsts = [call.first_sample for call in cell.settings.calls]
    assert firsts == [0, 0, 3, 3, 6] * 2


def test_prompts_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "def f(", "task_id": 1}\n{"token_ids": [1, 2]}\n', encoding="utf-8"
    )
    (tmp_path / "p.txt").write_text("def g(", encoding="utf-8")
    [lines, text] = planned(axes={"prompts": [str(tmp_path / "p.jsonl"), str(tmp_path / "p.txt")]})
    assert texts(lines.settings.calls[0]) + texts(lines.settings.calls[1]) == ["def f(", (1, 2)]
    assert texts(text.settings.calls[0]) == ["def g("]


def test_what_a_config_became_can_be_read_again() -> None:
    for name in shipped():
        made = plan(with_overrides(read_config(name), True, []))
        again = plan(yaml.safe_load(yaml.safe_dump(made.config, sort_keys=False)))
        assert (again.cells, again.config) == (made.cells, made.config)
        assert set(made.config["base"]) == set(DEFAULTS)


def test_the_models_are_not_loaded_twice() -> None:
    cells = planned(
        axes={"policy.k": [0, 2], "dtype": ["float32", "bfloat16"]}, base={"policy": "fixed"}
    )
    order = by_models([Task(cell.id, cell.labels, cell.settings, "x") for cell in cells])
    assert [(task.labels["dtype"], task.labels["policy.k"]) for task in order] == [
        ("float32", 2),
        ("float32", 0),
        ("bfloat16", 2),
        ("bfloat16", 0),
    ]


@pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_config_is_possible_on_the_embedded_pair(name: str) -> None:
    made = plan(with_overrides(read_config(name), True, []))
    check_checkpoints(made)
    assert made.about


def test_the_shipped_configs_know_every_policy_and_every_verifier() -> None:
    policies = {cell.labels["policy"] for cell in plan(read_config("policies")).cells}
    assert policies - {"plain"} == set(POLICIES) - {"clamped", "lagged"}  # wrappers of the others
    verifiers = {cell.labels["method"] for cell in plan(read_config("verifiers")).cells}
    # which looks at no token
    assert verifiers - {"plain", "plain-coupled"} == set(VERIFIERS) - {"synthetic"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"bsae": {}}, "Unknown key `bsae`. Did you mean `base`"),
    "an unknown setting": (
        {"base": {"temprature": 1}},
        "In `base`: Unknown setting `temprature`. Did you mean `temperature`",
    ),
    "another library's name": (
        {"base": {"max_tokens": 9}},
        "In `base`: Unknown setting `max_tokens`: give `max_new_tokens` (most new tokens per",
    ),
    "another library's name on an axis": (
        {"axes": {"do_sample": [True, False]}},
        "In `axes.do_sample`: Unknown key `do_sample`: give `temperature` (0 is greedy).",
    ),
    "another library's name in a label": (
        {"axes": {"how": {"a": {"n": 4}}}},
        "In `axes.how`: Unknown setting `n`: give `samples` (of each prompt",
    ),
    "another library's name in a point": (
        {"points": [{"max_num_seqs": 4}]},
        "In `points.0`: Unknown key `max_num_seqs`: give `batch` (rows",
    ),
    "a name of `bass generate`": (
        {"base": {"num_return_sequences": 4}},
        "In `base`: Unknown setting `num_return_sequences`: give `samples` (of each",
    ),
    "a number of drafted tokens": (
        {"base": {"gamma": 4}},
        "In `base`: Unknown setting `gamma`: give `policy: fixed` and `policy.k` (how many tokens",
    ),
    "a setting above the base run": (
        {"temperature": 1},
        "Unknown key `temperature`: give `temperature` in `base` (0 is greedy).",
    ),
    "another library's name above the base run": (
        {"max_tokens": 1},
        "Unknown key `max_tokens`: give `max_new_tokens` in `base` (most",
    ),
    "an unknown axis": ({"axes": {"batsh": [1]}}, "Unknown key `batsh`. Did you mean `batch`"),
    "a wrong kind": (
        {"base": {"batch": "many"}},
        "`batch: 'many'` is of the wrong type: give an integer.",
    ),
    "nothing": ({"base": {"batch": None}}, "`batch: null` is of the wrong type: give an integer."),
    "a wrong kind on an axis": (
        {"axes": {"top_p": [0.9, "x"]}},
        "In `axes.top_p`: `top_p: 'x'` is of the wrong type",
    ),
    "out of range": ({"base": {"temperature": -1}}, "`temperature=-1.0` is out of range"),
    "no rows": (
        {"axes": {"batch": [0, 1]}},
        "`batch: 0` is too small: give 1 or more. (cell 0000-b0)",
    ),
    "an impossible pair": (
        {"base": {"cache": "split", "attention": "sdpa"}},
        "Cannot pair `SDPA` with `SplitCache`",
    ),
    "an unknown policy": (
        {"axes": {"policy": ["baas"]}},
        "Unknown policy `baas`. Did you mean `bass`",
    ),
    "an unknown parameter": (
        {"base": {"policy": "fixed", "policy.kk": 1}},
        "Unknown parameter of policy `Fixed` `kk`",
    ),
    "a parameter of a wrong kind": (
        {"base": {"policy": "fixed", "policy.k": "x"}},
        "`policy.k='x'` is of the wrong type: give an integer",
    ),
    "a parameter of nothing": (
        {"base": {"stop_rule.threshold": 1}},
        "`stop_rule.threshold` is a parameter without a strategy",
    ),
    "a parameter of a number": (
        {"base": {"batch.x": 1}},
        "`batch.x` is a parameter, and `batch` has none",
    ),
    "a stop rule without use": (
        {"base": {"drafter": "ngram", "stop_rule": "svip"}},
        "`Ngram` does not apply stop rules",
    ),
    "a draft without use": (
        {"base": {"drafter": "ngram", "draft": "there"}},
        "`draft: there` is used by no cell",
    ),
    "graphs on a CPU": (
        {"base": {"cuda_graphs": True, "device": "cpu"}},
        "`cuda_graphs=True` needs a CUDA device",
    ),
    "no values": ({"axes": {"batch": []}}, "The axis `batch: []` has no values"),
    "a value twice": ({"axes": {"batch": [1, 1]}}, "The axis `batch` has two values of one name"),
    "two axes of one thing": (
        {"axes": {"batch": [1], "how": {"a": {"batch": 2}}}},
        "The axes `batch` and `how` both set `batch`",
    ),
    "a label of nothing": (
        {"axes": {"how": {"a": 3}}},
        "`axes.how.a: 3` must be a mapping of settings",
    ),
    "the same cell twice": (
        {"axes": {"batch": [1]}, "points": [{"batch": 1}]},
        "is the same as `0000-b1`",
    ),
    "an exclusion of nothing": (
        {"axes": {"batch": [1]}, "exclude": [{"batch": 2}]},
        "In `exclude.batch`: Unknown key `2`",
    ),
    "nothing left": (
        {"axes": {"batch": [1]}, "exclude": [{"batch": 1}]},
        "`exclude` leaves out every cell",
    ),
    "too many": ({"axes": {"seed": list(range(MOST_CELLS + 1))}}, f"{MOST_CELLS} are the most"),
    "no mapping": ({"axes": [1]}, "`axes: [1]` must be a mapping"),
    "no points": ({"points": {"batch": 1}}, "must be a list of mappings"),
    "a bad name": ({"name": "a/b"}, "it names the run's folder"),
    "no prompts": ({"base": {"prompts": []}}, "holds no prompts"),
    "no file": ({"base": {"prompts": "nowhere.jsonl"}}, "`prompts: nowhere.jsonl` cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_refused_in_a_sentence(case: str) -> None:
    raw, words = WRONG[case]
    with pytest.raises(OptionError) as caught:
        planned(**raw)
    assert words in str(caught.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    raw = {
        "base": {"temprature": 1, "batch": "x"},
        "axes": {"policy": ["bass"], "top_k": ["y"]},
        "exclude": [{"polcy": "bass"}],
    }
    with pytest.raises(OptionError) as caught:
        planned(**raw)
    told = str(caught.value)
    assert "has 4 problems" in told
    assert all(name in told for name in ("`temprature`", "`batch: 'x'`", "`top_k: 'y'`", "`polcy`"))
    with pytest.raises(
        OptionError, match=r"has 2 problems:\n.*SplitCache.*and 1 more\)\n.*PagedCache"
    ) as caught:
        planned(
            base={"attention": "sdpa"},
            axes={"cache": ["padded", "split", "paged"], "batch": [1, 2]},
        )
