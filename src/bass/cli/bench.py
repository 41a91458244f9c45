"""`bass bench`: how fast a pair decodes on this machine, compared with the bound by its bytes."""

import json
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from bass.api.llm import serve
from bass.api.loading import ModelCache
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan
from bass.cli import choices
from bass.cli.bench_tables import bounds, experts_table, latency_table, machine_line, usage_table
from bass.cli.display import Bars, warn
from bass.cli.generate import INTERRUPTED, caveats
from bass.cli.options import Named, read_options
from bass.cli.parsing import Option, Parser
from bass.cli.terminal import Screen, console, give
from bass.errors import OptionError
from bass.experiments.bench.figures import figures_of
from bass.experiments.bench.measure import measure_machine
from bass.experiments.bench.options import PLAIN, BenchOptions, Method, examine, methods_of
from bass.experiments.bench.record import BenchRecord, Setting
from bass.experiments.bench.run import BenchRun, prompts_for
from bass.files import check_replaceable, read_text
from bass.interrupt import displayed, interruptible
from bass.problems import Problems
from bass.prompts.entries import Entry
from bass.prompts.published import check_data
from bass.prompts.reading import Selection
from bass.provenance.described import described
from bass.provenance.environment import device_name, here
from bass.provenance.fingerprints import hash_of_text
from bass.provenance.made_with import SOURCE, fingerprints, hash_of_config, source_of_bass
from bass.runs.prompts import read_prompts

WIDTH = 150  # of the tables, where the output is no terminal
LARGEST_TEXT = 1 << 28  # bytes of `--file`
_OPTIONS = (Option("json", bool, "print the result as one JSON line, and the tables on stderr"),)
# of `about` in other words, or of the file itself
_NO_FIGURE_DEPENDS_ON = (
    "methods", "batches", "repeats", "file", "output", "data", "categories",
)  # fmt: skip


def run(parser: Parser, argv: list[str]) -> int:
    """Measure, or continue; nothing is loaded before options and the output file are checked."""
    bench, text, entries, as_json = read(parser, argv)
    bench.save()  # an output that cannot be written is an error before anything is measured
    out = console(stderr=as_json)
    if not out.is_terminal:
        out = console(stderr=as_json, width=WIDTH)
    interrupted = not _measured(bench, text, entries, out)
    _show(bench, out, as_json, interrupted)
    return INTERRUPTED if interrupted else 0


def read(parser: Parser, argv: list[str]) -> tuple[BenchRun, str, list[Entry], bool]:
    """What a command measures, the text or the entries of its prompts, and whether it prints JSON.
    No model is loaded, and nothing written.

    Raises `BassError` for options that are not valid, or contradict those of the output file.
    """

    def examined(config: Namespace, wrong: Problems) -> None:
        examine(vars(config), wrong)

    config, load_with, own, named = read_options(
        parser, argv, _OPTIONS, examined, BenchOptions, without=("max_batch_size",)
    )
    own["batches"] = tuple(dict.fromkeys(own["batches"]))  # each once
    options, load_options = BenchOptions(**own), LoadOptions(**load_with)
    specs = _policies(options, load_options, named)
    methods = methods_of(load_options, specs, options.acceptance)
    text, entries = _text(options.file), _entries(options)
    about = _about(options, load_options, named, text)
    output = None if options.output is None else _output(options.output)
    record = BenchRecord(about) if output is None else BenchRecord.opened(output, about)
    return BenchRun(record, methods, options, ModelCache(), output), text, entries, config.json


