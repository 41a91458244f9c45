"""`bass generate`: one request, its completions and its figures."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bass.api.options import LoadOptions, RequestOptions, TemplateOptions
from bass.cli.options import Parser, build, console
from bass.errors import OptionError, RequestError, counted, flag, printable
from bass.experiments.prompts import PYTHON, Entry, plain_turns, read_prompts, rendered
from bass.files import reason
from bass.option import PerPrompt, called, check_options, option

if TYPE_CHECKING:  # what loads torch or pandas
    from bass.analysis.statistics import Comparison
    from bass.api.generation import Generation
    from bass.api.llm import LLM
    from bass.api.results import Result

REPEATS, WARM_UP_TOKENS = 3, 8  # of a comparison
LINES = 3  # of each of several texts before a comparison
LOST, SELDOM = 0.95, 0.5  # a median that loses; a share of steps with drafts that is small
SOURCES = ("prompt", "token_ids", "example", "messages", "prompts")
EXAMPLE_STOPS = ("\nclass ", "\ndef ", "\n@", "\nif ", "\n#")  # a class ends before these
FIGURES = (
    *("tau", "acceptance_rate", "token_acceptance_rate", "trimmed_share"),
    *("tokens_per_second", "all", "first", "last", "mbu"),
)
EXAMPLES = (
    "bass generate --example -n 8 --num-speculative-tokens 3 --compare-plain",
    'bass generate "def area(r):" --policy fixed --policy.k 6 --temperature 0.8',
    'bass generate --target CHECKPOINT --draft DRAFT --chat "What is a monad?" --json',
)


@dataclass(frozen=True)
class PromptOptions:
    """Sources of prompts, and how they are printed."""

    prompt: list[str] | None = option(None, "texts to continue; by default standard input")
    token_ids: list[int] | None = option(None, "continue these token ids")
    example: bool = option(False, "continue a built-in Python class up to its end")
    chat: bool = option(False, "each prompt is a message, put into the chat template")
    system: str | None = option(None, "with --chat, a system message before each prompt")
    messages: str | None = option(None, "JSON file of a conversation, or of a list of them")
    prompts: str | None = option(None, "a published set by name, such as spec-bench, or a file")
    data: str | None = option(None, "with --prompts, folder of published sets")
    categories: list[str] | None = option(None, "with --prompts, only these categories")
    num_prompts: int | None = option(None, "with --prompts, only the first N", within="[1, inf)")
    json: bool = option(False, "print a JSON line per completion, then one of figures")
    compare_plain: bool = option(False, "alternate with autoregressive decoding, 3 runs each")


def run(argv: list[str]) -> int:
    """Generate. Nothing is printed before all options and inputs are checked."""
    about = "Continues one or several prompts; prints the completions and figures of the run."
    options = (PromptOptions, TemplateOptions, RequestOptions, LoadOptions)
    command = Parser("generate [PROMPT ...]", about, EXAMPLES, *options)
    command.alternatives = SOURCES
    config = command.read(argv)
    check_options(build(PromptOptions, config))
    stop = config.stop or (EXAMPLE_STOPS if config.example else ())
    request = build(RequestOptions, config, stop=stop)
    check_options(request)
    given = read_given(config)

    from bass.api.generation import finished
    from bass.api.llm import serve
    from bass.api.plan import LoadPlan

    llm = serve(LoadPlan.of(build(LoadOptions, config)))  # captures what this request needs
    prompts = prompts_for(llm, given, config)
    out = console()
    live = out.is_terminal and not config.json
    streams = live and not config.compare_plain and llm.models.tokenizer is not None
    streams = streams and len(prompts) * request.num_return_sequences == 1
    show = partial(streamed, prompts[0]) if streams else partial(finished, progress=live)
    own, plain, interrupted = followed(llm, prompts, request, config.compare_plain, show)
    ratios = speedups(own, plain)
    losses = [*warnings(ratios)]
    losses += [why_slower(own, plain, llm.parts.policy)] if losses else []
    notes = [*share_drafted(own, llm.parts.policy)] if plain else []
    below = out if live else console(stderr=True)
    if config.json:
        lines = json_lines(own, plain, ratios, losses)
        sys.stdout.writelines(f"{json.dumps(line)}\n" for line in lines)
    else:
        if not streams:
            print_completions(out, own[0], prompts, config.compare_plain)
        below.print(figures(own, plain, ratios), soft_wrap=False)
        below.print(ran_with(llm, interrupted), style="dim")
    for sentence in [*caveats(llm, given, request.temperature), *notes, *losses]:
        below.print(printable(sentence), style="bold red")
    return 130 if interrupted else 0


def read_given(config: Namespace) -> list[Any]:
    """Entries or conversations of the one given source. Raises `RequestError` or `OptionError`."""
    sources = [name for name in SOURCES if config[name]]
    if len(sources) > 1:
        raise RequestError(f"Prompts come from {' and '.join(map(flag, sources))}: give one.")
    template = [f.name for f in fields(TemplateOptions) if config[f.name] not in (f.default, None)]
    needs = {name: ("prompts",) for name in ("data", "categories", "num_prompts")}
    needs |= {"system": ("chat",)} | dict.fromkeys(template, ("chat", "messages"))
    for name, others in needs.items():
        if config[name] and not any(config[other] for other in others):
            named = " or ".join(f"`{flag(other)}`" for other in others)
            raise OptionError(f"`{flag(name)}` is for {named}: give it too, or leave this out.")
    if config.messages:
        from bass.text.conversation import conversations

        content = _read("messages", config.messages)
        return conversations(content["messages"] if isinstance(content, dict) else content)
    if config.prompts:
        own = {"categories": config.categories, "most": config.num_prompts}
        return read_prompts(config.prompts, config.data, **own)
    texts = config.prompt or (config.token_ids and [config.token_ids]) or PYTHON[: config.example]
    if not texts and sys.stdin is not None and not sys.stdin.isatty():
        texts = [*filter(None, [sys.stdin.read()])]
    if not texts:
        raise RequestError(
            "There is no prompt: give one in quotes, `--prompts`, standard input, or `--example`."
        )
    return read_prompts(texts)


def _read(option: str, name: str) -> Any:
    """The content of the JSON file of an option. Raises `RequestError`."""
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"`{flag(option)} {name}` cannot be read ({reason(error)}).") from error


def prompts_for(llm: "LLM", given: list[Any], config: Namespace) -> list[str | list[int]]:
    """The prompts that the model reads."""
    if not (config.chat or config.messages):
        return [rendered(llm.models.tokenizer, one) for one in given]
    files = {n: _read(n, config[n]) for n in ("tools", "documents") if config[n]}
    template = vars(build(TemplateOptions, config, **files))
    before = [{"role": "system", "content": config.system}] if config.system else []
    prompts = []
    for one in given:
        talk = one.conversation(0, []) if isinstance(one, Entry) else one
        if not talk and not isinstance(one.prompt, str):
            raise RequestError("`--chat` needs texts, and a prompt has token ids: leave it out.")
        talk = talk or [{"role": "user", "content": one.prompt}]
        prompts.append(llm.apply_chat_template([*before, *talk], **template))
    return prompts


def followed(
    llm: "LLM", prompts: list[Any], request: RequestOptions, compare: bool, show: Callable[..., Any]
) -> "tuple[list[Result], list[Result], bool]":
    """The run, or in a comparison runs with and without speculation in turn, after a short warm-up
    of both, and whether Ctrl-C ended them; an interrupted run is left out unless it is the first.
    show: runs a generation.
    """
    from bass.api.llm import plain

    own, autoregressive = list["Result"](), list["Result"]()
    turns = [(llm, own)]
    if compare:
        turns = [*turns, (plain(llm), autoregressive)]
        short = replace(
            request, max_new_tokens=WARM_UP_TOKENS, min_new_tokens=0, stop=(), time_budget=None,
            num_return_sequences=min(request.num_return_sequences, llm.max_batch_size),
        )  # fmt: skip
        for model, _ in turns:
            model.start(prompts[:1], short).result()
        turns *= REPEATS
    for model, results in turns:
        seed = request.seed + len(results)  # each repeat has other texts, which its interval shows
        generation = model.start(prompts, replace(request, seed=seed))
        try:
            results.append(show(generation))
        except KeyboardInterrupt:
            own = own or [generation.result(interrupted=True)]
            return own, autoregressive, True
    return own, autoregressive, False


def speedups(own: "list[Result]", plain: "list[Result]") -> "dict[str, Comparison]":
    """How many times the tokens/s and the mean latency are better than autoregressive ones."""
    from bass.analysis.metrics import SPEEDUPS, repeated, speedup

    if not plain:
        return {}
    speculative, other = (
        repeated([one.measurement for one in results]) for results in (own, plain)
    )
    found = {name: speedup(speculative, other, name) for name in SPEEDUPS.values()}
    return {name: one for name, one in found.items() if one is not None}


def streamed(prompt: str | list[int], generation: "Generation") -> "Result":
    """The result of one sample, whose text is printed as it comes, after its prompt."""
    out = console()
    try:
        out.print(_shown(prompt), end="", style="dim")
        for event in generation:
            out.print(_shown(event.text), end="")
        return generation.result()
    finally:
        out.print()


def warnings(ratios: "Mapping[str, Comparison]") -> Iterator[str]:
    """Where throughput is lower than without speculation, decided or by its median."""
    if not ratios:
        return
    speed, latency = ratios["tokens_per_second"], ratios["all"]
    decided = speed.bounds[1] < 1
    if decided or (speed.median < LOST and not speed.bounds[0] > 1):
        throughput = "throughput loses" if decided else "throughput probably loses (undecided)"
        ends = {"wins": latency.bounds[0] > 1, "loses": latency.bounds[1] < 1}
        before = "".join(f"mean latency {end} and " for end, holds in ends.items() if holds)
        yield (
            f"WARNING: {before}{throughput}, compared with autoregressive decoding: tokens/s are "
            f"{speed.median:.2f} times as high in the median of {counted(speed.n, 'run')}; "
            f"ratio of the means: {speed.text}, of mean latency: {latency.text}."
        )


def share_drafted(own: "list[Result]", policy: Any) -> Iterator[str]:
    """In what share of the steps `auto` drafted."""
    from bass.policies import Auto

    drafted = [step.drafted.any() for one in own for step in one.trace]
    if isinstance(policy, Auto) and drafted:
        share = fmean(drafted)
        why = ": at this batch size a draft costs more than it gains" * (share < SELDOM)
        yield f"NOTE: `auto` drafted in {100 * share:.0f} % of the steps{why}."


def why_slower(own: "list[Result]", plain: "list[Result]", policy: Any) -> str:
    """Why throughput is lower than without speculation, and what to try."""
    from bass.policies import Auto

    per_step, per_plain_step = (
        fmean(step.seconds + step.host_seconds for one in results for step in one.trace)
        for results in (own, plain)
    )
    cost, tau = per_step / per_plain_step, fmean(one.stats.tau for one in own)
    ends = ", and the call ends with its slowest row" if tau > cost else ""
    auto = "" if isinstance(policy, Auto) else "`--policy auto`, the default, or "
    return (
        f"A step takes {cost:.1f} times as long as without drafts and gives {tau:.1f} tokens{ends}:"
        f" try {auto}`--num-speculative-tokens 0`, or a draft that costs less or is accepted more."
    )


def figures(
    own: "list[Result]", plain: "list[Result]", ratios: "Mapping[str, Comparison]"
) -> Table:
    """The figures of the runs, means over repeats, and the ratios to autoregressive decoding."""
    from bass.analysis.metrics import METRICS, number

    first = own[0]
    grid = Table("", "speculative" if first.stats.drafted else "plain")
    for title in ("plain", "times faster (95 % interval)", "median") if plain else ():
        grid.add_column(title)
    for metric in map(METRICS.__getitem__, FIGURES):
        cells = []
        for results in filter(None, (own, plain)):
            values = [v for one in results if (v := getattr(one.stats, metric.name)) is not None]
            cells.append(metric.show(fmean(values) if values else None))
        if (ratio := ratios.get(metric.name)) is not None:
            cells += [ratio.text, f"{ratio.median:.2f}"]
        if metric.name == "trimmed_share" and first.stats.trimmed_share is None:
            continue
        grid.add_row(metric.heading.replace("_", " "), *cells)
    rates = first.stats.acceptance_by_position[:6]  # None at those that no draft reached
    texts = (number(rate, "share") for rate in rates if rate is not None)
    grid.add_row("accepted by position, %", " ".join(texts))
    grid.add_row("lossless", "yes" if first.lossless else Text("NO", "bold red"))
    return grid


def json_lines(
    own: "list[Result]",
    plain: "list[Result]",
    ratios: "Mapping[str, Comparison]",
    losses: list[str],
) -> Iterator[dict[str, Any]]:
    """One line per completion of the first run, then its statistics and those of the comparison."""
    from bass.analysis.metrics import SPEEDUPS

    for one in own[0].completions:
        yield {"type": "completion"} | vars(one) | {"mean_logprob": one.mean_logprob}
    stats: dict[str, Any] = {"type": "stats"} | own[0].stats.as_dict()
    if ratios:
        stats |= {column: ratios[metric].ratio for column, metric in SPEEDUPS.items()}
        stats |= {"plain": plain[0].stats.as_dict(), "warnings": losses}
        stats["comparisons"] = {name: vars(one) for name, one in ratios.items()}
    yield stats


def print_completions(out: Console, result: "Result", prompts: list[Any], short: bool) -> None:
    """Print the completions, of several only the beginning if `short`; on a terminal, each after
    its prompt, unless `short`.
    """
    short = short and len(result.completions) > 1
    for one in result.completions:
        text = " ".join(map(str, one.token_ids)) if one.text is None else one.text
        which = f"prompt {one.prompt_index}, sample {one.sample_index}"
        if len(result.completions) > 1:
            print(f"=== {which}: {len(one.token_ids)} tokens, {one.finish_reason} ===")
        if short and len(lines := text.split("\n")) > LINES:
            text = "\n".join([*lines[:LINES], "..."])
        if out.is_terminal:
            out.print("" if short else _shown(prompts[one.prompt_index]), end="", style="dim")
            text = _shown(text)
        print(text)


def ran_with(llm: "LLM", interrupted: bool) -> str:
    """The settings that the figures were measured with, in one line."""
    import torch

    from bass.cli.info import kernels

    _, *words = map(str.strip, repr(llm).splitlines())
    words += [counted(torch.get_num_threads(), "thread"), kernels(llm.models.device)]
    return ", ".join(words) + ("; interrupted: figures up to there" if interrupted else "")


def caveats(llm: "LLM", given: list[Any], temperature: PerPrompt[float]) -> Iterator[str]:
    """Sentences about what a reader of the text and the figures might not expect."""
    parts = llm.parts
    entries = [one for one in given if isinstance(one, Entry)]
    if plain_turns(entries, llm.models.tokenizer):
        yield "NOTE: the target has no chat template: conversations are plain text with `User:`."
    if count := sum(entry.turns > 1 for entry in entries):
        yield f"NOTE: {count} of {len(entries)} prompts have later turns: `bass ablate` runs them."
    if llm.models.specs[0].dummy:
        yield "WARNING: RANDOM WEIGHTS: with `load_format=dummy` the text means nothing."
    if not parts.lossless_at(temperature):
        by = parts.trim if parts.verifier.lossless else parts.verifier
        yield f"WARNING: NOT LOSSLESS: by `{called(by)}`, {parts.caveat}."
    if not parts.batch_invariant_at(temperature):
        by = parts.trim if parts.drafter.batch_invariant else parts.drafter
        yield f"WARNING: BATCH-WIDE: by `{called(by)}`, tokens of a row depend on its batch."


def _shown(text: str | list[int]) -> str:
    """A text as a terminal may show it; nothing for the token ids of a prompt."""
    return printable(text, keep="\n\t") if isinstance(text, str) else ""
