"""The output of `bass bench`: the bound, and two tables."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from bass.analysis.units import NOTHING
from bass.api.llm import serve
from bass.experiments.bench.figures import bound, tau_of
from bass.experiments.bench.measure import mean_length, pass_bytes
from bass.experiments.bench.options import Method
from bass.experiments.bench.record import Machine, Setting
from bass.experiments.bench.run import BenchPrompts, BenchRun, constant_length


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


def bounds(bench: BenchRun, machine: Machine, prompts: BenchPrompts) -> Iterator[str]:
    """The bound by bytes of every setting, before it is measured: per token where tau is known in
    advance, else per step where the length is.
    """
    for batch in bench.options.batches:
        for category in prompts.by_category:
            used = prompts.groups(category, batch)[: bench.options.repeats]
            length = mean_length(used) + bench.options.max_new_tokens // 2
            parts = [_bound(bench, machine, method, batch, length) for method in bench.methods]
            where = f"batch {batch}{category and f', {category}'}"
            yield f"{where}: bound by bytes: {', '.join(parts)}"


def _bound(bench: BenchRun, machine: Machine, method: Method, batch: int, length: int) -> str:
    """The bound of a method at this mean length of a row, in words."""
    plan = method.plan(batch)
    k = constant_length(plan.parts)
    read = pass_bytes(serve(plan, bench.cache), batch, length, k or 0)
    tau = tau_of(k, bench.options.acceptance)
    if k is None:
        return f"{method.label} depends on its lengths"
    step = bound(*read, k, machine.copy_bandwidth) * 1e3
    known = f"{step:.3g} ms/step" if tau is None else f"{step / tau:.3g} ms/token"
    at = f" (tau {tau:.2f})" if k and tau is not None else ""
    return f"{method.label} {known}{at}"


def latency_table(settings: list[Setting], figures: list[dict[str, Any]]) -> Table:
    """Times per token of a row, in milliseconds, and rates: the wall time next to its bound."""
    heads = (
        "method", "batch", "bound", "wall", "spread", "of bound", "step/tau", "device", "first",
        "last", "all", "x plain", "tokens/s", "tau", "c",
    )  # fmt: skip
    table = _table(
        _heads(heads, settings),
        "ms per token of a row, from the end of the prefill; wall: to the last token of the batch, "
        "nothing left out; step/tau: wall time per step over the expected tau; device: its draft, "
        "verify and sample parts over the same; c: what a drafted position adds to a step, over a "
        "plain step",
    )
    for setting, f in zip(settings, figures, strict=True):
        table.add_row(
            *_names(setting, settings),
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
            _three(f["draft_cost_ratio"]),
        )
    return table


def usage_table(settings: list[Setting], figures: list[dict[str, Any]]) -> Table:
    """Use of the device, and where the time of a step goes."""
    heads = (
        "method", "batch", "MBU", "MBU sheet", "MFU", "step", "draft", "verify", "sample", "host",
        "between us", "captures s", "warm-up s", "graphs", "GB", "calls",
    )  # fmt: skip
    table = _table(
        _heads(heads, settings),
        "MBU and MFU over the wall time: of a copy's bandwidth, of the data sheet's, of a large "
        "product; ms of a step on the device and of its parts, timed apart; host: the rest of its "
        "wall time",
    )
    for setting, f in zip(settings, figures, strict=True):
        parts = f["parts_ms"] or {}
        sheet = f["mbu_data_sheet"]
        warm_up = setting.warm_up.seconds + setting.warm_up.first_call_seconds
        table.add_row(
            *_names(setting, settings),
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
        _heads(("method", "batch", "k", "experts touched", "at random", "of"), settings),
        "experts of a layer that the target's pass of a step with k drafted tokens reads, the mean "
        "of its layers; at random: expected if all tokens choose at random, as bound and MBU count",
    )
    for setting in settings:
        if (read := setting.experts) is not None:
            found = f"[bold]{read.measured:.1f}[/]", f"{read.expected:.1f}", str(read.experts)
            table.add_row(*_names(setting, settings), str(read.k), *found)
    return table if table.row_count else None


def _heads(heads: tuple[str, ...], settings: list[Setting]) -> tuple[str, ...]:
    """The headings, with one for the categories if there are any."""
    method, batch, *others = heads
    return (method, batch, *(["category"] if _has_categories(settings) else []), *others)


def _names(setting: Setting, settings: list[Setting]) -> list[str]:
    """The first cells of its row."""
    named = [escape(setting.category) or NOTHING] if _has_categories(settings) else []
    return [setting.method, str(setting.batch), *named]


def _has_categories(settings: list[Setting]) -> bool:
    return any(setting.category for setting in settings)


def _table(heads: tuple[str, ...], caption: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left"
    )
    for head in heads:
        table.add_column(head, justify="left" if head in ("method", "category") else "right")
    return table


def _three(value: float | None) -> str:
    """A figure in a table: two decimals, or three digits of a small one."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
