"""Unverified reading of an audit log for display, from its files. Raises ClickException throughout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from collector.audit.journal import JournalError, read_journal
from collector.audit.tiles import TileError, Tiles
from railscope.audit.checkpoint import SIZE, Checkpoint, read_checkpoint
from railscope.audit.note import NoteError, PublicKey, read_note
from railscope.audit.record import Record, RecordError, decode


def note_of(directory: Path) -> str:
    """The checkpoint file of a log, unverified."""
    path = directory / "checkpoint"
    try:
        return read_note(path)
    except NoteError as error:
        message = f"{path}: {error}"
        raise click.ClickException(message) from error
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise click.ClickException(message) from error


def checkpoint_of(note: str, key: PublicKey, directory: Path) -> Checkpoint:
    """The checkpoint in a note, after verification of its signature."""
    try:
        return read_checkpoint(note, key)
    except NoteError as error:
        message = f"{directory / 'checkpoint'}: {error}"
        raise click.ClickException(message) from error


def _claimed_size(directory: Path) -> int:
    """Size in the checkpoint, unverified; 0 without a checkpoint."""
    path = directory / "checkpoint"
    if not path.exists():
        return 0
    lines = note_of(directory).split("\n")
    if len(lines) < len(("origin", "size")) or not SIZE.fullmatch(lines[1]):
        message = f"{path}: no checkpoint; run `railscope audit verify`"
        raise click.ClickException(message)
    return int(lines[1])


def extent(directory: Path) -> tuple[int, list[bytes]]:
    """The number of signed records, and the unsigned records."""
    try:
        # Before the checkpoint: records in the journal now can only be signed later.
        files = read_journal(directory / "journal")
    except (JournalError, OSError) as error:
        raise click.ClickException(str(error)) from error
    size = _claimed_size(directory)
    behind = max(0, size - files[0].first) if files else 0
    return size, [raw for file in files for raw in file.records][behind:]


def records(directory: Path, size: int, unsigned: list[bytes], first: int) -> Iterator[bytes]:
    """Records from a sequence number on: the signed ones, then the unsigned ones."""
    tiles = Tiles(directory, size)
    try:
        yield from tiles.records_from(first)
    except TileError as error:
        raise click.ClickException(str(error)) from error
    yield from unsigned[max(0, first - size) :]


def decoded(raw: bytes) -> Record:
    """Decode a record."""
    try:
        return decode(raw)
    except RecordError as error:
        message = f"{error}; run `railscope audit verify`"
        raise click.ClickException(message) from error


def wanted(raw: bytes, kind: str | None, node: str | None) -> bool:
    """True if a record is of a type or family, and about a node."""
    record = decoded(raw)
    of_kind = kind is None or record.type == kind or record.type.startswith(f"{kind}.")
    return of_kind and (node is None or record.obj.node == node)


def shown(raw: bytes, *, as_json: bool) -> str:
    """A record for display: number, time, type, outcome, actor, object, data."""
    if as_json:
        return raw.decode()
    record = decoded(raw)
    who = " ".join(part for part in (record.actor.kind, record.actor.id, record.actor.ip) if part)
    what = " ".join(part for part in (record.obj.node, record.obj.gpu, record.obj.slot) if part)
    data = " ".join(f"{key}={json.dumps(value)}" for key, value in record.data.items())
    parts = (f"{record.seq:>8}", instant(int(record.t)), record.type, record.out, who)
    return plain("  ".join(part for part in (*parts, what, data) if part))


def plain(line: str) -> str:
    """A line with unprintable characters escaped: no line breaks or terminal control sequences."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def instant(time_ns: int) -> str:
    """A time for display."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    try:
        instant = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{instant}.{rest_ns // 10**6:03}Z"
