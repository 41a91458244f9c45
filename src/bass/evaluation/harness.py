"""A loaded pair as a model of lm-evaluation-harness (extra `lm-eval`, version 0.4):

`simple_evaluate(model=lm_eval_model(llm), ...)`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from bass.api.llm import LLM
from bass.api.plan import backend_for
from bass.caches.padded import PaddedCache
from bass.engine.scorer import ModelScorer
from bass.errors import OptionError, RequestError, install
from bass.records import CacheBudget, Window
from bass.sampling import Sampling
from bass.text.tokenizer import Tokenizer

SAMPLING = tuple(f.name for f in fields(Sampling))
OF_SAMPLES = ("temperature", "top_k", "top_p", "min_p")  # no effect in greedy decoding
OFF = {f.name: f.default for f in fields(Sampling) if f.name != "temperature"}


def lm_eval_model(llm: LLM, seed: int = 0) -> Any:
    """An `lm_eval.api.model.LM`. Log-likelihoods are the target's, in one pass without drafts; text
    is generated with drafts.

    Contexts that are too long lose their beginning, as in the harness's own Hugging Face model.
    Raises `OptionError` without the library, `RequestError` without a tokenizer.
    """
    try:
        from lm_eval import utils  # pyright: ignore[reportMissingImports]
        from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
        from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OptionError(
            f"The adapter needs the package lm-eval 0.4: install it with {install('lm-eval')}."
        ) from error
    tokenizer = tokenizer_of(llm)

    class Model(TemplateLM):
        """The interface of `TemplateLM`: the harness splits contexts from continuations."""

        @property
        def eot_token_id(self) -> int:
            return end_of_text(llm)

        @property
        def tokenizer_name(self) -> str:
            return "bass"

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: Any
        ) -> list[int]:
            return tokenizer.encode(string, add_special_tokens=add_special_tokens is not False)

        def _loglikelihood_tokens(
            self, requests: Sequence[Any], **_: Any
        ) -> list[tuple[float, bool]]:
            return [log_likelihood(llm, *tokens) for _, *tokens in requests]

        def loglikelihood_rolling(
            self, requests: Sequence[Any], disable_tqdm: bool = False
        ) -> list[float]:
            longest = llm.models.target.shape.max_positions
            return [
                sum(
                    log_likelihood(llm, *utils.make_disjoint_window(window))[0]
                    for window in utils.get_rolling_token_windows(
                        self.tok_encode(text), self.eot_token_id, longest, 1
                    )
                )
                for (text,) in (request.args for request in requests)
            ]

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            requested = [
                (self.tok_encode(context), normalize_gen_kwargs(options))
                for context, options in (request.args for request in requests)
            ]
            return generated(llm, requested, seed)

    return Model()


def tokenizer_of(llm: LLM) -> Tokenizer:
    """The target's tokenizer. Raises `RequestError` without one."""
    if llm.models.tokenizer is None:
        raise RequestError(
            "The tasks of lm-evaluation-harness are texts, and the target's folder has no "
            "tokenizer: add its files."
        )
    return llm.models.tokenizer


def end_of_text(llm: LLM) -> int:
    """The token before a text without context. Raises `RequestError` if there is none."""
    if not llm.models.eos:
        raise RequestError(
            "The checkpoint has no end-of-sequence token to begin a text without context: name one."
        )
    return min(llm.models.eos)


def generated(
    llm: LLM, requested: Sequence[tuple[list[int], dict[str, Any]]], seed: int
) -> list[str]:
    """The continuation of each context, with the harness's normalized options.

    Contexts with the same options share a call of `LLM.generate`. A context that leaves too few
    positions for the new tokens loses its beginning.
    """
    groups: dict[str, list[int]] = {}
    for i, (_, options) in enumerate(requested):
        groups.setdefault(repr(sorted(options.items())), []).append(i)
    texts: dict[int, str] = {}
    for group in groups.values():
        options = generation_options(requested[group[0]][1])
        longest = longest_context(llm, options["max_new_tokens"])
        prompts = [requested[i][0][-longest:] for i in group]
        result = llm.generate(prompts, seed=seed, **options)
        texts |= {i: c.text or "" for i, c in zip(group, result.completions, strict=True)}
    return [texts[i] for i in range(len(requested))]


def longest_context(llm: LLM, new_tokens: int) -> int:
    """The maximum length of a context before `new_tokens` new ones, in target and draft."""
    longest = llm.max_model_len - new_tokens
    if longest < 1:
        raise RequestError(
            f"`max_gen_toks={new_tokens}` leaves no positions for a context: lower it."
        )
    return longest


def generation_options(requested: dict[str, Any]) -> dict[str, Any]:
    """The options of `LLM.generate` for the harness's normalized options.

    Raises `OptionError` for one that would be ignored.
    """
    requested = dict(requested)
    sampled, until, tokens = (
        requested.pop("do_sample", False),
        requested.pop("until", []),
        requested.pop("max_gen_toks"),
    )
    unknown = [name for name in requested if name not in SAMPLING]
    if unknown:
        raise OptionError(
            f"`{unknown[0]}` is not supported: the sampling options are {', '.join(SAMPLING)}."
        )
    if not sampled:  # `requested` has the harness's defaults of these too
        requested = {k: v for k, v in requested.items() if k not in OF_SAMPLES} | {
            "temperature": 0.0
        }
    return {
        "temperature": 1.0,
        **OFF,
        **requested,
        "max_new_tokens": tokens,
        "stop": [text for text in until if text],
    }


@torch.inference_mode()
def log_likelihood(
    llm: LLM, context: Sequence[int], continuation: Sequence[int]
) -> tuple[float, bool]:
    """Log-probability of the continuation after the context, by the target, and whether each token
    is the most probable one.

    With more tokens than positions, the first ones are left out.
    """
    target = llm.models.target
    tokens = [*context, *continuation][-(target.shape.max_positions + 1) :]
    scored = tokens[-len(continuation) :] if len(continuation) < len(tokens) else tokens[1:]
    if not scored:
        return 0.0, True
    fed = torch.tensor([tokens[:-1]], device=llm.models.device)
    span = fed.shape[1]
    cache = PaddedCache.allocate(
        target.shape, CacheBudget.of(np.array([span])), llm.models.device, llm.models.dtype
    )
    scorer = ModelScorer(target, cache, backend_for("auto", PaddedCache, llm.models.device), 1)
    positions = torch.arange(span, device=fed.device)[None]
    logits = scorer(Window(fed, positions, span)).logits
    logprobs = logits[0, -len(scored) :].float().log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(scored, device=fed.device)[:, None])
    return float(chosen.double().sum()), bool(
        (logprobs.argmax(-1) == torch.tensor(scored, device=fed.device)).all()
    )
