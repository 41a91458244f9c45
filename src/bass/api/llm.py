"""What users touch: `load` a target and a draft, then `generate` or `stream`."""

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from bass import pair
from bass.api.assembly import Engine, assemble, no_room, use_graphs
from bass.api.generation import Generation
from bass.api.kinds import KINDS
from bass.api.loading import (
    Models,
    Strategies,
    backend_for,
    check_max_length,
    drafter_for,
    find_device,
    layout_for,
    quantizations_for,
)
from bass.api.requests import Prompts, context, requests_for, stop_strings
from bass.api.resolve import make
from bass.api.results import Result
from bass.drafters import NoDrafter
from bass.engine.cost import NOTHING, PairCost, measure_peaks, model_cost
from bass.engine.requests import Request
from bass.engine.run import Run, RunStatus
from bass.engine.scorer import check_pairing
from bass.engine.slots import room_for
from bass.errors import OptionError, RequestError, check_integer, explained, is_finite, unknown_name
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    Quantization,
    StopRule,
    Verifier,
    Warp,
)
from bass.models.first_layers import FirstLayers
from bass.sampling import Sampling

_LENGTH_ALIASES = ("num_speculative_tokens", "num_assistant_tokens", "gamma")


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    policy: str | type | Mapping[str, Any] | DraftLengthPolicy[Any] = "bass",
    cache: str | type = "auto",
    attention: str | type | Mapping[str, Any] | AttentionBackend[Any, Any] = "auto",
    verifier: str | type | Mapping[str, Any] | Verifier = "rejection",
    drafter: str | type | Mapping[str, Any] | DraftMethod = "model",
    stop_rule: str | type | Mapping[str, Any] | StopRule | None = None,
    device: str = "auto",
    dtype: str = "auto",
    quantization: str | type | Mapping[str, Any] | Quantization | None = None,
    draft_quantization: str | type | Mapping[str, Any] | Quantization | None = None,
    cuda_graphs: str | bool = "auto",
    max_batch_size: int = 8,
    num_speculative_tokens: int | None = None,
    **aliases: Any,
) -> "LLM":
    """Load a target and a draft; without arguments, the embedded pair.

    `target` and `draft` are checkpoint folders or hub ids, `org/name` or `org/name@revision`, whose
    files `huggingface_hub` fetches and keeps. Both are Hugging Face checkpoints with safetensors;
    their vocabularies may be padded to different sizes. `policy`, `drafter`, `stop_rule`,
    `verifier`, `cache`, `attention` and both quantizations take a registered name,
    "package.module:Class", a class, (all but `cache`) an object of the protocol in
    `bass.interfaces`, or {"class_path": a name, "init_args": {...}}.
    `num_speculative_tokens=k` is short for the fixed policy; 0 is plain decoding, and loads no
    draft. `num_assistant_tokens` and `gamma` mean the same. `cuda_graphs="auto"` replays steps as
    CUDA graphs where the parts allow it. `cache="auto"` is the split layout on a GPU and the padded
    one elsewhere, or with an `attention` of your choice; `attention="auto"` takes the first backend
    that fits the cache and is quick on the device. `device="auto"` is a GPU where there is one;
    `dtype="auto"` is float32 on a CPU and the checkpoint's own on a GPU. `quantization`, such as
    "fp8", holds the matrices of the blocks in fewer bytes; None: as they are stored.
    `draft_quantization` is that of the draft and of its head; None: the target's, "none": as
    stored.

    Raises a `BassError` with one sentence: `CheckpointError`, `PairingError`, or `OptionError`.
    """
    ordered = order(**locals())
    return ordered.serve(ordered.read())


@final
@dataclass(frozen=True)
class LoadPlan:
    """What `load` was asked for, found to fit together. No weight has been read."""

    target: str | Path
    draft: str | Path | None
    parts: Strategies
    max_batch_size: int
    device: torch.device
    dtype: str
    quantizations: tuple[Quantization | None, Quantization | None]
    cuda_graphs: str | bool

    def read(self) -> Models:
        """The models: what takes time, and may serve other orders too."""
        return Models.read(
            self.target,
            self.draft,
            self.parts.drafter.needs_draft,
            self.device,
            self.dtype,
            self.quantizations,
        )

    def serve(self, models: Models) -> "LLM":
        """The strategies over models that are there."""
        if self.parts.drafter.target_layers:
            FirstLayers.check(models.target, self.parts.drafter.target_layers)
        return LLM(models, self.parts, self.max_batch_size, self.cuda_graphs)


