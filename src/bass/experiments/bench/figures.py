"""The figures of a benchmark, from what was measured: pure functions."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

from bass.experiments.bench.record import Call, Machine, Setting


def expected_tau(acceptance: float, k: int) -> float:
    """Mean tokens of a step whose drafted token i is accepted with `acceptance`^i."""
    return sum(acceptance**i for i in range(k + 1))


def tau_of(k: int | None, acceptance: float | None) -> float | None:
    """The tau of a method that is known in advance: of plain decoding, and of a constant length at
    an imposed acceptance.
    """
    if k == 0:
        return 1.0
    return None if k is None or acceptance is None else expected_tau(acceptance, k)


def bound(target_bytes: int, draft_bytes: int, k: float, bandwidth: float) -> float:
    """The least seconds of a step that drafts k tokens: its bytes at the bandwidth of a copy."""
    return (target_bytes + k * draft_bytes) / bandwidth


def median(setting: Setting, figure: Callable[[Call], float]) -> float:
    """The median of the setting's calls."""
    return statistics.median(map(figure, setting.calls))


def figures_of(
    setting: Setting,
    machine: Machine,
    new_tokens: int,
    acceptance: float | None = None,
    plain: Setting | None = None,
) -> dict[str, Any]:
    """The figures of a setting, medians of its calls; times in milliseconds.

    plain: autoregressive decoding at the same batch size, for the speed-up and the cost of a draft.
    """
    calls, of = setting.calls, functools.partial(median, setting)
    walls = [call.wall_seconds / new_tokens * 1e3 for call in calls]
    wall, tau = statistics.median(walls), of(lambda c: c.emitted / c.row_steps)
    known = tau_of(setting.length, acceptance)
    k = of(lambda c: c.draft_passes / c.steps)
    drafted = k if setting.length is None else setting.length  # rows near their limit draft less
    step = bound(setting.target_bytes, setting.draft_bytes, drafted, machine.copy_bandwidth)
    least = step / (known or tau) * 1e3
    step_wall, step_ms = of(lambda c: c.wall_seconds / c.steps), of(lambda c: c.step_median)
    found: dict[str, Any] = {
        "bound_ms_per_token": least,
        "wall_ms_per_token": wall,
        "spread": [min(walls), max(walls)],
        "share_of_bound": least / wall,
        "wall_ms_per_step": step_wall * 1e3,
        "wall_ms_per_step_over_expected_tau": None if known is None else step_wall * 1e3 / known,
        "ms_per_token": {
            "first": of(lambda c: c.first) * 1e3,
            "last": of(lambda c: c.last) * 1e3,
            "all": of(lambda c: c.all) * 1e3,
        },
        "tokens_per_second": of(lambda c: c.emitted / c.wall_seconds),
        "speedup": None
        if plain is None
        else median(plain, lambda c: c.wall_seconds) / new_tokens * 1e3 / wall,
        "draft_cost_ratio": None if plain is None or not k else draft_cost_ratio(setting, plain),
        "tau": tau,
        "acceptance_rate": of(lambda c: c.accepted / max(c.drafted, 1)) if k else None,
        "mean_draft_length": k,
        "step_ms": step_ms * 1e3,
        "between_us": {
            "median": of(lambda c: c.between_median) * 1e6,
            "p90": of(lambda c: c.between_p90) * 1e6,
        },
        "prefill_ms": of(lambda c: c.prefill_seconds) * 1e3,
        "captures_s": sum(c.capture_seconds for c in calls),
        "peak_gb": None if setting.peak_bytes is None else setting.peak_bytes / 1e9,
    }
    return found | utilization(setting, machine) | parts_in_ms(setting, step_wall * 1e3, known)


def draft_cost_ratio(setting: Setting, plain: Setting) -> float:
    """c, as the metric `draft_cost_ratio`: what a drafted position adds to a step on the device,
    over the time of a plain step.
    """
    step = median(plain, lambda c: c.step_seconds / c.steps)
    return median(setting, lambda c: (c.step_seconds / step - c.steps) / c.draft_passes)


def utilization(setting: Setting, machine: Machine) -> dict[str, float | None]:
    """Shares of the device's peaks over the wall time: mbu of a copy's bandwidth, mbu_data_sheet of
    the data sheet's, mfu of a large product. Those `_of_steps` are over the time of the steps on
    the device, as in `Stats`, where mbu is of a large read's bandwidth.
    """
    of, sheet = functools.partial(median, setting), machine.data_sheet_bandwidth
    moved = of(lambda c: c.bytes / c.wall_seconds)
    return {
        "mbu": moved / machine.copy_bandwidth,
        "mbu_data_sheet": None if sheet is None else moved / sheet,
        "mfu": of(lambda c: c.flops / c.wall_seconds) / machine.flops,
        "mfu_kept": of(lambda c: c.flops_kept / c.wall_seconds) / machine.flops,
        "mbu_of_steps": of(lambda c: c.bytes / c.step_seconds) / machine.read_bandwidth,
        "mfu_of_steps": of(lambda c: c.flops / c.step_seconds) / machine.flops,
    }


def parts_in_ms(setting: Setting, step_wall: float, tau: float | None) -> dict[str, Any]:
    """The parts of a step in milliseconds, and the share of sampling in its wall time.

    host: the rest of the wall time of a step; None where the parts, which are timed in a pass of
    their own, took longer than it. device_ms_per_token: draft, verify and sample over
    the expected tau.
    """
    parts = setting.parts
    if parts is None:
        names = ("parts_k", "parts_ms", "device_ms_per_token", "sampling_share")
        return dict.fromkeys(names)
    ms = {
        name: getattr(parts, name) * 1e3 for name in ("draft", "verify", "sample", "draft_sampling")
    }
    device = ms["draft"] + ms["verify"] + ms["sample"]
    return {
        "parts_k": parts.k,
        "parts_ms": ms | {"host": step_wall - device if step_wall >= device else None},
        "device_ms_per_token": None if tau is None else device / tau,
        "sampling_share": (ms["draft_sampling"] + ms["sample"]) / step_wall,
    }
