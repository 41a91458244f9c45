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

SAMPLING = tuple(f.name for f in fields(Sampling))
OFF = {f.name: f.default for f in fields(Sampling) if f.name != "temperature"}


def lm_eval_model(llm: LLM, seed: int = 0) -> Any:
    """An `lm_eval.api.model.LM`. Log-likelihoods are the target's, in one pass without drafts; text
    is generated with them.

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
    tokenizer = llm.models.tokenizer
    if tokenizer is None:
        raise RequestError(
            "The tasks of lm-evaluation-harness are texts, and the target's folder has no "
            "tokenizer: add its files."
        )

    class Model(TemplateLM):
        """The interface of `TemplateLM`: the harness splits contexts from continuations."""

        @property
        def eot_token_id(self) -> int:
            if not llm.models.eos:
                raise RequestError(
                    "The checkpoint has no end-of-sequence token, with which a text without "
                    "context is to begin: name one."
                )
            return min(llm.models.eos)

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
            return [
                log_likelihood(llm, context, continuation) for _, context, continuation in requests
            ]

        def loglikelihood_rolling(
            self, requests: Sequence[Any], disable_tqdm: bool = False
        ) -> list[float]:
            longest = llm.models.target.shape.max_positions
            sums = []
            for (text,) in (request.args for request in requests):
                windows = utils.get_rolling_token_windows(
                    self.tok_encode(text), self.eot_token_id, longest, 1
                )
                sums.append(
                    sum(
                        log_likelihood(llm, *utils.make_disjoint_window(window))[0]
                        for window in windows
                    )
                )
            return sums

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            answers: dict[int, str] = {}
            groups: dict[str, list[int]] = {}
            for i, request in enumerate(requests):
                groups.setdefault(repr(sorted(request.args[1].items())), []).append(i)
            for group in groups.values():
                options = generation_options(normalize_gen_kwargs(requests[group[0]].args[1]))
                room = llm.models.target.shape.max_positions - options["max_new_tokens"]
                if llm.models.draft is not None:
                    room = min(
                        room, llm.models.draft.shape.max_positions - options["max_new_tokens"]
                    )
                if room < 1:
                    raise RequestError(
                        f"`max_gen_toks={options['max_new_tokens']}` leaves no room for a context: "
                        "lower it."
                    )
                prompts = [self.tok_encode(requests[i].args[0])[-room:] for i in group]
                result = llm.generate(prompts, seed=seed, **options)
                answers |= {i: c.text or "" for i, c in zip(group, result.completions, strict=True)}
            return [answers[i] for i in range(len(requests))]

    return Model()


def generation_options(asked: dict[str, Any]) -> dict[str, Any]:
    """Those of `LLM.generate` for the harness's normalized ones.

    Raises `OptionError` for one that would be ignored.
    """
    asked = dict(asked)
    sampled, until, tokens = (
        asked.pop("do_sample", False),
        asked.pop("until", []),
        asked.pop("max_gen_toks"),
    )
    unknown = [name for name in asked if name not in SAMPLING]
    if unknown:
        raise OptionError(
            f"`{unknown[0]}` is no option of generation here: of sampling there are "
            f"{', '.join(SAMPLING)}."
        )
    options = (
        OFF | asked
        if sampled
        else {
            "temperature": 0.0,
            **OFF,
            **{k: v for k, v in asked.items() if k == "repetition_penalty"},
        }
    )
    return {
        "temperature": 1.0,
        **options,
        "max_new_tokens": tokens,
        "stop": [text for text in until if text],
    }


@torch.inference_mode()
def log_likelihood(
    llm: LLM, context: Sequence[int], continuation: Sequence[int]
) -> tuple[float, bool]:
    """Log-probability of the continuation's tokens after the context's, by the target, and whether
    each is its most probable one.

    Where there are more tokens than positions, the first ones are left out.
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
