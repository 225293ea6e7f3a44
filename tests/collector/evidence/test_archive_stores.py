"""Stores of the archive: a directory, and a bucket of a real S3-compatible server."""

from __future__ import annotations

import io
import sys
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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
from railscope_collector.evidence.archive_files import (
    EvidenceRow,
    check_written,
    decode_file,
    encode_file,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAME = "day=2026-01-31/pod=a%2Fb/intervals-0.parquet"
ROWS = [
    EvidenceRow("ab" * 32, "n1", 1, 2**62, 3, b"\0\xff" * 40),
    EvidenceRow("", "é", -1, 0, 0, b""),
]


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


def test_rows_are_the_same_after_reading():
    content = encode_file(ROWS)
    assert decode_file(content) == ROWS
    assert encode_file(ROWS) == content
    with pytest.raises(ArchiveError, match="invalid Parquet file"):
        decode_file(content[:-20])


def intact_row(number: int, level: int = 3) -> EvidenceRow:
    content = b"fact %d" % number * 400
    packed = zstd.compress(content, level)
    return EvidenceRow(sha256(content).hexdigest(), f"n{number}", number, number + 1, 0, packed)


def state_small(content: bytes, size: int) -> bytes:
    """Return a file whose footer states one byte wherever it has a size; its pages are the same."""
    encoded = bytearray()
    for shift in range(0, 28, 7):
        encoded.append(2 * size >> shift & 0x7F | 0x80)
    encoded[-1] &= 0x7F
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert encoded in content[footer:]
    return content[:footer] + content[footer:].replace(encoded, b"\x82\x80\x80\0")


@pytest.mark.parametrize("field", ["content", "forged"])
def test_a_file_that_would_take_much_memory_is_rejected_before_it_takes_it(field: str):
    row, size = intact_row(1), 64 << 20
    if field == "content":
        bomb = encode_file([row._replace(content=zstd.compress(bytes(size)))])
    else:
        bomb = encode_file([row._replace(node="n" * size)])
    assert len(bomb) < size >> 3
    if field == "forged":
        group = pq.ParquetFile(io.BytesIO(bomb)).metadata.row_group(0)
        for stated in (group.total_byte_size, group.column(1).total_uncompressed_size):
            bomb = state_small(bomb, stated)
        assert pq.ParquetFile(io.BytesIO(bomb)).metadata.row_group(0).total_byte_size == 1
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="x does not contain what was written"):
            check_written("x", bomb, encode_file([row]), [row])
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert taken + pool.max_memory() < size >> 3


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
