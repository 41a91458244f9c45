"""The output of `bass bench`: the bound, and two tables."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from bass.analysis.units import NOTHING
from bass.api.llm import serve
from bass.experiments.bench.figures import bound, tau_of
from bass.experiments.bench.measure import pass_bytes
from bass.experiments.bench.record import Machine, Setting
from bass.experiments.bench.run import BenchRun, constant_length


def machine_line(machine: Machine) -> str:
    """The device and its peaks, in one line."""
    sheet = machine.data_sheet_bandwidth
    known = "" if sheet is None else f" (data sheet {sheet / 1e12:.2f})"
    scale, unit = (1e12, "TB/s") if machine.copy_bandwidth > 1e12 else (1e9, "GB/s")
    products = machine.flops / 1e12
    return (
        f"{machine.device}: copies {machine.copy_bandwidth / scale:.3g} {unit}{known}, reads "
        f"{machine.read_bandwidth / scale:.3g} {unit}, products {products:.3g} TFLOP/s"
    )


def bounds(bench: BenchRun, machine: Machine) -> Iterator[str]:
    """The bound by bytes of every setting, before it is measured: per token where tau is known in
    advance, else per step where the length is.
    """
    length = bench.options.prompt_length + bench.options.max_new_tokens // 2
    for batch in bench.options.batches:
        parts = []
        for method in bench.methods:
            plan = method.plan(batch)
            k = constant_length(plan.parts)
            read = pass_bytes(serve(plan, bench.cache), batch, length, k or 0)
            tau = tau_of(k, bench.options.acceptance)
            if k is None:
                parts.append(f"{method.label} depends on its lengths")
                continue
            step = bound(*read, k, machine.copy_bandwidth) * 1e3
            known = f"{step:.3g} ms/step" if tau is None else f"{step / tau:.3g} ms/token"
            at = f" (tau {tau:.2f})" if k and tau is not None else ""
            parts.append(f"{method.label} {known}{at}")
        yield f"batch {batch}: bound by bytes: {', '.join(parts)}"


def latency_table(settings: list[Setting], figures: list[dict[str, Any]]) -> Table:
    """Times per token of a row, in milliseconds, and rates: the wall time next to its bound."""
    heads = (
        "method", "batch", "bound", "wall", "spread", "of bound", "step/tau", "device", "first",
        "last", "all", "x plain", "tokens/s", "tau",
    )  # fmt: skip
    table = _table(
        heads,
        "ms per token of a row, from the end of the prefill; wall: to the last token of the batch, "
        "nothing left out; step/tau: wall time per step over the expected tau; device: its draft, "
        "verify and sample parts over the same",
    )
    for setting, f in zip(settings, figures, strict=True):
        table.add_row(
            setting.method,
            str(setting.batch),
            _three(f["bound_ms_per_token"]),
            f"[bold]{_three(f['wall_ms_per_token'])}[/]",
            "-".join(map(_three, f["spread"])),
            f"{f['share_of_bound']:.0%}",
            _three(f["wall_ms_per_step_over_expected_tau"]),
            _three(f["device_ms_per_token"]),
            *(_three(f["ms_per_token"][name]) for name in ("first", "last", "all")),
            _three(f["speedup"]),
            f"{f['tokens_per_second']:,.0f}",
            f"{f['tau']:.2f}",
        )
    return table


def usage_table(settings: list[Setting], figures: list[dict[str, Any]]) -> Table:
    """Use of the device, and where the time of a step goes."""
    heads = (
        "method", "batch", "MBU", "MBU sheet", "MFU", "step", "draft", "verify", "sample", "host",
        "between us", "captures s", "warm-up s", "graphs", "GB", "calls",
    )  # fmt: skip
    table = _table(
        heads,
        "MBU and MFU over the wall time: of a copy's bandwidth, of the data sheet's, of a large "
        "product; ms of a step on the device and of its parts; host: the rest of its wall time",
    )
    for setting, f in zip(settings, figures, strict=True):
        parts = f["parts_ms"] or {}
        sheet = f["mbu_data_sheet"]
        warm_up = setting.warm_up.seconds + setting.warm_up.first_call_seconds
        table.add_row(
            setting.method,
            str(setting.batch),
            f"{f['mbu']:.1%}",
            NOTHING if sheet is None else f"{sheet:.1%}",
            f"{f['mfu']:.1%}",
            _three(f["step_ms"]),
            *(_three(parts.get(name)) for name in ("draft", "verify", "sample", "host")),
            f"{f['between_us']['median']:.0f}",
            f"{f['captures_s']:.2f}",
            f"{warm_up:.1f}",
            str(setting.warm_up.graphs),
            NOTHING if f["peak_gb"] is None else f"{f['peak_gb']:.1f}",
            str(len(setting.calls)),
        )
    return table


def experts_table(settings: list[Setting]) -> Table | None:
    """Experts of a layer that a step touches, measured and expected; None without a mixture."""
    table = _table(
        ("method", "batch", "k", "experts touched", "at random", "of"),
        "experts of a layer that the target's pass of a step with k drafted tokens reads, the mean "
        "of its layers; at random: expected if all tokens choose at random, as bound and MBU count",
    )
    for setting in settings:
        if (read := setting.experts) is not None:
            found = f"[bold]{read.measured:.1f}[/]", f"{read.expected:.1f}", str(read.experts)
            table.add_row(setting.method, str(setting.batch), str(read.k), *found)
    return table if table.row_count else None


def _table(heads: tuple[str, ...], caption: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left"
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "method" else "right")
    return table


def _three(value: float | None) -> str:
    """A figure in a table: two decimals, or three digits of a small one."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
