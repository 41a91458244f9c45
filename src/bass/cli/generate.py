"""`bass generate`: one request; live rows on a terminal, text or JSON elsewhere."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from bass.api.generation import Generation
from bass.api.llm import LLM, plain, serve
from bass.api.loading import Models
from bass.api.options import LoadOptions
from bass.api.plan import LoadPlan, Strategies
from bass.api.requests import Prompt
from bass.api.results import Completion, Result
from bass.cli import kernels
from bass.cli.compare import REPEATS, Comparison, middle, speed
from bass.cli.display import Rows, completions, show_live, table, warn
from bass.cli.options import read_options
from bass.cli.parsing import Parser
from bass.cli.prompts import asked, notes, read_prompts, read_template_options
from bass.cli.terminal import console, give
from bass.ops import cpu_products
from bass.ops.dispatch import Capability

WARM_UP_TOKENS = 8
INTERRUPTED = 130
RANDOM = "RANDOM WEIGHTS: with `load_format=dummy` THE TEXT MEANS NOTHING"


def run(parser: Parser, argv: list[str]) -> int:
    """Generate. Nothing is printed before all options and inputs are checked."""
    config, load_with, stream_with, _ = read_options(parser, argv)
    given, template_with = read_prompts(config), read_template_options(config)
    llm = serve(LoadPlan.of(LoadOptions(**load_with)))  # captures what this request needs
    prompts, shown = asked(llm, given, config, template_with)
    generation = llm.stream(prompts, **stream_with)
    out = console(soft_wrap=True)
    live = out.is_terminal and not config.json

    def follow(generation: Generation, title: str) -> tuple[Result, bool]:
        if not live:
            return finish(generation)
        rows = Rows.of(
            shown,
            stream_with["num_return_sequences"],
            stream_with["max_new_tokens"],
            title,
            llm.models.tokenizer is not None,
        )
        return finish(generation, lambda g: show_live(g, rows, out))

    baseline = plain(llm) if config.compare_plain else None
    compared: Comparison | None = None
    title = f"speculative decoding, {called(llm.parts.policy)}"
    if baseline is None:
        result, interrupted = follow(generation, title)
    else:
        for model in (llm, baseline):
            warm_up(model, prompts[:1], stream_with)
        sides = ((llm, title), (baseline, "the same request by autoregressive decoding"))
        result, compared, interrupted = compare(
            generation, lambda model: model.stream(prompts, **stream_with), sides, follow
        )
    below = out if live else console(stderr=True)
    if config.json:
        give(json_lines(result, compared))
    else:
        completions(out, result, shown)
        table(below, result.stats, compared, ran_with(llm, interrupted))
        for doubt in () if compared is None else compared.doubts:
            warn(below, f"WARNING: {doubt}")
    for caveat in [*notes(llm, given), *caveats(llm.parts, llm.models.dummy)]:
        warn(below, caveat)
    return INTERRUPTED if interrupted else 0


def finish(
    generation: Generation, follow: Callable[[Generation], None] = lambda generation: None
) -> tuple[Result, bool]:
    """The result, and whether Ctrl-C ended it early; it then includes unfinished samples."""
    try:
        follow(generation)
        return generation.result(), False
    except KeyboardInterrupt:
        return generation.result(interrupted=True), True


def compare(
    first: Generation,
    begin: Callable[[LLM], Generation],
    sides: Sequence[tuple[LLM, str]],
    follow: Callable[[Generation, str], tuple[Result, bool]],
) -> tuple[Result, Comparison | None, bool]:
    """Both sides alternating, `REPEATS` times: a speculative result, the comparison, and whether
    Ctrl-C ended it early.

    first: the first generation of the speculative side, already started by `begin`. The result is
    the first interrupted one, or the one of median speed. The comparison excludes incomplete
    pairs, and is None without a complete one.
    """
    ended: tuple[list[Result], list[Result]] = ([], [])
    interrupted = False
    for repeat, side in itertools.product(range(REPEATS), range(2)):
        model, title = sides[side]
        generation = begin(model) if repeat or side else first
        result, interrupted = follow(generation, f"{title}, repeat {repeat + 1} of {REPEATS}")
        if interrupted and not ended[0]:
            return result, None, True
        if interrupted:
            break
        ended[side].append(result)
    pairs = len(ended[1])
    if not pairs:
        return ended[0][0], None, True
    compared = Comparison(*([result.stats for result in results[:pairs]] for results in ended))
    return ended[0][middle(compared.speculative)], compared, interrupted


def warm_up(llm: LLM, prompts: Sequence[Prompt], options: dict[str, Any]) -> None:
    """Generate a few tokens in a full batch, so that neither side of a comparison includes one-time
    costs of the process.
    """
    tokens, rows = (
        min(WARM_UP_TOKENS, options["max_new_tokens"]),
        min(llm.max_batch_size, options["num_return_sequences"]),
    )
    llm.generate(
        prompts,
        **options
        | {
            "max_new_tokens": tokens,
            "min_new_tokens": 0,
            "num_return_sequences": rows,
            "stop": (),
            "time_budget": None,
        },
    )


def ran_with(llm: LLM, interrupted: bool) -> str:
    """The settings that the figures were measured with, in one line."""
    parts, models = llm.parts, llm.models
    rule = [] if parts.stop_rule is None else [parts.stop_rule]
    strategies = [parts.policy, parts.drafter, *rule, parts.verifier, parts.cache, parts.attention]
    how = "CUDA graphs" if llm.graphs else f"{torch.get_num_threads()} threads"
    machine = [
        str(models.device),
        str(models.dtype).removeprefix("torch."),
        *quantized(models),
        how,
        f"kernels: {kernels_of(llm)}",
        *([f"products: {cpu_products.in_words()}"] if models.device.type == "cpu" else []),
        f"memory: {llm.memory}",
    ]
    return ", ".join([*map(called, strategies), *machine]) + (
        "; interrupted: figures up to there" if interrupted else ""
    )


def quantized(models: Models) -> list[str]:
    """The models' quantizations, if any."""
    target, draft = models.quantizations
    alike = target == draft or models.draft is None
    reported = (
        [called(target)]
        if alike
        else [
            f"{role} by {called(q)}"
            for role, q in (("target", target), ("draft", draft))
            if q is not None
        ]
    )
    return [] if alike and target is None else reported


