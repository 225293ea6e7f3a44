"""Logs in directories: import of the log of release 0.3.0 or earlier, and of an export.

    checkpoint, tile/   signed records and hashes (`tiles`)
    journal/            records of release 0.3.0 that were acknowledged and not signed yet

Every record is hashed again, and the root over them must be the signed one. Full tiles of entries that are in an archive are imported
by their hashes, and stay in the archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import sqlalchemy as sa

from railscope import convert_errors
from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.durable_files import sync_directory
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope.untrusted_text import DECODING_ERRORS
from railscope_collector import archive_stores
from railscope_collector.audit import AuditLogError, cosignatures, log_writer, tables, tiles
from railscope_collector.framelog.segment_files import HEAD, read_payload

DIRECTORY = "audit"
"""Directory of the former log in the state directory."""
SUFFIX = ".before"
KEEP_DAYS = 7
_NAME = re.compile("journal-([0-9]{20})-([0-9a-f]{32})[.]wal")


class FormerLogError(AuditLogError, ValueError):
    """A directory that cannot be imported; the message names the file, the value and the remedy."""


def read_note(directory: Path) -> str:
    """Return the newest checkpoint of a directory, unverified; empty if nothing is signed. Raises NoteError, OSError."""
    path = directory / "checkpoint"
    return signed_note.read_note(path) if path.exists() else ""


def read_unsigned(directory: Path, key: signed_note.PublicKey) -> list[bytes]:
    """Return the records of the journal that are not signed yet. Raises FormerLogError, OSError."""
    size = 0
    with convert_errors(
        signed_note.NoteError, FormerLogError, f"invalid checkpoint of {directory}: "
    ):
        if note := read_note(directory):
            size = log_checkpoint.read_own_checkpoint(note, key).tree.size
    journal = directory / "journal"
    following, unsigned = size, list[bytes]()
    for path in sorted(journal.glob("journal-*.wal")) if journal.exists() else ():
        name = _NAME.fullmatch(path.name)
        if name is None or int(name[1]) > following:
            message = (
                f"invalid journal file {path}: expected one that begins at record {following} or before it; fix: restore the"
                " directory from a backup"
            )
            raise FormerLogError(message)
        first = int(name[1])
        raws = _read_journal_file(path, bytes.fromhex(name[2]))
        unsigned += raws[following - first :]
        following = max(following, first + len(raws))
    return unsigned


def _read_journal_file(path: Path, marker: bytes) -> list[bytes]:
    """Return the records of a file of the journal, up to a group that a crash has torn."""
    content, position, raws = path.read_bytes(), 0, list[bytes]()
    while content.startswith(marker, position):
        payload = read_payload(content, position)
        if payload is None:
            break
        raws += tiles.decode_bundle(payload)
        position += HEAD.size + len(payload)
    return raws


def import_directory(directory: Path, audit: log_writer.AuditLog, conflicts: Path) -> None:
    """Import a log with what is not signed yet, once, and set its directory aside. Blocking.

    `conflicts` is the directory of checkpoints of agents that contradict the log. Raises FormerLogError, LogDamagedError,
    NoteError, UnusableLedgerError, OSError.
    """
    if (directory / conflicts.name).exists() and not conflicts.exists():
        (directory / conflicts.name).rename(conflicts)
        sync_directory(conflicts.parent)
    key = audit.signer.public
    unsigned = read_unsigned(directory, key)
    audit.own.open()
    with audit.database().transaction(writes=True) as connection:
        # A start that was interrupted may have imported it already.
        if not audit.own.end and tables.read_note(connection, audit.name) is None:
            import_log(connection, audit.name, key, directory, audit.archive)
    audit.own.import_waiting(unsigned)
    _set_aside(directory, audit.wall_ns())


def import_log(
    connection: sa.Connection,
    log: str,
    key: signed_note.PublicKey | None,
    directory: Path,
    archive: archive_stores.ArchiveReader | None = None,
) -> None:
    """Import the signed records with the same leaves, and the checkpoint; nothing if nothing is signed.

    Without a key, the signature is not verified. Raises FormerLogError, LogDamagedError, NoteError, OSError.
    """
    note = read_note(directory)
    if not note:
        return
    head = log_checkpoint.read_own_checkpoint(note, key).tree if key else claimed_tree(note)
    tree = merkle.CompactRange()
    for index in range(-(-head.size // tiles.WIDTH)):
        width = min(tiles.WIDTH, head.size - index * tiles.WIDTH)
        if (raws := _read_entries(directory, index, width)) is not None:
            tables.insert_records(connection, log, tree, raws)
        else:
            row = (directory / tiles.tile_name(0, index)).read_bytes()
            tables.insert_archived(connection, log, tree, tiles.split_hashes(row))
            if archive is not None:
                stored = tables.StoredTree(connection, log, tree.size, archive)
                first = index * tiles.WIDTH
                tables.insert_tenants(connection, log, first, [*stored.records_from(first)])
    if tree.head != head:
        message = (
            f"cannot import the audit log {directory}: its {tree.size} records have the root"
            f" {tree.root.hex()}: expected {head.size} records with the signed root {head.root.hex()}; fix: restore the"
            " directory from a backup, or run `railscope audit verify` of the version that wrote it"
        )
        raise FormerLogError(message)
    tables.replace_row(connection, tables.heads, {"log": log, "note": note})
    path = directory / "witnesses"
    if path.exists():
        # Its second line is a signature. What is damaged is left out: agents send their cosignatures again.
        line = path.read_bytes().partition(b"\n")[0]
        with contextlib.suppress(*DECODING_ERRORS):
            found = msgspec.json.decode(line, type=dict[str, cosignatures.CosignedCheckpoint])
            cosignatures.store_witnesses(connection, log, found)


def claimed_tree(note: str) -> merkle.TreeHead:
    """Return the size and root that a checkpoint states, unverified. Raises FormerLogError."""
    lines = note.split("\n")
    root = signed_note.decode_base64(lines[2]) if len(lines) > 2 else b""  # noqa: PLR2004 - origin, size, root
    if not root or not log_checkpoint.SIZE.fullmatch(lines[1]):
        message = f"invalid checkpoint {note[:100]!r}: expected origin, size and root"
        raise FormerLogError(message)
    return merkle.TreeHead(int(lines[1]), root)


def _read_entries(directory: Path, index: int, width: int) -> list[bytes] | None:
    """Return the records of a tile; None if only its hashes are in the directory. Raises FormerLogError."""
    full = directory / tiles.tile_name("entries", index)
    partial = directory / tiles.tile_name("entries", index, width)
    # A tile may have been filled by a writer that was killed before it signed: it begins with the partial one.
    path = partial if partial.exists() else full
    if not path.exists():
        if width == tiles.WIDTH and (directory / tiles.tile_name(0, index)).exists():
            return None
        message = f"missing tile {path} of records: expected {width} records; fix: restore the directory from a backup"
        raise FormerLogError(message)
    with convert_errors(tiles.TileError, FormerLogError, f"damaged tile {path}: "):
        return tiles.decode_bundle(path.read_bytes())[:width]


def export_log(tree: tables.StoredTree, note: str, directory: Path) -> None:
    """Write a log as files for other tools. Raises LogDamagedError, OSError."""
    for level, index, width, content in _tiles_of(tree):
        path = directory / tiles.tile_name(level, index, width)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    cosigned = cosignatures.read_witnesses(tree.connection, tree.log)
    (directory / "witnesses").write_bytes(msgspec.json.encode(cosigned, order="sorted") + b"\n")
    # Last: a directory with a checkpoint is complete.
    (directory / "checkpoint").write_text(note)


def _tiles_of(tree: tables.StoredTree) -> Iterator[tuple[int | str, int, int, bytes]]:
    """Yield level, index, width and content of each tile."""
    records = tree.records_from(0)
    level, count = 0, tree.size
    while count:
        for index in range(-(-count // tiles.WIDTH)):
            width = min(tiles.WIDTH, count - index * tiles.WIDTH)
            if not level:
                yield "entries", index, width, tiles.encode_bundle([*islice(records, width)])
            first = index * tiles.WIDTH
            yield level, index, width, b"".join(tree.hashes(level * tiles.LEVELS, first, width))
        level, count = level + 1, count // tiles.WIDTH


def _set_aside(directory: Path, now_ns: int) -> None:
    """Rename the directory of a log that was imported. Raises OSError."""
    aside = directory.with_name(directory.name + SUFFIX)
    if aside.exists():
        shutil.rmtree(aside)
    directory.rename(aside)
    os.utime(aside, ns=(now_ns, now_ns))


def delete_old(directory: Path, now_ns: int) -> None:
    """Delete the directory that was set aside, a week later. Raises OSError."""
    aside = directory.with_name(directory.name + SUFFIX)
    if aside.exists() and aside.stat().st_mtime < (now_ns - KEEP_DAYS * DAY_NS) // SECOND_NS:
        shutil.rmtree(aside)
