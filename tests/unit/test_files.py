"""Files of checkpoints are read within limits and never waited for; ours are written whole."""

from pathlib import Path

import pytest

from bass.files import append, read_regular, write_atomically


def test_a_regular_file_is_read_up_to_its_limit_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 5) == read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="larger than the limit of 4 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nowhere", 5)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "text")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "other \ud800")
    append(file, " and more")
    assert file.read_text() == "text and more"
    write_atomically(file, b"another")
    assert file.read_bytes() == b"another"
