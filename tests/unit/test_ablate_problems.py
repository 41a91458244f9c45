"""All that is wrong with a config is told at once, a line each; and looking at many cells costs
little.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import bass
from bass.api.llm import LLM
from bass.api.options import RequestOptions
from bass.errors import OptionError
from bass.experiments import estimate
from bass.experiments.checkpoints import check_checkpoints
from bass.experiments.config import MOST_CELLS, examined
from bass.experiments.config_files import with_overrides
from support.typecheck import EVERY_CALL
from unit.checkpoints import CONTEXT, Pair, Said, write_checkpoint

Command = Callable[..., Said]

# Settings of the base run that are wrong independently of each other, and what is said of each.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a range": ({"max_new_tokens": 0}, "`max_new_tokens=0` must be an integer of 1"),
    "another range": ({"repeats": 0}, "`repeats: 0` is too small"),
    "a warp": ({"temperature": -1}, "`temperature=-1.0` is out of range"),
    "another warp": ({"top_p": 7}, "`top_p=7.0`"),
    "a time": ({"time_budget": 0}, "`time_budget=0.0` must be more than 0 seconds"),
    "a limit": ({"ttft_limit": -1}, "`ttft_limit: -1.0` must be more than 0 seconds"),
    "a dtype": ({"dtype": "float31"}, "Unknown dtype `float31`"),
    "a device": ({"device": "gpu9"}, "gpu9"),
    "a kind": ({"batch": "many"}, "`batch: 'many'` is of the wrong type"),
    "a setting": ({"temprature": 1}, "Unknown setting `temprature`"),
    "prompts": ({"prompts": "nowhere.jsonl"}, "`prompts: nowhere.jsonl` cannot be read"),
    "a policy": ({"policy": "baas"}, "Unknown policy `baas`"),
    "a verifier": ({"verifier": "rejecton"}, "Unknown verifier `rejecton`"),
    "a parameter": (
        {"drafter": {"class_path": "ngram", "init_args": {"langest": 3}}},
        "Unknown parameter of drafter `Ngram` `langest`",
    ),
    "a pairing": ({"cache": "split", "attention": "sdpa"}, "Cannot pair `SDPA` with `SplitCache`"),
    "a target": ({"target": "./no-target"}, "no-target"),
    "a draft": ({"draft": "./no-draft"}, "no-draft"),
}


def told(raw: dict[str, Any]) -> list[str]:
    """The problems of a config, its checkpoints looked at."""
    made, problems = examined({"name": "x"} | raw)
    try:
        check_checkpoints(made, problems)
    except OptionError as error:
        return str(error).splitlines()
    return []


def test_a_mistake_hides_no_other(pair: Pair) -> None:
    """Each beside several others, those that are looked at before it and after it among them."""
    right = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": 8}
    pairs = [pair for i, pair in enumerate(itertools.combinations(WRONG.values(), 2)) if i % 3 == 0]
    for (one, first), (other, second) in pairs:
        lines = told({"base": right | one | other})
        for words in (first, second):
            assert any(words in line for line in lines), (one, other, lines)


def test_all_mistakes_of_a_config_are_told_a_line_each(
    pair: Pair, tmp_path: Path, bass_command: Command
) -> None:
    base = {"target": str(pair.target), "draft": str(pair.draft)}
    for said, _ in WRONG.values():
        base |= said
    raw = {
        "base": base,
        "axes": {"batsh": [1], "seed": [1, "x"]},
        "points": 3,
        "exclude": [{"polcy": 1}],
        "nam": 1,
        "quick": {"bas": {}},
    }
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    said = bass_command(
        "ablate",
        str(tmp_path / "all.yaml"),
        "--quick",
        "--seed",
        "3",
        "--output",
        str(tmp_path / "out"),
    )
    others = [
        "`quick.bas`",
        "`seed` is an axis",
        "`batsh`",
        "`seed: 'x'`",
        "`points: 3`",
        "`exclude.polcy`",
        "Unknown key `nam`",
    ]
    wanted = [words for _, words in WRONG.values()] + others
    head, *lines = said.err.splitlines()
    assert (said.status, said.out) == (2, "")
    assert head == f"bass: The config `all` has {len(wanted)} problems:", said.err
    assert len(lines) == len(wanted)
    for words in wanted:
        assert sum(words in line for line in lines) == 1, (words, said.err)
    assert all(line.startswith("  ") and line.endswith((".", ")")) for line in lines)


def test_what_is_wrong_with_some_cells_hides_nothing_of_others(pair: Pair) -> None:
    base = {"target": str(pair.target), "draft": str(pair.draft), "prompts": ["def f("]}
    axes = {
        "batch": [0, 1],
        "policy": ["fixed", "baas"],
        "max_new_tokens": [0, 4, 5000],
        "seed": list(range(MOST_CELLS)),
    }
    lines = told(
        {"base": base, "axes": {name: axes[name] for name in ("batch", "policy", "max_new_tokens")}}
    )
    for words in ("`batch: 0`", "`baas`", "`max_new_tokens=0`", "exceeds the context"):
        assert any(words in line for line in lines), lines
    lines = told({"base": base | {"repeats": 0}, "axes": axes})
    for words in (f"{MOST_CELLS} are the most", "`repeats: 0`"):
        assert any(words in line for line in lines), lines


def test_two_tokens_outside_of_a_vocabulary_and_a_long_prompt_are_both_told(pair: Pair) -> None:
    base = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": 4}
    lines = told({"base": base | {"prompts": [[1, 99_999], [1] * 5000]}})
    assert any("99999" in line for line in lines)
    assert any("exceeds the context" in line for line in lines)


def test_overrides_that_do_not_fit_are_told_with_what_is_wrong_in_the_config() -> None:
    raw = {"name": "x", "base": {"temprature": 1}, "axes": {"batch": [1]}, "quick": {"bas": {}}}
    with pytest.raises(
        OptionError, match=r"has 2 problems:\n.*`quick\.bas`.*\n.*`batch` is an axis"
    ):
        with_overrides(raw, False, [("base.batch", 2)])


MANY = """
base: {max_new_tokens: 4, num_prompts: 1, repeats: 1, policy: fixed}
axes:
  policy.k: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
  verifier: [rejection, block]
  temperature: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
  seed: [1, 2, 3, 4, 5]
  batch: [1, 2]
