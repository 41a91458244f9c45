"""The user's entry point: `load` a target and a draft, then `generate`, `stream` or `chat`."""

import functools
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch

from bass.api.assembly import Engine, assemble, no_room
from bass.api.checks import check_stops, check_value, stop_strings
from bass.api.generation import Generation
from bass.api.loading import ModelCache, Models
from bass.api.options import (
    AttentionSpec,
    Checkpoint,
    DrafterSpec,
    LoadOptions,
    PerPrompt,
    PolicySpec,
    QuantizationSpec,
    RequestOptions,
    StopRuleSpec,
    VerifierSpec,
    options_from,
)
from bass.api.plan import LoadPlan, Strategies, use_graphs
from bass.api.progress import finished
from bass.api.requests import Prompts, context, requests_for
from bass.api.results import Result
from bass.drafters import NoDrafter
from bass.engine.cost import NOTHING, PairCost, measure_peaks, model_cost
from bass.engine.requests import Request
from bass.engine.run import Run, RunStatus
from bass.engine.slots import room_for
from bass.errors import OptionError, RequestError, check_flag, check_integer, explained
from bass.policies import Fixed
from bass.text.chat import check_template_name, conversations

Conversation = Iterable[Mapping[str, Any]]


def load(
    target: Checkpoint = None,
    draft: Checkpoint = None,
    policy: PolicySpec = "bass",
    cache: str | type = "auto",
    attention: AttentionSpec = "auto",
    verifier: VerifierSpec = "rejection",
    drafter: DrafterSpec = "model",
    stop_rule: StopRuleSpec = None,
    device: str = "auto",
    dtype: str = "auto",
    quantization: QuantizationSpec = None,
    draft_quantization: QuantizationSpec = None,
    cuda_graphs: Literal["auto"] | bool = "auto",
    max_batch_size: int = 8,
    num_speculative_tokens: int | None = None,
    load_format: str = "auto",
    **aliases: Any,
) -> "LLM":
    """Load a target and a draft; without arguments, the embedded pair.

    `target` and `draft` are checkpoint folders or hub ids, `org/name` or `org/name@revision`, whose
    files `huggingface_hub` downloads and caches. Both are Hugging Face checkpoints with
    safetensors; their vocabularies may be padded to different sizes. `policy`, `drafter`,
    `stop_rule`, `verifier`, `cache`, `attention` and both quantizations take a registered name,
    "package.module:Class", a class, (all but `cache`) an object of the protocol in
    `bass.interfaces`, or {"class_path": a name, "init_args": {...}}.
    `num_speculative_tokens=k` is short for the fixed policy; 0 is autoregressive decoding and loads
    no draft. `cache="auto"` is the split layout on a GPU, and the padded one elsewhere or with an
    explicit `attention`; `attention="auto"` is the first backend that reads the cache's view,
    starting with the fastest ones of the device. `device="auto"` is a GPU if there is one;
    `dtype="auto"` is float32 on a CPU and the checkpoint's own on a GPU. `quantization`, such as
    "fp8", stores the matrices of the blocks in fewer bytes; None: as in the checkpoint.
    `draft_quantization` is that of the draft and of its head; None: the target's, "none": as in the
    checkpoint. `load_format="dummy"` makes random weights for both models: their text means
    nothing, and a checkpoint needs no more than its config.json.

    Raises a `BassError` of one sentence: `CheckpointError`, `PairingError`, `OptionError` or
    `PolicyError`.
    """
    return serve(LoadPlan.of(options_from(LoadOptions, locals(), aliases)))


def serve(plan: LoadPlan, cache: ModelCache | None = None) -> "LLM":
    """Load a plan's models, from `cache` where it holds them, and make its `LLM`."""
    return LLM(plan.read(cache), plan.parts, plan.max_batch_size, plan.cuda_graphs)


def plain(llm: "LLM") -> "LLM":
    """The same target, weights and batch size without speculation: autoregressive decoding."""
    parts = replace(llm.parts, policy=Fixed(0), drafter=NoDrafter(), stop_rule=None)
    return LLM(replace(llm.models, draft=None), parts, llm.max_batch_size, llm.graphs)


@dataclass(frozen=True)
class CachedEngine:
    """The last engine, cached for its graphs, and the run that uses it."""

    engine: Engine
    run: weakref.ref[Run]
    run_status: RunStatus

    @property
    def idle(self) -> bool:
        """Whether another run may use it.

        A failed run may leave NaN in the caches, which could reach the next run.
        """
        run = self.run()
        return not self.run_status.failed and (run is None or run.over)


