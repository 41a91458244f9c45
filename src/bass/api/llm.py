"""The user's entry point: `load` a target and a draft, then `generate`, `stream` or `chat`."""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any, Unpack, final

from bass.api.generation import Generation, Sample, finished, first_step, samples_of
from bass.api.loading import ModelCache, Models
from bass.api.options import (
    ChatFields,
    ChatOptions,
    Checkpoint,
    LoadOptions,
    RequestOptions,
    TemplateFields,
    TemplateOptions,
    made,
    takes,
    takes_all,
)
from bass.api.plan import LoadPlan, use_graphs
from bass.api.queue import Arrival, Arrivals, Inbox, Submitted
from bass.api.requests import Prompt, Prompts, needed, prompts_of, requests_for
from bass.api.results import Completion, Result, StreamEvent
from bass.drafters import NoDrafter
from bass.engine.engines import END_TOKENS, EngineCache, Memory
from bass.engine.threads import warn_of_busy_cores
from bass.engine.warm_up import compiled, first_prefills
from bass.errors import OptionError, RequestError
from bass.option import called
from bass.policies import Fixed
from bass.progress import counted
from bass.sampling_params import SamplingFields, SamplingParams
from bass.text.conversation import conversations

Conversation = Iterable[Mapping[str, Any]]


@takes_all(LoadOptions)
def load(target: Checkpoint = None, draft: Checkpoint = None, **options: Any) -> "LLM":
    """Load a target and a draft; without arguments, the embedded pair.

    `target` and `draft` are checkpoint folders or hub ids, `org/name` or `org/name@revision`, whose
    files `huggingface_hub` downloads and caches. Both have safetensors; their vocabularies may be
    padded to different sizes. `policy`, `drafter`, `stop_rule`, `verifier`, `cache`, `attention`
    and both quantizations take a registered name, "package.module:Class", a class, (all but
    `cache`) an object of the protocol in `bass.interfaces`, or {"class_path": a name, "init_args":
    {...}}. `LoadOptions` has all options; "auto" and None mean:

    | option | |
    |---|---|
    | policy | `auto` |
    | cache | one that an explicit `attention` reads; else split on a GPU, padded elsewhere |
    | attention | the fastest backend of the device that reads the cache's view |
    | dtype | float32 on a CPU, the checkpoint's own on a GPU |
    | draft_quantization | the target's; "none": as in the checkpoint |
    | max_model_len | the target's context |
    | cuda_graphs | on a GPU, steps are captured at load, with a progress bar |

    Capturing takes seconds to half a minute. Keys and values of the graphs are allocated once, for
    `max_batch_size` rows of `max_model_len` tokens, or of as many as half of the free memory holds.

    Raises a `BassError` of one sentence: `CheckpointError`, `PairingError`, `OptionError` or
    `PolicyError`.
    """
    loading = made(LoadOptions, {"target": target, "draft": draft, **options})
    llm = serve(LoadPlan.of(loading))
    if llm.graphs and loading.cuda_graphs != "lazy":
        llm.warm_up(progress=sys.stderr.isatty())
    return llm


def serve(plan: LoadPlan, cache: ModelCache | None = None) -> "LLM":
    """Load a plan's models, from `cache` where it holds them, and make its `LLM`."""
    models = plan.read(cache)
    if models.device.type == "cpu":
        warn_of_busy_cores()
    return LLM(models, plan)


def plain(llm: "LLM") -> "LLM":
    """The same target, weights and batch size without speculation: autoregressive decoding."""
    none = {"stop_rule": None, "trim": None}
    parts = replace(llm.parts, policy=Fixed(0), drafter=NoDrafter(), **none)
    return LLM(replace(llm.models, draft=None), replace(llm.plan, draft=None, parts=parts))