def _measured(bench: BenchRun, text: str, entries: list[Entry], out: Screen) -> bool:
    """Measure what is left, with the bound first; False if interrupted."""
    try:
        with interruptible(signal.SIGTERM, signal.SIGHUP) as check_interruption:
            if not bench.left({entry.category for entry in entries} or {""}):
                return True
            loading = next((m for m in bench.methods if m.plan(1).draft is not None), None)
            llm = serve((loading or bench.methods[0]).plan(1), bench.cache)
            prompts = prompts_for(llm.models, bench.options, text, entries)
            bench.record.notes = prompts.notes or None
            if bench.record.machine is None:
                bench.record.machine = measure_machine(llm.models.device, llm.models.dtype)
            out.print(machine_line(bench.record.machine), markup=False, soft_wrap=True)
            for line in bounds(bench, bench.record.machine, prompts):
                out.print(line, markup=False, soft_wrap=True)
            with displayed(Bars(console(stderr=True))) as progress:

                def take(stage: str, done: int, total: int) -> None:
                    progress(stage, done, total)
                    check_interruption()

                bench.run(prompts, take)
    except KeyboardInterrupt:
        return False
    return True


def _show(bench: BenchRun, out: Screen, as_json: bool, interrupted: bool) -> None:
    """Print the tables and the warnings, or the JSON line last."""
    measured = _chosen(bench)
    machine = bench.record.machine
    if not measured or machine is None:
        raise KeyboardInterrupt  # before any call had ended
    options = bench.options
    plain = {(s.batch, s.category): s for s, m in measured if m.label == PLAIN}
    figures = [
        figures_of(
            s,
            machine,
            options.max_new_tokens,
            options.acceptance,
            plain.get((s.batch, s.category)),
        )
        for s, _ in measured
    ]
    settings = [s for s, _ in measured]
    out.print(latency_table(settings, figures))
    out.print(usage_table(settings, figures))
    if (experts := experts_table(settings)) is not None:
        out.print(experts)
    warnings = [*_warnings(bench, settings)]
    if interrupted:
        warnings.append("Interrupted: figures are those of the calls up to there.")
    for warning in warnings:
        warn(out, warning)
    if as_json:
        lossless = bench.methods[0].plan(1).parts.verifier.lossless
        found = {"benchmark": "bass bench", "acceptance": options.acceptance, "lossless": lossless}
        found |= {**here(), "about": bench.record.about, "machine": asdict(machine)}
        found |= {"warnings": warnings, "interrupted": interrupted}
        rows = [asdict(s) | f for s, f in zip(settings, figures, strict=True)]
        give(json.dumps(found | {"settings": rows}) + "\n")


def _chosen(bench: BenchRun) -> list[tuple[Setting, Method]]:
    """The measured settings of this command, batch by batch and category by category."""
    chosen = bench.options.categories
    categories = dict.fromkeys(
        setting.category
        for setting in bench.record.settings
        if chosen is None or setting.category in chosen
    )
    found = (
        (bench.record.find(method.policy, batch, category), method)
        for batch in bench.options.batches
        for category in categories
        for method in bench.methods
    )
    return [(setting, method) for setting, method in found if setting is not None and setting.calls]


def _warnings(bench: BenchRun, settings: list[Setting]) -> list[str]:
    """What the figures do not say."""
    plan, options = bench.methods[-1].plan(1), bench.options
    found = [*(bench.record.notes or []), *caveats(plan.parts, plan.target.dummy)]
    random = (options.file is None and options.prompts is None) or plan.target.dummy
    speculative = any(s.length != 0 for s in settings)
    if speculative and options.acceptance is None and random:
        source = "weights" if plan.target.dummy else "prompts"
        remedy = "impose one with `--acceptance`"
        found.append(
            f"NOTE: with random {source} the acceptance, tau and speed-up are not those of texts: "
            + (
                remedy
                if plan.target.dummy
                else f"give a text with `--file` or prompts with `--prompts`, or {remedy}"
            )
            + "."
        )
    if any(s.experts for s in settings) and random:
        source, remedy = "prompts", ": give a text with `--file`"
        if plan.target.dummy:
            source, remedy = "weights", ""
        found.append(
            f"NOTE: with random {source} the experts touched are not those of texts{remedy}."
        )
    captured = sum(call.capture_seconds for s in settings for call in s.calls)
    if captured >= 0.005:
        found.append(
            f"NOTE: {captured:.2f} s of captures are part of the wall times; first, last and all "
            "are without them."
        )
    return found