@final
class LLM:
    """A target and a draft, ready to generate."""

    def __init__(
        self,
        models: Models,
        parts: Strategies,
        max_batch_size: int,
        cuda_graphs: str | bool = "auto",
    ) -> None:
        self.models, self.parts, self.max_batch_size = models, parts, max_batch_size
        self.graphs = use_graphs(cuda_graphs, models.device, parts)
        self._kept: CachedEngine | None = None

    def generate(
        self,
        prompts: Prompts,
        num_return_sequences: int = 1,
        max_new_tokens: PerPrompt[int] = 256,
        min_new_tokens: PerPrompt[int] = 0,
        temperature: PerPrompt[float] = 0.2,
        top_p: PerPrompt[float] = 0.95,
        top_k: PerPrompt[int] = 0,
        min_p: PerPrompt[float] = 0.0,
        repetition_penalty: PerPrompt[float] = 1.0,
        presence_penalty: PerPrompt[float] = 0.0,
        frequency_penalty: PerPrompt[float] = 0.0,
        seed: int = 0,
        stop: str | Iterable[str] | None = (),
        stop_token_ids: Iterable[int] | None = (),
        ignore_eos: bool = False,
        time_budget: float | None = None,
        progress: bool = False,
        **unknown: Any,
    ) -> Result:
        """All completions of all prompts. The options are those of `stream`; `progress` shows a
        progress bar of the tokens on standard error.
        """
        options = options_from(RequestOptions, locals(), unknown)
        check_flag("progress", progress)
        return finished(self.start(prompts, options), progress)

    def stream(
        self,
        prompts: Prompts,
        num_return_sequences: int = 1,
        max_new_tokens: PerPrompt[int] = 256,
        min_new_tokens: PerPrompt[int] = 0,
        temperature: PerPrompt[float] = 0.2,
        top_p: PerPrompt[float] = 0.95,
        top_k: PerPrompt[int] = 0,
        min_p: PerPrompt[float] = 0.0,
        repetition_penalty: PerPrompt[float] = 1.0,
        presence_penalty: PerPrompt[float] = 0.0,
        frequency_penalty: PerPrompt[float] = 0.0,
        seed: int = 0,
        stop: str | Iterable[str] | None = (),
        stop_token_ids: Iterable[int] | None = (),
        ignore_eos: bool = False,
        time_budget: float | None = None,
        **unknown: Any,
    ) -> Generation:
        """Generate, and yield events as tokens are committed; iterate it, or call its `result()`.

        prompts: a string, token ids (a list, an array or a tensor), one of these as {"prompt":
        text} or {"prompt_token_ids": ids}, or a list of any of these. A repeated prompt gets
        further, different samples: see `Completion.sample_index`. The numbers of tokens, the
        sampling options and the penalties are one value for all prompts, or a list of one per
        prompt. They mean what they mean in Hugging Face's `generate` (`temperature=0` is greedy),
        and in vLLM for presence and frequency penalties. seed: the same call gives the same tokens
        again, unless the policy goes by measured times (`measured`, `goodput`, `bandit`) and the
        verifier is not coupled. With a policy whose lengths depend on the row's own past alone,
        such as `fixed`, the same seed, prompt and `sample_index` give the same tokens in any batch.
        stop: the text ends before any of these strings; the tokens end with the one that completes
        the string, see `bass.text.Transcript`. stop_token_ids: tokens that end a sample, as an end
        of sequence does, each the last of its `token_ids`. time_budget: seconds from the start,
        after which unfinished samples are returned with `finish_reason="time"`.

        Raises `RequestError` or `OptionError`, one sentence each, before anything is generated.
        """
        return self.start(prompts, options_from(RequestOptions, locals(), unknown))

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        template: str = "default",
        *,
        num_return_sequences: int = 1,
        max_new_tokens: PerPrompt[int] = 256,
        min_new_tokens: PerPrompt[int] = 0,
        temperature: PerPrompt[float] = 0.2,
        top_p: PerPrompt[float] = 0.95,
        top_k: PerPrompt[int] = 0,
        min_p: PerPrompt[float] = 0.0,
        repetition_penalty: PerPrompt[float] = 1.0,
        presence_penalty: PerPrompt[float] = 0.0,
        frequency_penalty: PerPrompt[float] = 0.0,
        seed: int = 0,
        stop: str | Iterable[str] | None = (),
        stop_token_ids: Iterable[int] | None = (),
        ignore_eos: bool = False,
        time_budget: float | None = None,
        progress: bool = False,
        **unknown: Any,
    ) -> Result:
        """Generate the assistant's next turn in one conversation, or in each of several.

        It is `generate` with the prompts of `apply_chat_template`, and has its options, by keyword
        only. messages: a list, or another iterable, of messages or of conversations.
        """
        options = options_from(RequestOptions, locals(), unknown)
        check_flag("progress", progress)
        check_template_name(template)
        prompts = [self.apply_chat_template(one, template) for one in conversations(messages)]
        return finished(self.start(prompts, options), progress)

    def apply_chat_template(self, messages: Conversation, template: str = "default") -> list[int]:
        """Token ids of a conversation up to the assistant's turn, as a prompt for `generate`.

        messages: each has a `role` and a `content`. They are rendered with the target's chat
        template, which writes the special tokens; no others are added. template: its name, where
        the checkpoint has several.
        """
        tokenizer = self.models.tokenizer
        if tokenizer is None:
            raise RequestError(
                "A conversation is text, and the target's folder has no tokenizer: give token ids "
                "to `generate`, or add the tokenizer's files."
            )
        text = tokenizer.chat.render(messages, template)
        return tokenizer.encode(text, add_special_tokens=False, most=context(self.models))

    def warm_up(self, prompts: Prompts, max_length: int | None = None, **options: Any) -> None:
        """Do in advance what the first of these requests would wait for. The arguments are those of
        `generate`.

        Where steps run as CUDA graphs, this captures those of all draft lengths up to `max_length`
        (None: the policy's longest), for every span that these requests may reach. Then the
        requests take a first step, prefill included, and are dropped. Later calls of `generate`
        reuse the graphs, for any sampling options, if they have as many rows and no longer
        ones; otherwise the graphs are dropped, and each shape is captured again when it first
        occurs. A batch-wide drafter (`batch_invariant = False`) is built for each call, and its
        graphs with it. Without a warm-up, each is captured when it first occurs: that time is
        `stats.capture_seconds`, and counts neither as the policy's nor against a `time_budget`.

        It shows no progress and returns nothing, though it may take seconds to half a minute; its
        time is in no `stats`. `capture_seconds` of a later call counts what that call captures.

        Raises as `generate` does.
        """
        most = int(self.parts.policy.max_length)
        check_integer("max_length", most if max_length is None else max_length, 0)
        if max_length is not None and max_length > most:
            raise OptionError(
                f"`max_length={max_length}` is more than the policy's longest draft: give at "
                f"most {most}, or None."
            )
        generation = self.stream(prompts, **options)
        try:
            run = generation.run
            shortest, longest = (
                min(len(r.prompt) for r in run.requests),
                max(r.limit for r in run.requests),
            )
            capacity = run.sequences.capacity
            spans = sorted(
                {run.step.span(length, capacity) for length in range(shortest, longest + 1)},
                reverse=True,
            )
            drafted = min(
                most if max_length is None else max_length,
                max(r.limit - len(r.prompt) for r in run.requests) - 1,
            )
            with explained(run.no_room), torch.inference_mode():
                # the largest first, so that smaller ones reuse its memory
                for k in range(drafted, -1, -1):
                    for span in spans:
                        run.step.prepare(run.sequences, k, span)
            next(iter(generation))
        finally:
            generation.close()

    def start(self, prompts: Prompts, options: RequestOptions, first_sample: int = 0) -> Generation:
        """`stream`, with the options in one value.

        `first_sample`: the first sample index of each prompt. It continues the samples of earlier
        calls with the same seed and prompts.
        """
        stops = stop_strings(options.stop)
        check_stops(stops, self.models.tokenizer is not None)
        check_value("time_budget", options.time_budget)
        requests = requests_for(self.models, prompts, options, first_sample)
        run = self._run(requests, options.time_budget)
        peaks = functools.partial(measure_peaks, self.models.device, self.models.dtype)
        claims = self.parts.verifier.lossless, self.parts.drafter.batch_invariant
        eos = () if options.ignore_eos else self.models.eos
        return Generation(run, self.models.tokenizer, stops, eos, self._cost(), peaks, *claims)

    def _run(self, requests: list[Request], time_budget: float | None) -> Run:
        """A run of the requests, on the cached engine if it is large enough and its drafter keeps
        no state between runs, else on a new one.
        """
        budget = room_for(requests, min(self.max_batch_size, len(requests)))
        ends = max(len(request.end_tokens) for request in requests)
        engine = self._kept.engine if self._kept is not None and self._kept.idle else None
        if engine is not None and engine.serves(budget, ends):
            engine.sequences.active.fill_(False)  # rows of a closed run
        else:
            del engine
            self._kept = None  # frees its storage first

            def too_large(reason: str) -> RequestError:
                decoders = (self.models.target, self.models.draft)
                row = sum(
                    model_cost(decoder).kv_bytes_per_position
                    for decoder in decoders
                    if decoder is not None
                )
                return no_room(budget, row, reason)

            with explained(too_large):
                engine = assemble(self.models, self.parts, self.graphs, budget, ends)
        run = Run(requests, engine.sequences, engine.step, self.parts.policy, time_budget)
        # a batch-wide drafter may have state of this run, which must not reach the next one
        keep = self.graphs and self.parts.drafter.batch_invariant
        self._kept = CachedEngine(engine, weakref.ref(run), run.run_status) if keep else None
        return run

    def _cost(self) -> PairCost:
        target, draft, layers = (
            self.models.target,
            self.models.draft,
            self.parts.drafter.target_layers,
        )
        drafting = [model_cost(draft)] if draft is not None else []
        drafting += [model_cost(target, layers)] if layers else []
        return PairCost(model_cost(target), sum(drafting, NOTHING))
