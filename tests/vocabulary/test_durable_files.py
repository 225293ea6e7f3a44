"""Durable files: atomic, without remains of failed or interrupted writes; locks exclude."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from railscope import durable_files as durable


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_replaced_with_the_requested_mode(tmp_path: Path) -> None:
    durable.write_durably(tmp_path / "key", b"one", 0o600)
    durable.write_durably(tmp_path / "key", b"two", 0o600)
    assert (tmp_path / "key").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert names(tmp_path) == ["key"]


@pytest.mark.parametrize("write", [durable.write_durably, durable.create_durably])
def test_a_full_disk_keeps_the_old_content_and_no_partial_file(small_disk: Path, write) -> None:
    durable.write_durably(small_disk / "state", b"old")
    with pytest.raises(OSError, match=rf"No space left .*: '{small_disk}/state'"):
        write(small_disk / "state", bytes(1 << 20))
    assert (small_disk / "state").read_bytes() == b"old"
    assert names(small_disk) == ["state"]


def test_the_owner_of_a_directory_deletes_interrupted_writes_and_no_other_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "state.json.0123abcd.partial").write_bytes(b'{"a"')
    (tmp_path / "notes.partial").write_bytes(b"of an administrator")
    (tmp_path / "backup.0123abcd.partial").mkdir()
    os.close(durable.lock_directory(tmp_path))
    assert names(tmp_path) == ["backup.0123abcd.partial", "lock", "notes.partial"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": "one"}', b'"\xff"', b"[" * 100_000])
def test_a_damaged_json_file_is_renamed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(durable.DamagedFileError, match="renamed to state"):
        durable.read_json(tmp_path / "state.json", dict[str, int])
    assert (tmp_path / "state.json.damaged").read_bytes() == content
    assert durable.read_json(tmp_path / "state.json", dict[str, int]) is None


def test_a_directory_is_locked_until_the_descriptor_is_closed(tmp_path: Path) -> None:
    assert not durable.is_locked(tmp_path)
    held = durable.lock_directory(tmp_path)
    assert durable.is_locked(tmp_path)
    with pytest.raises(BlockingIOError):
        durable.lock_directory(tmp_path)
    os.close(held)
    assert not durable.is_locked(tmp_path)
    os.close(durable.lock_directory(tmp_path))
