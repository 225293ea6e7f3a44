"""Files of the archive: rows of evidence as Parquet, and stores of files.

A store is a directory, or a bucket of an S3-compatible server. A file is created once and never
replaced. All calls block, and raise ArchiveError.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from collector.config import ArchiveSettings
from collector.evidence import EvidenceError
from railscope import durable_files, settings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_TIMEOUT = "60s"


class ArchiveError(EvidenceError, RuntimeError):
    """The archive cannot be used, or a file of it is missing or was changed; the message names it."""


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


def contains_facts(content: bytes, rows: Sequence[EvidenceRow]) -> bool:
    """True if a file contains these rows. Raises ArchiveError for any other content.

    The name of a fact is the hash of its content before compression, which may differ by the version of zstd.
    """
    found = decode_file(content)
    names = [[row._replace(content=b"") for row in each] for each in (found, rows)]
    return names[0] == names[1] and all(row.is_intact for row in found)


def import_pyarrow() -> tuple[Any, Any]:
    """Return PyArrow and its module for Parquet. Raises ArchiveError without them."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        message = (
            "missing PyArrow, which the archive requires; fix: pip install 'railscope[archive]'"
        )
        raise ArchiveError(message) from error


class ArchiveStore(Protocol):
    """Files by name; a name may contain slashes."""

    location: str
    """Directory or URL of the store, without credentials."""

    def create(self, name: str, content: bytes) -> None:
        """Create a file, durable on return; an existing one stays as it is."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def probe(self) -> str:
        """Check that the store is usable, without writing; return a description."""


class DirectoryStore:
    """Files in a directory, which must exist: it may be a mount point."""

    def __init__(self, root: Path) -> None:
        self._root, self.location = root, str(root)

    def create(self, name: str, content: bytes) -> None:
        """See `ArchiveStore`."""
        self.probe()
        path = self._root / name
        with self._convert(f"cannot write {path}"):
            durable_files.make_directory(path.parent)
            durable_files.delete_partial_files(path.parent, path.name)
            if not path.exists():
                durable_files.create_durably(path, content, 0o440)

    def read(self, name: str) -> bytes:
        """See `ArchiveStore`."""
        with self._convert(f"cannot read {self._root / name}"):
            return (self._root / name).read_bytes()

    def probe(self) -> str:
        """See `ArchiveStore`."""
        if not self._root.is_dir() or not os.access(self._root, os.W_OK | os.X_OK):
            message = (
                f"cannot use the archive {self._root}: expected a directory that this user may write; "
                "fix: create or mount it, or change archive.url"
            )
            raise ArchiveError(message)
        return f"{self._root} is writable"

    @staticmethod
    @contextmanager
    def _convert(action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{action} of the archive: {error.strerror or error}"
            raise ArchiveError(message) from error


class BucketStore:
    """Files in a bucket, created by conditional writes (`If-None-Match`)."""

    def __init__(self, archive: ArchiveSettings) -> None:
        parts = urlsplit(archive.url)
        self.location, self._prefix = archive.url.rstrip("/"), parts.path.strip("/")
        try:
            self._client, stores = import_module("obstore"), import_module("obstore.store")
        except ImportError as error:
            message = "missing obstore, which archive.url s3:// requires; fix: pip install 'railscope[archive]'"
            raise settings.SettingsError(message) from error
        options: dict[str, Any] = {"region": archive.region} if archive.region else {}
        if archive.endpoint:
            options["endpoint"] = archive.endpoint
        if archive.credentials_file:
            text = settings.read_named_file("archive.credentials_file", archive.credentials_file)
            keys = text.split()
            if len(keys) != 2:  # noqa: PLR2004 - the two keys
                message = (
                    f"invalid archive.credentials_file {archive.credentials_file}: expected two lines, "
                    "the access key ID and the secret access key"
                )
                raise settings.SettingsError(message)
            options["access_key_id"], options["secret_access_key"] = keys
        is_plain = archive.endpoint.startswith("http://")
        client_options = {"timeout": _TIMEOUT, "allow_http": is_plain}
        self._bucket = stores.S3Store(parts.netloc, client_options=client_options, **options)

    def create(self, name: str, content: bytes) -> None:
        """See `ArchiveStore`."""
        with self._convert("write", name):
            try:
                self._client.put(
                    self._bucket, self._key(name), content, mode="create", use_multipart=False
                )
            except self._client.exceptions.AlreadyExistsError:
                return

    def read(self, name: str) -> bytes:
        """See `ArchiveStore`."""
        with self._convert("read", name):
            return bytes(self._client.get(self._bucket, self._key(name)).bytes())

    def probe(self) -> str:
        """See `ArchiveStore`."""
        with self._convert("list", ""):
            self._client.list_with_delimiter(self._bucket, self._prefix or None)
        return f"{self.location} is readable"

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".lstrip("/")

    @contextmanager
    def _convert(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except (self._client.exceptions.BaseError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            message = f"cannot {action} {self.location}/{name} of the archive: {reason}"
            raise ArchiveError(message) from error


def open_archive_store(archive: ArchiveSettings) -> ArchiveStore | None:
    """Return the store of the settings; None if they name none. Raises SettingsError."""
    if not archive.url:
        return None
    parts = urlsplit(archive.url)
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        return BucketStore(archive)
    if parts.scheme or not archive.url.startswith("/"):
        message = f"invalid archive.url {archive.url!r}: expected /DIRECTORY or s3://BUCKET/PREFIX"
        raise settings.SettingsError(message)
    return DirectoryStore(Path(archive.url))


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
