"""Names of options in vLLM, SGLang, transformers and gpt-fast, for the error of an unknown option.

docs/coming-from.md has the differences, and what has no counterpart here.
"""

from collections.abc import Mapping

from bass.errors import OptionError, hyphened

# to the option here, and its value where that is the counterpart
COUNTERPARTS: dict[str, str] = {
    **dict.fromkeys(("model", "model_path", "checkpoint_path"), "target"),
    **dict.fromkeys(("speculative_model", "speculative_config", "assistant_model"), "draft"),
    **dict.fromkeys(("speculative_draft_model_path", "draft_checkpoint_path"), "draft"),
    "lora_request": "lora",
    "torch_dtype": "dtype",
    **dict.fromkeys(("max_num_seqs", "max_running_requests"), "max_batch_size"),
    "context_length": "max_model_len",
    **dict.fromkeys(("n", "best_of", "num_samples"), "num_return_sequences"),
    **dict.fromkeys(("max_tokens", "max_length"), "max_new_tokens"),
    "min_tokens": "min_new_tokens",
    "do_sample": "temperature",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
    "max_time": "time_budget",
    "random_seed": "seed",
    "chat_template": "template",
    "thinking": "chat_template_kwargs",
    **dict.fromkeys(("gamma", "num_assistant_tokens"), "num_speculative_tokens"),
    **dict.fromkeys(("speculate_k", "speculative_num_steps"), "num_speculative_tokens"),
    "num_assistant_tokens_schedule": "policy",
    "num_speculative_tokens_per_batch_size": "policy=batch-table",
    "speculative_adaptive": "policy=ema-tiers",
    **dict.fromkeys(("method", "speculative_algorithm", "custom_generate"), "drafter"),
    **dict.fromkeys(("prompt_lookup_num_tokens", "prompt_lookup_max"), "drafter=ngram"),
    **dict.fromkeys(("prompt_lookup_min", "max_matching_ngram_size"), "drafter=ngram"),
    "assistant_early_exit": "drafter=self",
    "assistant_confidence_threshold": "stop_rule=confidence",
    **dict.fromkeys(("rejection_sample_method", "speculative_use_rejection_sampling"), "verifier"),
    **dict.fromkeys(("attention_backend", "attn_implementation"), "attention"),
    "cache_implementation": "cache",
    "quantization_config": "quantization",
    "enforce_eager": "cuda_graphs=false",
    **dict.fromkeys(("compile", "compile_prefill"), "cuda_graphs"),
    # in ablations
    "num_return_sequences": "samples",
    "max_batch_size": "batch",
    "num_speculative_tokens": "policy=fixed",
}


def named_elsewhere(
    name: str, known: Mapping[str, str], kind: str = "option"
) -> OptionError | None:
    """The error for an option's name in another library; None for any other name.

    known: the options here, with their help.
    """
    dashes, found = name.startswith("-"), name.lstrip("-").replace("-", "_")
    while (option := found.partition("=")[0]) not in known:
        if option not in COUNTERPARTS:
            return None
        found = COUNTERPARTS[option]
    shown = f"--{hyphened(found).replace('=', ' ')}" if dashes else found.replace("=", ": ")
    name = hyphened(name) if dashes else name
    return OptionError(f"Unknown {kind} `{name}`: give `{shown}` ({known[option]}).")
