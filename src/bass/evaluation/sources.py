"""Files of problems, here or on the hub, as lists of records."""

import gzip
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

from bass.errors import RequestError, install
from bass.files import read_regular, too_large

HUB_FILE = re.compile(
    r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?:(?P<path>[\w./-]+)", re.ASCII
)
LARGEST = 2**27  # bytes of a file, and of what it unpacks to
MOST_ROWS = 2**20  # of a Parquet file, where a row can take no room
_KINDS = ".jsonl, .json, either with .gz, or .parquet"


def locate(data: str | Path) -> Path:
    """The file: a path, or `org/name[@revision]:path/of/file` of a data set on the hub, which
    `huggingface_hub` fetches and keeps.
    """
    if isinstance(data, Path) or Path(data).exists() or not (found := HUB_FILE.fullmatch(data)):
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
    except Exception as error:  # of the network, the hub, the cache: the library has dozens
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RequestError(
            f"`{data}` could not be fetched from the hub ({reason}): correct the name, or give a "
            "file."
        ) from error


def read_records(path: Path) -> list[Any]:
    """The records of a file, by its name's ending. Raises `RequestError`."""
    try:
        data = read_regular(path, LARGEST)
        if path.suffix == ".parquet":
            return _parquet(path, data)
        text = (_unpacked(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(
            f"`{path}` cannot be read ({reason}): give a file of problems, {_KINDS}."
        ) from error
    if path.name.removesuffix(".gz").endswith(".json"):
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"`{path}` is not JSON ({error}): download it again.") from error
        return whole if isinstance(whole, list) else [whole]
    records = []
    # other line breaks may stand within a text
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    f"Line {number} of `{path}` is not JSON ({error}): download the file again."
                ) from error
    return records


def _unpacked(data: bytes) -> bytes:
    """The content of a gzip file, up to the limit."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise too_large(LARGEST)
    return content


def _parquet(path: Path, data: bytes) -> list[Any]:
    try:
        from pyarrow import ArrowException, BufferReader, parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RequestError(
            f"`{path}` is a Parquet file, which needs the package pyarrow: install it, or convert "
            "it to .jsonl."
        ) from error
    try:
        return _rows(parquet.ParquetFile(BufferReader(data)))
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _rows(file: Any) -> list[Any]:
    """All rows of a `pyarrow.parquet.ParquetFile`."""
    if file.metadata.num_rows > MOST_ROWS:
        raise ValueError(f"it has {file.metadata.num_rows} rows, and {MOST_ROWS} are the most")
    # one long text in many rows counts once in `nbytes`
    if "dictionary<" in str(file.schema_arrow):
        raise ValueError("it has categories instead of texts")
    records, size = [], 0
    for batch in file.iter_batches(batch_size=64):
        size += batch.nbytes
        if size > LARGEST:
            raise too_large(LARGEST)
        records += batch.to_pylist()
    return records
