"""The options of `bass bench`, next to those of `bass.load`, and the methods that they name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from bass.api.checks import MOST_SEQUENCES, check_value
from bass.api.options import LoadOptions, SamplingOptions, help_of, option
from bass.api.plan import LoadPlan
from bass.errors import OptionError, check_integer, flag, is_finite
from bass.problems import Problems
from bass.provenance.described import described
from bass.provenance.made_with import fingerprints
from bass.verifiers import Synthetic

_HELP = help_of(SamplingOptions)
PLAIN = "plain"
FEWEST_REPEATS = 3
PROMPT_LENGTH = 150
# of a call of `LLM.stream`; the others are the benchmark's own
REQUEST = (
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip


@final
@dataclass(frozen=True)
class BenchOptions:
    """What to measure, and how often."""

    methods: list[int | str] | None = option(
        None,
        "methods to compare: plain (autoregressive decoding), draft lengths, and names of "
        "policies; by default plain, and the policy of `policy` or `num_speculative_tokens`",
    )
    batches: tuple[int, ...] = option((1, 8), "batch sizes")
    prompt_length: int = option(PROMPT_LENGTH, "tokens of each prompt, but for those of `prompts`")
    max_new_tokens: int = option(128, "new tokens of each row, all of them decoded")
    repeats: int = option(
        FEWEST_REPEATS,
        f"timed calls of each setting, at least {FEWEST_REPEATS}, taking turns between methods",
    )
    acceptance: float | None = option(
        None,
        "NOT LOSSLESS: accept each drafted token with this probability, given those before it, "
        "whatever it is",
    )
    file: str | None = option(
        None, "take the prompts from this text, which must be long enough; by default random tokens"
    )
    prompts: str | None = option(
        None,
        "take the prompts of a published set, or of a file of prompts, as they are; with rows by "
        "category where there are several",
    )
    data: str | None = option(
        None, "the folder of published sets; null: of the environment variable BASS_DATA"
    )
    categories: list[str] | None = option(None, "with `prompts`: only these categories")
    output: str | None = option(
        None, "JSON file that keeps finished calls; the same command continues it"
    )
    temperature: float = option(1.0, _HELP["temperature"])
    top_p: float = option(1.0, _HELP["top_p"])
    top_k: int = option(0, _HELP["top_k"])
    min_p: float = option(0.0, _HELP["min_p"])
    repetition_penalty: float = option(1.0, _HELP["repetition_penalty"])
    presence_penalty: float = option(0.0, _HELP["presence_penalty"])
    frequency_penalty: float = option(0.0, _HELP["frequency_penalty"])
    seed: int = option(0, "seed of the prompts; the calls have the seeds after it")

    @property
    def request(self) -> dict[str, Any]:
        """The options of `LLM.stream` but for the seed."""
        return {name: getattr(self, name) for name in REQUEST} | {"ignore_eos": True}


def examine(options: Mapping[str, Any], problems: Problems) -> None:
    """Record all that is wrong with the values of the benchmark's options."""
    for name in (*REQUEST, "seed"):
        with problems.noted("", name):
            check_value(name, options[name])
    least = {"prompt_length": 1, "max_new_tokens": 1, "repeats": FEWEST_REPEATS}
    for name, count in least.items():
        with problems.noted():
            check_integer(name, options[name], count)
    for name in ("methods", "batches"):
        if options[name] is not None and not options[name]:
            problems.add(f"`{flag(name)}` is empty: give one or more.")
    for batch in options["batches"]:
        with problems.noted():
            check_integer("batches", batch, 1)
            if batch > MOST_SEQUENCES:
                problems.add(
                    f"`--batches {batch}` is more than the {MOST_SEQUENCES:,} sequences of a "
                    "call: give a smaller one."
                )
    if options["file"] is not None and options["prompts"] is not None:
        problems.add("`--file` and `--prompts` both name the prompts: give one of them.")
    for name in ("data", "categories"):
        if options[name] is not None and options["prompts"] is None:
            problems.add(f"`{flag(name)}` is for a set of prompts: give `--prompts` with it.")
    if options["prompts"] is not None and options["prompt_length"] != PROMPT_LENGTH:
        problems.add(
            f"`--prompt-length {options['prompt_length']}` is not used, since `--prompts` are "
            "taken as they are: leave it out."
        )
    accepted = options["acceptance"]
    if accepted is not None and not (is_finite(accepted) and 0 <= accepted <= 1):
        problems.add(f"`--acceptance {accepted}` is out of range: give a number of 0 to 1.")


@final
@dataclass(frozen=True)
class Method:
    """One way to decode. label: as the user named it. policy: its full description, with the
    fingerprint of a user's own code.
    """

    label: str
    policy: str
    options: LoadOptions

    @classmethod
    def of(cls, label: str, options: LoadOptions) -> "Method":
        """The method of these options. Raises the errors of `load` that need no checkpoint."""
        policy = LoadPlan.of(options).parts.policy
        description = described(policy, options.policy) | fingerprints([policy], [], {})
        return cls(label, json.dumps(description), options)

    def plan(self, batch: int) -> LoadPlan:
        """The load plan for a batch size."""
        return LoadPlan.of(replace(self.options, max_batch_size=batch))


def methods_of(
    options: LoadOptions, policies: Mapping[str, Any], acceptance: float | None
) -> list[Method]:
    """The methods of a benchmark, each policy once.

    policies: by label, the argument of `make`; None for autoregressive decoding.
    """
    if acceptance is not None:
        if options.verifier != "rejection":
            raise OptionError(
                "`--acceptance` replaces the verifier and contradicts `--verifier`: give one of "
                "them."
            )
        options = replace(options, verifier=Synthetic(acceptance))
    plain = replace(options, policy=None, num_speculative_tokens=0)
    speculative = replace(options, num_speculative_tokens=None)
    found: dict[str, Method] = {}
    for label, spec in policies.items():
        method = Method.of(label, plain if spec is None else replace(speculative, policy=spec))
        found.setdefault(method.policy, method)
    return list(found.values())
