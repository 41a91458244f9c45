"""The quantization of a checkpoint by its config.json, and its matrices by the headers."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bass.checkpoints.folder import stored_dtype
from bass.checkpoints.quantized.configs import FORMATS
from bass.checkpoints.quantized.formats import Format, FormatOf, Parts, in_words
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
    r"|output_zero_point|[kvq]_scale|[kvq]_zero_point)$"
)


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint is quantized: the method, and the format of each module."""

    method: str
    format_of: FormatOf

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
            for name in stored:
                end = next((end for end in ROLES if name.endswith(end)), None)
                parts = None if end is None else _parts(name, end, stored)
                if end is None or parts is None:
                    continue
                module = name.removesuffix(end)
                logical = module if end == "_blocks" else f"{module}.weight"
                form = self.format_of(module)
                self._check(form, name, end, parts)
                found[logical] = StoredQuantized(
                    stored[name].path, KIND_OF[named] if named else _kind_of_scales(parts),
                    form.shape(module + end[0], parts), 0,
                    sum(part.stop - part.start for part in parts.values()), parts,
                    _reading(form, f"`{files.folder}`, `{module[:100]}`"),
                )  # fmt: skip
                taken |= {_name(module, end, role) for role in parts}
        rest = {name: tensor for name, tensor in stored.items() if name not in taken}
        return replace(files, stored=rest | found)

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
    make: Callable[[dict[str, Any]], FormatOf] | None = (
        FORMATS.get(method) if isinstance(method, str) else None
    )
    if make is None:
        raise CheckpointError(
            f"`{folder}` is quantized by `{str(method)[:100]}`, which `bass` does not read: use "
            f"the original checkpoint, or one quantized by {', '.join(sorted(FORMATS))}."
        )
    with _about(f"`{folder}`"):
        return Scheme(str(method), make(config))


def summary(scheme: Scheme | None, files: TensorFiles) -> str:
    """The method, and how many matrices have which bits and groups."""
    if scheme is None:
        return ""
    counts = Counter(
        in_words(tensor.shape, tensor.parts)
        for tensor in files.stored.values()
        if isinstance(tensor, StoredQuantized)
    )
    forms = "; ".join(f"{count} matrices in {form}" for form, count in counts.items())
    return f"{scheme.method}: {forms or 'no matrix'}"


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Within it, errors begin with what they are about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{what}: {error}") from error


def _reading(form: Format, what: str) -> Callable[[Parts], Any]:
    """`form.weight`, whose errors begin with the matrix that they are about."""

    def weight(parts: Parts) -> Any:
        with _about(what):
            return form.weight(parts)

    return weight


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
    if end == ".weight" and not {"weight_scale", "weight_scale_inv"} & parts.keys():
        return None
    return parts


def _lacking(module: str, role: str, why: str = "") -> CheckpointError:
    return CheckpointError(
        f"The quantized `{module[:100]}` lacks its `{role}`, which its quantization_config "
        f"requires{why}: download the checkpoint again."
    )


def _name(module: str, end: str, role: str) -> str:
    return f"{module}_{role}" if end == "_blocks" else f"{module}.{role}"


def _kind_of_scales(parts: dict[str, Stored]) -> str:
    kinds = [part.kind for part in parts.values() if part.kind in ("F16", "BF16")]
    return kinds[0] if kinds else "BF16"
