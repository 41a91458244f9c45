"""Which cell of autoregressive decoding a cell is compared with: one that decodes the same, and of
those the one most like it.
"""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bass.experiments.cells import Task
from bass.experiments.config import plan
from bass.experiments.config_files import read_config, shipped, with_overrides
from bass.experiments.plain import counterparts, fastest_plain, unlike
from bass.problems import Problems
from bass.runs.records import Summary
from bass.runs.settings import Settings

PLAIN = {"class_path": "fixed", "init_args": {"k": 0}}
MAY_DIFFER = ("policy", "verifier", "cache", "drafter", "e2e_limit")
VALUES: dict[str, Any] = {
    "policy": st.sampled_from([PLAIN, "fixed", "bass"]),
    "verifier": st.sampled_from(["rejection", "block", "coupled"]),
    "cache": st.sampled_from(["padded", "split"]),
    "drafter": st.sampled_from(["model", "ngram"]),
    "e2e_limit": st.sampled_from([None, 1.0]),
    "batch": st.sampled_from([1, 2]),
    "temperature": st.sampled_from([0.2, 1.0]),
    "seed": st.sampled_from([0, 1]),
    "quantization": st.sampled_from([None, "int8"]),
}


def tasks(cells: list[dict[str, Any]]) -> list[Task]:
    return [Task(str(i), {}, Settings(**cell), "run") for i, cell in enumerate(cells)]


def is_plain(settings: Settings) -> bool:
    return settings.policy == PLAIN


def decodes(settings: Settings) -> dict[str, Any]:
    return {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name not in MAY_DIFFER}


def likeness(a: Settings, b: Settings) -> tuple[bool, bool]:
    return (a.verifier == "coupled") == (b.verifier == "coupled"), a.cache == b.cache


@given(st.lists(st.fixed_dictionaries(VALUES), max_size=7))
def test_a_cell_is_held_against_the_likest_plain_one_that_decodes_the_same(
    cells: list[dict[str, Any]],
) -> None:
    made = {task.id: task.settings for task in tasks(cells)}
    found = counterparts(tasks(cells))
    for name, own in made.items():
        candidates = [
            other for other in made.values() if is_plain(other) and decodes(other) == decodes(own)
        ]
        assert (name in found) == bool(candidates and not is_plain(own))
        if name in found:
            plain = made[found[name]]
            assert is_plain(plain)
            assert decodes(plain) == decodes(own)
            assert likeness(plain, own) == max(likeness(other, own) for other in candidates)


@given(
    st.fixed_dictionaries(VALUES),
    st.sampled_from(["batch", "temperature", "seed", "max_new_tokens", "repeats", "ignore_eos"]),
)
def test_a_cell_is_not_held_against_what_decodes_something_else(
    cell: dict[str, Any], name: str
) -> None:
    own = Settings(**(cell | {"policy": "bass"}))
    values = {"temperature": 0.7, "ignore_eos": not own.ignore_eos}
    plain = replace(own, policy=PLAIN)
    other = replace(plain, **{name: values.get(name, getattr(own, name) if name in values else 5)})
    pair = [Task("own", {}, own, "run"), Task("plain", {}, plain, "run")]
    assert counterparts(pair) == {"own": "plain"}
    assert counterparts([pair[0], Task("plain", {}, other, "run")]) == {}


@given(st.lists(st.fixed_dictionaries(VALUES), max_size=7), st.data())
def test_a_speed_up_is_over_the_fastest_plain_cell_that_decodes_the_same(
    cells: list[dict[str, Any]], data: st.DataObject
) -> None:
    made = {task.id: task.settings for task in tasks(cells)}
    seconds = {name: data.draw(st.floats(0.1, 1.0)) for name in made}
    summaries = {
        name: Summary(
            name,
            {},
            "done",
            None,
            {"all": seconds[name], "drafted": 0.0 if is_plain(own) else 5.0},
            [],
            1.0,
        )
        for name, own in made.items()
    }
    found = fastest_plain(made, summaries)
    for name, own in made.items():
        times = [
            seconds[other]
            for other, one in made.items()
            if is_plain(one) and decodes(one) == decodes(own)
        ]
        assert (name in found) == bool(times)
        assert not times or seconds[found[name]] == min(times)
    lossy = {name: replace(own, verifier="typical") for name, own in made.items()}
    assert fastest_plain(lossy, summaries) == {}


@pytest.mark.parametrize(("changes", "names"), [
    ({}, []),
    ({"drafter": "ngram", "verifier": "coupled"}, []),
    ({"attention": "flex"}, ["attention"]),
    ({"cache": "split", "attention": "per-row"}, ["cache", "attention"]),
])  # fmt: skip
def test_a_cell_and_its_counterpart_are_unlike_in_what_a_step_has_besides_drafts(
    changes: dict[str, Any], names: list[str]
) -> None:
    own = Settings(cache="padded", attention="sdpa")
    plain = replace(own, policy=PLAIN)
    assert unlike(plain.load_plan(), replace(own, **changes).load_plan()) == names


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_cell_of_a_shipped_config_that_drafts_has_plain_decoding_beside_it(name: str) -> None:
    cells = plan(with_overrides(read_config(name), True, [])).cells
    found = counterparts([Task(cell.id, cell.labels, cell.settings, "run") for cell in cells])
    assert {cell.id for cell in cells} - found.keys() == {
        cell.id for cell in cells if cell.settings.load_plan().parts.policy.max_length == 0
    }
    assert found


@pytest.mark.parametrize("name", ["ttft_limit", "tpot_limit", "e2e_limit"])
def test_a_latency_limit_is_more_than_nothing(name: str) -> None:
    assert getattr(Settings(**{name: 0.5}).limits, name.removesuffix("_limit")) == 0.5
    problems = Problems()
    Settings(**{name: 0.0}).examine(problems)
    assert problems.sentences == [
        f"`{name}: 0.0` must be more than 0 seconds, or null for no limit."
    ]
