"""Rotary positions: conventions, invariance, every kind of scaling against `transformers`, and what
is refused.
"""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from bass.errors import CheckpointError
from bass.models import FAMILIES
from bass.models.rope import RopeScaling, Rotary, frequencies, pair_order
from bass.models.sources import head_rows
from models.cases import COMMON

CPU = torch.device("cpu")
SHORT = [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": [2 * f for f in SHORT]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3, wide ramp": LLAMA3
    | {"low_freq_factor": 0.5, "high_freq_factor": 16.0, "factor": 32.0},
    "yarn": YARN,
    "yarn, original context absent": {"rope_type": "yarn", "factor": 4.0},
    "yarn, not truncated": YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn, mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, mscale alone": YARN | {"mscale": 0.7},
    "yarn, own attention factor": YARN
    | {"attention_factor": 0.8, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, ramp of no width": YARN | {"beta_fast": 1e-4, "beta_slow": 1e-4, "factor": 40.0},
    "longrope": LONGROPE | {"original_max_position_embeddings": 512},
    "longrope, factor": LONGROPE | {"original_max_position_embeddings": 512, "factor": 16.0},
    "longrope, factor of 1": LONGROPE | {"original_max_position_embeddings": 512, "factor": 1.0},
    "longrope, attention factor": LONGROPE
    | {"original_max_position_embeddings": 512, "attention_factor": 1.4},
    "longrope, original context absent": LONGROPE,
}


def llama_json(rope: dict[str, Any] | None, theta: float = 10000.0) -> dict[str, Any]:
    """A config.json with heads of 16 dimensions and a context of 2048."""
    return {
        **COMMON,
        "model_type": "llama",
        "max_position_embeddings": 2048,
        "rope_theta": theta,
        "rope_scaling": rope,
    }


def by_hand(
    x: torch.Tensor, angles: torch.Tensor, rotary_dim: int, interleaved: bool
) -> torch.Tensor:
    """`x` [W,D] in the checkpoint's own convention, pair after pair; angles [W,P]."""
    out = x.clone()
    for i in range(rotary_dim // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + rotary_dim // 2)
        cos, sin = angles[:, i].cos(), angles[:, i].sin()
        out[:, a], out[:, b] = x[:, a] * cos - x[:, b] * sin, x[:, b] * cos + x[:, a] * sin
    return out


@given(
    st.booleans(),
    st.sampled_from([(8, 8), (8, 2), (16, 12), (10, 6), (2, 2)]),
    st.integers(0, 2**31),
)
def test_rows_in_pair_order_give_the_scores_of_the_checkpoints_own_convention(
    interleaved: bool, dims: tuple[int, int], seed: int
) -> None:
    head_dim, rotary_dim = dims
    q, k = torch.randn(
        2, 6, head_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    positions = torch.tensor([0, 1, 5, 17, 30, 49])
    speed, _ = frequencies(100.0, rotary_dim, 64, None)
    angles = positions[:, None] * speed.double()
    theirs = (
        by_hand(q, angles, rotary_dim, interleaved) @ by_hand(k, angles, rotary_dim, interleaved).T
    )

    order = torch.as_tensor(pair_order(head_dim, rotary_dim, interleaved))
    rotary = Rotary(head_dim, 100.0, 64, None, CPU, torch.float64, rotary_dim)
    rotated = (rotary(positions[None]).rotate(x[None, :, None, order])[0, :, 0] for x in (q, k))
    torch.testing.assert_close(next(rotated) @ next(rotated).T, theirs, rtol=1e-4, atol=1e-4)


@given(
    st.booleans(), st.integers(1, 4), st.integers(1, 3), st.sampled_from([(8, 8), (8, 4), (12, 6)])
)
def test_head_rows_reorder_each_head_of_q_and_k_and_leave_v(
    interleaved: bool, heads: int, kv_heads: int, dims: tuple[int, int]
) -> None:
    order = pair_order(*dims, interleaved)
    dim = dims[0]
    rows = head_rows(order, heads, kv_heads).reshape(heads + 2 * kv_heads, dim)
    for head, of in enumerate(rows):
        assert [*(of - head * dim)] == [*(order if head < heads + kv_heads else range(dim))]


@pytest.mark.parametrize("name", ["plain", *SCALINGS])
def test_scores_depend_on_the_distance_of_positions_alone(name: str) -> None:
    scaling = RopeScaling.from_json(SCALINGS.get(name, {}))
    rotary = Rotary(16, 10000.0, 2048, scaling, CPU, torch.float64)
    q, k = torch.randn(
        2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )

    def score(at: int, of: int) -> float:
        return float(
            (rotary(torch.tensor([[at]])).rotate(q) * rotary(torch.tensor([[of]])).rotate(k)).sum()
        )

    for at, of in [(0, 0), (7, 3), (40, 1), (300, 299)]:
        for shift in (1, 13, 200):
            assert score(at + shift, of + shift) == pytest.approx(score(at, of), abs=1e-4)
    assert abs(score(7, 3) - score(8, 3)) > 1e-3  # and on the distance they do


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_speeds_of_every_kind_equal_those_of_transformers(name: str, theta: float) -> None:
    raw = llama_json(SCALINGS[name], theta)
    theirs = AutoConfig.for_model(**raw)
    assert theirs.rope_parameters["rope_type"] == SCALINGS[name]["rope_type"]
    expected, expected_factor = ROPE_INIT_FUNCTIONS[SCALINGS[name]["rope_type"]](theirs, CPU)
    # the form of checkpoints, and the one that version 5 writes
    for config in (raw, theirs.to_dict()):
        ours: Any = FAMILIES["llama"].config_type.from_json(config)
        found, factor = frequencies(
            ours.rope_theta, ours.head_dim, ours.max_position_embeddings, ours.rope_scaling
        )
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
        assert factor == pytest.approx(expected_factor)


@pytest.mark.parametrize("name", SCALINGS)
def test_what_a_scaling_writes_it_reads(name: str) -> None:
    scaling = RopeScaling.from_json(SCALINGS[name])
    assert scaling is not None
    assert RopeScaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


def test_both_forms_of_gemma_3s_two_bases_are_read() -> None:
    sizes = {**COMMON, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 5}
    linear = {"rope_type": "linear", "factor": 8.0}
    old = sizes | {"rope_theta": 5e5, "rope_local_base_freq": 300.0, "rope_scaling": linear}
    kinds = {
        "full_attention": linear | {"rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
    family = FAMILIES["gemma3_text"].config_type
    assert family.from_json(old) == family.from_json(sizes | {"rope_parameters": kinds})
    plain: Any = family.from_json(sizes)
    assert (plain.rope_theta, plain.rope_local_base_freq, plain.rope_scaling) == (1e6, 1e4, None)
    scaled = {"sliding_attention": linear}
    for wrong in (linear, scaled):
        with pytest.raises(CheckpointError, match="rope parameters"):
            family.from_json(sizes | {"rope_parameters": wrong})


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_every_name_of_phi_3s_longrope_is_read(kind: str) -> None:
    rope = {"type": kind, "short_factor": SHORT, "long_factor": SHORT}
    raw = {
        **COMMON,
        "model_type": "phi3",
        "max_position_embeddings": 2048,
        "original_max_position_embeddings": 512,
        "rope_scaling": rope,
    }
    ours: Any = FAMILIES["phi3"].config_type.from_json(raw)
    assert ours.context == 512
    _, factor = frequencies(
        ours.rope_theta, ours.head_dim, ours.max_position_embeddings, ours.rope_scaling
    )
    assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(512)))
