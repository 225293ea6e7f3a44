"""Tiles of the log: its hashes and records as static files of 256 entries each.

    tile/<level>/<index>      256 hashes; those of level 1 are roots of complete tiles of level 0
    tile/entries/<index>      256 records, each preceded by its length, two bytes, big-endian

An index is written in groups of three digits, all but the last prefixed with `x`; a tile that is
not full is `<index>.p/<width>`. Source: C2SP tlog-tiles.

Full tiles of entries may be in an archive instead (`entry_retention`). Their names there contain the hash of the
log's first record, which identifies the log, and the root of the tile. Records are compared with the hashes of
level 0 wherever they were read, so neither a directory nor an archive can replace one.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railscope import convert_errors
from railscope.audit import merkle
from railscope.durable_files import PARTIAL, delete_partial_files, make_directory, write_durably
from railscope_collector import archive_stores
from railscope_collector.audit import AuditLogError

WIDTH = 256
"""Entries of a full tile, by C2SP tlog-tiles."""
LEVELS = 8
"""Levels of the tree within one tile."""
MAX_BUNDLE_BYTES = WIDTH * (0xFFFF + 2)
"""Maximum size of a tile of entries: each record is preceded by two bytes."""
_LENGTH = struct.Struct(">H")
_KEPT_TILES = 64


class TileError(AuditLogError, ValueError):
    """A tile that is missing or invalid; the message names the file."""


class TruncatedTileError(TileError):
    """A tile of entries that is truncated within a record."""


class MissingEntriesError(TileError):
    """A full tile of entries that the directory does not have; it may be in the archive."""


class AlteredEntriesError(TileError):
    """Records in the directory that do not match their hashes; the message names the tile."""


class ArchivedEntriesError(TileError):
    """Archived records that cannot be read, or were altered in the archive; the message names the file."""


def tile_name(level: int | str, index: int, width: int = WIDTH) -> str:
    """Path of a tile below the log's directory; `level` is a number or `entries`."""
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.insert(0, f"x{index % 1000:03d}")
    partial = "" if width == WIDTH else f".p/{width}"
    return f"tile/{level}/{'/'.join(groups)}{partial}"


def depth_of(level: int | str) -> int:
    """Return the level of the hashes that a tile corresponds to: 0 for `entries`."""
    return 0 if isinstance(level, str) else level


def widths(size: int, level: int | str) -> tuple[int, int]:
    """Return the number of full tiles at a level of a log of this size, and the partial one's width."""
    return divmod(size >> (LEVELS * depth_of(level)), WIDTH)


def encode_bundle(records: Sequence[bytes]) -> bytes:
    """Encode records as the content of a tile of entries."""
    return b"".join(_LENGTH.pack(len(record)) + record for record in records)


def decode_bundle(content: bytes) -> list[bytes]:
    """Decode the records of a tile of entries. Raises TruncatedTileError."""
    records = []
    position, end = 0, len(content)
    while position + _LENGTH.size <= end:
        start = position + _LENGTH.size
        position = start + (content[position] << 8 | content[position + 1])
        records.append(content[start:position])
    if position != end:
        message = "truncated: expected complete records"
        raise TruncatedTileError(message)
    return records


