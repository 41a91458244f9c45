"""The widened pair computes what the narrow one does."""

import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bass import pair as embedded
from bass.analysis.frames import request_lines
from bass.api.results import Completion
from bass.checkpoints.folder import SINGLE
from bass.checkpoints.weights import load_decoder, read_index
from bass.models.llama import Llama, LlamaConfig
from bass.testing.small_models import dense_logits
from unit.checkpoints import byte_tokenizer, write_checkpoint
from unit.test_package import ROOT, TRAINED

trained = pytest.mark.skipif(not TRAINED, reason="the embedded pair is not there")
VOCAB = 320  # ids of the random checkpoints
EXCLUDED = -100.0  # exp of it is 0 in float32


def scripts(name: str) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples/widen_pair"))
        yield importlib.import_module(name)


@pytest.fixture(scope="module")
def widen() -> Iterator[ModuleType]:
    yield from scripts("widen")


@pytest.fixture(scope="module")
def curves() -> Iterator[ModuleType]:
    yield from scripts("curves")


def model(folder: Path) -> Llama:
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    assert isinstance(decoder, Llama)
    return decoder


def source(folder: Path) -> Path:
    """A random checkpoint with the files that are copied: 2 heads of 16 over 1 key head."""
    tokenizer = byte_tokenizer(VOCAB)
    write_checkpoint(folder, tokenizer, 32, 2, tokenizer.get_vocab_size())
    for name in ("tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def shape(**changes: object) -> LlamaConfig:
    """A wide shape for `source`."""
    wide = LlamaConfig(400, 48, 80, 5, 4, 4, 32, 128)
    return dataclasses.replace(wide, **changes)  # pyright: ignore[reportArgumentType]


def check_same(narrow: Path, wide: Path, length: int = 24, tolerance: float = 1e-4) -> None:
    """Logits are equal but for one constant for all ids, which changes no probability, and ids
    beyond the narrow vocabulary have none.
    """
    one, other = model(narrow), model(wide)
    vocab = one.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab, (2, length))
    expected, found = dense_logits(one, tokens), dense_logits(other, tokens)
    largest = np.abs(expected).max()
    shift = (found[..., :vocab] - expected).mean(-1, keepdims=True)
    assert np.abs(found[..., :vocab] - expected - shift).max() <= tolerance * largest
    if not other.config.tie_word_embeddings:
        assert np.abs(shift).max() <= tolerance * largest
    beyond = found[..., vocab:] - found[..., :vocab].max(-1, keepdims=True)
    assert (beyond < EXCLUDED).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "num_attention_heads": 2},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16},
        {"head_dim": 64, "num_hidden_layers": 2},
        {"vocab_size": VOCAB},
        {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64},
        {"hidden_size": 33},
    ],
)
def test_a_widened_model_has_the_same_distribution(
    widen: ModuleType, tmp_path: Path, changes: dict[str, object]
) -> None:
    narrow = source(tmp_path / "narrow")
    changes = {
        key: model(narrow).config.vocab_size if value == VOCAB else value
        for key, value in changes.items()
    }
    wide = widen.write(narrow, shape(**changes), tmp_path / "wide", torch.float32)
    config = model(wide).config
    wanted = dataclasses.asdict(shape(**changes))
    assert {k: getattr(config, k) for k in wanted if k != "rms_norm_eps"} == {
        k: v for k, v in wanted.items() if k != "rms_norm_eps"
    }
    check_same(narrow, wide)


@trained
@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_small_widened_pair_is_the_embedded_pair(
    widen: ModuleType, tmp_path: Path, role: str
) -> None:
    narrow = embedded.TARGET.parent / role
    wide = widen.PAIRS["small"][role == "draft"]
    check_same(narrow, widen.write(narrow, wide, tmp_path / role, torch.float32), 8)


@pytest.mark.nightly
@trained
def test_the_draft_of_the_paper_s_shape_is_the_embedded_draft(
    widen: ModuleType, tmp_path: Path
) -> None:
    wide = widen.write(embedded.DRAFT, widen.PAIRS["paper"][1], tmp_path / "wide", torch.float32)
    check_same(embedded.DRAFT, wide, 8)


