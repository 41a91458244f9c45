"""The source of user code: a hash of each of its files, and the versions of imported packages.

Modules are found and read, not run; this includes modules that are imported inside a function.
"""

import ast
import functools
import importlib.util
import pkgutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import final

from bass.provenance.fingerprints import UNREADABLE, hash_of, hash_of_all, hash_of_text

# bass has its own hash, torch is identified by its version, Python's version is only recorded.
_KNOWN = {"bass", "torch", *sys.stdlib_module_names}
_INSTALLED = {"site-packages", "dist-packages"}
_MOST_FILES = 1000  # maximum number of files of an installed package that are read


@final
@dataclass(frozen=True)
class _Place:
    """The location of a module.

    `file`: None for a namespace; within `archive` if set. `folders`: of a package's modules.
    """

    file: Path | None
    folders: Sequence[str]
    archive: Path | None = None

    @classmethod
    def of(cls, file: Path, folders: Iterable[str]) -> "_Place | None":
        """The location; None without a file or an archive that may hold it."""
        archive = next((path for path in file.parents if path.is_file()), None)
        known = archive is not None or file.is_file()
        return cls(file, [*folders], archive) if known else None

    @property
    def source(self) -> bytes:
        """The content of a Python file; empty for other files."""
        if self.file is None or self.file.suffix != ".py":
            return b""
        if self.archive is None:
            return self.file.read_bytes()
        with zipfile.ZipFile(self.archive) as archive:
            return archive.read(self.file.relative_to(self.archive).as_posix())

    @property
    def installed(self) -> bool:
        """Whether it came with an installed package; an editable one counts as user code."""
        return any(_INSTALLED & {*Path(path).parts} for path in (self.file or "", *self.folders))