"""


def test_a_dry_run_of_two_thousand_cells_takes_three_seconds_at_most(
    pair: Pair, tmp_path: Path, bass_command: Command
) -> None:
    """Of processor time; six where the types of every call are checked.

    Here types are checked, which takes longer; as a command it is the import of torch that takes
    most.
    """
    (tmp_path / "many.yaml").write_text(MANY, encoding="utf-8")
    models = (
        "--target",
        str(pair.target),
        "--draft",
        str(pair.draft),
        "--prompts",
        "[def f(]",
        "--output",
        str(tmp_path / "out"),
    )
    began = time.process_time()
    said = bass_command("ablate", str(tmp_path / "many.yaml"), "--dry_run", *models)
    took = time.process_time() - began
    assert said.status == 0, said.err
    assert "2000 of 2000 cells to run" in said.out
    assert "1999-" in said.out
    assert took < (6 if EVERY_CALL else 3), f"{took:.1f} s"


def test_an_entry_of_points_or_exclude_that_is_no_mapping_hides_no_other() -> None:
    axes = {"method": {"pad": {"cache": "padded"}, "split": {"cache": "split"}}}
    points = [{"batch": 0}, {"foo": 1}, 7, {"batch": "x"}, {}, {"metod": "pad"}, {"method": "pat"}]
    lines = told({"axes": axes, "points": points, "exclude": ["x", {"metid": "pad"}]})
    wanted = (
        "`batch: 0` is too small",
        "In `points.1`: Unknown key `foo`",
        "`points.2: 7` must be a mapping of names to values, such as {batch: 1}.",
        "In `points.3`: `batch: 'x'`",
        "`points.4: {}` must be a mapping",
        "In `points.5`: Unknown key `metod`. Did you mean `method`?",
        "In `points.6.method`: Unknown key `pat`. Did you mean `pad`",
        "`exclude.0: 'x'` must be a mapping",
        "In `exclude.metid`: Unknown key `metid`. Did you mean `method`? Known: batch, method.",
    )
    for words in wanted:
        assert sum(words in line for line in lines) == 1, (words, lines)
    assert len(lines) == 1 + len(wanted)


# values of the right type that `LLM.generate` refuses
NEVER: dict[str, list[Any]] = {
    "max_new_tokens": [0, 2**63, CONTEXT],
    "min_new_tokens": [-1, 9],
    "temperature": [-1.0, 1e9],
    "top_p": [0.0],
    "top_k": [-1],
    "min_p": [1.0],
    "repetition_penalty": [0.0],
    "presence_penalty": [2.5],
    "frequency_penalty": [-2.5],
    "stop": [["x", ""]],
    "stop_token_ids": [[3, 10**6], [-1], [1] * 1001],
    "time_budget": [0.0, -1.0],
    "num_return_sequences": [0, 10**7],
}


def test_a_config_refuses_what_generate_refuses_with_the_same_sentence(
    pair: Pair, tmp_path: Path, bass_command: Command
) -> None:
    assert {*NEVER, "seed", "ignore_eos"} == {f.name for f in fields(RequestOptions)}
    models: dict[str, Any] = {"target": str(pair.target), "draft": str(pair.draft)}
    llm = bass.load(**models)
    for name, values in NEVER.items():
        for value in values:
            base: dict[str, Any] = {"max_new_tokens": 8, name: value}
            with pytest.raises(bass.BassError) as error:
                llm.generate([[3, 5]], **base)
            words = str(error.value).partition(": give")[0].removesuffix(".")
            if name == "num_return_sequences":
                base["samples"] = base.pop(name)
                words = f"{value}` " + ("is too small" if value == 0 else "for 1 prompts is more")
            lines = told({"base": models | base | {"prompts": [[3, 5]]}})
            assert any(words in line for line in lines), (name, value, str(error.value), lines)
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"base": models | {"stop_token_ids": [10**6], "stop": ["a", ""]}})
    )
    said = bass_command("ablate", str(tmp_path / "c.yaml"), "--dry-run")
    assert (said.status, said.out) == (2, "")
    assert "`stop_token_ids` holds 1000000: give token ids" in said.err
    assert "A stop string is empty" in said.err


def test_too_many_rows_of_one_prompt_are_refused(pair: Pair) -> None:
    lines = told({"base": {"target": str(pair.target), "draft": str(pair.draft), "batch": 10**7}})
    assert any("`batch=10000000` for 1 prompts is more than" in line for line in lines), lines


def test_stop_strings_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "t", None, 16, 1, 32)
    base = {"target": str(target), "policy": "fixed", "policy.k": 0, "prompts": [[1, 2]]}
    base["max_new_tokens"] = 4
    assert not told({"base": base})
    lines = told({"base": base, "axes": {"stop": ["", "x"]}})
    assert any("`stop` needs text" in line for line in lines), lines


def test_a_dry_run_of_a_cell_that_cannot_be_timed_fails(
    pair: Pair, tmp_path: Path, bass_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tasks: Any) -> float:
        raise bass.BassError("there is no room.")

    monkeypatch.setattr("bass.cli.ablate.estimate", fail)
    base = {"target": str(pair.target), "draft": str(pair.draft), "prompts": ["a"]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"base": base | {"max_new_tokens": 4}}))
    said = bass_command("ablate", str(tmp_path / "c.yaml"), "--dry-run")
    assert said.status == 2
    assert "unknown: there is no room." in said.out


@pytest.mark.parametrize(("longest", "timed"), [(1e9, [1, 2, 3]), (0.0, [1])])
def test_a_dry_run_times_batch_sizes_for_a_while(
    pair: Pair,
    tmp_path: Path,
    bass_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    longest: float,
    timed: list[int],
) -> None:
    found: list[int] = []
    monkeypatch.setattr(estimate, "LONGEST", longest)
    monkeypatch.setattr(
        estimate, "_pace", lambda _, settings: found.append(settings.batch) or (0.0, 60.0)
    )
    base = {"target": str(pair.target), "draft": str(pair.draft), "prompts": ["a"]}
    config = {"base": base | {"max_new_tokens": 4}, "axes": {"batch": [1, 2, 3]}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    said = bass_command("ablate", str(tmp_path / "c.yaml"), "--dry-run")
    assert said.status == 0, said.err
    assert found == timed


def test_a_dry_run_times_a_second_call_that_compiles_and_records_nothing(
    pair: Pair, tmp_path: Path, bass_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, calls = LLM.stream, []

    def counted(self: LLM, *prompts: Any, **options: Any) -> Any:
        calls.append(options)
        return stream(self, *prompts, **options)

    monkeypatch.setattr(LLM, "stream", counted)
    base = {
        "target": str(pair.target),
        "draft": str(pair.draft),
        "prompts": ["a"],
        "max_new_tokens": 8,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"base": base, "axes": {"seed": [0]}}))
    said = bass_command("ablate", str(tmp_path / "c.yaml"), "--dry-run")
    assert said.status == 0, said.err
    assert len(calls) == 2
    assert calls[0] == calls[1]
