"""Stores of the archive: a directory, and a bucket of a real S3-compatible server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import s3_server
from support.disk import enlarge, small_file_system, synced_files

from railscope_collector.archive_stores import (
    ArchiveError,
    ArchiveStore,
    MissingFileError,
    open_archive_store,
)
from railscope_collector.config import ArchiveSettings

NAME = "day=2026-01-31/pod=a%2Fb/intervals-0.parquet"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server.running() as url:
        s3_server.create_bucket(url, "evidence")
        yield url


@pytest.fixture(params=["directory", "bucket", "prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    if request.param == "directory":
        settings = ArchiveSettings(url=str(tmp_path))
    else:
        keys = tmp_path / "keys"
        keys.write_text(s3_server.CREDENTIALS)
        url = "s3://evidence" + ("/site/one/" if request.param == "prefix" else "")
        settings = ArchiveSettings(
            url=url,
            endpoint=request.getfixturevalue("server"),
            region="us-east-1",
            credentials_file=str(keys),
        )
    found = open_archive_store(settings)
    assert found is not None
    return found


def test_a_file_that_exists_is_durable_on_return(tmp_path: Path):
    """A writer that was killed may have created it, and ended before the directory was synchronized."""
    store = open_archive_store(ArchiveSettings(url=str(tmp_path)))
    assert store
    store.create(NAME, b"first")
    with synced_files() as synced:
        store.create(NAME, b"first")
    assert (tmp_path / NAME).parent in synced


def test_a_file_is_created_once_and_never_replaced(store: ArchiveStore):
    assert store.probe()
    store.create(NAME, b"first")
    store.create(NAME, b"second")
    assert store.read(NAME) == b"first"
    with pytest.raises(MissingFileError, match=r"missing file .*other of the archive"):
        store.read("day=2026-01-31/other")
    with pytest.raises(ArchiveError, match="has 5 bytes: expected at most 4"):
        store.read(NAME, max_bytes=4)
    assert "test-secret" not in store.location


def test_an_interrupted_write_leaves_no_file(tmp_path: Path):
    found = open_archive_store(ArchiveSettings(url=str(tmp_path)))
    assert found is not None
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    (path.parent / f"{path.name}.0123abcd.partial").write_bytes(b"half of i")
    found.create(NAME, b"all of it")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert found.read(NAME) == b"all of it"


def test_a_full_disk_leaves_nothing(tmp_path: Path):
    with small_file_system(tmp_path / "small", 256) as directory:
        found = open_archive_store(ArchiveSettings(url=str(directory)))
        assert found is not None
        with pytest.raises(ArchiveError, match="No space left on device"):
            found.create(NAME, b"x" * (1 << 20))
        assert [path for path in directory.rglob("*") if path.is_file()] == []
        enlarge(directory, 4096)
        found.create(NAME, b"x" * (1 << 20))
        assert len(found.read(NAME)) == 1 << 20
