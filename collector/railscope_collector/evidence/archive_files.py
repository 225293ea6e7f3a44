"""Files of the archive that contain evidence: rows as Parquet."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from railscope import extras, settings
from railscope_collector.archive_stores import ArchiveError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class EvidenceRow(NamedTuple):
    """Interval of a node as stored; its fields are the columns of a file."""

    part: str
    node: str
    start_ns: int
    end_ns: int
    recorded_ns: int
    content: bytes

    @property
    def is_intact(self) -> bool:
        """True if the content matches its name."""
        try:
            return sha256(zstd.decompress(self.content)).hexdigest() == self.part
        except (zstd.ZstdError, ValueError):
            return False


def encode_file(rows: Sequence[EvidenceRow]) -> bytes:
    """Return rows as Parquet. Raises ArchiveError without PyArrow."""
    arrow, parquet = import_pyarrow()
    types = (arrow.string(), arrow.string(), *[arrow.int64()] * 3, arrow.binary())
    fields = arrow.schema(list(zip(EvidenceRow._fields, types, strict=True)))
    columns = [
        arrow.array([row[at] for row in rows], field.type) for at, field in enumerate(fields)
    ]
    file = io.BytesIO()
    # The content is compressed already, and dictionaries of unique values only take space.
    parquet.write_table(
        arrow.Table.from_arrays(columns, schema=fields),
        file,
        compression={name: "NONE" if name == "content" else "ZSTD" for name in EvidenceRow._fields},
        use_dictionary=["node"],
    )
    return file.getvalue()


def decode_file(content: bytes) -> list[EvidenceRow]:
    """Return the rows of a file. Raises ArchiveError for any other content."""
    arrow, parquet = import_pyarrow()
    try:
        table = parquet.read_table(io.BytesIO(content))
        columns = [table.column(name).to_pylist() for name in EvidenceRow._fields]
    except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
        message = f"invalid Parquet file: {' '.join(str(error).split())[:200]}"
        raise ArchiveError(message) from error
    return [EvidenceRow(*row) for row in zip(*columns, strict=True)]


def decode_nodes(text: str) -> list[str]:
    """Return the nodes of a file as the database has them."""
    return msgspec.json.decode(text, type=list[str])


def encode_nodes(nodes: Iterable[str]) -> str:
    """Encode the nodes of a file."""
    return msgspec.json.encode(sorted(nodes)).decode()


def check_written(name: str, found: bytes, written: bytes, rows: Sequence[EvidenceRow]) -> None:
    """Check that the store returns a file as it was written, with these rows. Raises ArchiveError.

    Nothing else is decoded: the store may return anything, and its pages may have any size when decompressed.
    """
    if found != written or decode_file(written) != list(rows):
        message = f"{name} does not contain what was written; fix: check the store, and move the file away"
        raise ArchiveError(message)


def import_pyarrow() -> tuple[Any, Any]:
    """Return PyArrow and its module for Parquet. Raises ArchiveError without them."""
    with extras.importing("archive", "the archive", "PyArrow", ArchiveError):
        # An import on use: PyArrow takes memory that collectors without an archive need not have.
        return import_module("pyarrow"), import_module("pyarrow.parquet")


def compile_pod_pattern(text: str) -> re.Pattern[str] | None:
    """Compile `archive.pod_pattern`; None for an empty one. Raises SettingsError."""
    try:
        pattern = re.compile(text) if text else None
    except re.error as error:
        message = f"invalid archive.pod_pattern: expected a regular expression: {error}"
        raise settings.SettingsError(message) from error
    if pattern and "pod" not in pattern.groupindex:
        message = "invalid archive.pod_pattern: expected a group (?P<pod>...)"
        raise settings.SettingsError(message)
    return pattern
