"""The models of `transformers` that ours are held to: small, random, sharp, every parameter in
use.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)

from bass.checkpoints.multimodal import MULTIMODAL
from bass.checkpoints.weights import load_decoder
from bass.interfaces import Attend
from bass.models.decoder import CausalDecoder
from bass.records import Projection, Window
from models.cases import Case


def make(case: Case, seed: int = 0) -> PreTrainedModel:
    """A random model of the case.

    Norms and biases are disturbed too: at their initial values they could be left out unnoticed.
    """
    torch.manual_seed(seed)
    config = AutoConfig.for_model(case.family, **case.arguments)
    whole = case.family in MULTIMODAL
    kind: Any = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for parameter in model.parameters():
        scale = 0.15 if parameter.dim() > 1 else 0.3
        parameter.add_(torch.randn(parameter.shape) * scale)
    return model


def greedy(model: PreTrainedModel, prompt: list[int], guess: list[int]) -> list[int]:
    """Greedy decoding by the reference, without its cache, of as many tokens as the guess has.

    A guess that is right takes one pass over the whole sequence; from its first wrong token on,
    each token takes one.
    """
    ids, length = list(prompt), len(prompt) + len(guess)
    logits = model(torch.tensor([[*prompt, *guess]]), use_cache=False).logits[0]
    for guessed, token in zip(guess, logits[len(prompt) - 1 : -1].argmax(-1).tolist(), strict=True):
        ids.append(token)
        if guessed != token:
            break
    while len(ids) < length:
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def causal_logits(decoder: CausalDecoder, tokens: torch.Tensor) -> torch.Tensor:
    """Our decoder's logits [B,W,V] of whole sequences, attention by the per-row reference's
    formula.
    """
    rules = decoder.shape.rules
    place = torch.arange(tokens.shape[1], device=tokens.device)

    class Causal(Attend):
        def __call__(self, layer: int, projection: Projection) -> torch.Tensor:
            q, k, v = projection.rotated()
            rule, groups = rules[layer], q.shape[2] // k.shape[2]
            k, v = (x.repeat_interleave(groups, 2) for x in (k, v))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * rule.scale
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            hidden = place > place[:, None]
            if rule.window is not None:
                hidden |= place <= place[:, None] - rule.window
            scores = scores.masked_fill(hidden, -torch.inf)
            if rule.sinks:
                sinks = projection.sinks[:, None, None].expand(*scores.shape[:-1], 1)
                scores = torch.cat((scores, sinks), -1)
            return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., : k.shape[1]], v)

        def store(self, layer: int, projection: Projection) -> None:
            raise AssertionError("whole sequences are attended to, not stored")

    window = Window(tokens, place.expand(tokens.shape), tokens.shape[1])
    return decoder.unembed(decoder.hidden(window, Causal())[0])


def deviation(case: Case, folder: Path, model: PreTrainedModel) -> float:
    """Largest difference of our logits from the reference's, over their largest magnitude."""
    tokens = torch.randint(
        0, case.arguments["vocab_size"], (3, 40), generator=torch.Generator().manual_seed(0)
    )
    theirs = model(tokens, use_cache=False).logits
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    return float((causal_logits(decoder, tokens) - theirs).abs().max() / theirs.abs().max())