@pytest.mark.nightly
@trained
def test_a_layer_of_the_paper_s_target_is_that_of_the_embedded_target(
    widen: ModuleType, tmp_path: Path
) -> None:
    """The whole target takes 31 GB in float32."""
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    raw = json.loads((embedded.TARGET / "config.json").read_text(encoding="utf-8"))
    raw |= {"num_hidden_layers": 1}
    (narrow / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    tensors = load_file(embedded.TARGET / SINGLE)
    first = {k: v for k, v in tensors.items() if "layers." not in k or "layers.0." in k}
    save_file(first, narrow / SINGLE)
    for name in widen.COPIED:
        (narrow / name).write_bytes((embedded.TARGET / name).read_bytes())
    wide = dataclasses.replace(widen.PAIRS["paper"][0], num_hidden_layers=1, vocab_size=5120)
    check_same(narrow, widen.write(narrow, wide, tmp_path / "wide", torch.float32), 8)


@pytest.mark.nightly
@trained
def test_the_small_widened_pair_emits_the_embedded_pair_s_greedy_tokens(
    widen: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sys.argv", ["widen", "--out", str(tmp_path), "--pair", "small", "--dtype", "float32"]
        )
        widen.main()
        patch.setattr("sys.argv", ["check", "--pair", str(tmp_path)])
        [check] = scripts("check")
        check.main()
    printed = capsys.readouterr().out
    assert printed.count("200 of 200 tokens equal") == 2 * len(check.PROMPTS)


def test_the_shards_hold_one_layer_each_in_bfloat16(widen: ModuleType, tmp_path: Path) -> None:
    wide = widen.write(source(tmp_path / "narrow"), shape(), tmp_path / "wide")
    files = read_index(wide).files
    assert len(files.paths) == 5 + 2
    assert {tensor.kind for tensor in files.stored.values()} == {"BF16"}
    assert json.loads((wide / "config.json").read_text(encoding="utf-8"))["eos_token_id"] == 0


def test_layers_that_add_nothing_have_no_output_and_those_that_do_keep_their_order(
    widen: ModuleType, tmp_path: Path
) -> None:
    narrow = model(source(tmp_path / "narrow")).config
    places = [widen.Widening(narrow, shape()).source_of(layer) for layer in range(5)]
    assert places == [(0, False), (0, True), (1, False), (1, False), (1, True)]
    wide = model(widen.write(tmp_path / "narrow", shape(), tmp_path / "wide", torch.float32))
    for (_, adds), block in zip(places, wide.blocks, strict=True):
        assert bool(block.attention.out.weight.any()) == adds  # pyright: ignore
        assert bool(block.mlp.down.weight.any()) == adds  # pyright: ignore
        assert block.attention.qkv.weight.any()  # pyright: ignore


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 16}, "`hidden_size=16` is less than the checkpoint's 32: give at least"),
        ({"head_dim": 24}, "`head_dim=24` is no multiple of the checkpoint's 16"),
        ({"hidden_size": 32}, "excluding them takes one hidden dimension more: raise"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "too few.* here: give at least 4"),
    ],
)
def test_a_shape_that_cannot_compute_the_same_is_an_error(
    widen: ModuleType, changes: dict[str, object], sentence: str
) -> None:
    """Of 6 heads in groups of 3."""
    narrow = LlamaConfig(320, 32, 64, 2, 6, 2, 16, 64, tie_word_embeddings=True)
    changes = {"num_attention_heads": 6, "num_key_value_heads": 6} | changes
    with pytest.raises(widen.ShapeError, match=sentence):
        widen.Widening(narrow, shape(**changes))


def evaluation(folder: Path, samples: int) -> Path:
    """An evaluation of two problems: of each, the last sample passes after one second."""
    folder.mkdir()
    (folder / "manifest.json").write_text(
        json.dumps({"config": {"num_return_sequences": samples}}), encoding="utf-8"
    )
    lines, steps = [], []
    for call, method, problem in ((0, "batched", "a"), (1, "batched", "b"), (0, "plain", "a")):
        done = [
            Completion(0, i, "", [1], [-1.0 - i], "eos", 1.0 + i, 3, 0.5) for i in range(samples)
        ]
        more = {"method": method, "problem": problem}
        for line in request_lines(done, repeat=0, call=call, **more):
            lines.append(line | {"passed": line["request"] == samples - 1})
        steps.append({"repeat": 0, "call": call, "step": 0} | more)
    for name, some in (("requests", lines), ("steps", steps)):
        text = "".join(json.dumps(line) + "\n" for line in some)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_curves_have_a_row_per_batch_and_budget_of_what_all_methods_have(
    curves: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = [evaluation(tmp_path / "two", 2), evaluation(tmp_path / "one", 1)]
    monkeypatch.setattr("sys.argv", ["curves", *map(str, folders), "--budgets", "0.5", "1"])
    curves.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| batch | seconds | plain: First | plain: All | single: First")
    assert lines[2:] == [
        "| 1 | 0.5 | 0 % | 0 % | – | – | 0 % | 0 % |",
        "| 1 | 1 | 100 % | 100 % | – | – | 100 % | 100 % |",
        "| 1 | no limit | 100 % | 100 % | – | – | 100 % | 100 % |",
        "| 2 | 0.5 | 0 % | 0 % | – | – | 0 % | 0 % |",
        "| 2 | 1 | 0 % | 0 % | – | – | 0 % | 0 % |",
        "| 2 | no limit | 0 % | 100 % | – | – | 0 % | 100 % |",
    ]
