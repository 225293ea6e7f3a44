"""`railscope audit`: check and read an audit log, offline, from its files and a public key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import click

from collector.audit.journal import JournalError, read_journal
from collector.audit.proof import ProofError, check_proof, make_proof
from collector.audit.tiles import TileError, Tiles
from collector.audit.verify import Outcome, VerifyError, verify
from collector.audit.vouching import Witness
from railscope.audit.checkpoint import SIZE, Checkpoint, read_checkpoint
from railscope.audit.note import NoteError, PublicKey, read_note
from railscope.audit.record import Record, RecordError, decode

_FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
_KEY = click.option(
    "--key", "key", required=True,
    help="The log's public key, or the file that holds it.",
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="The bytes that were hashed.")


_MOST_NAMED = 20


@click.group()
def audit() -> None:
    """Check and read an audit log from its files and a public key."""


@audit.command("verify")
@_FOLDER
@_KEY
@click.option(
    "--anchor", "anchors", multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A checkpoint that someone else kept; may be given several times.",
)  # fmt: skip
@click.option("--ledger", "ledger", help="URL of the ledger, to compare its invoices, too.")
def verify_command(folder: Path, key: str, anchors: tuple[Path, ...], ledger: str | None) -> None:
    """Read and hash every record again, and compare with what was signed.

    Exit status: 0 consistent; 1 a record, tile or checkpoint was altered; 2 records that were
    signed are missing; 3 the key is not that of this log; 4 the log was rolled back or forked;
    5 a file cannot be read, so nothing was found out.
    """
    public = _key(key)
    try:
        found = verify(folder, public, [_kept(anchor) for anchor in anchors])
        waiting = _invoices(ledger, found.issued) if ledger else []
    except VerifyError as error:
        click.echo(f"{error.outcome.name.lower().replace('_', ' ')}: {error}", err=True)
        sys.exit(error.outcome)
    tree = found.checkpoint.tree
    click.echo(f"consistent: {tree.size} records of {public.name}, root {tree.root.hex()}")
    click.echo(
        f"not signed yet: {found.unsigned}; checkpoints kept elsewhere: {found.anchors} agree"
    )
    for line in _vouching(found.witnesses):
        click.echo(line)
    for finding in (*found.findings, *waiting):
        click.echo(f"to explain: {finding}")


def _invoices(url: str, issued: Sequence[Record]) -> list[str]:
    """Compare with the ledger; what is to be recorded still. Raises VerifyError."""
    # The ledger's libraries are large, and most checks do without.
    from collector.audit.invoices import compare_invoices  # noqa: PLC0415
    from collector.billing.store import BillingStore  # noqa: PLC0415
    from collector.ledger.database import Database, LedgerError  # noqa: PLC0415

    try:
        database = Database(url)
        try:
            wrong, waiting = compare_invoices(issued, BillingStore(database))
        finally:
            database.close()
    except LedgerError as error:
        raise VerifyError(Outcome.UNREADABLE, str(error)) from error
    if wrong:
        raise VerifyError(Outcome.ALTERED, "; ".join(wrong))
    return waiting


def _vouching(witnesses: Sequence[Witness]) -> Iterator[str]:
    """Who vouches for how much of the log: the first ones by name."""
    for one in witnesses[:_MOST_NAMED]:
        yield (f"vouched for: {one.size} records, by {one.node}, {_instant(one.seconds * 10**9)}")
    if len(witnesses) > _MOST_NAMED:
        yield f"vouched for: by {len(witnesses) - _MOST_NAMED} more"


@audit.command()
@_FOLDER
@_KEY
def checkpoint(folder: Path, key: str) -> None:
    """Print the signed checkpoint: keep it elsewhere, and give it to `verify --anchor`."""
    note = _note(folder)
    _checkpoint(note, _key(key), folder)
    click.echo(note, nl=False)


@audit.command()
@_FOLDER
@_KEY
@click.argument("sequence", type=click.IntRange(min=0))
def prove(folder: Path, key: str, sequence: int) -> None:
    """Print record SEQUENCE with the proof that the signed log holds it."""
    note = _note(folder)
    signed = _checkpoint(note, _key(key), folder)
    try:
        proof = make_proof(Tiles(folder, signed.tree.size), sequence, note)
    except (TileError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(proof, nl=False)


@audit.command("check-proof")
@click.argument("file", type=click.File("rb"))
@_KEY
def check_proof_command(file: BinaryIO, key: str) -> None:
    """Check what `prove` printed, with nothing but the public key."""
    try:
        record = check_proof(file.read().decode(), _key(key))
    except (ProofError, NoteError, UnicodeDecodeError) as error:
        click.echo(f"not proven: {error}", err=True)
        sys.exit(Outcome.ALTERED)
    click.echo(record.decode())


@audit.command()
@_FOLDER
@click.option("--type", "kind", help="Only records of this type or family.")
@click.option("--node", help="Only records about this node.")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="First sequence.")
@_JSON
def show(folder: Path, kind: str | None, node: str | None, first: int, as_json: bool) -> None:  # noqa: FBT001 - a flag
    """Print records, one a line, the signed ones and those that are not signed yet.

    They are printed as they lie there; `verify` says whether they are what was signed.
    """
    for raw in _records(folder, *_extent(folder), first):
        if _wanted(raw, kind, node):
            click.echo(_shown(raw, as_json=as_json))


@audit.command()
@_FOLDER
@click.option("--count", type=click.IntRange(min=1), default=10, show_default=True)
@_JSON
def tail(folder: Path, count: int, as_json: bool) -> None:  # noqa: FBT001 - a flag
    """Print the newest records."""
    size, unsigned = _extent(folder)
    for raw in _records(folder, size, unsigned, max(0, size + len(unsigned) - count)):
        click.echo(_shown(raw, as_json=as_json))


def _kept(path: Path) -> str:
    """A checkpoint kept elsewhere. Raises VerifyError where the file holds none."""
    try:
        return read_note(path)
    except NoteError as error:
        raise VerifyError(Outcome.KEY_PROBLEM, f"{path}: {error}") from error
    except OSError as error:
        raise VerifyError(Outcome.UNREADABLE, f"{path}: {error.strerror}") from error


def _key(text: str) -> PublicKey:
    """A key as given, or from the file of that name. Exits with 3 where it is none."""
    try:
        return PublicKey.parse(Path(text).read_text() if Path(text).is_file() else text)
    except (NoteError, OSError, UnicodeDecodeError) as error:
        click.echo(f"key problem: {error}", err=True)
        sys.exit(Outcome.KEY_PROBLEM)


def _note(folder: Path) -> str:
    path = folder / "checkpoint"
    try:
        return read_note(path)
    except NoteError as error:
        message = f"{path}: {error}"
        raise click.ClickException(message) from error
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise click.ClickException(message) from error


def _checkpoint(note: str, key: PublicKey, folder: Path) -> Checkpoint:
    try:
        return read_checkpoint(note, key)
    except NoteError as error:
        message = f"{folder / 'checkpoint'}: {error}"
        raise click.ClickException(message) from error


def _claimed_size(folder: Path) -> int:
    """How many records the checkpoint speaks of, unchecked; 0 where there is none yet."""
    path = folder / "checkpoint"
    if not path.exists():
        return 0
    lines = _note(folder).split("\n")
    if len(lines) < len(("origin", "size")) or not SIZE.fullmatch(lines[1]):
        message = f"{path}: no checkpoint; run `railscope audit verify`"
        raise click.ClickException(message)
    return int(lines[1])


def _extent(folder: Path) -> tuple[int, list[bytes]]:
    """How many records are signed, and those that are not."""
    try:
        # First: what is in the journal now is signed at most later.
        files = read_journal(folder / "journal")
    except (JournalError, OSError) as error:
        raise click.ClickException(str(error)) from error
    size = _claimed_size(folder)
    behind = max(0, size - files[0].first) if files else 0
    return size, [raw for file in files for raw in file.records][behind:]


def _records(folder: Path, size: int, unsigned: list[bytes], first: int) -> Iterator[bytes]:
    tiles = Tiles(folder, size)
    try:
        yield from tiles.records_from(first)
    except TileError as error:
        raise click.ClickException(str(error)) from error
    yield from unsigned[max(0, first - size) :]


def _decoded(raw: bytes) -> Record:
    try:
        return decode(raw)
    except RecordError as error:
        message = f"{error}; run `railscope audit verify`"
        raise click.ClickException(message) from error


def _wanted(raw: bytes, kind: str | None, node: str | None) -> bool:
    record = _decoded(raw)
    of_kind = kind is None or record.type == kind or record.type.startswith(f"{kind}.")
    return of_kind and (node is None or record.obj.node == node)


def _shown(raw: bytes, *, as_json: bool) -> str:
    """A record for a person: number, time, what, who, to what, with what."""
    if as_json:
        return raw.decode()
    record = _decoded(raw)
    who = " ".join(part for part in (record.actor.kind, record.actor.id, record.actor.ip) if part)
    what = " ".join(part for part in (record.obj.node, record.obj.gpu, record.obj.slot) if part)
    data = " ".join(f"{key}={json.dumps(value)}" for key, value in record.data.items())
    parts = (f"{record.seq:>8}", _instant(int(record.t)), record.type, record.out, who)
    line = "  ".join(part for part in (*parts, what, data) if part)
    # A name must not pass for another line, nor give orders to a terminal.
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def _instant(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    try:
        instant = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return f"{instant}.{rest_ns // 10**6:03}Z"
