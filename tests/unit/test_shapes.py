"""The shapes of well-known pairs are those of the public checkpoints."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from bass.api.loading import Checkpoint, check_pair
from bass.models.layers import Attention
from unit.test_package import ROOT

# parameters, as the model cards count them
COUNTS = {
    "llama/target": 8_030_261_248,
    "llama/draft": 1_235_814_400,
    "qwen3/target": 8_190_735_360,
    "qwen3/draft": 596_049_920,
    "qwen2.5/target": 7_615_616_512,
    "qwen2.5/draft": 494_032_768,
    "gemma2/target": 9_241_705_984,
    "gemma2/draft": 2_614_341_888,
    "opt/target": 12_853_473_280,
    "opt/draft": 125_239_296,
    "codegen/draft": 356_712_448,
    "gpt-oss/target": 20_914_757_184,
}


@pytest.fixture(scope="module")
def shapes() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("write_shapes")


def test_the_files_are_those_that_the_script_writes(shapes: ModuleType) -> None:
    files = {path.relative_to(shapes.SHAPES).as_posix() for path in shapes.SHAPES.rglob("*.json")}
    assert files == {f"{p}/{r}/config.json" for p in shapes.PAIRS for r in ("target", "draft")}
    for pair, configs in shapes.PAIRS.items():
        for role, config in zip(("target", "draft"), configs, strict=True):
            text = (shapes.SHAPES / pair / role / "config.json").read_text(encoding="utf-8")
            assert text == shapes.written(config)


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_the_parameters_of_its_card(shapes: ModuleType, name: str) -> None:
    """A norm of heads counts once there, and for every head here."""
    decoder = Checkpoint.read(shapes.SHAPES / name, dummy=True).index.decoder
    norms = [m.qk_norm for m in decoder.modules() if isinstance(m, Attention)]
    repeated = sum(n.weight.numel() - 2 * n.shape[1] for n in norms if n is not None)
    assert sum(p.numel() for p in decoder.parameters()) - repeated == COUNTS[name]


def test_the_pairs_are_pairs(shapes: ModuleType) -> None:
    for pair in shapes.PAIRS:
        roles = (Checkpoint.read(shapes.SHAPES / pair / r, dummy=True) for r in ("target", "draft"))
        target, draft = roles
        check_pair(target, draft)
        assert target.index.decoder.shape.max_positions >= 2048
