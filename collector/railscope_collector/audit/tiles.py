"""Tiles of C2SP tlog-tiles: the hashes and records of a log as static files of 256 entries each.

    checkpoint                signed size and root
    tile/<level>/<index>      256 hashes; those of level 1 are roots of complete tiles of level 0
    tile/entries/<index>      256 records, each preceded by its length, two bytes, big-endian

An index is written in groups of three digits, all but the last prefixed with `x`; a tile that is not full is
`<index>.p/<width>`. `railscope audit export` writes them for other tools; the log of release 0.3.0 and earlier had this form.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from railscope.audit import merkle
from railscope_collector.audit import AuditLogError

WIDTH = 256
"""Entries of a full tile, by C2SP tlog-tiles."""
LEVELS = 8
"""Levels of the tree within one tile."""
MAX_BUNDLE_BYTES = WIDTH * (0xFFFF + 2)
"""Maximum size of a tile of entries: each record is preceded by two bytes."""
_LENGTH = struct.Struct(">H")


class TileError(AuditLogError, ValueError):
    """A tile that is missing or invalid; the message names the file."""


def tile_name(level: int | str, index: int, width: int = WIDTH) -> str:
    """Path of a tile below the directory of a log; `level` is a number or `entries`."""
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.insert(0, f"x{index % 1000:03d}")
    partial = "" if width == WIDTH else f".p/{width}"
    return f"tile/{level}/{'/'.join(groups)}{partial}"


def encode_bundle(records: Sequence[bytes]) -> bytes:
    """Encode records as the content of a tile of entries."""
    return b"".join(_LENGTH.pack(len(record)) + record for record in records)


def decode_bundle(content: bytes) -> list[bytes]:
    """Decode the records of a tile of entries. Raises TileError."""
    records = []
    position, end = 0, len(content)
    while position + _LENGTH.size <= end:
        start = position + _LENGTH.size
        position = start + (content[position] << 8 | content[position + 1])
        records.append(content[start:position])
    if position != end:
        message = "truncated: expected complete records"
        raise TileError(message)
    return records


def split_hashes(row: bytes) -> list[merkle.Hash]:
    """Return the hashes in the content of a tile of hashes."""
    size = merkle.HASH_BYTES
    return [row[offset : offset + size] for offset in range(0, len(row), size)]


def complete_root(hashes: Sequence[merkle.Hash]) -> merkle.Hash:
    """Return the root of a complete subtree; its number of leaves is a power of two."""
    row = list(hashes)
    while len(row) > 1:
        row = [merkle.node_hash(row[index], row[index + 1]) for index in range(0, len(row), 2)]
    return row[0]
