"""Whatever is wrong with a checkpoint, it ends in a `CheckpointError`, at once and without taking
memory; or it does not matter.

More than two thousand damaged headers, indexes, configs and cut files. Where one loads, its weights
are those of the file.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from bass.api.loading import Checkpoint, Models, ModelSpec
from bass.checkpoints.folder import INDEX, SINGLE
from bass.checkpoints.weights import checkpoint_tensors
from bass.cli.info import describe
from bass.errors import CheckpointError
from unit.checkpoints import shard, write_checkpoint

CPU = torch.device("cpu")
HUGE = (10**9, 2**31 - 1, 2**31, 10**12, 2**62, 2**64, 10**30, 10**400)
ODD_NUMBERS = st.sampled_from(
    (
        0,
        -1,
        1,
        2,
        3,
        7,
        -(2**31),
        1e-9,
        0.5,
        -0.0,
        1e300,
        float("nan"),
        float("inf"),
        -float("inf"),
        *HUGE,
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | ODD_NUMBERS
    | st.integers(-40, 40)
    | st.text(max_size=4)
    | st.sampled_from(("F32", "float32", "llama3"))
)
ODD = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
DELETED = object()


def examples(count: int) -> settings:
    """So many examples, and ten times as many by night."""
    return settings(
        max_examples=count * (10 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1)
    )


@dataclass(frozen=True)
class Seed:
    """A sound checkpoint, and a folder of its own to be damaged and mended."""

    sound: Path
    folder: Path
    tensors: dict[str, torch.Tensor] = field(repr=False)

    @classmethod
    def of(cls, sound: Path) -> "Seed":
        folder = Path(shutil.copytree(sound, sound.with_name(f"{sound.name}-damaged")))
        return cls(
            sound,
            folder,
            {k: v for path in sound.glob("*.safetensors") for k, v in load_file(path).items()},
        )

    def damaged(self, name: str, content: bytes) -> bool:
        """Put `content` in the place of a file; whether the checkpoint still loads, which it may do
        only as what it is.
        """
        (self.folder / name).write_bytes(content)
        try:
            models = Models.read(ModelSpec(str(self.folder), CPU, "float32"))
            describe(Checkpoint.read(self.folder))
        except CheckpointError as error:
            return not is_a_sentence(str(error))
        finally:
            shutil.copyfile(self.sound / name, self.folder / name)
        for tensor, value in checkpoint_tensors(models.target, torch.float32).items():
            assert torch.equal(value, self.tensors[tensor]), tensor
        return True


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    return Seed.of(write_checkpoint(tmp_path_factory.mktemp("fuzz") / "single", None, 8, 1, 10))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    return Seed.of(
        shard(write_checkpoint(tmp_path_factory.mktemp("fuzz") / "sharded", None, 8, 1, 10), 3)
    )


def is_a_sentence(message: str) -> bool:
    assert message.endswith(".")
    assert len(message) < 5000
    return True


def split(content: bytes) -> tuple[bytes, bytes]:
    """The header and the data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def joined(header: Any, data: bytes) -> bytes:
    """A file of a header and data, its length field right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def put(value: Any, path: list[Any], new: Any) -> None:
    """Set or delete what `path` leads to in nested JSON."""
    for key in path[:-1]:
        value = value[key]
    if new is DELETED:
        del value[path[-1]]
    else:
        value[path[-1]] = new


def test_the_seeds_load(single: Seed, sharded: Seed) -> None:
    assert single.damaged("config.json", (single.sound / "config.json").read_bytes())
    assert sharded.damaged(INDEX, (sharded.sound / INDEX).read_bytes())


@pytest.mark.nightly
@examples(500)
@given(st.data())
def test_bytes_of_a_header(single: Seed, data: st.DataObject) -> None:
    content = bytearray((single.sound / SINGLE).read_bytes())
    end = 8 + len(split(bytes(content))[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end - 1))
        kind = data.draw(st.sampled_from(("set", "flip", "insert", "delete", "digit")))
        if kind == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "insert":
            content[at:at] = bytes([data.draw(st.integers(0, 255))])
        elif kind == "delete":
            del content[at]
        elif chr(content[at]).isdigit():
            content[at] = ord("0") + data.draw(st.integers(0, 9))
    single.damaged(SINGLE, bytes(content))


@examples(100)
@given(
    st.integers(0, 2**64 - 1)
    | st.integers(0, 5000)
    | st.sampled_from((0, 1, 2**63, 2**64 - 1, 100_000_000, 2**40))
)
def test_the_length_of_a_header(single: Seed, length: int) -> None:
    content = (single.sound / SINGLE).read_bytes()
    header, _ = split(content)
    loads = single.damaged(SINGLE, length.to_bytes(8, "little") + content[8:])
    assert loads == (length == len(header))


@pytest.mark.nightly
@examples(450)
@given(st.data())
def test_values_of_a_header(single: Seed, data: st.DataObject) -> None:
    raw, rest = split((single.sound / SINGLE).read_bytes())
    header = json.loads(raw)
    name = data.draw(st.sampled_from(sorted(header)))
    paths = [
        [name],
        [name, "dtype"],
        [name, "shape"],
        [name, "data_offsets"],
        [name, "shape", 0],
        *([name, "data_offsets", i] for i in (0, 1)),
    ]
    path = data.draw(st.sampled_from(paths)) if name != "__metadata__" else [name]
    dtypes = (
        "F16",
        "BF16",
        "F64",
        "I64",
        "I32",
        "BOOL",
        "U8",
        "F8_E4M3",
        "F8_E5M2",
        "F4",
        "f32",
        "C64",
        "",
    )
    if path[-1] == "dtype" and data.draw(st.booleans()):
        new = data.draw(st.sampled_from(dtypes))
    elif path[-1] == "shape" and data.draw(st.booleans()):
        new = data.draw(
            st.permutations(header[name]["shape"])
            | st.just([*header[name]["shape"], 1])
            | st.lists(st.sampled_from(HUGE))
        )
    else:
        new = data.draw(ODD | st.just(DELETED))
    if data.draw(st.sampled_from((False, False, True))):
        header[data.draw(st.text(max_size=8))] = header.pop(name)  # under another name
    else:
        put(header, path, new)
    single.damaged(SINGLE, joined(header, rest))


@examples(100)
@given(st.data())
def test_tensors_may_neither_overlap_nor_leave_a_gap(single: Seed, data: st.DataObject) -> None:
    raw, rest = split((single.sound / SINGLE).read_bytes())
    header = json.loads(raw)
    tensors = sorted(name for name in header if name != "__metadata__")
    # one: two could change places, which is another checkpoint and no damage
    name = data.draw(st.sampled_from(tensors))
    by = data.draw(st.integers(-64, 64).filter(bool) | st.sampled_from((-32, 32)))
    header[name]["data_offsets"] = [offset + by for offset in header[name]["data_offsets"]]
    assert not single.damaged(SINGLE, joined(header, rest))


@examples(50)
@given(
    ODD
    | st.binary(max_size=40)
    | st.just(b"[" * 100_000)
    | st.just(b'{"a":' * 100_000)
    | st.just(b'{"a": ' + b"9" * 5000 + b"}")
)
def test_a_header_that_is_something_else(single: Seed, header: Any) -> None:
    assert not single.damaged(
        SINGLE, joined(header, split((single.sound / SINGLE).read_bytes())[1])
    )


@examples(200)
@given(st.data())
def test_files_that_are_cut_or_go_on(sharded: Seed, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in sharded.sound.iterdir())))
    content = (sharded.sound / name).read_bytes()
    header = len(split(content)[0]) + 8 if name.endswith("s") else len(content)
    region = data.draw(
        st.sampled_from(
            ((0, 9), (0, header), (header, len(content)), (len(content) - 2, len(content)))
        )
    )
    cut = min(data.draw(st.integers(*region)), len(content) - 1)
    more = data.draw(st.binary(min_size=1, max_size=9)) if name.endswith("s") else b"x"
    assert not sharded.damaged(name, content[:cut]) or not content[cut:].strip()
    assert not sharded.damaged(name, content + more)


@pytest.mark.nightly
@examples(250)
@given(st.data())
def test_values_of_an_index(sharded: Seed, data: st.DataObject) -> None:
    index = json.loads((sharded.sound / INDEX).read_bytes())
    names = sorted(index["weight_map"])
    files = sorted({*index["weight_map"].values()})
    name = data.draw(st.sampled_from(names))
    places = (
        "../../etc/passwd",
        "../x.safetensors",
        "/etc/passwd",
        str(sharded.sound / files[0]),
        "./" + files[0],
        "a\0.safetensors",
    )
    places += (
        "x" * 5000 + ".safetensors",
        "config.json",
        "model-00009-of-00003.safetensors",
        "",
        ".",
        "..",
        ".safetensors",
        *files,
    )
    path = data.draw(
        st.sampled_from(
            (
                ["weight_map"],
                ["metadata"],
                ["metadata", "total_size"],
                ["weight_map", name],
                ["weight_map", name],
            )
        )
    )
    new = data.draw(
        ODD | st.just(DELETED) | (st.sampled_from(places) if path[-1] == name else st.nothing())
    )
    before = index["weight_map"][name]
    put(index, path, new)
    loads = sharded.damaged(INDEX, json.dumps(index).encode())
    if path == ["weight_map", name]:
        assert loads == (new in (DELETED, before)), new  # the files know themselves what they hold


@examples(50)
@given(ODD | st.binary(max_size=40) | st.just(b"[" * 100_000))
def test_an_index_or_config_that_is_something_else(sharded: Seed, value: Any) -> None:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    for name in (INDEX, "config.json", "generation_config.json"):
        shutil.copyfile(sharded.sound / "config.json", sharded.sound / "generation_config.json")
        loads = sharded.damaged(name, content)
        assert not loads or (name == "generation_config.json" and isinstance(value, dict))


@examples(500)
@given(st.data())
def test_values_of_a_config(single: Seed, data: st.DataObject) -> None:
    config = json.loads((single.sound / "config.json").read_bytes())
    more = (
        "rope_parameters",
        "torch_dtype",
        "eos_token_id",
        "hidden_act",
        "quantization_config",
        "attention_bias",
        "head_dim",
    )
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted({*config, *more})))
        new = data.draw(ODD | st.just(DELETED))
        if name in ("rope_scaling", "rope_parameters"):
            kinds = (
                st.sampled_from(("linear", "dynamic", "llama3", "yarn", "longrope", "su", "x"))
                | ODD
            )
            keys = st.sampled_from(
                (
                    "factor",
                    "original_max_position_embeddings",
                    "beta_fast",
                    "short_factor",
                    "rope_theta",
                    "mscale",
                )
            )
            new = data.draw(
                st.builds(
                    lambda kind, rest: {**rest, "rope_type": kind},
                    kinds,
                    st.dictionaries(keys, ODD, max_size=3),
                )
            )
        if new is DELETED:
            config.pop(name, None)
        else:
            config[name] = new
    single.damaged("config.json", json.dumps(config).encode())
