"""The quantization of a checkpoint by its config.json, and its matrices by the headers."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bass.checkpoints.folder import stored_dtype
from bass.checkpoints.quantized.configs import FORMATS
from bass.checkpoints.quantized.damaged import check_scales
from bass.checkpoints.quantized.formats import (
    EIGHT_BITS,
    EightBits,
    Format,
    FormatsOf,
    Parts,
    in_words,
)
from bass.checkpoints.quantized.unread import declared, refuse_undeclared
from bass.checkpoints.shards import FLOATS, Stored, StoredQuantized, TensorFiles
from bass.errors import CheckpointError, OptionError
from bass.interfaces import Quantization
from bass.quantization import NoQuantization

KIND_OF = {dtype: kind for kind, dtype in FLOATS.items()}
# The end of the name of a matrix's codes: the roles of its other tensors, the required ones first.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ".qweight": (("scales", "qzeros"), ("g_idx",)),
    ".weight_packed": (("weight_scale",), ("weight_zero_point", "weight_g_idx", "weight_shape")),
    ".weight": ((), ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape")),
    "_blocks": (("scales",), ()),
}
# scales of activations, which have dynamic ones here, and of caches, which are not quantized
UNUSED = re.compile(
    r"[.](input_scale|input_zero_point|input_scale_ub|activation_scale|output_scale"
    r"|output_zero_point|([kvq]|kv)_scale|[kvq]_zero_point|prob_scale|prob_output_scale)$"
)
EITHER = ("weight_scale", "weight_scale_inv")  # of which a matrix has one
SCALES = ("scales", *EITHER)
MISTRAL = ".qscale_weight"  # Mistral's own name of a scale


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint is quantized: the method, and the formats of modules."""

    method: str
    formats_of: FormatsOf

    def alone(self, quantization: Quantization | None, folder: Path) -> None:
        """Raise `OptionError` for a quantization of what is already quantized."""
        if quantization is not None and not isinstance(quantization, NoQuantization):
            raise OptionError(
                f"`{folder}` is already quantized by {self.method}: leave out `quantization`, or "
                "give `none` (for a draft, as `draft_quantization`)."
            )

    def described(self, files: TensorFiles, raw: dict[str, Any]) -> TensorFiles:
        """The files with each quantized matrix as one tensor, under its own name and shape."""
        stored = {name: t for name, t in files.stored.items() if not UNUSED.search(name)}
        named, found = stored_dtype(raw), dict[str, Stored]()
        taken: set[str] = set()
        with _about(f"`{files.folder}`"):
            matrices = self._matrices(stored)
            for name, (end, parts, form) in matrices.items():
                module = name.removesuffix(end)
                self._check(form, name, end, parts)
                shape = form.shape(module + end[0], parts)
                found[_logical(module, end)] = StoredQuantized(
                    stored[name].path, KIND_OF[named] if named else _kind_of_scales(parts), shape,
                    0, sum(part.stop - part.start for part in parts.values()), parts,
                    *_reading(form, shape, parts, f"`{files.folder}`, `{module[:100]}`"),
                    in_words(form, shape, parts),
                )  # fmt: skip
                taken |= {_name(module, end, role) for role in parts}
        rest = {name: tensor for name, tensor in stored.items() if name not in taken}
        return replace(files, stored=rest | found)

    def _matrices(
        self, stored: dict[str, Stored]
    ) -> dict[str, tuple[str, dict[str, Stored], Format]]:
        """The quantized matrices by the names of their codes: the end of it, tensors and format."""
        found: dict[str, tuple[str, dict[str, Stored]]] = {}
        bare: list[str] = []  # modules with codes without scales
        for name in stored:
            end = next((end for end in ROLES if name.endswith(end)), None)
            if name.endswith(MISTRAL):
                raise CheckpointError(
                    f"its scales have the names of Mistral's own format (`{name[:100]}`), which "
                    "`bass` does not read: use the checkpoint in the format of `transformers` "
                    "(`weight_scale_inv`)."
                )
            if end is not None and (parts := _parts(name, end, stored)) is not None:
                found[name] = end, parts
            elif end is not None and stored[name].kind in EIGHT_BITS:
                bare.append(name.removesuffix(end))
        modules = [name.removesuffix(end) for name, (end, _) in found.items()]
        forms = self.formats_of(modules + bare)
        for module in modules:
            if module not in forms:
                raise CheckpointError(
                    f"No group of its quantization_config describes `{module[:100]}`: the files do "
                    "not belong together, download the checkpoint again."
                )
        for module in bare:
            if isinstance(form := forms.get(module), EightBits):
                raise _lacking(module, "weight_scale_inv" if form.block else "weight_scale")
        return {
            name: (end, parts, forms[name.removesuffix(end)])
            for name, (end, parts) in found.items()
        }

    def _check(self, form: Format, name: str, end: str, parts: dict[str, Stored]) -> None:
        """Raise `CheckpointError` for tensors that quantization_config does not describe, or for
        missing ones that it requires.
        """
        if form.codes != end:
            raise CheckpointError(
                f"`{name[:100]}` is nothing that quantization_config ({self.method}) describes: "
                "the files do not belong together, download the checkpoint again."
            )
        for role, field in form.needs:
            if role not in parts:
                raise _lacking(name.removesuffix(end), role, f" (`{field}`)")


