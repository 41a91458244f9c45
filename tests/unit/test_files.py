"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from bass.files import append, write_atomically


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "text")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "other \ud800")
    append(file, " and more")
    assert file.read_text() == "text and more"
    write_atomically(file, b"another")
    assert file.read_bytes() == b"another"
