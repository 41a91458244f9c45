"""The single definition of every option, for `bass.load`, `LLM.generate`, the command line, the
settings of ablations, their help, and the tables of the documentation.

`load` and `generate` repeat names, types and defaults in their signatures, for editors; a test
checks that they agree.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bass.api.elsewhere import named_elsewhere
from bass.errors import OptionError, unknown_name

if TYPE_CHECKING:
    from bass.interfaces import (
        AttentionBackend,
        DraftLengthPolicy,
        DraftMethod,
        Quantization,
        StopRule,
        Verifier,
    )

    PolicySpec = str | type | Mapping[str, Any] | DraftLengthPolicy[Any]
    AttentionSpec = str | type | Mapping[str, Any] | AttentionBackend[Any, Any]
    VerifierSpec = str | type | Mapping[str, Any] | Verifier
    DrafterSpec = str | type | Mapping[str, Any] | DraftMethod
    StopRuleSpec = str | type | Mapping[str, Any] | StopRule | None
    QuantizationSpec = str | type | Mapping[str, Any] | Quantization | None
else:  # the help of a command loads no torch
    PolicySpec = AttentionSpec = VerifierSpec = DrafterSpec = StopRuleSpec = QuantizationSpec = Any
Checkpoint = str | Path | None
FamilySpec = str | type | None
T = TypeVar("T")
PerPrompt = T | Sequence[T]  # one for all prompts, or one per prompt


def option(default: T, help: str, kind: str | None = None) -> T:
    """A field with its help. kind: kind of strategy that the option names."""
    return field(default=default, metadata={"help": help, "kind": kind})


_ABOUT = {
    "policy": "how many tokens to draft",
    "cache": "layout of keys and values",
    "attention": "backend that attends to the cache",
    "verifier": "which drafted tokens to accept",
    "drafter": "what proposes tokens",
    "stop_rule": "what ends a draft early",
    "quantization": "how weights are held in fewer bytes",
}


def strategy(default: T, kind: str, more: str = "") -> T:
    """A field that names a strategy."""
    own = f'{more}a name (see `bass list {kind}`), or "package.module:Class" of your own'
    return option(default, f"{_ABOUT[kind]}; {own}", kind)


@dataclass(frozen=True)
class ModelOptions:
    """Which models run, with which strategies, and where."""

    target: Checkpoint = option(
        None,
        "checkpoint of the target, a folder or a hub id (org/name[@revision]); without target and "
        "draft, the embedded pair",
    )
    draft: Checkpoint = option(None, "checkpoint of the draft, a folder or a hub id")
    lora: Checkpoint = option(
        None, "LoRA adapter that is merged into the target at load, a folder or a hub id"
    )
    draft_lora: Checkpoint = option(None, "LoRA adapter of the draft, a folder or a hub id")
    family: FamilySpec = option(
        None,
        'decoder of your own as "package.module:Class", for checkpoints of its model_type; by '
        "default the family that `bass` or an installed package has for it",
    )
    # None is `bass`: a policy that is given next to `num_speculative_tokens` contradicts it
    policy: PolicySpec | None = strategy(None, "policy", "bass by default; ")
    cache: str | type = strategy("auto", "cache", "auto (the fastest on the device), ")
    attention: AttentionSpec = strategy(
        "auto", "attention", "auto (the default of cache and device), "
    )
    verifier: VerifierSpec = strategy("rejection", "verifier")
    drafter: DrafterSpec = strategy("model", "drafter")
    stop_rule: StopRuleSpec = strategy(None, "stop_rule")
    device: str = option("auto", "auto (a GPU where there is one), cpu, cuda, cuda:1 ...")
    dtype: str = option("auto", "auto, float32, bfloat16 or float16")
    quantization: QuantizationSpec = strategy(None, "quantization")
    draft_quantization: QuantizationSpec = option(
        None, "quantization of the draft; by default that of the target", "quantization"
    )
    cuda_graphs: Literal["auto", "lazy"] | bool = option(
        "auto",
        "whether steps run as CUDA graphs; auto: where device and attention support it; lazy: "
        "captured when a call needs them, instead of at load",
    )


@dataclass(frozen=True)
class LoadOptions(ModelOptions):
    """The options of `bass.load`."""

    max_batch_size: int = option(
        8, "rows that decode together; further samples wait for a free row"
    )
    max_model_len: int | None = option(
        None,
        "tokens of the longest row, prompt included; by default the models' context, of which the "
        "storage of CUDA graphs then has as many positions as half of the free memory holds; a "
        "longer row is decoded in storage of its own",
    )
    num_speculative_tokens: int | None = option(
        None, "short for the fixed policy; 0 is autoregressive decoding and loads no draft"
    )
    load_format: str = option(
        "auto",
        "auto reads the weights; dummy makes random ones, so that a checkpoint needs no more than "
        "its config.json, for benchmarks",
    )


@dataclass(frozen=True)
class SamplingOptions:
    """Length, sampling and stop options of a request."""

    max_new_tokens: PerPrompt[int] = option(256, "most new tokens per sample")
    min_new_tokens: PerPrompt[int] = option(
        0, "least new tokens: no end of sequence and no stop token before"
    )
    temperature: PerPrompt[float] = option(0.2, "0 is greedy")
    top_p: PerPrompt[float] = option(0.95, "keep the most probable tokens up to this sum; 1 = off")
    top_k: PerPrompt[int] = option(0, "number of most probable tokens to keep; 0 = off")
    min_p: PerPrompt[float] = option(
        0.0, "drop tokens below this share of the highest probability; 0 = off"
    )
    repetition_penalty: PerPrompt[float] = option(
        1.0, "divides the logits of tokens of the prompt and the output; 1 = off"
    )
    presence_penalty: PerPrompt[float] = option(
        0.0, "subtracted from the logits of generated tokens, -2 to 2; 0 = off"
    )
    frequency_penalty: PerPrompt[float] = option(
        0.0, "subtracted once for each time a token was generated, -2 to 2; 0 = off"
    )
    seed: int = option(
        0, "the same seed gives the same tokens again, unless the policy goes by measured times"
    )
    stop: str | Iterable[str] | None = option((), "strings before which a sample's text ends")
    stop_token_ids: Iterable[int] | None = option((), "token ids that end a sample")
    ignore_eos: bool = option(False, "continue after an end-of-sequence token")
    time_budget: float | None = option(
        None, "seconds after which unfinished samples are returned as they are"
    )


@dataclass(frozen=True)
class RequestOptions(SamplingOptions):
    """The options of `LLM.generate` and `stream`."""

    num_return_sequences: int = option(1, "samples per prompt")


@dataclass(frozen=True)
class TemplateOptions:
    """How `LLM.chat` renders a conversation with the target's chat template."""

    template: str | None = option(
        None,
        "name of a chat template of the checkpoint; by default tool_use with tools, if there is "
        "one, or else default",
    )
    tools: Sequence[Mapping[str, Any]] | None = option(
        None, "tools that the model may call, each as a JSON schema"
    )
    documents: Sequence[Mapping[str, Any]] | None = option(
        None, "documents that the model may cite, each a mapping such as of title and text"
    )
    add_generation_prompt: bool | None = option(
        None, "open the assistant's turn; by default unless the final message is continued"
    )
    continue_final_message: bool | str = option(
        False, "continue the content of the last message, or its field of this name"
    )
    enable_thinking: bool | None = option(
        None, "whether the model thinks before it answers, where its template can switch it"
    )
    chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "further variables of the chat template, by name"
    )


