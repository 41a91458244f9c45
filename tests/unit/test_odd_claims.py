"""What a strategy says of itself is checked when it is asked for; what a method makes, when it is
made.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from bass.api.resolve import make
from bass.drafters import Ensemble, Ngram
from bass.drafters.validity import built, invalid_draft
from bass.errors import OptionError, StrategyError
from bass.interfaces import Drafter, DraftMethod
from bass.ops.batch_state import UNKNOWN_TOKEN
from bass.policies import Fixed
from bass.verifiers.rejection import Rejection

CLAIMS = {
    "policy": (Fixed, "constant_length"),
    "drafter": (DraftMethod, "batch_invariant"),
    "verifier": (Rejection, "judges_jointly"),
}


@dataclass(frozen=True)
class Forgets(DraftMethod):
    """Forgets to return what it made."""

    def build(self, context: Any) -> Drafter:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("value", ["no", None, 1])
def test_a_claim_that_is_no_truth_value_is_refused(kind: str, value: Any) -> None:
    base, name = CLAIMS[kind]
    own: Any = type("Own", (base,), {name: value, "build": Forgets.build})
    for spec in (own, own()):
        with pytest.raises(OptionError, match=f"has `{name} = {value!r}`, which is not a bool"):
            make(kind, spec)


def test_a_claim_may_be_a_property_of_which_an_object_tells() -> None:
    class Says(Ngram):
        batch_invariant: ClassVar[Any] = property(lambda self: "yes")

    with pytest.raises(OptionError, match="has `batch_invariant = 'yes'`, which is not a bool"):
        make("drafter", Says)
    assert make("drafter", Ensemble).batch_invariant


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", [Forgets(), Ensemble((Forgets(),))])
def test_a_method_that_makes_no_drafter_is_named(method: DraftMethod) -> None:
    context: Any = type("Context", (), {"vocab_size": 7})()
    with pytest.raises(StrategyError, match=r"`Forgets.build` returned None: return an object"):
        built(method, context)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("label", ["", None, 7])
def test_a_drafter_whose_label_is_none_is_named_by_its_class(label: Any) -> None:
    own: Any = type("Own", (type(Forgets()),), {"label": label})
    assert str(invalid_draft(own(), UNKNOWN_TOKEN)).startswith("`Own` returned a draft with")