@final
class Sources:
    """Finds and reads each module once."""

    def __init__(self) -> None:
        # folders may have been listed before their files were written
        importlib.invalidate_caches()
        self._place = functools.cache(self._find)
        self._imports = functools.cache(self._read)
        self._whole = functools.cache(self._hash_of_package)
        self._package = functools.cache(_package)
        self._packages = functools.cache(packages_distributions)

    def of(self, modules: Iterable[str]) -> dict[str, str]:
        """Fingerprints of these modules and their imports; none for bass, torch or Python.

        `module NAME` is a hash of the module's file, also for each user module that these import
        anywhere in their source, directly or indirectly. `package NAME` is version and build of
        each imported installed distribution. A distribution that contains one of these modules and
        has at most `_MOST_FILES` files is read like user code, and `module NAME` covers all its
        files.
        """
        modules = set(modules)
        tops = {_top(name) for name in modules}
        found, seen, waiting = dict[str, str](), set[str](), sorted(modules)
        while waiting:
            name = waiting.pop()
            if name in seen or _top(name) in _KNOWN:
                continue
            seen.add(name)
            waiting.append(name.rpartition(".")[0] or name)
            place = self._place(name)
            if place is None:
                continue
            read = not place.installed
            if read and place.file is not None:
                found[f"module {name}"] = hash_of(place.archive or place.file)
            elif place.installed:
                packages = self._packages().get(_top(name), ())
                found |= {f"package {one}": self._package(one) for one in packages}
                if _top(name) in tops or not packages:
                    whole = self._whole(name)
                    found |= whole
                    read = bool(whole)
            if read:
                waiting += self._imports(name)
        return found

    def hash_of_module(self, name: str) -> str:
        """The hash that `of` gives for `module NAME`; `unreadable` if it is not found."""
        place = self._place(name)
        if place is None or place.file is None:
            return UNREADABLE
        if place.installed:
            return self._whole(name).get(f"module {name}", UNREADABLE)
        return hash_of(place.archive or place.file)

    def _hash_of_package(self, name: str) -> dict[str, str]:
        """The hash of all files of the outermost package (no namespace) of a module; empty if there
        are too many.
        """
        outer = name.rpartition(".")[0]
        if outer and (whole := self._whole(outer)):
            return whole
        place = self._place(name)
        if place is None or place.file is None:
            return {}
        if not place.folders or place.archive is not None:
            return {f"module {name}": hash_of(place.archive or place.file)}
        folder = place.file.parent
        files = [one for one in folder.rglob("*") if one.suffix != ".pyc" and one.is_file()]
        if len(files) > _MOST_FILES:
            return {}
        return {f"module {name}": hash_of_all(files, folder)}

    def _find(self, name: str) -> _Place | None:
        """The location of the imported module, or else from where it would be imported."""
        loaded = sys.modules.get(name)
        if isinstance(loaded, ModuleType) and isinstance(file := vars(loaded).get("__file__"), str):
            folders = [*vars(loaded).get("__path__", ())]
            return _Place.of(Path(file), folders) or _Place(Path(file), folders)
        try:
            spec = self._spec(name)
        except Exception:  # of a user's finder, or an invalid name
            return None
        if spec is None:
            return None
        folders = [*(spec.submodule_search_locations or ())]
        if not (spec.has_location and spec.origin):
            return _Place(None, folders)
        return _Place.of(Path(spec.origin), folders)

    def _spec(self, name: str) -> ModuleSpec | None:
        outer = name.rpartition(".")[0]
        if not outer:
            return importlib.util.find_spec(name)
        above = self._place(outer)  # `find_spec` of the whole name would run it
        return None if above is None else PathFinder.find_spec(name, above.folders)

    def _read(self, name: str) -> list[str]:
        """The names that a module's source may import."""
        place = self._place(name)
        if place is None:
            return []
        try:
            tree = ast.parse(place.source)
        # the file may have been edited since its import
        except (
            *(OSError, ValueError, SyntaxError, RecursionError, MemoryError),
            *(KeyError, zipfile.BadZipFile),
        ):
            return []
        package = name if place.folders else name.rpartition(".")[0]
        found = list[str]()
        for one in _imported(tree, package):
            base, star, _ = one.partition(".*")
            inside = self._place(base) if star else None
            folders = [] if inside is None else [*inside.folders]
            found += [base, *(f"{base}.{module.name}" for module in pkgutil.iter_modules(folders))]
        return found


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The names that source of this package may import; `NAME.*` for all that a module has."""
    importers = _importers(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _resolved("." * level + (module or ""), package)
                if base is not None:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if (
                called in importers
            ):
                found = _resolved(_first_text(node), package)
                if found is not None:
                    yield found


def _importers(tree: ast.AST) -> set[str]:
    """The names of `import_module` and `__import__` in this source."""
    found = {"import_module", "__import__"}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names):
                found |= {a.asname for a in names if a.asname and a.name in found}
            case ast.Assign(
                targets=targets, value=ast.Name(id=called) | ast.Attribute(attr=called)
            ) if called in found:
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _first_text(call: ast.Call) -> str:
    """The name in a call of `import_module`; empty if it is computed."""
    names = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
    match names:
        case [ast.Constant(value=str(name)), *_]:
            return name
    return ""


def _resolved(name: str, package: str) -> str | None:
    """The absolute name of a relative one; None if it is invalid or leads out of the package."""
    try:
        return importlib.util.resolve_name(name, package) or None
    except ImportError:
        return None


def _package(name: str) -> str:
    """Version and build of a distribution; the build is a hash of its recorded files."""
    try:
        found = distribution(name)
        lines = (found.read_text("RECORD") or "").splitlines()
    except (PackageNotFoundError, OSError, ValueError):  # half uninstalled
        return "unknown"
    # files of the installer differ between installations
    files = sorted(line for line in lines if ".dist-info/" not in line and ".pyc," not in line)
    return f"{found.version} ({hash_of_text(chr(10).join(files))})" if files else found.version


def _top(module: str) -> str:
    return module.partition(".")[0]
