"""What a class must declare to be registered, and strategies that packages offer."""

import re
from typing import Any, ClassVar

import pytest

import bass
from bass.api.options import KINDS
from bass.api.resolve import find_class, make, names
from bass.attention import BACKENDS
from bass.caches import CACHES
from bass.interfaces import AttentionBackend, Verifier
from bass.policies import Fixed
from unit.distributions import Offer

HERE = __name__


class NoFlag(Verifier):
    def __call__(self, *_: Any) -> Any: ...


class NoView(AttentionBackend[Any, Any]):
    capturable: ClassVar[bool] = True

    def plan(self, *_: Any) -> Any: ...
    def run(self, *_: Any) -> Any: ...


UNSAID: list[tuple[str, type, str, str]] = [
    (
        "verifier",
        NoFlag,
        "does not declare `lossless`",
        "write `lossless: ClassVar[bool] = ...` in the class.",
    ),
    (
        "attention",
        NoView,
        "does not declare `view_type`",
        "write `view_type: ClassVar[type] = ...`",
    ),
]


@pytest.mark.parametrize(
    ("kind", "cls", "true", "remedy"), UNSAID, ids=[cls.__name__ for _, cls, _, _ in UNSAID]
)
def test_a_class_that_leaves_out_what_its_protocol_declares_is_refused(
    kind: str, cls: type, true: str, remedy: str
) -> None:
    made = [] if KINDS[kind].as_class else [cls()]
    for spec in (cls, f"{HERE}:{cls.__name__}", {"class_path": cls}, *made):
        with pytest.raises(bass.BassError, match=re.escape(true)) as error:
            make(kind, spec)
        assert f"{cls.__name__}` {true}: {remedy}" in str(error.value)
        assert str(error.value).count(". ") == 0
    option: dict[str, Any] = {kind: f"{HERE}:{cls.__name__}"}
    with pytest.raises(bass.BassError, match=re.escape(true)):
        bass.load(**option)


def test_ours_say_all_that_their_protocols_declare() -> None:
    for kind, registry in {
        "verifier": KINDS["verifier"].registry,
        "cache": CACHES,
        "attention": BACKENDS,
    }.items():
        for cls in registry.values():
            assert find_class(kind, cls) is cls


def test_an_installed_package_offers_strategies_by_name(offer: Offer) -> None:
    offer("bass.policies", half="offered:Half", deep="offered:Outer.Deep")
    assert {"half", "deep", "fixed"} <= set(names("policy"))
    assert (
        repr(make("policy", {"class_path": "half", "init_args": {"top": 6}}))
        == "Half(top=6, max_length=8)"
    )
    assert find_class("policy", "deep").__qualname__ == "Outer.Deep"
    assert find_class("policy", "offered:Outer.Deep") is find_class("policy", "deep")
    with pytest.raises(bass.BassError, match="Did you mean `half`"):
        make("policy", "hall")


BROKEN = {
    "no-module": ("nowhere:Half", "ModuleNotFoundError: No module named 'nowhere'"),
    "no-class": ("offered:Nothing", "AttributeError"),
    "no-strategy": (
        "offered:NoStrategy",
        "is no policy: it must be a class that subclasses `bass.interfaces.DraftLengthPolicy`",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_offer_is_refused_with_the_name_of_its_package(offer: Offer, name: str) -> None:
    value, words = BROKEN[name]
    offer("bass.policies", **{name: value})
    with pytest.raises(bass.BassError, match=re.escape(words)) as error:
        make("policy", name)
    assert f"`{name}`, which fake-strategies 1.2 offers as `{value}`" in str(error.value)
    assert make("policy", "fixed") == Fixed(4)
