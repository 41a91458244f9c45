"""Files of others are read within limits and never waited for."""

import os
import socket
import time
from pathlib import Path

import pytest

from bass import files
from bass.errors import BassError
from bass.files import file_lines, open_regular, read_regular, write_atomically
from bass.runs.evaluation_folder import Score
from bass.runs.evaluation_folder import read_lines as scores_of
from bass.runs.lines import read_lines


def test_a_regular_file_is_read_up_to_its_limit_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 5) == read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="larger than the limit of 4 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nowhere", 5)


def test_what_is_no_regular_file_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        kinds = {
            "pipe": "a named pipe",
            "link": "a named pipe",
            "socket": "a socket",
            ".": "a folder",
            "/dev/zero": "a device",
        }
        for name, kind in kinds.items():
            with pytest.raises(OSError, match=f"it is {kind}, not a regular file"):
                open_regular(tmp_path / name)


def test_a_file_that_grows_while_it_is_read_keeps_to_the_limit() -> None:
    endless = Path("/proc/self/maps")  # its size is said to be 0
    assert endless.stat().st_size == 0
    with pytest.raises(OSError, match="larger than the limit"):
        read_regular(endless, 100)


def test_a_file_of_lines_is_read_up_to_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_RUN_LINES", 3)
    monkeypatch.setattr(files, "LARGEST_RUN_BYTES", 9)
    file = tmp_path / "lines"
    for content in (b"", b"a\nb\nc\n", b"a\nb\nc\nhal", b"12345678\n", b"\n\n\n"):
        file.write_bytes(content)
        assert b"".join(file_lines(file)) == content[:9]
    for content, reason in (
        (b"\n\n\n\n", "it has more than 3 lines"),
        (b"123456789\n", "larger than the limit of 9 bytes"),
    ):
        file.write_bytes(content)
        with pytest.raises(OSError, match=reason):
            next(file_lines(file))


@pytest.mark.parametrize("kind", ["lines", "bytes"])
def test_a_run_s_file_of_too_many_lines_is_refused_soon(kind: str, tmp_path: Path) -> None:
    """Before any of them is understood."""
    for name in ("scores.jsonl", "steps.jsonl"):
        with (tmp_path / name).open("wb") as file:
            if kind == "lines":
                file.write(b'{"task_id": 5}\n' * (files.MOST_RUN_LINES + 1))
            else:
                file.truncate(files.LARGEST_RUN_BYTES + 1)  # which takes no room
    began = time.process_time()
    with pytest.raises(BassError, match=r"scores.jsonl` cannot be read \(it .* name another"):
        scores_of(tmp_path / "scores.jsonl", Score)
    with pytest.raises(BassError, match=r"steps.jsonl cannot be read \(it .* delete the cell"):
        read_lines(tmp_path / "steps.jsonl", lambda text, where: text)
    assert time.process_time() - began < 2


def test_a_file_is_written_without_touching_what_lies_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("as it was")
    (tmp_path / "new.part").symlink_to("other")
    write_atomically(tmp_path / "new", "text")
    os.mkfifo(tmp_path / "new.part")
    write_atomically(tmp_path / "new", "another")
    assert ((tmp_path / "other").read_text(), (tmp_path / "new").read_text()) == (
        "as it was",
        "another",
    )
    assert sorted(os.listdir(tmp_path)) == ["new", "other"]