def order(
    *,
    target: str | Path | None,
    draft: str | Path | None,
    policy: Any,
    cache: Any,
    attention: Any,
    verifier: Any,
    drafter: Any,
    stop_rule: Any,
    device: str,
    dtype: str,
    quantization: Any,
    draft_quantization: Any,
    cuda_graphs: str | bool,
    max_batch_size: int,
    num_speculative_tokens: int | None,
    aliases: Mapping[str, Any],
) -> LoadPlan:
    """The arguments of `load`, all of them, checked: it raises what `load` raises before a
    checkpoint is looked at.
    """
    for name in aliases:
        if name not in _LENGTH_ALIASES:
            raise unknown_name(
                "option", name, ({*load.__annotations__, *_LENGTH_ALIASES} - {"aliases", "return"})
            )
    for name, folder in (("target", target), ("draft", draft)):
        if folder is not None and not isinstance(folder, str | Path):
            raise OptionError(
                f"`{name}={folder!r}` must be the path of a checkpoint folder, or a hub id."
            )
    asked = {
        name: value
        for name, value in {"num_speculative_tokens": num_speculative_tokens, **aliases}.items()
        if value is not None
    }
    if len(set(asked.values())) > 1:
        raise OptionError(
            f"{' and '.join(f'`{n}={v}`' for n, v in asked.items())} contradict each other: they "
            "are names of one option."
        )
    if asked:
        if policy != "bass":
            raise OptionError(
                f"`{next(iter(asked))}` is short for the fixed policy and contradicts "
                f"`policy={policy!r}`: give one of them."
            )
        k = next(iter(asked.values()))
        if not isinstance(k, int) or isinstance(k, bool):
            raise OptionError(
                f"`{next(iter(asked))}={k!r}` is no number of tokens: give an integer of 0 or more."
            )
        policy = {"class_path": "fixed", "init_args": {"k": k}}
    check_integer("max_batch_size", max_batch_size, 1)
    policy_ = make("policy", policy)
    check_max_length(policy_)
    rule = None if stop_rule is None else make("stop_rule", stop_rule)
    named = make("drafter", drafter)
    # Plain decoding loads no draft, whichever is named.
    method = NoDrafter() if policy_.max_length == 0 else drafter_for(named, draft, rule)
    if target is None and draft is None:
        target, draft = pair.TARGET, pair.DRAFT
    device_ = find_device(device)
    layout = layout_for(cache, attention, device_)
    backend = backend_for(attention, layout, device_)
    parts = Strategies(policy_, layout, backend, make("verifier", verifier), method, rule)
    check_pairing(parts.cache, type(backend), tuple(KINDS["attention"].registry.values()))
    backend.check(device_)
    use_graphs(cuda_graphs, device_, parts)  # refuses what cannot be
    quantizations = quantizations_for(quantization, draft_quantization, method, device_)
    return LoadPlan(
        target or pair.TARGET,
        draft,
        parts,
        max_batch_size,
        device_,
        dtype,
        quantizations,
        cuda_graphs,
    )


