"""Which property tests of the project cover the parts of a cell, so that its output is exact.

A combination is covered by tests of its parts: every registered policy, drafter, verifier, stop
rule, layout and backend is a value of the tests below, in which any two parts of one test meet. The
tests of `tests/laws` run on a CPU, with the backends that need no kernel, and on a GPU with all
(`make gpu`). They run the defaults of each class. A class of a user is in none of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from bass.api.kinds import KINDS
from bass.runs.records import CellEntry

COVERED = ("policy", "drafter", "stop_rule", "verifier", "cache", "attention")
# the checks of `bass.testing` for classes of a user
CHECKS = {
    "policy": "check_policy",
    "drafter": "check_drafter",
    "stop_rule": "check_stop_rule",
    "verifier": "check_verifier",
    "cache": "check_pair",
    "attention": "check_pair",
}
# of a user's classes of these, logits are compared with a reference
OF_MODELS = ("family", "quantization", "draft_quantization")
_LAWS = "tests/laws"


@final
@dataclass(frozen=True)
class Property:
    """A property test. `parts`: the kinds whose registered names it runs over; `greedy`: at
    temperature 0, or else when sampling; `only`: names, where it does not run over all of them.
    """

    test: str
    parts: tuple[str, ...]
    greedy: bool
    only: frozenset[str] | None = None

    def covers(self, kind: str, name: str) -> bool:
        """Whether the test runs with this registered class."""
        return kind in self.parts and (self.only is None or name in self.only)


_EVERY = "every_layout_backend_policy_drafter_and_verifier_emits_the_oracles_tokens"
_JOINT = "the_joint_law_is_the_targets_under_every_policy_drafter_and_verifier"
_SAME = "the_same_noise_gives_the_same_tokens_in_every_combination"
_COUPLED = "every_drafter_policy_and_length_gives_the_tokens_of_plain_decoding"
_STEPWISE = frozenset({"rejection", "block", "exact-match"})
PROPERTIES = (
    Property(
        f"{_LAWS}/test_1_greedy.py::test_{_EVERY}",
        ("policy", "drafter", "verifier", "cache", "attention"),
        True,
    ),
    Property(
        f"{_LAWS}/test_3_stop_rules.py::test_greedy_decoding_emits_the_oracles_tokens",
        ("stop_rule",),
        True,
    ),
    Property(
        f"{_LAWS}/test_4_joint_law.py::test_{_JOINT}", ("policy", "drafter", "verifier"), False
    ),
    Property(
        f"{_LAWS}/test_0_enumeration.py::test_the_output_law_is_the_targets",
        ("verifier",),
        False,
        _STEPWISE,
    ),
    Property(
        f"{_LAWS}/test_6_coupled.py::test_{_COUPLED}", ("verifier",), False, frozenset({"coupled"})
    ),
    Property(f"{_LAWS}/test_2_invariance.py::test_{_SAME}", ("cache", "attention"), False),
    Property(
        f"{_LAWS}/test_3_stop_rules.py::test_the_joint_law_of_three_tokens_is_the_targets",
        ("stop_rule",),
        False,
    ),
)


def exactness(entry: CellEntry, settings: Mapping[str, Any]) -> str:
    """What shows that the output of a cell is exact, in one sentence."""
    if not entry.lossless:
        return f"not lossless: {entry.caveat or 'its verifier says so'}"
    own = {
        name: kind
        for kind in COVERED
        for name in _names(kind, settings.get(kind))
        if registered(kind, name) is None
    }
    of_models = {name for kind in OF_MODELS for name in _own_of_models(kind, settings.get(kind))}
    if own or of_models:
        calls = sorted({f"bass.testing.{CHECKS[kind]}" for kind in own.values()})
        checks = [f"run {' and '.join(f'{call}(...)' for call in calls)}"] if calls else []
        checks += ["compare its logits with a reference"] if of_models else []
        return (
            f"not covered by the project's tests ({', '.join(sorted({*own, *of_models}))}): "
            f"{', and '.join(checks)}"
        )
    tests = tests_of(settings)
    return f"covered by {', '.join(tests)}" if tests else "unknown: no strategy is recorded"


def _own_of_models(kind: str, spec: Any) -> list[str]:
    """The classes of a user in a setting of the models."""
    if kind == "family":
        return [spec] if spec and not str(spec).startswith("bass.models.") else []
    named = _names("quantization", spec)  # a draft's too
    return [name for name in named if registered("quantization", name) is None]


def tests_of(settings: Mapping[str, Any]) -> Sequence[str]:
    """The tests that cover the parts of a cell of registered classes."""
    greedy = settings.get("temperature") == 0
    used = [
        (kind, name)
        for kind in COVERED
        for given in _names(kind, settings.get(kind))
        if (name := registered(kind, given)) is not None
    ]
    return [
        one.test
        for one in PROPERTIES
        if one.greedy == greedy and any(one.covers(kind, name) for kind, name in used)
    ]


def registered(kind: str, name: str) -> str | None:
    """The registered name of a class, given by it or by its path; None for another class. `auto`,
    which takes a registered one, stays.
    """
    registry = KINDS[kind].registry
    if name in registry or name == "auto":
        return name
    package = KINDS[kind].group
    paths = {
        path: key
        for key, cls in registry.items()
        for path in (f"{cls.__module__}.{cls.__qualname__}", f"{package}.{cls.__name__}")
    }
    return paths.get(name.replace(":", "."))


def _names(kind: str, spec: Any) -> Iterator[str]:
    """The classes of a setting, with those in its parameters; `auto` names the registered ones that
    it may take.
    """
    if isinstance(spec, str):
        # no other default is resolved at load
        yield next(iter(KINDS[kind].registry)) if spec == "auto" else spec
    elif isinstance(spec, Mapping):
        if "class_path" in spec:
            yield str(spec["class_path"])
        for value in (spec.get("init_args") or {}).values():
            yield from _inner(kind, value)


def _inner(kind: str, value: Any) -> Iterator[str]:
    """The classes in a parameter: a class path or a registered name, or a list of them."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _inner(kind, one)
    elif isinstance(value, Mapping):
        yield from _names(kind, value)
    elif isinstance(value, str) and (":" in value or value in KINDS[kind].registry):
        yield value
