"""A loaded pair as a model of lm-evaluation-harness (extra `lm-eval`, version 0.4):

`lm_eval.simple_evaluate(model=lm_eval_model(llm), tasks=[...])`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bass.api.llm import LLM
from bass.api.plan import backend_for
from bass.caches.padded import PaddedCache
from bass.engine.scorer import ModelScorer
from bass.errors import RequestError, unknown_name
from bass.records import CacheBudget, Window
from bass.sampling_params import Sampling

OF_SAMPLES = ("temperature", "top_k", "top_p", "min_p")  # no effect in greedy decoding
Options = dict[str, Any]


def lm_eval_model(llm: LLM, seed: int = 0) -> Any:
    """An `lm_eval.api.model.LM`. Log-likelihoods are the target's, in one pass without drafts; text
    is generated with drafts.

    Contexts that are too long lose their beginning, as in the harness's own Hugging Face model.
    Raises `ImportError` without the library, `RequestError` without a tokenizer or end token.
    """
    from lm_eval import utils  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]

    tokenizer, ends = llm.models.tokenizer, llm.models.eos
    if tokenizer is None or not ends:
        raise RequestError(
            "The tasks of lm-evaluation-harness are texts that begin after an end of sequence, and "
            "the target's folder has no tokenizer or names no such token: add its files."
        )

    class Model(TemplateLM):
        """The interface of `TemplateLM`: the harness splits contexts from continuations."""

        @property
        def eot_token_id(self) -> int:
            return min(ends)

        @property
        def tokenizer_name(self) -> str:
            return "auto"

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: Any
        ) -> list[int]:
            return tokenizer.encode(string, add_special_tokens=add_special_tokens is not False)

        def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[Any]:
            return [log_likelihood(llm, *tokens) for _, *tokens in requests]

        def loglikelihood_rolling(
            self, requests: Sequence[Any], disable_tqdm: bool = False
        ) -> list[float]:
            longest, found = llm.models.target.shape.max_positions, []
            for (text,) in (request.args for request in requests):
                tokens = self.tok_encode(text)
                windows = utils.get_rolling_token_windows(tokens, min(ends), longest, 1)
                parts = map(utils.make_disjoint_window, windows)
                found.append(sum(log_likelihood(llm, *part)[0] for part in parts))
            return found

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            given = [request.args for request in requests]
            texts = [(self.tok_encode(one), normalize_gen_kwargs(more)) for one, more in given]
            return generated(llm, texts, seed)

    return Model()


def generated(llm: LLM, requested: Sequence[tuple[list[int], Options]], seed: int) -> list[str]:
    """The continuation of each context, with the harness's normalized options.

    Contexts with the same options share a call of `LLM.generate`. A context that leaves too few
    positions for the new tokens loses its beginning.
    """
    groups: dict[str, list[int]] = {}
    for i, (_, options) in enumerate(requested):
        groups.setdefault(repr(sorted(options.items())), []).append(i)
    texts = [""] * len(requested)
    for group in groups.values():
        options = generation_options(requested[group[0]][1])
        longest = llm.max_model_len - options["max_new_tokens"]
        prompts = [requested[i][0][-max(longest, 1) :] for i in group]
        result = llm.generate(prompts, seed=seed, **options)
        for i, completion in zip(group, result.completions, strict=True):
            texts[i] = completion.text or ""
    return texts


def generation_options(requested: Options) -> Options:
    """The harness's options as those of `LLM.generate`. Raises `OptionError` for an unknown one."""
    others = dict(requested)
    sampled, until = others.pop("do_sample", False), others.pop("until", [])
    tokens = others.pop("max_gen_toks")
    for name in others.keys() - {*Sampling._fields}:
        raise unknown_name("sampling option", name, Sampling._fields)
    if not sampled:  # `requested` has the harness's defaults of these too
        others = {name: value for name, value in others.items() if name not in OF_SAMPLES}
        others["temperature"] = 0.0
    length = {"max_new_tokens": tokens, "stop": [one for one in until if one]}
    return Sampling()._asdict() | others | length


@torch.inference_mode()
def log_likelihood(
    llm: LLM, context: Sequence[int], continuation: Sequence[int]
) -> tuple[float, bool]:
    """Log-probability of the continuation after the context, by the target, and whether each token
    is the most probable one.

    With more tokens than positions, the first ones are left out.
    """
    target, device = llm.models.target, llm.models.device
    tokens = [*context, *continuation][-(target.shape.max_positions + 1) :]
    scored = tokens[-len(continuation) :] if len(continuation) < len(tokens) else tokens[1:]
    if not scored:
        return 0.0, True
    fed = torch.tensor([tokens[:-1]], device=device)
    budget = CacheBudget.of(np.array([fed.shape[1]]))
    cache = PaddedCache.allocate(target.shape, budget, device, llm.models.dtype)
    scorer = ModelScorer(target, cache, backend_for("auto", PaddedCache, device), 1)
    positions = torch.arange(fed.shape[1], device=device)[None]
    logits = scorer(Window(fed, positions, fed.shape[1])).logits[0, -len(scored) :].float()
    chosen = torch.tensor(scored, device=device)
    logprobs = logits.log_softmax(-1).gather(-1, chosen[:, None])
    return float(logprobs.double().sum()), bool((logits.argmax(-1) == chosen).all())
