"""Stores of the archive: a directory, or a bucket of an S3-compatible server.

A file is created once and never replaced. All calls block, and raise ArchiveError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from railscope import durable_files, extras, settings
from railscope_collector import CollectorError, config

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a file that is read; evidence has files of about 8 MiB."""
_TIMEOUT = "60s"


class ArchiveError(CollectorError, RuntimeError):
    """The archive cannot be used, or a file of it is missing or was changed; the message names it."""


class MissingFileError(ArchiveError):
    """The archive can be read, and does not have the file."""


class ArchiveReader(Protocol):
    """Files by name; a name may contain slashes."""

    location: str
    """Directory or URL of the store, without credentials."""

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises MissingFileError, ArchiveError for a larger file."""


class ArchiveStore(ArchiveReader, Protocol):
    """Files by name, which can be created."""

    def create(self, name: str, content: bytes) -> None:
        """Create a file, durable on return; an existing one stays as it is."""

    def probe(self) -> str:
        """Check that the store is usable, without writing; return a description."""


@dataclass(slots=True)
class FileFailures:
    """Files that failed, while the others continue: those of a round in a store, or none without one."""

    store: ArchiveStore | None = None
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def isolate(self) -> Iterator[None]:
        """Record a failed file. Raises its ArchiveError without a store, or if that cannot be used at all."""
        try:
            yield
        except ArchiveError as error:
            if self.store is None:
                raise
            self.store.probe()
            self.problems.append(str(error))

    def check(self) -> None:
        """Raise ArchiveError if a file failed."""
        if len(self.problems) > 1:
            message = f"{len(self.problems):,} files failed, the first of them: {self.problems[0]}"
            raise ArchiveError(message)
        for problem in self.problems:
            raise ArchiveError(problem)


class DirectoryStore:
    """Files in a directory, which must exist: it may be a mount point."""

    def __init__(self, root: Path) -> None:
        self._root, self.location = root, str(root)

    def create(self, name: str, content: bytes) -> None:
        """See `ArchiveStore`."""
        # Otherwise the directory of a missing mount point would be created, and filled.
        self.probe()
        path = self._root / name
        with self._convert(f"cannot write {path}"):
            if path.exists():
                # Complete, as it was linked after it was written. Its writer may have been killed before the name
                # was durable.
                durable_files.sync_directory(path.parent)
                return
            durable_files.make_directory(path.parent)
            # Read-only: a file of the archive is never replaced.
            durable_files.create_durably(path, content, 0o440)
            # Only now, as other collectors may write the same file: they find it complete.
            durable_files.delete_partial_files(path.parent, path.name)

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `ArchiveStore`."""
        path = self._root / name
        # Of a directory that is not mounted, no file is known to be missing.
        if self._root.is_dir() and not path.is_file():
            message = f"missing file {path} of the archive"
            raise MissingFileError(message)
        with self._convert(f"cannot read {path}"), path.open("rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size, max_bytes)
            return file.read()

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

    def __init__(self, archive: config.ArchiveSettings) -> None:
        parts = urlsplit(archive.url)
        self.location, self._prefix = archive.url.rstrip("/"), parts.path.strip("/")
        with extras.importing("archive", "archive.url s3://", "obstore"):
            self._client, stores = import_module("obstore"), import_module("obstore.store")
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
        is_plain = urlsplit(archive.endpoint).scheme == "http"
        client_options = {"timeout": _TIMEOUT, "allow_http": is_plain}
        self._bucket = stores.S3Store(parts.netloc, client_options=client_options, **options)

    def create(self, name: str, content: bytes) -> None:
        """See `ArchiveStore`."""
        with self._convert("write", name):
            try:
                # One request: a multipart upload has no condition (obstore, `put`).
                self._client.put(
                    self._bucket, self._key(name), content, mode="create", use_multipart=False
                )
            except self._client.exceptions.AlreadyExistsError:
                return

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `ArchiveStore`."""
        with self._convert("read", name):
            try:
                found = self._client.get(self._bucket, self._key(name))
            except FileNotFoundError as error:
                # Raises if the bucket itself is missing, of which a server reports the same status.
                self._client.list_with_delimiter(self._bucket, self._prefix or None)
                message = f"missing file {self.location}/{name} of the archive"
                raise MissingFileError(message) from error
            _check_size(f"{self.location}/{name}", found.meta["size"], max_bytes)
            return bytes(found.bytes())

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
            # Errors of obstore are long, and have several lines.
            reason = " ".join(str(error).split())[:300]
            message = f"cannot {action} {self.location}/{name} of the archive: {reason}"
            raise ArchiveError(message) from error


def _check_size(name: object, size: int, max_bytes: int) -> None:
    """Check the size of a file before it is read, as another program may have replaced it."""
    if size > max_bytes:
        message = f"file {name} of the archive has {size} bytes: expected at most {max_bytes}"
        raise ArchiveError(message)


def open_archive_store(archive: config.ArchiveSettings) -> ArchiveStore | None:
    """Return the store of an archive; None if the settings name none. Raises SettingsError."""
    if not archive.url:
        return None
    parts = urlsplit(archive.url)
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        return BucketStore(archive)
    if parts.scheme or not archive.url.startswith("/"):
        message = f"invalid archive.url {archive.url!r}: expected /DIRECTORY or s3://BUCKET/PREFIX"
        raise settings.SettingsError(message)
    return DirectoryStore(Path(archive.url))
