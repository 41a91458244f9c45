"""Sizes that a checkpoint claims, drawn at random: refused without taking the memory."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.checkpoints.bounds import HEADS, LAYERS, WIDTHS
from bass.checkpoints.folder import SINGLE
from bass.checkpoints.shards import read_header
from bass.checkpoints.weights import load_decoder, save_decoder
from bass.errors import CheckpointError
from bass.models import FAMILIES
from models.cases import FIRST
from support.matrix import night
from unit.checkpoints import write_checkpoint
from unit.memory import peak
from unit.test_fuzz_checkpoints import ODD, Seed, examples, joined, split

CPU = torch.device("cpu")
HUGE = (10**9, 2**31 - 1, 2**31, 10**12, 2**62, 2**64, 10**30, 10**400)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    return Seed.of(write_checkpoint(tmp_path_factory.mktemp("fuzz") / "single", None, 8, 1, 10))


def small(family: str, folder: Path) -> Path:
    """A checkpoint of a family, of its first variant."""
    config = FAMILIES[family].config_type.from_json(FIRST[family].arguments)
    decoder = FAMILIES[family](config)  # pyright: ignore[reportCallIssue]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_decoder(decoder, folder, torch.float32)
    return folder


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seed]:
    made: dict[str, Seed] = {}

    def of(family: str) -> Seed:
        if family not in made:
            made[family] = Seed.of(small(family, tmp_path_factory.mktemp("family") / family))
        return made[family]

    return of


@examples(10)
@given(data=st.data())
@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_the_config_of_every_family(
    families: Callable[[str], Seed], family: str, data: st.DataObject
) -> None:
    seed = families(family)
    config = json.loads((seed.sound / "config.json").read_bytes())
    name = data.draw(st.sampled_from(sorted(config)))
    config[name] = data.draw(ODD)
    seed.damaged("config.json", json.dumps(config).encode())


@pytest.mark.parametrize("numbers", [(10**9, 2**62, 10**400), night(HUGE)], ids=len)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_that_claims_terabytes_takes_no_memory_and_no_time(
    families: Callable[[str], Seed], family: str, numbers: tuple[int, ...]
) -> None:
    """All sizes of the config, each with huge numbers: ten seconds and 64 MB for the lot,
    where one layer too many takes more.
    """
    seed = families(family)
    config = json.loads((seed.sound / "config.json").read_bytes())
    sizes = [
        name for name, value in config.items() if type(value) is int and name != "eos_token_id"
    ]
    began = time.monotonic()
    with peak() as taken:
        for name in sizes:
            for huge in numbers:
                seed.damaged("config.json", json.dumps(config | {name: huge}).encode())
    assert time.monotonic() - began < 10
    assert taken[0] < 64 << 20


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bounds_know_every_family_s_sizes(family: str) -> None:
    names = {field.name for field in fields(FAMILIES[family].config_type)}
    assert len(names & {*LAYERS}) == 1
    assert len(names & {*HEADS}) == 1
    assert "vocab_size" in names & {*WIDTHS}


def test_a_header_that_claims_terabytes_takes_no_memory(single: Seed) -> None:
    raw, rest = split((single.sound / SINGLE).read_bytes())
    with peak() as taken:
        for huge in HUGE:
            header = json.loads(raw)
            name = "model.embed_tokens.weight"
            start = header[name]["data_offsets"][0]
            header[name] |= {"shape": [huge, 8], "data_offsets": [start, start + huge * 32]}
            assert not single.damaged(SINGLE, joined(header, rest))
            assert not single.damaged(
                SINGLE,
                joined({"x": {"dtype": "U8", "shape": [huge], "data_offsets": [0, huge]}}, b""),
            )
    assert taken[0] < 64 << 20


def test_files_that_would_block_are_not_opened(single: Seed, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(single.sound, tmp_path / "pipe"))
    (folder / SINGLE).unlink()
    os.mkfifo(folder / SINGLE)
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load_decoder(folder, CPU, torch.float32)
    assert read_header(single.sound / SINGLE)
