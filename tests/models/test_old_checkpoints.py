"""The GPT families and OPT as their checkpoints on the hub are: old names, old buffers, bare
models.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bass.checkpoints.folder import SINGLE
from bass.checkpoints.weights import load_decoder, save_decoder
from bass.models import FAMILIES
from bass.models.decoder import CausalDecoder
from models.cases import CASES, FIRST, Case
from support.matrix import by_day

MASK, LOW = torch.ones(1, 1, 96, 96, dtype=torch.bool).tril(), torch.tensor(-1e4)
GPT = {"transformer.h.{}.attn.bias": MASK, "transformer.h.{}.attn.masked_bias": LOW}
BUFFERS: dict[str, dict[str, torch.Tensor]] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gptj": GPT,
    "codegen": {"transformer.h.{}.attn.causal_mask": MASK},
    "gpt_neox": {
        "gpt_neox.layers.{}.attention.bias": MASK,
        "gpt_neox.layers.{}.attention.masked_bias": LOW,
        "gpt_neox.layers.{}.attention.rotary_emb.inv_freq": torch.ones(2),
    },
    "opt": {},
}
HEADS = {"gpt_neox": "embed_out.weight"}
OLD = by_day(
    [case for case in CASES if case.family in BUFFERS], [FIRST[family] for family in BUFFERS]
)


def written(case: Case, folder: Path) -> tuple[CausalDecoder, dict[str, torch.Tensor]]:
    """A random decoder of the case, and the tensors of the checkpoint that it was written to."""
    family = FAMILIES[case.family]
    decoder = family(family.config_type.from_json(case.arguments))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_decoder(decoder, folder, torch.float32)
    return decoder, load_file(folder / SINGLE)


def same(decoder: CausalDecoder, folder: Path) -> bool:
    again = dict(load_decoder(folder, torch.device("cpu"), torch.float32).named_parameters())
    ours = dict(decoder.named_parameters())
    return again.keys() == ours.keys() and all(
        torch.equal(again[name], ours[name]) for name in ours
    )


@pytest.mark.parametrize("case", OLD, ids=str)
def test_the_buffers_of_old_checkpoints_and_a_second_copy_of_a_tied_head_are_ignored(
    case: Case, tmp_path: Path
) -> None:
    decoder, tensors = written(case, tmp_path)
    for layer in range(decoder.shape.layers):
        tensors |= {
            name.format(layer): value.clone() for name, value in BUFFERS[case.family].items()
        }
    if decoder.head is None:
        tensors[HEADS.get(case.family, "lm_head.weight")] = decoder.embed.detach().clone()
    save_file(tensors, tmp_path / SINGLE)
    assert same(decoder, tmp_path)
