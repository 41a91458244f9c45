"""Files of prompts and problems, local or on the hub, record by record."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bass.errors import OptionError, RequestError, install
from bass.files import read_regular, too_large
from bass.plain_json import MOST_LINES, json_lines, parse_json

HUB_FILE = re.compile(
    r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?:(?P<path>[\w./-]+)", re.ASCII
)
LARGEST = 2**27  # bytes of a file, and of its unpacked content
KINDS = ".jsonl, .json, either with .gz, or .parquet"
RECORDS = (".jsonl", ".json", ".parquet")  # the first two also with .gz
# tables and archives, of which a text would be one long prompt
NO_TEXTS = (
    ".csv", ".tsv", ".xls", ".xlsx", ".ods", ".ndjson", ".arrow", ".feather", ".zip", ".zst",
    ".bz2", ".xz", ".tar",
)  # fmt: skip
# what reading a file may raise
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)


def locate(data: str | Path) -> Path:
    """The file: a path, or `org/name[@revision]:path/of/file` of a data set on the hub, which
    `huggingface_hub` downloads and caches.
    """
    if (found := on_hub(data)) is None:
        return Path(data)
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise RequestError(
            f"`{data}` is on the hub, which needs the package huggingface_hub: {install('hub')}."
        ) from error
    try:
        return Path(
            hub.hf_hub_download(
                found["id"], found["path"], repo_type="dataset", revision=found["revision"]
            )
        )
    except Exception as error:  # the library raises dozens of types, for network, hub and cache
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RequestError(
            f"`{data}` could not be fetched from the hub ({reason}): correct the name, or give a "
            "file."
        ) from error


def on_hub(data: str | Path) -> re.Match[str] | None:
    """The parts of the name of a file on the hub; None for a local file."""
    if isinstance(data, Path) or Path(data).exists():
        return None
    return HUB_FILE.fullmatch(data)


def read_records(path: Path) -> Iterator[Any]:
    """The records of a file of problems, read lazily by its extension. Raises `RequestError`."""
    try:
        yield from (record for _, record in numbered_records(path))
    except UNREADABLE as error:
        raise RequestError(
            f"`{path}` cannot be read ({reason(error)}): give a file of problems, {KINDS}."
        ) from error


def is_records(path: Path) -> bool:
    """Whether the name is that of a file of records."""
    return form_of(path) in (RECORDS[:2] if _is_packed(path) else RECORDS)


def form_of(path: Path) -> str:
    """The extension in lower case, without that of a packed file."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def check_form(path: Path) -> None:
    """Raise `OptionError` for a table or archive, which is neither a file of records nor a text."""
    form = form_of(path)
    if form in NO_TEXTS or (_is_packed(path) and form not in RECORDS[:2]):
        raise OptionError(
            f"`prompts: {path}` is no file of prompts, which ends in {KINDS}, and no text: convert "
            "it to .jsonl."
        )


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def numbered_records(path: Path) -> Iterator[tuple[int, Any]]:
    """The number, from 1, and the value of each record, read lazily by the file's extension; of
    lines the number counts blank ones. Raises one of `UNREADABLE`.
    """
    data = read_regular(path, LARGEST)
    if path.suffix.lower() == ".parquet":
        yield from enumerate(_parquet(path, data), 1)
        return
    data = (_unpacked(data) if _is_packed(path) else data).removeprefix(codecs.BOM_UTF8)
    if form_of(path) == ".json":
        whole = parse_json(data)
        yield from enumerate(whole if isinstance(whole, list) else [whole], 1)
    else:
        yield from json_lines(data)


def reason(error: Exception) -> object:
    """Why a file cannot be read, for a sentence."""
    return getattr(error, "strerror", None) or error


def _unpacked(data: bytes) -> bytes:
    """The content of a gzip file, up to the limit."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise too_large(LARGEST)
    return content


def _parquet(path: Path, data: bytes) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, BufferReader, parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RequestError(
            f"`{path}` is a Parquet file, which needs the package pyarrow: install it, or convert "
            "it to .jsonl."
        ) from error
    try:
        yield from _rows(parquet.ParquetFile(BufferReader(data)))
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _rows(file: Any) -> Iterator[Any]:
    """All rows of a `pyarrow.parquet.ParquetFile`; a row may take no space in the file."""
    if file.metadata.num_rows > MOST_LINES:
        raise ValueError(f"it has {file.metadata.num_rows} rows, and {MOST_LINES} are the most")
    # a long text that many rows share counts once in `nbytes`
    if "dictionary<" in str(file.schema_arrow):
        raise ValueError("it has columns of the type dictionary, where texts are strings")
    size = 0
    for batch in file.iter_batches(batch_size=64):
        size += batch.nbytes
        if size > LARGEST:
            raise too_large(LARGEST)
        yield from batch.to_pylist()
