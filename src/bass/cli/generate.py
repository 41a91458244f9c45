"""`bass generate`: one request, on a terminal with its rows growing, elsewhere as text or JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jsonargparse import ArgumentParser

from bass.cli.display import Rows, completions, show_live, table, warn
from bass.cli.options import read_options
from bass.cli.prompts import conversation, read_prompts
from bass.cli.terminal import console, give
from bass.drafters import NoDrafter
from bass.generation import Generation
from bass.llm import LLM, Prompt, load
from bass.loading import Models
from bass.policies import Fixed
from bass.results import Completion, Result

WARM_UP_TOKENS = 8
INTERRUPTED = 130


def run(parser: ArgumentParser, argv: list[str]) -> int:
    """Generate, and print nothing before all options and inputs were found good."""
    config, load_with, stream_with = read_options(parser, argv)
    shown = read_prompts(config)
    llm = load(**load_with)
    prompts: Sequence[Prompt] = shown
    if config.chat:
        prompts, shown = [llm.chat(conversation(prompt, config.system)) for prompt in shown], [f"{prompt}\n" for prompt in shown]
    generation = llm.stream(prompts, **stream_with)
    out = console(soft_wrap=True)
    live = out.is_terminal and not config.json

    def follow(generation: Generation, title: str) -> tuple[Result, bool]:
        if not live:
            return finish(generation)
        rows = Rows.of(shown, stream_with["num_return_sequences"], stream_with["max_new_tokens"], title, llm.models.tokenizer is not None)
        return finish(generation, lambda g: show_live(g, rows, out))

    beside = plain(llm) if config.compare_plain else None
    if beside is not None:
        for model in (llm, beside):
            warm_up(model, prompts[:1], stream_with)
    result, interrupted = follow(generation, f"speculative decoding, {called(llm.parts.policy)}")
    compared: Result | None = None
    if beside is not None and not interrupted:
        second, interrupted = follow(beside.stream(prompts, **stream_with), "the same request by plain decoding")
        compared = None if interrupted else second
    below = out if live else console(stderr=True)
    if config.json:
        give(json_lines(result, compared))
    else:
        completions(out, result, shown)
        table(below, result.stats, compared and compared.stats, ran_with(llm, interrupted))
    if not result.stats.lossless:
        warn(below, not_lossless(llm))
    return INTERRUPTED if interrupted else 0


def finish(generation: Generation, follow: Callable[[Generation], None] = lambda generation: None) -> tuple[Result, bool]:
    """The result, and whether Ctrl-C ended it early: then samples under way are in it as far as they came."""
    try:
        follow(generation)
        return generation.result(), False
    except KeyboardInterrupt:
        return generation.result(interrupted=True), True


def warm_up(llm: LLM, prompts: Sequence[Prompt], options: dict[str, Any]) -> None:
    """A few tokens in a full batch, so that neither side of a comparison pays for what happens once per process."""
    tokens, rows = min(WARM_UP_TOKENS, options["max_new_tokens"]), min(llm.max_batch_size, options["num_return_sequences"])
    llm.generate(prompts, **options | {"max_new_tokens": tokens, "num_return_sequences": rows, "stop": (), "time_budget": None})


def plain(llm: LLM) -> LLM:
    """The same target without speculation; the weights are shared."""
    parts = replace(llm.parts, policy=Fixed(0), drafter=NoDrafter(), stop_rule=None)
    return LLM(replace(llm.models, draft=None), parts, llm.max_batch_size, llm.graphs)


def ran_with(llm: LLM, interrupted: bool) -> str:
    """What the figures belong to, in one line."""
    parts, models = llm.parts, llm.models
    rule = [] if parts.stop_rule is None else [parts.stop_rule]
    strategies = [parts.policy, parts.drafter, *rule, parts.verifier, parts.cache, parts.attention]
    how = "CUDA graphs" if llm.graphs else f"{torch.get_num_threads()} threads"
    machine = [str(models.device), str(models.dtype).removeprefix("torch."), *quantized(models), how]
    return ", ".join([*map(called, strategies), *machine]) + ("; interrupted: figures up to there" if interrupted else "")


def quantized(models: Models) -> list[str]:
    """How the models' weights are held, where not as they are stored."""
    target, draft = models.quantizations
    alike = target == draft or models.draft is None
    told = [called(target)] if alike else [f"{role} by {called(q)}" for role, q in (("target", target), ("draft", draft)) if q is not None]
    return [] if alike and target is None else told


def called(strategy: Any) -> str:
    """A strategy's name, with its parameters where it has any."""
    if isinstance(strategy, type):
        return strategy.__name__
    return repr(strategy) if is_dataclass(strategy) and fields(strategy) else type(strategy).__name__


def not_lossless(llm: LLM) -> str:
    """What to know of a text that does not follow the target's distribution."""
    caveat = llm.parts.verifier.caveat or "the text does not follow the target's distribution"
    return f"WARNING: NOT LOSSLESS: by `{called(llm.parts.verifier)}`, {caveat}."


def json_lines(result: Result, compared: Result | None) -> str:
    """One line per completion, then one with the statistics (and those of plain decoding, with the ratio of tokens/s)."""
    stats: dict[str, Any] = {"type": "stats"} | result.stats.as_dict()
    if compared is not None:
        stats["plain"] = compared.stats.as_dict()
        stats["speedup"] = result.stats.tokens_per_second / compared.stats.tokens_per_second
    return "".join(json.dumps(line) + "\n" for line in (*map(json_completion, result.completions), stats))


def json_completion(completion: Completion) -> dict[str, Any]:
    """All fields of a completion, and its mean log-probability."""
    return {"type": "completion"} | vars(completion) | {"mean_logprob": completion.mean_logprob}
