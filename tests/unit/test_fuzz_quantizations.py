"""Fields of quantization_config with any JSON value: the checkpoint loads, or one sentence says
what is wrong.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bass.checkpoints.weights import load_decoder
from bass.errors import BassError
from unit.stored_quantizations import METHODS, write_quantized
from unit.test_stored_quantizations import CPU, original

WRONG: list[Any] = [True, False, None, 5, 0, -1, 2.5, "x", "", [], ["x"], {}, {"x": 1}, 1 << 70]
# fields that configs may have, and the test's own do not
MORE = {
    "fp8": ("weight_block_size",),
    "gptq": ("checkpoint_format", "format", "is_marlin_format", "dynamic", "desc_act", "sym"),
    "awq": ("w_bit", "q_group_size", "format", "backend", "zero_point"),
    "compressed-tensors": ("sparsity_config", "transform_config"),
}
WEIGHTS = ("symmetric", "actorder", "strategy", "block_structure", "group_size")
ANY_METHOD = ["fp8 blocks", "fp8 tensor", "int8 rows", "int4 order", "gptq order", "awq"]
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for method in ANY_METHOD:
        folder = tmp_path_factory.mktemp("fuzz")
        made[method] = write_quantized(original(folder), folder, *METHODS[method])[0]
    return made


def inside(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The places of all values in it."""
    items = value.items() if isinstance(value, dict) else ()
    for name, inner in enumerate(value) if isinstance(value, list) else items:
        yield (*path, name)
        yield from inside(inner, (*path, name))


def fields(config: dict[str, Any]) -> list[Path_]:
    """The places of all fields that are read, and of some more."""
    found = [(), *inside(config), *((more,) for more in MORE[config["quant_method"]])]
    if "config_groups" in config:
        weights = ("config_groups", "group_0", "weights")
        found += [(*weights, field) for field in WEIGHTS]
        found.append(("config_groups", "group_0", "format"))
    return found


def replaced(config: Any, path: Path_, value: Any) -> Any:
    if not path:
        return value
    changed = deepcopy(config)
    at = changed
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return changed


def loads(folder: Path, config: Any) -> bool:
    """Whether it loads; if not, one sentence with a remedy says why, also to `bass info`."""
    raw = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
    told = ""
    for device in (CPU, torch.device("meta")):
        try:
            load_decoder(folder, device, torch.float32)
        except BassError as error:
            told = str(error)
    assert not told or str(folder) in told
    assert not told or any(remedy in told for remedy in ("download ", "correct ", "use the "))
    assert len(told) < 1000
    return not told


@pytest.mark.parametrize("method", ANY_METHOD)
def test_a_field_of_another_type_loads_or_is_one_sentence(
    method: str, folders: dict[str, Path]
) -> None:
    config = METHODS[method][0]
    for path in fields(config):
        for value in WRONG:
            loads(folders[method], replaced(config, path, value))
    assert loads(folders[method], config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@given(st.sampled_from(ANY_METHOD), st.randoms(use_true_random=False), JSON)
@example("int8 rows", None, "re:" + "(" * 5000 + ")" * 5000)
@example("int8 rows", None, "re:[[a]")
def test_any_value_of_any_field_loads_or_is_one_sentence(
    folders: dict[str, Path], method: str, random: Any, value: Any
) -> None:
    config = METHODS[method][0]
    path = ("config_groups", "group_0", "targets", 0)
    if random is not None:
        path = random.choice(fields(config))
    loads(folders[method], replaced(config, path, value))


def test_sides_of_blocks_in_words_are_small_numbers(folders: dict[str, Path]) -> None:
    config = METHODS["int8 rows"][0]
    weights = ("config_groups", "group_0", "weights")
    blocks = replaced(config, (*weights, "strategy"), "block")
    for text in ("9" * 5000 + "x1", "x", "-1x1", "²x2", "1x1x1", "0x128", ""):
        assert not loads(
            folders["int8 rows"], replaced(blocks, (*weights, "block_structure"), text)
        )