@dataclass(frozen=True)
class CachedEngine:
    """The last engine, kept for its graphs, and the run that has it."""

    engine: Engine
    run: weakref.ref[Run]
    run_status: RunStatus

    @property
    def idle(self) -> bool:
        """Whether another run may have it.

        What a run that failed has left in the caches, such as NaN, could reach the next one.
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

    def generate(self, prompts: Prompts, **options: Any) -> Result:
        """All completions of all prompts. The options are those of `stream`."""
        return self.stream(prompts, **options).result()

    def stream(
        self,
        prompts: Prompts,
        num_return_sequences: int = 1,
        max_new_tokens: int | Sequence[int] = 256,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: str | Iterable[str] | None = (),
        ignore_eos: bool = False,
        time_budget: float | None = None,
        **unknown: Any,
    ) -> Generation:
        """Events as tokens are committed; iterate it, or call its `result()`.

        prompts: a string, token ids (a list, an array or a tensor), one of these as {"prompt":
        text} or {"prompt_token_ids": ids}, or a list of any of these. A prompt that the list
        repeats gets further samples, different ones: see `Completion.sample_index`. max_new_tokens:
        for all prompts, or one for each. The sampling options are Hugging Face's (`temperature=0`
        is greedy).
        seed: the same call gives the same tokens again; and with a policy whose lengths depend on
        the row's own past alone, such as `fixed`, the same seed, prompt and `sample_index` give the
        same tokens in any batch. stop: strings before which the text ends; the tokens end with the
        one that completes the string, see `bass.text.Transcript`. time_budget: seconds from the
        start, after which unfinished samples are returned with `finish_reason="time"`.

        Raises `RequestError` or `OptionError`, one sentence each, before anything is generated.
        """
        if unknown:
            raise unknown_name(
                "option",
                next(iter(unknown)),
                [n for n in LLM.stream.__annotations__ if n not in ("unknown", "return")],
            )
        warp = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        stops = stop_strings(stop)
        if stops and self.models.tokenizer is None:
            raise OptionError(
                "`stop` needs text, and the target's folder has no tokenizer: add one, or cut the "
                "token ids yourself."
            )
        check_integer("num_return_sequences", num_return_sequences, 1)
        check_integer("seed", seed)
        if time_budget is not None and not (is_finite(time_budget) and time_budget > 0):
            raise OptionError(
                f"`time_budget={time_budget!r}` must be more than 0 seconds, or None for no limit."
            )
        requests = requests_for(self.models, prompts, num_return_sequences, max_new_tokens, seed)
        run = self._run(requests, warp, () if ignore_eos else tuple(self.models.eos), time_budget)
        peaks = functools.partial(measure_peaks, self.models.device, self.models.dtype)
        claims = self.parts.verifier.lossless, self.parts.drafter.batch_invariant
        return Generation(run, self.models.tokenizer, stops, self._cost(), peaks, *claims)

    def warm_up(self, prompts: Prompts, max_length: int | None = None, **options: Any) -> None:
        """Do now what the first of such requests would wait for. The arguments are those of
        `generate`.

        Where steps run as CUDA graphs, those of all draft lengths up to `max_length` (None: the
        policy's longest) are captured, for every span that these requests may reach; then, there as
        elsewhere, the requests take a first step, prefill included, and are given up. The graphs
        serve what `generate` is asked next, if it has as many rows, no longer ones, and the same
        sampling options and end tokens; else they are dropped, and captured anew as shapes occur.
        Without a warm-up, each is captured when it first occurs: that time counts neither as the
        policy's nor against a `time_budget`, and is `stats.capture_seconds`.

        Raises as `generate` does.
        """
        most = int(self.parts.policy.max_length)
        check_integer("max_length", most if max_length is None else max_length, 0)
        if max_length is not None and max_length > most:
            raise OptionError(
                f"`max_length={max_length}` is more than the policy ever drafts: give up to "
                f"{most}, or None."
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
                # the largest first: what it needs serves the others, or else there is no room
                for k in range(drafted, -1, -1):
                    for span in spans:
                        run.step.prepare(run.sequences, k, span)
            next(iter(generation))
        finally:
            generation.close()

    def chat(self, messages: Sequence[Mapping[str, Any]], template: str = "default") -> list[int]:
        """Token ids of a conversation up to the assistant's turn, to be given to `generate`.

        messages: each a `role` and a `content`. They are put into the target's own chat template,
        which writes the special tokens; none is added to them. template: its name, where the
        checkpoint has several.
        """
        tokenizer = self.models.tokenizer
        if tokenizer is None:
            raise RequestError(
                "A conversation is text, and the target's folder has no tokenizer: give token ids "
                "to `generate`, or add it."
            )
        text = tokenizer.chat.render(messages, template)
        return tokenizer.encode(text, add_special_tokens=False, most=context(self.models))

    def _run(
        self, requests: list[Request], warp: Warp, eos: tuple[int, ...], time_budget: float | None
    ) -> Run:
        """The requests and an engine for them: a new one for each call, or the last one where its
        graphs serve them too.
        """
        budget = room_for(requests, min(self.max_batch_size, len(requests)))
        engine = self._kept.engine if self._kept is not None and self._kept.idle else None
        if engine is not None and engine.serves(budget, warp, eos):
            engine.sequences.active.fill_(False)  # of a run that was given up
        else:
            del engine
            self._kept = None  # its storage is given back first

            def too_large(reason: str) -> RequestError:
                decoders = (self.models.target, self.models.draft)
                row = sum(
                    model_cost(decoder).kv_bytes_per_position
                    for decoder in decoders
                    if decoder is not None
                )
                return no_room(budget, row, reason)

            with explained(too_large):
                engine = assemble(self.models, self.parts, self.graphs, budget, warp, eos)
        run = Run(requests, engine.sequences, engine.step, self.parts.policy, time_budget)
        self._kept = CachedEngine(engine, weakref.ref(run), run.run_status) if self.graphs else None
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
