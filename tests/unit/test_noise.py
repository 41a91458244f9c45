"""The noise is Philox4x32-10, and no two draws share a counter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.ops.noise import philox, row_key, step_noise, uniforms


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_random123s_known_answers(
    counter: str, key: str, expected: str, device: torch.device
) -> None:
    given_, keys = (
        torch.tensor([words(counter)], device=device),
        torch.tensor([words(key)], device=device),
    )
    assert philox(given_, keys).tolist() == [words(expected)]


def reference(counter: list[int], key: list[int]) -> list[int]:
    """The round function of the paper (section 3.3), with Python's unbounded integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & 0xFFFFFFFF,
            (left >> 32) ^ c3 ^ k1,
            left & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


@given(
    keys=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    step=st.integers(0, 2**31),
    slots=st.integers(1, 4),
    domain=st.integers(0, 2),
)
def test_uniforms_are_the_papers_words(keys: list[int], step: int, slots: int, domain: int) -> None:
    steps = [step + row for row in range(len(keys))]
    found = uniforms(torch.tensor(keys), torch.tensor(steps), slots, domain)
    expected = [
        [reference([s, slot, domain, 0], [key & 0xFFFFFFFF, key >> 32]) for slot in range(slots)]
        for key, s in zip(keys, steps, strict=True)
    ]
    assert (found * 2.0**32 - 0.5).tolist() == expected


def test_no_draw_is_used_twice() -> None:
    """Rows, steps, slots, streams and domains, all different: also keys that differ in their high
    words alone.
    """
    keys = torch.tensor([0, 1, 1 << 32, 1 << 62, (1 << 62) + 1])
    drawn = [
        uniforms(keys, torch.full((5,), step), 9, domain)
        for step in range(20)
        for domain in range(2)
    ]
    every = torch.cat([d.flatten() for d in drawn])
    assert len(every.unique()) == len(every)


def test_the_three_streams_of_a_step_are_different_columns() -> None:
    noise = step_noise(torch.tensor([5]), torch.tensor([0]), torch.tensor([1]), 3)
    streams = torch.stack((noise.draft, noise.accept, noise.residual))
    assert len(streams.unique()) == 12


@given(
    seed=st.integers(0, 2**40),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    sample=st.integers(0, 5),
)
def test_a_row_key_is_a_63_bit_function_of_seed_prompt_and_sample(
    seed: int, prompt: list[int], sample: int
) -> None:
    key = row_key(seed, prompt, sample)
    assert 0 <= key < 2**63
    assert key == row_key(seed, list(prompt), sample)
    assert key not in (
        row_key(seed + 1, prompt, sample),
        row_key(seed, [*prompt, 0], sample),
        row_key(seed, prompt, sample + 1),
    )


def test_row_keys_do_not_change_between_versions() -> None:
    assert (
        row_key(0, [1, 2, 3], 0) == int.from_bytes(bytes.fromhex("0552eb20b8e7ec10"), "little") >> 1
    )
