"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from bass.files import write_atomically


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "text")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "other \ud800")
    assert file.read_text() == "text"
    write_atomically(file, b"another")
    assert file.read_bytes() == b"another"
