"""The options of `bass.load`, `LLM.generate` and `LLM.chat`, which the command line, ablations,
their help and the tables of the documentation share; the types of their values; and the table of
kinds of strategies, for registries, options, `bass list`, plugins and messages.
"""

import functools
import importlib
import inspect
import re
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, final

from jsonargparse import ArgumentParser

from bass.errors import BassError, OptionError, hyphened, unknown_name
from bass.option import help_of, option
from bass.sampling_params import SamplingFields, SamplingParams

Checkpoint = str | Path | None
FamilySpec = str | type | None
# a name, "package.module:Class", a class, an object, or {"class_path": ..., "init_args": {...}}
StrategySpec = Any
DEFAULT_POLICY = "auto"
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


@final
@dataclass(frozen=True)
class Kind:
    """One kind of strategy; its classes load torch, so they are imported on use.

    base: its interface in `bass.interfaces`. group: the package of its classes, and the entry-point
    group of installed packages. table: the package's registry. about: what such a strategy decides.
    as_class: the class itself is used, since the engine creates the objects.
    """

    name: str
    base: str
    group: str
    table: str
    about: str
    as_class: bool = False

    @property
    def words(self) -> str:
        """The name with spaces, for messages."""
        return self.name.replace("_", " ")

    @property
    def interface(self) -> type:
        """The base class of its classes."""
        return getattr(importlib.import_module("bass.interfaces"), self.base)

    @property
    def registry(self) -> Mapping[str, type]:
        """The classes of bass by name."""
        return getattr(importlib.import_module(self.group), self.table)


_ROWS = (
    Kind("policy", "DraftLengthPolicy", "bass.policies", "POLICIES", "how many tokens to draft"),
    Kind("stop_rule", "StopRule", "bass.stop_rules", "STOP_RULES", "what ends a draft early"),
    Kind("trim", "DraftTrim", "bass.trims", "TRIMS", "how much of a draft is verified"),
    Kind("drafter", "DraftMethod", "bass.drafters", "DRAFTERS", "what proposes tokens"),
    Kind("verifier", "Verifier", "bass.verifiers", "VERIFIERS", "which drafted tokens to accept"),
    Kind("cache", "KVCache", "bass.caches", "CACHES", "layout of keys and values", as_class=True),
    Kind(
        *("attention", "AttentionBackend", "bass.attention", "BACKENDS"),
        "backend that attends to the cache",
    ),
    Kind(
        *("quantization", "Quantization", "bass.quantization", "QUANTIZATIONS"),
        "how weights are held in fewer bytes",
    ),
)
KINDS = {kind.name: kind for kind in _ROWS}


def strategy(default: T, kind: str, more: str = "") -> T:
    """A field that names a strategy."""
    own = f'{more}a name (see `bass list {kind}`), or "package.module:Class" of your own'
    return option(default, f"{KINDS[kind].about}; {own}", kind)


@dataclass(frozen=True)
class ModelOptions:
    """Which models run, with which strategies, and where."""

    target: Checkpoint = option(
        None,
        "checkpoint of the target, a folder or a hub id (org/name[@revision]); without target and "
        "draft, the embedded pair",
    )
    draft: Checkpoint = option(None, "checkpoint of the draft, a folder or a hub id")
    _: KW_ONLY
    lora: Checkpoint = option(
        None, "LoRA adapter that is merged into the target at load, a folder or a hub id"
    )
    draft_lora: Checkpoint = option(None, "LoRA adapter of the draft, a folder or a hub id")
    family: FamilySpec = option(
        None,
        'decoder of your own as "package.module:Class", for checkpoints of its model_type; by '
        "default the family that `bass` or an installed package has for it",
    )
    # None: a policy that is given next to `num_speculative_tokens` contradicts it
    policy: StrategySpec = strategy(None, "policy", f"{DEFAULT_POLICY} by default; ")
    cache: str | type = strategy("auto", "cache", "auto (that of the attention, or the fastest), ")
    attention: StrategySpec = strategy(
        "auto", "attention", "auto (the default of cache and device), "
    )
    verifier: StrategySpec = strategy("rejection", "verifier")
    drafter: StrategySpec = strategy("model", "drafter")
    stop_rule: StrategySpec = strategy(None, "stop_rule")
    trim: StrategySpec = strategy(None, "trim")
    device: str = option("auto", "auto (a GPU where there is one), cpu, cuda, cuda:1 ...")
    dtype: str = option("auto", "auto, float32, bfloat16 or float16")
    quantization: StrategySpec = strategy(None, "quantization")
    draft_quantization: StrategySpec = option(
        None, "quantization of the draft, or none; by default that of the target", "quantization"
    )
    cuda_graphs: Literal["auto", "lazy"] | bool = option(
        "auto",
        "whether steps run as CUDA graphs; auto: where device and attention support it; lazy: "
        "captured when a call needs them, instead of at load",
    )