@dataclass(slots=True)
class Tiles:
    """The tiles of a log of a given size."""

    directory: Path
    size: int = 0
    archive: archive_stores.ArchiveReader | None = None
    """Archive of full tiles of entries that the directory no longer has."""
    _cached: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)
    _last_read: tuple[int, list[bytes]] = (-1, [])
    """The tile of entries that was read last: index and records."""

    def node(self, level: int, index: int) -> merkle.Hash:
        """Return the hash of a complete subtree of the signed part. Raises TileError."""
        tile_level, height = divmod(level, LEVELS)
        first = index << height
        offset = first % WIDTH
        selection = slice(offset * merkle.HASH_BYTES, (offset + (1 << height)) * merkle.HASH_BYTES)
        row = self._tile(tile_level, first // WIDTH)[selection]
        if len(row) != merkle.HASH_BYTES << height:
            message = (
                f"missing hash {index} of level {level} in {tile_name(tile_level, first // WIDTH)}"
            )
            raise TileError(message)
        return complete_root(_hashes(row))

    def records(self, index: int) -> list[bytes]:
        """Return the records of one tile from the directory or the archive, compared with their hashes.

        Raises TileError.
        """
        if self._last_read[0] != index:
            try:
                records = self.local_records(index)
            except MissingEntriesError as error:
                if self.archive is None:
                    begin = index * WIDTH
                    message = (
                        f"records {begin} to {begin + WIDTH - 1} are not in {self.directory}; fix: name their archive"
                        " (archive.url, or --archive), if they were archived, else run `railscope audit verify`"
                    )
                    raise MissingEntriesError(message) from error
                records = self.archived_records(index, self.archive)
            # Compared with the hashes, which the signature covers: records alone prove nothing.
            if b"".join(map(merkle.leaf_hash, records)) != self.row(0, index):
                message = f"altered tile {self._path('entries', index)}: its records do not match the signed ones"
                raise AlteredEntriesError(message)
            self._last_read = index, records
        return self._last_read[1]

    def local_records(self, index: int) -> list[bytes]:
        """Return the records of a tile in the directory, unchecked. Raises MissingEntriesError, TileError."""
        try:
            content, outgrown = self._read("entries", index)
        except TileError as error:
            is_missing = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            # The hashes of a tile stay when its records are archived: without them, it never existed or is lost.
            if is_missing and (self.directory / tile_name(0, index)).exists():
                raise MissingEntriesError(str(error)) from error.__cause__
            raise
        with convert_errors(TileError, TileError, f"damaged tile {self._path('entries', index)}: "):
            records = decode_bundle(content)
            return records[: self.width(0, index)] if outgrown else records

    def archived_records(self, index: int, archive: archive_stores.ArchiveReader) -> list[bytes]:
        """Return the records of a full tile from an archive, compared with its root. Raises TileError."""
        name, root = self.archive_name(index)
        try:
            records = decode_bundle(archive.read(name, MAX_BUNDLE_BYTES))
        except archive_stores.ArchiveError as error:
            begin = index * WIDTH
            message = (
                f"cannot read records {begin} to {begin + WIDTH - 1}, which are archived: {error}"
            )
            raise ArchivedEntriesError(message) from error
        except TruncatedTileError:
            records = []
        if len(records) != WIDTH or complete_root([*map(merkle.leaf_hash, records)]) != root:
            message = (
                f"altered file {archive.location}/{name} of the archive: its records do not match the signed"
                " ones; fix: restore the file from a copy"
            )
            raise ArchivedEntriesError(message)
        return records[: self.width(0, index)]

    def archive_name(self, index: int) -> tuple[str, merkle.Hash]:
        """Return the name of a full tile of entries in an archive, and its root. Raises TileError."""
        full = Tiles(self.directory, (index + 1) * WIDTH)
        root = complete_root(full.hashes(index))
        return f"audit/{full.node(0, 0).hex()}/entries-{index * WIDTH:015d}-{root.hex()}", root

    def row(self, level: int, index: int) -> bytes:
        """Return the hashes of one tile, as stored on disk. Raises TileError."""
        content, outgrown = self._read(level, index)
        return content[: self.width(level, index) * merkle.HASH_BYTES] if outgrown else content

    def hashes(self, index: int) -> list[merkle.Hash]:
        """Return the hashes of one tile of level 0, as stored on disk. Raises TileError."""
        return _hashes(self.row(0, index))

    def width(self, level: int | str, index: int) -> int:
        """Return the number of entries of a tile that belong to a log of this size."""
        full, partial = widths(self.size, level)
        return partial if index == full else WIDTH

    def record(self, sequence: int) -> bytes:
        """Return one record. Raises TileError."""
        records = self.records(sequence // WIDTH)
        if sequence % WIDTH >= len(records):
            message = f"missing record {sequence} in {self._path('entries', sequence // WIDTH)}"
            raise TileError(message)
        return records[sequence % WIDTH]

    def records_from(self, first: int) -> Iterator[bytes]:
        """Iterate over all records from a sequence number on. Raises TileError."""
        for index in range(first // WIDTH, -(-self.size // WIDTH)):
            yield from self.records(index)[max(0, first - index * WIDTH) :]

    def _tile(self, level: int, index: int) -> bytes:
        cached = self._cached.get((level, index))
        if cached is None:
            cached = self.row(level, index)
            # The oldest goes first: proofs and verification read the tiles in order.
            if len(self._cached) >= _KEPT_TILES:
                del self._cached[next(iter(self._cached))]
            self._cached[level, index] = cached
        return cached

    def _read(self, level: int | str, index: int) -> tuple[bytes, bool]:
        """Return the content of a tile, and True if it is that of the full tile that superseded it."""
        path = self._path(level, index)
        full_path = self.directory / tile_name(level, index)
        try:
            try:
                return path.read_bytes(), False
            except FileNotFoundError:
                # The tile may have been filled, and then deleted, since the checkpoint was read: the full
                # tile has it as a prefix.
                if full_path == path or not full_path.exists():
                    raise
                return full_path.read_bytes(), True
        except OSError as error:
            message = f"cannot read tile {path}: {error.strerror}"
            raise TileError(message) from error

    def _path(self, level: int | str, index: int) -> Path:
        return self.directory / tile_name(level, index, self.width(level, index))

    def check_outgrown(self) -> None:
        """Check that tiles superseded by longer ones are prefixes of those.

        They are not needed any more, but altered ones show that the directory was tampered with. Raises
        TileError.
        """
        for level in ("entries", *range(LEVELS)):
            full, partial = widths(self.size, level)
            directory = self.directory / f"{tile_name(level, full)}.p"
            if not partial:
                continue
            try:
                paths = sorted(directory.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                continue  # deleted meanwhile, because its tile is full now
            current, _ = self._read(level, full)
            for path in paths:
                if path.suffix == PARTIAL:
                    continue  # being written, or left behind by a writer that was killed
                width = int(path.name) if path.name.isdecimal() else 0
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue  # deleted meanwhile, because its tile is full now
                if width < partial and content != _beginning(current, level, width):
                    message = f"altered tile {path}: does not match the beginning of the tile that followed it"
                    raise TileError(message)

    def grow(self, records: Sequence[bytes]) -> None:
        """Write the tiles of the log extended by these records, durable on return.

        Nothing is read as part of the log before a checkpoint covers it. Raises OSError, TileError.
        """
        old, new = self.size, self.size + len(records)
        # The last tile is written again: its records are checked, because they are signed again.
        last_records = self.records(old // WIDTH) if old % WIDTH else []
        for index, bundle in _entries_of([*last_records, *records], old // WIDTH):
            self._write("entries", index, len(bundle), encode_bundle(bundle))
        added = [merkle.leaf_hash(record) for record in records]
        level = 0
        while added:
            begins = old >> (LEVELS * level)
            full, partial = divmod(begins, WIDTH)
            row = _hashes(self._tile(level, full)[: partial * merkle.HASH_BYTES]) if partial else []
            above = []
            for index, tile in _entries_of([*row, *added], full):
                self._write(level, index, len(tile), b"".join(tile))
                if len(tile) == WIDTH:
                    above.append(complete_root(tile))
            added, level = above, level + 1
        self.size, self._last_read = new, (-1, [])
        self._cached.clear()

    def delete_outgrown(self, old: int) -> None:
        """Delete the tiles that were partial in a log of `old` records and are full now."""
        for level in ("entries", *range(LEVELS)):
            full, partial = widths(old, level)
            if partial and widths(self.size, level)[0] > full:
                shutil.rmtree(self.directory / f"{tile_name(level, full)}.p")

    def delete_unfinished(self) -> None:
        """Delete files that a writer that was killed has left beside the next tiles. Raises OSError."""
        for level in ("entries", *range(LEVELS)):
            parent = (self.directory / tile_name(level, widths(self.size, level)[0])).parent
            # Also of tiles behind the next one: a writer begins them before a checkpoint covers the tile.
            for directory in (parent, *parent.glob("*.p")):
                delete_partial_files(directory)

    def _write(self, level: int | str, index: int, width: int, content: bytes) -> None:
        path = self.directory / tile_name(level, index, width)
        make_directory(path.parent)
        write_durably(path, content)


def complete_root(hashes: Sequence[merkle.Hash]) -> merkle.Hash:
    """Return the root of a complete subtree; its number of leaves is a power of two."""
    row = list(hashes)
    while len(row) > 1:
        row = [merkle.node_hash(row[index], row[index + 1]) for index in range(0, len(row), 2)]
    return row[0]


def _beginning(content: bytes, level: int | str, width: int) -> bytes:
    """Return the first entries of a tile."""
    if isinstance(level, int):
        return content[: width * merkle.HASH_BYTES]
    return encode_bundle(decode_bundle(content)[:width])


def _entries_of(entries: Sequence[bytes], first: int) -> Iterator[tuple[int, Sequence[bytes]]]:
    for at in range(0, len(entries), WIDTH):
        yield first + at // WIDTH, entries[at : at + WIDTH]


def _hashes(row: bytes) -> list[merkle.Hash]:
    return [
        row[offset : offset + merkle.HASH_BYTES] for offset in range(0, len(row), merkle.HASH_BYTES)
    ]