@dataclass(frozen=True)
class ChatOptions(RequestOptions, TemplateOptions):
    """The options of `LLM.chat`."""


def for_one_prompt(hint: Any) -> Any:
    """The annotation of an option without its list of one value per prompt."""
    first, *others = typing.get_args(hint) or (hint,)
    return first if [typing.get_origin(other) for other in others] == [Sequence] else hint


def help_of(options: type) -> dict[str, str]:
    """The help of each option."""
    return {f.name: f.metadata["help"] for f in fields(options)}


def kinds_of(options: type) -> dict[str, str]:
    """The kind of each option that names a strategy."""
    return {f.name: f.metadata["kind"] for f in fields(options) if f.metadata["kind"]}


def unknown_option(name: str, options: type) -> OptionError:
    """The error for an unknown option: its name here, if it is another library's, or the call that
    it belongs to.
    """
    known = help_of(options)
    calls = {"bass.load": LoadOptions, "LLM.generate": RequestOptions, "LLM.chat": TemplateOptions}
    for call, others in calls.items():
        if name in help_of(others):
            return OptionError(f"Unknown option `{name}` here: give it to `{call}`.")
    return named_elsewhere(name, known) or unknown_name("option", name, known)


Given = TypeVar("Given", LoadOptions, RequestOptions, TemplateOptions, ChatOptions)


def options_from(
    options: type[Given], given: Mapping[str, Any], others: Mapping[str, Any]
) -> Given:
    """The options among the arguments of a function. Raises `OptionError` for one of `others`."""
    for name in others:
        raise unknown_option(name, options)
    return options(**{f.name: given[f.name] for f in fields(options)})