def _policies(
    options: BenchOptions, load_options: LoadOptions, named: Named
) -> dict[str, dict[str, Any] | None]:
    """By label, the argument of `make` for each method's policy; None for plain decoding."""
    k = load_options.num_speculative_tokens
    if options.methods is None:
        LoadPlan.of(load_options)  # raises if options contradict each other
        if k is not None:
            return {PLAIN: None} | ({f"k={k}": _fixed(k)} if k else {})
        spec = named.specs["policy"]
        return {PLAIN: None, str(spec["class_path"]): spec}
    if k is not None or load_options.policy is not None:
        raise OptionError(
            "`--methods` names the policies and contradicts `--policy` and "
            "`--num-speculative-tokens`: give one of them."
        )
    found: dict[str, dict[str, Any] | None] = {}
    for word in map(str, options.methods):
        if word in (PLAIN, "0"):
            found[PLAIN] = None
        elif word.removeprefix("-").isdecimal():
            found[f"k={int(word)}"] = _fixed(int(word))
        else:
            found[word] = choices.choose("policy", "methods", word, {})
    return found


def _fixed(k: int) -> dict[str, Any]:
    return {"class_path": "fixed", "init_args": {"k": k}}


def _text(file: str | None) -> str:
    """The text of the prompts; empty for random ones."""
    if file is None:
        return ""
    try:
        return read_text(Path(file), LARGEST_TEXT)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"`--file {file}` cannot be read ({reason}): give a text file."
        ) from error


def _entries(options: BenchOptions) -> list[Entry]:
    """The prompts of `--prompts`; none for random ones and for a text."""
    if options.prompts is None:
        return []
    found = read_prompts(options.prompts, options.data, Selection.named(options.categories))
    check_data(options.data, options.prompts)
    return found


def _hash_of_all(options: BenchOptions) -> str:
    """Of the prompts of all categories, so that more of them can be measured into one file."""
    return hash_of_text(repr(read_prompts(options.prompts, options.data)))


def _output(name: str) -> Path:
    """The path of the output file, which can be one."""
    path = Path(name)
    try:
        check_replaceable(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"`--output {name}` cannot be written ({reason}): name a JSON file."
        ) from error
    return path


def _about(
    options: BenchOptions,
    load_options: LoadOptions,
    named: Named,
    text: str,
) -> dict[str, Any]:
    """Everything that the figures depend on, but for method and batch size."""
    own = replace(load_options, policy=None, num_speculative_tokens=None)
    plan = LoadPlan.of(own)
    models = {"target": plan.target} | ({} if plan.draft is None else {"draft": plan.draft})
    parts = {name: part for name, part in vars(plan.parts).items() if name != "policy"}
    strategies = [part for part in plan.strategies if part is not plan.parts.policy]
    specs = {name: spec for name, spec in named.specs.items() if name != "policy"}
    stored = {} if plan.target.dummy else plan.folders
    configs = {
        f"{role} {spec.checkpoint}": hash_of_config(spec.checkpoint)
        for role, spec in models.items()
        if spec.dummy
    }
    about = {
        SOURCE: source_of_bass(),
        "torch": here()["torch"],
        "device": device_name(plan.target.device),
        **{role: list(spec.key) for role, spec in models.items()},
        **fingerprints(strategies, [], stored),
        **configs,
        **{name: described(part, specs.get(name)) for name, part in parts.items()},
        "cuda_graphs": str(plan.cuda_graphs),
        **{k: v for k, v in vars(options).items() if k not in _NO_FIGURE_DEPENDS_ON},
        "text": hash_of_text(text) if text else None,
        "prompts": None if options.prompts is None else _hash_of_all(options),
    }
    return json.loads(json.dumps(about, default=repr))  # as the file has it