def called(strategy: Any) -> str:
    """A strategy's name, with its parameters if it has any."""
    if isinstance(strategy, type):
        return strategy.__name__
    return (
        repr(strategy) if is_dataclass(strategy) and fields(strategy) else type(strategy).__name__
    )


def kernels_of(llm: LLM) -> str:
    """Which parts use kernels: one text for both models if equal, else one each."""
    models, parts = llm.models, llm.parts
    capability = Capability.of(models.device)
    setting = kernels.Setting(capability, models.dtype, parts.cache, parts.attention)
    target = kernels.in_short(models.target, setting)
    draft = target if models.draft is None else kernels.in_short(models.draft, setting)
    return target if draft == target else f"target {target}; draft {draft}"


def caveats(parts: Strategies, dummy: bool) -> list[str]:
    """Warnings if the text does not follow the target's distribution, depends on other rows, or is
    that of random weights.
    """
    verifier, drafter = parts.verifier, parts.drafter
    warnings = []
    if dummy:
        warnings.append(f"WARNING: {RANDOM}.")
    if not verifier.lossless:
        caveat = verifier.caveat or "the text does not follow the target's distribution"
        warnings.append(f"WARNING: NOT LOSSLESS: by `{called(verifier)}`, {caveat}.")
    if not drafter.batch_invariant:
        warnings.append(
            f"WARNING: BATCH-WIDE: by `{called(drafter)}`, tokens of a row depend on its batch."
        )
    return warnings


def json_lines(result: Result, compared: Comparison | None) -> str:
    """One line per completion, then one with the statistics (and those of autoregressive decoding,
    with the ratio of tokens/s).
    """
    stats: dict[str, Any] = {"type": "stats"} | result.stats.as_dict()
    if compared is not None:
        stats["plain"] = compared.plain[middle(compared.plain)].as_dict()
        stats |= {
            "speedup": compared.speedup,
            "speedups": compared.ratios(speed),
            "warnings": compared.doubts,
        }
    return "".join(
        json.dumps(line) + "\n" for line in (*map(json_completion, result.completions), stats)
    )


def json_completion(completion: Completion) -> dict[str, Any]:
    """All fields of a completion, and its mean log-probability."""
    return {"type": "completion"} | vars(completion) | {"mean_logprob": completion.mean_logprob}
