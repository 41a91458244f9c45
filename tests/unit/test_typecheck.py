"""The checks of types and shapes that run beside every test: they are there, and those that are
left out leave no gap.
"""

import dataclasses

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from bass.ops.sampling import draw
from bass.records import Verdict
from support import typecheck


def test_the_library_is_checked_at_the_first_calls_and_now_and_then_after_them() -> None:
    probs, uniform = torch.ones(2, 3), torch.zeros(2, dtype=torch.float64)
    with pytest.raises(TypeCheckError):
        draw(probs, uniform[:1])
    for _ in range(100):
        draw(probs, uniform)
    with pytest.raises(TypeCheckError):  # noqa: PT012  (at one of so many calls, whichever it is)
        for _ in range(3 * 101):
            draw(probs, uniform.long())
    with pytest.raises(TypeCheckError):
        Verdict(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))


def test_functions_made_again_share_their_count_and_classes_are_checked_where_made() -> None:
    def made() -> object:
        def halves(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x[::2]

        return typecheck.jaxtyped(halves, typechecker=typecheck.check)

    failures = 0
    for _ in range(400):
        try:
            made()(torch.ones(4))  # type: ignore[operator]
        except TypeCheckError:
            failures += 1
    assert failures == (400 if typecheck.EVERY_CALL else 7)

    @typecheck.jaxtyped(typechecker=typecheck.check)
    @dataclasses.dataclass(frozen=True)
    class Pair:
        x: Float[Tensor, " n"]
        y: Float[Tensor, " n"]

    assert len(Pair(torch.ones(2), torch.ones(2)).x) == 2
    with pytest.raises(TypeCheckError):
        Pair(torch.ones(2), torch.ones(3))