@final
class LLM:
    """A target and a draft, ready to generate as planned."""

    def __init__(self, models: Models, plan: LoadPlan) -> None:
        self.models, self.plan, self.parts = models, plan, plan.parts.for_models(models)
        self.max_batch_size, length = plan.max_batch_size, plan.max_model_len
        self.graphs = use_graphs(plan.cuda_graphs, models.device, self.parts)
        self.max_model_len = length or models.context
        self._engines = EngineCache(models, self.parts, self.graphs, plan.max_batch_size, length)
        self._inbox = Inbox(self._engines)

    def __repr__(self) -> str:
        """The pair, the device, the strategies, the memory and the limits, in four lines."""
        models, specs = self.models, zip(("target", "draft"), self.models.specs, strict=True)
        named = [(role, spec) for role, spec in specs if spec is not None]
        computes = [str(models.device), str(models.dtype).removeprefix("torch.")]
        computes += [f"{role} by {called(x.quantization)}" for role, x in named if x.quantization]
        lines = [
            f"LLM: {', '.join(f'{role} {spec.checkpoint}' for role, spec in named)}",
            ", ".join(computes + ["CUDA graphs"] * self.graphs),
            ", ".join(called(part) for part in vars(self.parts).values() if part is not None),
            f"{self.memory}; up to {self.max_batch_size} rows of {self.max_model_len:,} tokens",
        ]
        return "\n  ".join(lines)

    @takes(RequestOptions)
    def generate(
        self,
        prompts: Prompts,
        num_return_sequences: int = 1,
        *,
        progress: bool = False,
        **options: Unpack[SamplingFields],
    ) -> Result:
        """All completions of all prompts. The options are those of `stream`; `progress` shows a
        progress bar of the tokens on standard error.

        Raises `RequestError` or `OptionError`, one sentence each, before anything is generated.
        """
        return finished(self.stream(prompts, num_return_sequences, **options), progress)

    @takes(RequestOptions)
    def stream(
        self, prompts: Prompts, num_return_sequences: int = 1, **options: Unpack[SamplingFields]
    ) -> Generation:
        """Generate, and yield events as tokens are committed; iterate it, or call its `result()`.

        prompts: a string, token ids (a list, an array or a tensor), one of these as {"prompt":
        text} or {"token_ids": ids}, or a list of any of these. A repeated prompt gets
        further, different samples: see `Completion.sample_index`. The numbers of tokens, the
        sampling options and the penalties are one value for all prompts, or a list of one per
        prompt. They mean what they mean in Hugging Face's `generate` (`temperature=0` is greedy),
        and in vLLM for presence and frequency penalties. seed: the same call gives the same tokens
        again, unless the policy goes by measured times (`goodput`, `bandit`, `exp3`) and the
        verifier is not coupled. With a policy whose lengths depend on the row's own past alone,
        such as `fixed`, the same seed, prompt and `sample_index` give the same tokens in any batch.
        stop: the text ends before any of these strings; the tokens end with the one that completes
        the string, see `bass.text.Transcript`. stop_token_ids: tokens that end a sample, as an end
        of sequence does, each the last of its `token_ids`. time_budget: seconds from the start,
        after which unfinished samples are returned with `finish_reason="time"`.

        Raises `RequestError` or `OptionError`, one sentence each, before anything is generated.
        """
        samples = {"num_return_sequences": num_return_sequences}
        return self.start(prompts, made(RequestOptions, options | samples))

    @takes(RequestOptions)
    def serve(
        self,
        requests: Prompt | Arrival | Iterable[Prompt | Arrival],
        num_return_sequences: int = 1,
        **options: Unpack[SamplingFields],
    ) -> Iterator[Completion]:
        """Generate for requests that arrive while others run, and yield completions as they end.

        requests: prompts, or `bass.Arrival`s with times and options of their own, in the order of
        their times; an iterator is read as they arrive. `prompt_index` counts them. A row gets the
        next request when its own has ended, and prompts are fed in chunks between steps, so that
        the other rows wait for no more than about a step's time. The options are those of
        `generate`. A request has the tokens that `generate` gives for it alone, with a policy whose
        lengths depend on the row's own past alone: requests of one prompt differ by their seeds.

        Rows have `max_model_len` tokens. Raises `RequestError` or `OptionError` when it reads an
        invalid request, which ends the others. It decodes while its iterator is read, and waits for
        an iterator of requests that blocks: live sources use `submit`. `arriving` has the figures.
        """
        samples = {"num_return_sequences": num_return_sequences}
        return self.arriving(requests, options | samples).completions()

    @takes(SamplingParams)
    def submit(
        self,
        prompt: Prompt,
        *,
        on_event: Callable[[StreamEvent], object] | None = None,
        **options: Unpack[SamplingFields],
    ) -> Future[Completion]:
        """Generate one sample in the background, together with those of other calls of `submit`.

        The requests of all threads share the rows, as in `serve`. `cancel()` of the future frees
        the row, also while it decodes. on_event: receives the tokens of each step, and an event
        without tokens after `cancel()`, in the engine's thread: it must return at once. Every call
        has the `prompt_index` 0: calls that share a function bind a name of their own to it, as in
        `on_event=functools.partial(take, name)`.

        Times of the completion count from the submission: `first_token_seconds` is the TTFT, and
        `prefill_seconds + seconds - first_token_seconds`, over the tokens after the first, the
        TPOT. Each event with tokens is a row step, so tau is their tokens over their number. The
        figures of all rows are kept by `arriving` alone, since `submit` may go on forever.

        Raises `RequestError` or `OptionError`; errors of the engine are those of the future.
        """
        request = made(RequestOptions, options)
        if request.time_budget is not None:
            raise OptionError("`time_budget` is of a call: cancel the future instead.")
        samples = self._arrived(prompt, request)
        if len(samples) > 1:
            raise RequestError(f"`submit` is for one sample, not {len(samples)}: call it for each.")
        one = Submitted(samples[0], on_event, time.perf_counter())
        self._inbox.add(one)
        return one.future

    @takes(ChatOptions)
    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        *,
        progress: bool = False,
        **options: Unpack[ChatFields],
    ) -> Result:
        """Generate the assistant's next turn in one conversation, or in each of several.

        It is `generate` with the prompts of `apply_chat_template`, and has the options of both, by
        keyword only. messages: a list, or another iterable, of messages or of conversations.

        Raises `RequestError` or `OptionError`, one sentence each, before anything is generated.
        """
        request = made(ChatOptions, options)
        shown: Any = {f.name: getattr(request, f.name) for f in fields(TemplateOptions)}
        prompts = [self.apply_chat_template(one, **shown) for one in conversations(messages)]
        return finished(self.start(prompts, request), progress)

    @takes(TemplateOptions)
    def apply_chat_template(
        self, messages: Conversation, **options: Unpack[TemplateFields]
    ) -> list[int]:
        """Token ids of a conversation up to the assistant's turn, as a prompt for `generate`.

        They are those of `transformers`. messages: each has a `role` and a `content` (a text, a
        list of text parts, or None next to other fields such as `tool_calls`). They are rendered
        with the target's chat template, which writes the special tokens; no others are added.
        The options are in `TemplateOptions`; any variable that the template reads, such as
        `enable_thinking`, may be in `chat_template_kwargs`.

        Raises `RequestError` for messages that the template refuses, and without a tokenizer.
        """
        tokenizer = needed(self.models.tokenizer, "A conversation is")
        shown = vars(made(TemplateOptions, options))
        text = tokenizer.chat.render(messages, shown.pop("template"), **shown)
        return tokenizer.encode(text, add_special_tokens=False)

    def warm_up(self, progress: bool = False) -> None:
        """Do in advance what the first call would wait for; `bass.load` does it on a GPU.

        Where steps run as CUDA graphs, this allocates the storage of `max_batch_size` rows of
        `max_model_len` tokens, and captures the steps of every batch size, every length that the
        policy may request, and every span, and the prefill of short prompts. Later calls capture
        nothing, whatever their prompts, limits, seeds and sampling options. `progress` shows a
        progress bar on standard error, then `memory`. A batch-wide drafter (`batch_invariant =
        False`) is built for each call, and its graphs too.

        Without a warm-up, a call captures what it can need before its first token: that time is
        `stats.capture_seconds`, and counts neither as the policy's nor against a `time_budget`.
        """
        storage = self._engines.for_all_requests()
        if storage is not None:
            with self._engines.explained(storage.budget):
                counted("compiling kernels", compiled(storage), progress)
                counted("capturing CUDA graphs", storage.capture(), progress)
            if progress:
                print(f"memory: {self.memory}", file=sys.stderr)
            first_prefills(self._engines, [])
        for rows in (self.max_batch_size,) if storage is None else storage.sizes:
            first_step(self.stream([[0]] * rows, max_new_tokens=1, ignore_eos=True))

    @property
    def memory(self) -> Memory:
        """The memory of weights, keys and values and CUDA graphs, and what is free."""
        return self._engines.memory

    def warm_up_for(self, calls: Sequence[tuple[Prompts, RequestOptions]]) -> None:
        """Do in advance what any of these calls, which come one by one, would wait for.

        Where steps run as CUDA graphs, this allocates storage for the longest row of all calls, and
        takes the first step of the longest and of the shortest call of each batch size, and feeds
        windows of other shapes, as rows get new requests while others run. Elsewhere there is
        nothing to do.
        """
        if not (self.graphs and calls):
            return
        requests = [
            requests_for(self.models, prompts, options, 0, self.max_model_len)
            for prompts, options in calls
        ]
        batches = [min(self.max_batch_size, len(ours)) for ours in requests]
        end_tokens = max(len(request.end_tokens) for ours in requests for request in ours)
        longest = [max(request.limit for request in ours) for ours in requests]
        shortest = [min(len(request.prompt) for request in ours) for ours in requests]
        storage = self._engines.reserve(max(batches), max(longest), end_tokens)
        if storage is not None:
            first_prefills(self._engines, [storage.engine(rows).step for rows in {*batches}])
        for batch in {*batches}:
            places = [i for i, rows in enumerate(batches) if rows == batch]
            for i in {max(places, key=longest.__getitem__), min(places, key=shortest.__getitem__)}:
                first_step(self.start(*calls[i]))

    def start(self, prompts: Prompts, options: RequestOptions, first_sample: int = 0) -> Generation:
        """`stream`, with the options in one value.

        `first_sample`: the first sample index of each prompt. It continues the samples of earlier
        calls with the same seed and prompts.
        """
        samples = samples_of(self.models, prompts, options, self.max_model_len, first_sample)
        run = self._engines.run([one.request for one in samples], options.time_budget)
        return Generation(run, self.models, self.parts, samples)

    def arriving(
        self, arrivals: Prompt | Arrival | Iterable[Prompt | Arrival], options: Mapping[str, Any]
    ) -> Generation:
        """`serve`, as a generation, which keeps the steps: when its events or `completions()` have
        been read, or at once, `result().stats` has the figures of the whole queue, such as
        `tokens_per_second`, `tau`, `ttft`, `tpot` and `active_rows`.

        options: those of `generate`, in a mapping.
        """
        of_all = made(RequestOptions, options)

        def read(one: Arrival, index: int) -> list[Sample]:
            if "time_budget" in one.options:
                raise OptionError("`time_budget` is of the call of `serve`: give it there.")
            own = made(RequestOptions, {**options, **one.options}) if one.options else of_all
            return self._arrived([one.prompt], own, index, one.at)

        whole = isinstance(arrivals, Collection | Arrival)  # else an iterator, read as they arrive
        given: Any = prompts_of(arrivals) if whole else arrivals
        each = (one if isinstance(one, Arrival) else Arrival(one) for one in given)
        source = Arrivals(each, read)
        run = self._engines.run([], of_all.time_budget, source)
        return Generation(run, self.models, self.parts, source.samples)

    def _arrived(
        self, prompts: Prompts, options: RequestOptions, first_prompt: int = 0, at: float = 0.0
    ) -> list[Sample]:
        """Samples for rows of any requests. The arguments are those of `samples_of`."""
        positions = self._engines.positions
        samples = samples_of(self.models, prompts, options, positions, 0, first_prompt, at)
        if len(samples[0].request.end_tokens) > END_TOKENS:
            raise RequestError(f"A request that arrives has at most {END_TOKENS} end tokens.")
        return samples