def scheme_of(folder: Path, raw: dict[str, Any], files: TensorFiles) -> Scheme | None:
    """The quantization of a checkpoint, or None. A `CheckpointError` names one that is not read."""
    config = declared(folder, raw)
    if config is None:
        refuse_undeclared(folder, raw, files)
        return None
    method = config.get("quant_method")
    known = method.lower().removeprefix("intel/") if isinstance(method, str) else ""
    if (make := FORMATS.get(known)) is None:
        raise CheckpointError(
            f"`{folder}` is quantized by `{str(method)[:100]}`, which `bass` does not read: use "
            f"the original checkpoint, or one quantized by {', '.join(sorted(FORMATS))}."
        )
    with _about(f"`{folder}`"):
        return Scheme(known, make(config))


def summary(scheme: Scheme | None, files: TensorFiles) -> str:
    """The method, and how many matrices have which bits and groups."""
    if scheme is None:
        return ""
    counts = Counter(t.words for t in files.stored.values() if isinstance(t, StoredQuantized))
    forms = (f"{n} {'matrix' if n == 1 else 'matrices'} in {w}" for w, n in counts.items())
    return f"{scheme.method}: {'; '.join(forms) or 'no matrix'}"


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Within it, errors begin with what they are about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{what}: {error}") from error


def _reading(
    form: Format, shape: tuple[int, ...], stored: Mapping[str, Stored], what: str
) -> tuple[Callable[[Parts], Any], Callable[[Parts], None]]:
    """`form.weight`, and a check of the bytes of scales; errors of both begin with the matrix that
    they are about.
    """

    def weight(parts: Parts) -> Any:
        with _about(what):
            return form.weight(parts, shape)

    def check(raw: Parts) -> None:
        with _about(what):
            for role in SCALES:
                if role in raw:
                    check_scales(role, stored[role].kind, raw[role])

    return weight, check


def _parts(name: str, end: str, stored: dict[str, Stored]) -> dict[str, Stored] | None:
    """The tensors of a matrix by role; None for one that is not quantized."""
    required, optional = ROLES[end]
    module = name.removesuffix(end)
    parts = {end[1:]: stored[name]}
    for role in (*required, *optional):
        if (tensor := stored.get(_name(module, end, role))) is not None:
            parts[role] = tensor
        elif role in required:
            raise _lacking(module, role)
    if end == ".weight" and not {*EITHER} & parts.keys():
        return None
    if {*EITHER} <= parts.keys():
        raise _doubled(*(f"{module}.{role}" for role in EITHER))
    if (logical := _logical(module, end)) != name and logical in stored:
        raise _doubled(logical, name)
    return parts


def _doubled(one: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"it holds both `{one[:100]}` and `{other[:100]}`, and which of the two is meant is "
        "unknown: download the checkpoint again, or use the original."
    )


def _lacking(module: str, role: str, why: str = "") -> CheckpointError:
    return CheckpointError(
        f"The quantized `{module[:100]}` lacks its `{role}`, which its quantization_config "
        f"requires{why}: download the checkpoint again."
    )


def _logical(module: str, end: str) -> str:
    """The name of a matrix if it were not quantized."""
    return module if end == "_blocks" else f"{module}.weight"


def _name(module: str, end: str, role: str) -> str:
    return f"{module}_{role}" if end == "_blocks" else f"{module}.{role}"


def _kind_of_scales(parts: dict[str, Stored]) -> str:
    kinds = [part.kind for part in parts.values() if part.kind in ("F16", "BF16")]
    return kinds[0] if kinds else "BF16"
