"""The kernels for CPUs compute what torch computes, for odd shapes and any number of rows."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bass.kernels.support import cpu_unsupported
from bass.ops import dispatch, noise
from bass.ops.attention import reference
from bass.ops.linear import dense
from bass.ops.norms import HeadNorm, LayerNorm, OffsetRMSNorm, RMSNorm, kernel_norm
from bass.ops.residual import embedding
from bass.records import AttentionRule, PaddedView
from support.cpu import cpu, cpu_kernels

if cpu_unsupported() is not None:
    pytest.skip("the kernels for CPUs do not run here", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("threads")

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
HERE = torch.device("cpu")
counts = st.integers(1, 40)


def made(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(
        (found - expected).abs().max() <= TOLERANCE[found.dtype] * (1 + expected.abs().max())
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(counts, counts, st.integers(1, 9), st.booleans(), st.integers(0, 9))
def test_a_product_is_torchs(
    dtype: torch.dtype, rows: int, columns: int, eighths: int, with_bias: bool, seed: int
) -> None:
    size = 8 * eighths
    x, w = made(seed, rows, size, dtype=dtype), made(seed + 1, columns, size, dtype=dtype)
    bias = made(seed + 2, columns, dtype=dtype) if with_bias else None
    expected = F.linear(x.double(), w.double(), None if bias is None else bias.double())
    y = cpu().gemm.product(x, w, bias)
    assert close(y, expected)
    # no row's bits depend on the others
    assert all(
        torch.equal(cpu().gemm.product(x[i : i + 1], w, bias), y[i : i + 1]) for i in (0, -1 % rows)
    )


def _product_lane_by_lane(x: torch.Tensor, w: torch.Tensor) -> np.ndarray:
    """The sums of 8 lanes, fused multiplications and additions in float32, then the lanes by
    halves.
    """
    wide = [t.numpy().astype(np.longdouble) for t in (x, w)]
    each = wide[0][:, None] * wide[1][None]
    lanes = np.zeros((len(x), len(w), 8), np.float32)
    for first in range(0, x.shape[1], 8):
        lanes = (lanes + each[..., first : first + 8]).astype(np.float32)
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs floats of 80 bits")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 17])
def test_sums_have_one_order_whatever_the_rows_and_the_processors_registers(rows: int) -> None:
    x, w = made(rows, rows, 200), made(100 + rows, 31, 200)
    assert np.array_equal(cpu().gemm.product(x, w, None).numpy(), _product_lane_by_lane(x, w))


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@given(st.integers(1, 9), st.integers(1, 40), st.booleans(), st.integers(0, 9))
def test_a_gated_product_is_torchs(
    act: str, dtype: torch.dtype, rows: int, inner: int, with_bias: bool, seed: int
) -> None:
    x, w = made(seed, rows, 16, dtype=dtype), made(seed + 1, 2 * inner, 16, dtype=dtype)
    bias = made(seed + 2, 2 * inner, dtype=dtype) if with_bias else None
    both = F.linear(x.double(), w.double(), None if bias is None else bias.double())
    gates, up = both.chunk(2, -1)
    assert close(cpu().gemm.product(x, w, bias, act), ACTIVATIONS[act](gates) * up)


def test_no_product_reads_a_matrix_with_gaps_or_odd_rows() -> None:
    x, w = made(0, 1, 16), made(1, 5, 16)
    assert cpu().gemm.supports(x, w)
    assert cpu().gemm.supports(x.bfloat16(), w.bfloat16())
    assert not cpu().gemm.supports(x, w.bfloat16())
    assert not cpu().gemm.supports(x[:0], w)
    assert not cpu().gemm.supports(made(0, 1, 12), made(0, 5, 12))
    assert not cpu().gemm.supports(x, made(0, 16, 5).T)
    assert not cpu().gemm.supports(x.double(), w.double())


@pytest.mark.parametrize("norm", [RMSNorm, OffsetRMSNorm, LayerNorm])
@given(st.integers(1, 5), counts, st.booleans(), st.integers(0, 9))
def test_a_norm_adds_the_product_before_it(
    norm: type, rows: int, size: int, adds: bool, seed: int
) -> None:
    module = norm(size, 1e-5, HERE, torch.float32).requires_grad_(False)
    for i, parameter in enumerate(module.parameters()):
        parameter.data = made(seed + i, size)
    base, product = made(seed + 7, rows, size), made(seed + 8, rows, size) if adds else None
    stream, y = cpu().rows.add_norm(base, product, kernel_norm(module))
    assert torch.equal(stream, base if product is None else base + product)
    assert close(y, module(stream))


@given(st.integers(1, 5), st.lists(counts, min_size=1, max_size=3), st.integers(0, 9))
def test_rows_are_joined_and_added(rows: int, sizes: list[int], seed: int) -> None:
    parts = [made(seed + i, rows, size) for i, size in enumerate(sizes)]
    whole = cpu().rows.joined(*parts)
    assert torch.equal(whole, torch.cat(parts, 1))
    assert torch.equal(cpu().rows.added(whole, 2 * whole), whole + 2 * whole)


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([(4, 4, 6), (8, 2, 16), (3, 1, 64)]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([None, 2.0]),
    st.booleans(),
    st.sampled_from([None, False, True]),
    st.integers(0, 9),
)
def test_attention_stores_what_it_then_reads(
    batch: int,
    window: int,
    heads: tuple[int, int, int],
    seen: int | None,
    softcap: float | None,
    rotates: bool,
    offset: bool | None,
    seed: int,
) -> None:
    (count, kv_heads, dim), extent = heads, 12
    storage = made(seed, 2, batch, extent + 1, kv_heads, dim)
    k, v = storage[0, :, :-1], storage[1, :, :-1]
    y = made(seed + 1, batch, window, count + 2 * kv_heads, dim)
    first = torch.randint(
        0, extent - window, (batch, 1), generator=torch.Generator().manual_seed(seed)
    )
    positions = first + torch.arange(window)
    positions[-1, window - 1] = -1
    tables = (made(2, extent, dim), made(3, extent, dim)) if rotates else None
    qk, values = y[:, :, : count + kv_heads], y[:, :, count + kv_heads :]
    norm = None
    if offset is not None:
        module = HeadNorm(count + kv_heads, dim, 1e-5, HERE, torch.float32, offset)
        module.weight = torch.nn.Parameter(made(4, (count + kv_heads) * dim), requires_grad=False)
        norm = kernel_norm(module)
        qk = module(qk)
    if tables is not None:
        cos, sin = (table[positions][:, :, None] for table in tables)
        qk = qk * cos + qk.roll(dim // 2, -1) * sin
    stored, before = storage.clone(), storage.clone()
    for b in range(batch):
        for w, p in enumerate(positions[b].tolist()):
            if p >= 0:
                stored[0, b, p], stored[1, b, p] = qk[b, w, count:], values[b, w]
    view = PaddedView(stored[0, :, :-1], stored[1, :, :-1])
    rule = AttentionRule(0.3, seen, softcap)
    expected = reference(qk[:, :, :count], view, positions, extent, rule)
    assert cpu().attention.supports(y, k, v)
    rest = k, v, extent, 0.3, seen, softcap
    out = cpu().attention.store_and_attend(y, norm, tables, positions, None, *rest)
    assert close(out, expected)
    assert torch.allclose(storage, stored, atol=1e-5)
    # without gaps: the last token, at -1, is of the last row
    storage.copy_(before)
    offsets = torch.arange(batch + 1) * window
    own = y.flatten(0, 1)[None], norm, tables, positions.reshape(1, -1), offsets
    packed = cpu().attention.store_and_attend(*own, *rest)
    assert torch.equal(packed[0].view_as(out), out)
    for b in range(batch):
        for p in positions[b][positions[b] >= 0].tolist():
            assert torch.allclose(storage[:, b, p], stored[:, b, p], atol=1e-5)


@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    st.integers(0, 2**31),
    st.integers(1, 9),
    st.integers(0, 1),
)
def test_noise_has_the_bits_of_torchs(keys: list[int], step: int, slots: int, domain: int) -> None:
    rows, steps = torch.tensor(keys), torch.arange(len(keys)) + step
    assert dispatch.cpu_kernels(rows) is None
    expected = noise.uniforms(rows, steps, slots, domain)
    assert torch.equal(cpu().step.uniforms(rows, steps, slots, domain), expected)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_torchs_default_type_and_device_change_nothing(default: torch.dtype) -> None:
    x, w, table = made(0, 3, 64), made(1, 40, 64), made(2, 9, 16)
    tokens = torch.tensor([[3, 8]])
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            found = [
                cpu().gemm.product(x, w, None), cpu().gemm.product(x, w, None, "silu"),
                cpu().rows.embedded(table, tokens),
            ]  # fmt: skip
    finally:
        torch.set_default_dtype(before)
    gate, up = (x @ w.T).chunk(2, 1)
    for one, expected in zip(found, (x @ w.T, F.silu(gate) * up, table[tokens]), strict=True):
        assert one.dtype == torch.float32
        assert close(one, expected)


@torch.inference_mode()
def test_weights_with_gaps_are_left_to_torch() -> None:
    w, norm = made(0, 64, 40).T, RMSNorm(64, 1e-5, HERE, torch.float32)
    norm.weight.data = made(1, 64, 2)[:, 0]
    table, tokens = made(2, 16, 9).T, torch.tensor([[3, 8]])
    x = made(3, 1, 1, 64)
    with cpu_kernels():
        assert close(dense(x, w, None), x @ w.T)
        assert dispatch.cpu_step_kernels(x) is cpu()
        assert dispatch.cpu_step_kernels(x, norm.weight) is None
        assert close(embedding(tokens, table), table[tokens])
