"""The Llama decoder computes what `transformers` computes, from the same folder, in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig as ReferenceConfig
from transformers import LlamaForCausalLM

import bass
from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.models.weights import load_decoder, save_decoder
from support.worlds import Pairing

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi-head, untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "multi-query, own head_dim, other theta": {"num_key_value_heads": 1, "head_dim": 24, "rope_theta": 500000.0},
    "large epsilon": {"num_key_value_heads": 2, "rms_norm_eps": 1e-2},
}
PAIRINGS = [(c, b) for c in CACHES.values() for b in BACKENDS.values() if c.view_type is b.view_type]


@pytest.fixture(params=VARIANTS, scope="module")
def reference(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    """A small random model of `transformers`, with weights large enough to make sharp distributions."""
    torch.manual_seed(sorted(VARIANTS).index(request.param))
    config = ReferenceConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=96,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=96,
        **VARIANTS[request.param],
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def folder(reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference as a checkpoint folder."""
    path = tmp_path_factory.mktemp("llama")
    reference.save_pretrained(path)
    return path


def greedy(reference: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding by the reference, without its cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(reference(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_logits_equal_those_of_transformers(reference: LlamaForCausalLM, folder: Path) -> None:
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 97, (3, 40), generator=generator)
    positions = torch.arange(40).expand(3, 40)

    def causal(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    ours = decoder.unembed(decoder.hidden(tokens, positions, causal))
    theirs = reference(tokens).logits
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("pairing", PAIRINGS, ids=lambda p: f"{p[0].__name__}-{p[1].__name__}")
def test_greedy_decoding_equals_that_of_transformers(reference: LlamaForCausalLM, folder: Path, pairing: Pairing, k: int) -> None:
    prompts = [[5, 17, 3], [88], [9, 9, 2, 41, 60, 7, 33]]
    llm = bass.load(folder, folder, cache=pairing[0], attention=pairing[1], num_speculative_tokens=k)
    result = llm.generate(prompts, max_new_tokens=32, temperature=0, ignore_eos=True)
    assert [c.token_ids for c in result.completions] == [greedy(reference, prompt, 32) for prompt in prompts]


def test_logprobs_are_the_targets_own(reference: LlamaForCausalLM, folder: Path) -> None:
    prompt = [5, 17, 3]
    llm = bass.load(folder, folder, num_speculative_tokens=3)
    [completion] = llm.generate([prompt], max_new_tokens=24, temperature=0.7, top_p=0.9, ignore_eos=True).completions
    ids = torch.tensor([prompt + completion.token_ids])
    expected = reference(ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-4)
    assert completion.mean_logprob == pytest.approx(expected.mean().item(), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_of_ours_loads_in_transformers(folder: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    save_decoder(decoder, tmp_path, dtype, eos_token_id=96)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    for name, tensor in LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict().items():
        assert torch.equal(theirs[name], tensor.to(dtype).float()), name
    again = load_decoder(tmp_path, torch.device("cpu"), torch.float32)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, decoder.get_parameter(name).to(dtype).float()), name
