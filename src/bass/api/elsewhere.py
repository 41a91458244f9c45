"""Names of options in other libraries: vLLM, SGLang, transformers and gpt-fast.

The tables of `docs/coming-from.md` have each of them, with the differences; a test compares.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import final

from bass.errors import OptionError, flag, hyphened


@final
@dataclass(frozen=True)
class Here:
    """What stands for a name of another library: an option, or one with a value, or a parameter of
    the strategy that is its value.
    """

    option: str
    value: str = ""
    parameter: str = ""

    def shown(self, dashes: bool, python: bool) -> str:
        """As it is written on a command line, in Python, or else in YAML."""
        if dashes:
            words = f"{flag(self.option)} {self.value}".strip()
            more = f" {flag(f'{self.option}.{self.parameter}')}"
        elif python:
            plain = self.value.lower() in ("true", "false")
            value = self.value.capitalize() if plain else f'"{self.value}"'
            words = f"{self.option}={value}" if self.value else self.option
            more = f"` and its parameter `{self.parameter}"
        else:
            words = f"{self.option}: {self.value}" if self.value else self.option
            more = f"` and `{self.option}.{self.parameter}"
        return words + (more if self.parameter else "")


# accepted as they are
ALIASES: dict[str, str] = {
    "num_assistant_tokens": "num_speculative_tokens",
    "gamma": "num_speculative_tokens",
}
# names of other libraries, or of other parts of this one, for the error message
ELSEWHERE: dict[str, Here] = {
    "model": Here("target"),
    "model_path": Here("target"),
    "checkpoint_path": Here("target"),
    "speculative_model": Here("draft"),
    "speculative_config": Here("draft"),
    "speculative_draft_model_path": Here("draft"),
    "draft_checkpoint_path": Here("draft"),
    "assistant_model": Here("draft"),
    "lora_request": Here("lora"),
    "torch_dtype": Here("dtype"),
    "max_num_seqs": Here("max_batch_size"),
    "max_running_requests": Here("max_batch_size"),
    "context_length": Here("max_model_len"),
    "n": Here("num_return_sequences"),
    "best_of": Here("num_return_sequences"),
    "num_samples": Here("num_return_sequences"),
    "max_tokens": Here("max_new_tokens"),
    "max_length": Here("max_new_tokens"),
    "min_tokens": Here("min_new_tokens"),
    "do_sample": Here("temperature"),
    "stop_strings": Here("stop"),
    "eos_token_id": Here("stop_token_ids"),
    "max_time": Here("time_budget"),
    "random_seed": Here("seed"),
    "chat_template": Here("template"),
    "thinking": Here("chat_template_kwargs"),
    "speculative_num_steps": Here("num_speculative_tokens"),
    "speculate_k": Here("num_speculative_tokens"),
    "num_assistant_tokens_schedule": Here("policy"),
    "num_speculative_tokens_per_batch_size": Here("policy", "batch-table"),
    "speculative_adaptive": Here("policy", "ema-tiers"),
    "method": Here("drafter"),
    "speculative_algorithm": Here("drafter"),
    "custom_generate": Here("drafter"),
    "prompt_lookup_num_tokens": Here("drafter", "ngram"),
    "prompt_lookup_max": Here("drafter", "ngram", "longest"),
    "prompt_lookup_min": Here("drafter", "ngram", "shortest"),
    "max_matching_ngram_size": Here("drafter", "ngram", "longest"),
    "assistant_early_exit": Here("drafter", "self", "layers"),
    "assistant_confidence_threshold": Here("stop_rule", "confidence"),
    "rejection_sample_method": Here("verifier"),
    "speculative_use_rejection_sampling": Here("verifier", "rejection"),
    "attention_backend": Here("attention"),
    "attn_implementation": Here("attention"),
    "cache_implementation": Here("cache"),
    "quantization_config": Here("quantization"),
    "enforce_eager": Here("cuda_graphs", "false"),
    "compile": Here("cuda_graphs"),
    "compile_prefill": Here("cuda_graphs"),
    "num_return_sequences": Here("samples"),  # in ablations, with the next two
    "max_batch_size": Here("batch"),
    "num_speculative_tokens": Here("policy", "fixed", "k"),
}
_MEMORY = "storage is `max_batch_size` rows of `max_model_len` tokens"
_TREES = "a draft is a chain of tokens"
_LOSSY = "it is not lossless"
_CONSTRAINED = "output is not constrained; a warp of your own can exclude tokens"
_TOKENS = "each completion has the log-probabilities of its own tokens alone"
_PREFILL = "samples of one prompt share its prefill, and prefills run in pieces"
# options of other libraries that have no counterpart, with what is true here
NOT_HERE: dict[str, str] = {
    "draft_sample_method": "drafts are drawn by the options of the request",
    "enable_adaptive_verification": "`policy: per-row-budget` divides a budget before the step",
    "gpu_memory_utilization": _MEMORY,
    "block_size": _MEMORY,
    "enable_prefix_caching": _PREFILL,
    "enable_chunked_prefill": _PREFILL,
    "tensor_parallel_size": "a model runs on one GPU",
    "trust_remote_code": "no code of a checkpoint is run",
    "kv_cache_dtype": "keys and values have the type of the model",
    "logprobs": _TOKENS,
    "prompt_logprobs": _TOKENS,
    "logit_bias": _CONSTRAINED,
    "bad_words": _CONSTRAINED,
    "allowed_token_ids": _CONSTRAINED,
    "structured_outputs": _CONSTRAINED,
    "json_schema": _CONSTRAINED,
    "regex": _CONSTRAINED,
    "ebnf": _CONSTRAINED,
    "custom_logit_processor": _CONSTRAINED,
    "logits_processor": _CONSTRAINED,
    "no_repeat_ngram_size": _CONSTRAINED,
    "speculative_num_draft_tokens": "a draft of k tokens is verified in a window of k + 1",
    "speculative_eagle_topk": _TREES,
    "speculative_accept_threshold_single": _LOSSY,
    "speculative_accept_threshold_acc": _LOSSY,
    "assistant_ensemble_weight": _LOSSY,
    "assistant_tokenizer": "target and draft share a tokenizer",
    "enable_deterministic_inference": "16 bits round by the shape of the batch",
    "num_beams": "beam search has no distribution to preserve",
    "interactive": "`bass generate --chat` renders one turn",
    "profile": "`bass bench` times the parts of a step",
}


def known_as(name: str, known: Container[str]) -> str | None:
    """The known name of an option that has another one elsewhere; None for any other name."""
    found = here(name, known)
    return found and found.option


def here(name: str, known: Container[str]) -> Here | None:
    """What stands for a name among the known ones; None for any other name."""
    found: Here | None = Here(name)
    while found is not None and found.option not in known:
        name = found.option
        found = Here(ALIASES[name]) if name in ALIASES else ELSEWHERE.get(name)
    return found


def named_elsewhere(
    name: str, known: Mapping[str, str], kind: str = "option"
) -> OptionError | None:
    """The error for a name that other libraries have: for one of the `known` options, which are
    given with their help, or for what does not exist here. None for any other name.
    """
    plain = name.lstrip("-").replace("-", "_")
    if f"{plain}s" in known:  # a slip of the pen
        return None
    dashes = name.startswith("-")
    name = hyphened(name) if dashes else name
    found = here(plain, known)
    if found is not None:
        shown = found.shown(dashes, kind == "option")
        return OptionError(f"Unknown {kind} `{name}`: give `{shown}` ({known[found.option]}).")
    if plain in NOT_HERE:
        return OptionError(
            f"Unknown {kind} `{name}`: it is not here, since {NOT_HERE[plain]}; leave it out "
            "(docs/coming-from.md, docs/scope.md)."
        )
    return None
