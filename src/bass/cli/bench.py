"""`bass bench`: how fast a pair decodes on this machine, compared with the bound by its bytes."""

from typing import Any

from jsonargparse import Namespace

from bass.api.options import LoadOptions
from bass.cli.options import Parser, build, console
from bass.experiments.settings import BenchOptions
from bass.progress import watched

EXAMPLES = (
    "bass bench --target TARGET --draft DRAFT --methods plain 4 bass --prompts spec-bench",
    "bass bench --queue 64 --rate 4 --batches 8 --ttft-limit 0.5 --tpot-limit 0.05",
    "bass bench --target TARGET --draft DRAFT --load-format dummy --acceptance 0.8 --json",
)
# of a call, whose length and end are the benchmark's own
SKIPPED = ("max_batch_size", "min_new_tokens", "stop", "stop_token_ids", "ignore_eos",
           "time_budget")  # fmt: skip
# heading, column of the frame, unit of `number`
Columns = tuple[tuple[str, str, str], ...]
LATENCY: Columns = (
    ("bound", "bound_ms_per_token", ""), ("wall", "wall_ms_per_token", ""), ("least", "least", ""),
    ("most", "most", ""), ("of bound, %", "share_of_bound", "share"),
    ("step/tau", "wall_ms_per_step_over_expected_tau", ""), ("all", "all", "seconds"),
    ("first", "first", "seconds"), ("last", "last", "seconds"),
    ("x all", "speedup_all_interval", ""), ("tokens/s", "tokens_per_second", ""),
    ("x tokens/s", "speedup_interval", ""), ("tau", "tau", ""), ("c", "draft_cost_ratio", ""),
)  # fmt: skip
USAGE: Columns = (
    ("MBU, %", "mbu", "share"), ("MFU, %", "mfu", "share"), ("waits, %", "host_share", "share"),
    ("step", "step_ms", ""), ("draft", "draft_ms", ""), ("verify", "verify_ms", ""),
    ("sample", "sample_ms", ""), ("observe", "observe_ms", ""), ("host", "host_ms", ""),
    ("mean k", "mean_draft_length", ""), ("prefill", "prefill_seconds", "seconds"),
    ("warm-up s", "warm_up_s", ""),
)  # fmt: skip
QUEUE: Columns = (
    ("tokens/s", "tokens_per_second", ""), ("x tokens/s", "speedup_interval", ""),
    ("of full batch, %", "share_of_steps", "share"),
    ("active rows, %", "active_rows", "share"), ("TTFT", "ttft", "seconds"),
    ("TPOT", "tpot", "seconds"), ("ITL p50", "itl_p50", "seconds"),
    ("ITL p99", "itl_p99", "seconds"), ("good/s", "goodput", ""), ("tau", "tau", ""),
    ("step", "step_ms", ""), ("waits, %", "host_share", "share"), ("warm-up s", "warm_up_s", ""),
)  # fmt: skip
QUEUE_CAPTION = (
    "ms; TTFT from the arrival of a request; of full batch: tokens/s, of those of steps in which "
    "all rows decode, without prompts; active rows: that decode in a step, less than all where "
    "requests are lacking; good/s: requests a second within the limits"
)
CAPTIONS = (
    "ms per token of a row from the end of its prefill. wall: to the last token of the batch; all: "
    "the mean latency; x: how many times as good as autoregressive decoding",
    "ms of a step on the device and of its parts, timed apart; host: the rest of its wall time; "
    "waits: of the device for the host",
)


def read(argv: list[str]) -> tuple[Namespace, BenchOptions, LoadOptions]:
    """The options of a command line. Raises `OptionError`."""
    about = "Measures how fast a pair decodes, by method and batch, next to the bound by bytes."
    command = Parser("bench", about, EXAMPLES, BenchOptions, LoadOptions, skip=SKIPPED)
    text = "print the result as one JSON line, and the tables on standard error"
    command.add_argument("--json", action="store_true", help=text)
    config = command.read(argv)
    return config, build(BenchOptions, config), build(LoadOptions, config)


def run(argv: list[str]) -> int:
    """Measure; the bound is printed first."""
    config, options, load_options = read(argv)

    from bass.experiments.bench import Bench  # after the options are read

    out, bench = console(stderr=config.json), Bench(options, load_options)
    out.print(*bench.bounds(), sep="\n")
    with watched() as watch:
        frame = bench.run(watch)
    tables = [*zip((LATENCY, USAGE), CAPTIONS, strict=True)]
    for columns, caption in tables if options.queue is None else [(QUEUE, QUEUE_CAPTION)]:
        out.print(f"\n{table(frame, columns)}\n\n{caption}")
    for note in bench.notes:
        out.print(note, style="bold red")
    if config.json:
        print(bench.to_json(frame))
    return 0


def table(frame: Any, columns: Columns) -> str:
    """The columns of the frame of a result, with categories where there are some."""
    from bass.analysis.metrics import number

    names = [name for name in ("method", "batch", "category") if frame[name].astype(bool).any()]
    text = frame[names].astype(str)
    for heading, column, unit in columns:
        if column in frame:
            text[heading] = [x if isinstance(x, str) else number(x, unit) for x in frame[column]]
    return text.to_string(index=False)