@dataclass(frozen=True, kw_only=True)
class LoadOptions(ModelOptions):
    """The options of `bass.load`."""

    max_batch_size: int = option(
        8,
        "rows that decode together; more samples (`num_return_sequences`, -n) wait for a free row",
        within="[1, inf)",
    )
    max_model_len: int | None = option(
        None,
        "tokens of the longest row, prompt included; by default the target's context, of which the "
        "storage of CUDA graphs then has as many positions as half of the free memory holds; a "
        "longer row is decoded in storage of its own",
        within="[2, inf)",
    )
    num_speculative_tokens: int | None = option(
        None,
        "short for the fixed policy; 0 is autoregressive decoding and loads no draft",
        within="[0, inf)",
    )
    load_format: str = option(
        "auto",
        "auto reads the weights; dummy makes random ones, so that a checkpoint needs no more than "
        "its config.json, for benchmarks",
    )


@dataclass(frozen=True)
class RequestOptions(SamplingParams):
    """The options of `LLM.generate` and `stream`."""

    num_return_sequences: int = option(1, "samples per prompt", within="[1, inf)")


STRATEGIES = [f.name for f in fields(ModelOptions) if f.metadata["kind"]]


def overlaid(options: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The options with overrides, in which `policy.k` is the parameter `k` of the policy.

    Raises `OptionError` for a parameter of what is no strategy.
    """
    result = dict(options)
    for key in sorted(overrides, key=lambda key: key.count(".")):  # a strategy before its parameter
        name, *path = key.split(".")
        if not path:
            result[name] = overrides[key]
        elif name in STRATEGIES:
            default = DEFAULT_POLICY if name == "policy" else None
            result[name] = _with_parameter(key, result[name] or default, path, overrides[key])
        else:
            raise OptionError(f"`{key}` is no parameter of a strategy: `{name}` is none.")
    return result


def _with_parameter(key: str, spec: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """The spec of a strategy with a parameter, which may be one of a strategy within it."""
    name = key.partition(".")[0]
    if spec in (None, "none") or (spec == "auto" and name != "policy"):
        raise OptionError(f"`{key}` is a parameter without a strategy: name one with `{name}`.")
    whole: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {"class_path": spec}
    own, *rest = path
    given: dict[str, Any] = dict(whole.get("init_args") or {})
    given[own] = _with_parameter(key, given.get(own), rest, value) if rest else value
    return whole | {"init_args": given}


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


# Options here, and their names in vLLM, SGLang and transformers; docs/coming-from.md has
# the differences, and what has no counterpart here.
_COUNTERPARTS = {
    "target": "model model_path",
    "draft": "speculative_model speculative_config assistant_model speculative_draft_model_path",
    "lora": "lora_request",
    "dtype": "torch_dtype",
    "max_batch_size": "max_num_seqs max_running_requests batch_size b",
    "max_model_len": "context_length",
    "num_return_sequences": "n best_of",
    "max_new_tokens": "max_tokens max_length",
    "min_new_tokens": "min_tokens",
    "temperature": "do_sample temp",
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id",
    "time_budget": "max_time",
    "seed": "random_seed",
    "template": "chat_template",
    "chat_template_kwargs": "thinking",
    "num_speculative_tokens": "gamma k num_assistant_tokens speculative_num_steps",
    "policy": "num_assistant_tokens_schedule",
    "policy=batch-table": "num_speculative_tokens_per_batch_size",
    "policy=ema-tiers": "speculative_adaptive",
    "drafter": "method speculative_algorithm custom_generate",
    "drafter=ngram": "prompt_lookup_num_tokens prompt_lookup_max prompt_lookup_min "
    "max_matching_ngram_size",
    "drafter=suffix": "suffix_decoding_max_tree_depth suffix_decoding_max_spec_factor",
    "drafter=self": "assistant_early_exit",
    "stop_rule=confidence": "assistant_confidence_threshold",
    "verifier": "rejection_sample_method speculative_use_rejection_sampling",
    "attention": "attention_backend attn_implementation",
    "cache": "cache_implementation",
    "quantization": "quantization_config",
    "cuda_graphs=false": "enforce_eager",
    # in ablations
    "policy=fixed": "num_speculative_tokens",
}
_OF_ABLATIONS = {"num_return_sequences": "samples", "max_batch_size": "batch"}
COUNTERPARTS = {name: ours for ours, names in _COUNTERPARTS.items() for name in names.split()}
COUNTERPARTS |= _OF_ABLATIONS


def counterpart_error(
    name: str, known: Mapping[str, str], kind: str = "option"
) -> OptionError | None:
    """The error for another library's name of an option, or None. known: ours, with their help."""
    dashes, found = name.startswith("-"), name.lstrip("-").replace("-", "_")
    either = COUNTERPARTS | {setting: ours for ours, setting in _OF_ABLATIONS.items()}
    for _ in range(3):  # another library's name, that of a call, that of an ablation
        if (option := found.partition("=")[0]) in known:
            break
        found = either.get(option, option)
    else:
        return None
    shown = f"--{hyphened(found).replace('=', ' ')}" if dashes else found.replace("=", ": ")
    name = hyphened(name) if dashes else name
    return OptionError(f"Unknown {kind} `{name}`: give `{shown}` ({known[option]}).")


def made(options: type[T], given: Mapping[str, Any]) -> T:
    """The dataclass of the given options. Raises `OptionError` for an unknown one, with its name
    here, if it is another library's, or the call that it belongs to.
    """
    known = help_of(options)
    calls = {"bass.load": LoadOptions, "LLM.generate": RequestOptions, "LLM.chat": TemplateOptions}
    for name in (name for name in given if name not in known):
        for call, others in calls.items():
            if name in help_of(others):
                raise OptionError(f"Unknown option `{name}` here: give it to `{call}`.")
        raise counterpart_error(name, known) or unknown_name("option", name, known)
    return options(**given)


@functools.cache
def _parser(hint: Any) -> ArgumentParser:
    """A parser of one argument, cached because creating it takes longer than using it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=hint)
    return parser


def typed(shown: str, value: Any, hint: Any) -> Any:
    """Convert a value of JSON, YAML or a command line to the annotated type.

    Strings are parsed as YAML unless the annotation is a string, mappings become the annotated
    dataclass, lists become tuples. Raises `OptionError`, in which `shown` names option and value.
    """
    try:
        parser = _parser(hint)
    except ValueError:  # jsonargparse does not support the annotation: skip the check
        return value
    try:
        return parser.instantiate(parser.parse_object({"it": value}, defaults=False)).it
    except BassError:  # of the user's class
        raise
    except (ArgumentError, TypeError, ValueError, ArithmeticError) as error:
        raise wrong_type(shown, error) from error


def wrong_type(shown: str, error: Exception) -> OptionError:
    """What jsonargparse says about an option and its value, as in `batch: x`, in one sentence."""
    expected = re.findall(r"Expected an? (.+?)(?=\. Got value|\n|$)", str(error))
    reason = " or ".join(dict.fromkeys(expected)) or " ".join(str(error).split())
    reason = re.sub(r"<class '(\w+)'>", r"\1", reason).replace("NoneType", "null")
    reason = re.sub(r"typing\.Literal\[(.*?)\]", r"one of \1", reason)
    return OptionError(f"`{shown}` is of the wrong type: expected {reason}.")


class TemplateFields(TypedDict, total=False):
    """The fields of `TemplateOptions`, for signatures."""

    template: str | None
    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | str
    enable_thinking: bool | None
    chat_template_kwargs: Mapping[str, Any] | None


class ChatFields(SamplingFields, TemplateFields, total=False):
    """The fields of `ChatOptions`, for signatures."""

    num_return_sequences: int


def takes(options: type) -> Callable[[F], F]:
    """Let `help` and notebooks show the options of a function of `**options`, with defaults."""

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        for f in fields(options):
            about = {"kind": inspect.Parameter.KEYWORD_ONLY, "annotation": f.type}
            own.setdefault(f.name, inspect.Parameter(f.name, default=f.default, **about))
        function.__signature__ = signature.replace(parameters=[*own.values()])  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return shown


def takes_all(options: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """The same of a function that has no other parameters; a type checker knows them too."""
    return takes(options)  # pyright: ignore[reportArgumentType]
