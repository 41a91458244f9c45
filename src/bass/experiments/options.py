"""The options of `bass bench` and `bass eval`; their helps load no torch."""

from dataclasses import dataclass, fields
from typing import Any, final

from bass.api.options import RequestOptions
from bass.errors import check_number, unknown_name
from bass.experiments.problems import NAMES
from bass.option import check_options, like, option
from bass.sampling_params import SamplingParams

PLAIN = "plain"  # the method of autoregressive decoding
METHODS = ("batched", PLAIN, "single")  # of an evaluation
SAMPLING = [f.name for f in fields(SamplingParams)]


@final
@dataclass(frozen=True)
class BenchOptions(SamplingParams):
    """What to measure, and how often; `ignore_eos` and limits of length are the benchmark's own."""

    methods: list[int | str] | None = option(
        None,
        "methods to compare: plain (autoregressive decoding), draft lengths, and policies, besides "
        "the one of `policy` or `num_speculative_tokens`; by default plain",
    )
    batches: list[int] | tuple[int, ...] = option((1, 8), "batch sizes")
    prompt_length: int = option(
        150, "tokens of each random prompt, and of each piece of a text", within="[1, inf)"
    )
    max_new_tokens: int = like(
        SamplingParams, "max_new_tokens", 128, "new tokens of each row, all of them decoded"
    )
    repeats: int = option(
        3, "timed calls of each setting, taking turns between methods", within="[1, inf)"
    )
    acceptance: float | None = option(
        None,
        "NOT LOSSLESS: accept each drafted token with this probability, given those before it",
        within="[0, 1]",
    )
    prompts: str | None = option(
        None, "a published set, a file of prompts, or a text, cut into pieces; null: random tokens"
    )
    data: str | None = option(None, "the folder of published sets; null: that of BASS_DATA")
    categories: list[str] | None = option(None, "with `prompts`: only these categories")
    seed: int = like(
        SamplingParams, "seed", 0, "seed of the prompts; the calls have the seeds after it"
    )
    ignore_eos: bool = like(SamplingParams, "ignore_eos", True)

    def __post_init__(self) -> None:
        check_options(self)
        for batch in self.batches:
            check_number("batches", batch, "[1, inf)")

    @property
    def request(self) -> dict[str, Any]:
        """The options of `LLM.stream` but for the seed."""
        return {name: getattr(self, name) for name in SAMPLING if name != "seed"}


@final
@dataclass(frozen=True)
class EvalOptions(RequestOptions):
    """The options of `evaluate`: those of a request, and of the problems and their scores."""

    num_return_sequences: int = like(
        RequestOptions, "num_return_sequences", 8, "samples of each problem"
    )
    problems: str = option("small", f"{', '.join(NAMES)}, or a file in the format of one")
    data: str | None = option(None, "folder of the published files, by default that of BASS_DATA")
    methods: list[str] | None = option(None, f"of {', '.join(METHODS)}, by default the first two")
    budgets: list[float] | None = option(None, "in seconds, by default ten for the samples' times")
    limit: int | None = option(None, "only the first N problems")
    skip_long: bool = option(False, "leave out problems whose prompts do not fit the context")
    program_seconds: float = option(10.0, "time limit of each program that the model writes")
    allow_code_execution: bool = option(False, "run them as yourself where bubblewrap is missing")

    def __post_init__(self) -> None:
        for method in self.methods or ():
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
