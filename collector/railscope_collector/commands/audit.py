"""`railscope audit`: check and read an audit log, offline, from its files and a public key.

Records are displayed without verification. Functions raise ClickException throughout.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from unicodedata import normalize

import click

from railscope import convert_errors
from railscope.audit import log_checkpoint, signed_note
from railscope.audit.record import (
    AuditRecord,
    RecordError,
    decode_audit_record,
    parse_number,
    read_record_head,
)
from railscope.client.text_layout import cut
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS, utc_text
from railscope_collector import archive_stores
from railscope_collector.audit import (
    cosigners,
    directory_check,
    journal,
    log_secrets,
    record_words,
    verification,
    verify_outcome,
)
from railscope_collector.audit.entry_proof import ProofError, check_proof, make_proof
from railscope_collector.audit.tiles import AlteredEntriesError, TileError, Tiles
from railscope_collector.config import ArchiveSettings, CollectorSettings

if TYPE_CHECKING:
    from railscope_collector.audit.ledger_check import LedgerComparison


def read_checkpoint_note(directory: Path) -> str:
    """The checkpoint file of a log, unverified."""
    path = directory / "checkpoint"
    try:
        return signed_note.read_note(path)
    except signed_note.NoteError as error:
        message = f"invalid checkpoint {path}: {error}"
        raise click.ClickException(message) from error
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise click.ClickException(message) from error


def verify_checkpoint(
    note: str, key: signed_note.PublicKey, directory: Path
) -> log_checkpoint.Checkpoint:
    """The checkpoint in a note, after verification of its signature."""
    try:
        return log_checkpoint.read_checkpoint(note, key)
    except signed_note.NoteError as error:
        message = f"invalid checkpoint {directory / 'checkpoint'}: {error}"
        raise click.ClickException(message) from error


def _claimed_size(directory: Path) -> int:
    """Size in the checkpoint, unverified; 0 without a checkpoint."""
    path = directory / "checkpoint"
    if not path.exists():
        return 0
    lines = read_checkpoint_note(directory).split("\n")
    if len(lines) < len(("origin", "size")) or not log_checkpoint.SIZE.fullmatch(lines[1]):
        message = f"invalid checkpoint {path}: expected an origin and a size; fix: run `railscope audit verify`"
        raise click.ClickException(message)
    return int(lines[1])


def read_extent(directory: Path) -> tuple[int, list[bytes]]:
    """The number of signed records, and the unsigned records."""
    if problem := directory_check.absence_of_log(directory):
        raise click.ClickException(problem)
    with convert_errors((journal.JournalError, OSError), click.ClickException):
        # Before the checkpoint: records in the journal now can only be signed later.
        files = journal.read_journal(directory / "journal")
    size = _claimed_size(directory)
    signed_in_journal = max(0, size - files[0].first) if files else 0
    return size, [raw for file in files for raw in file.records][signed_in_journal:]


def read_records(
    directory: Path,
    size: int,
    unsigned: list[bytes],
    first: int,
    archive: archive_stores.ArchiveReader | None = None,
) -> Iterator[bytes]:
    """Records from a sequence number on: the signed ones, then the unsigned ones."""
    tiles = Tiles(directory, size, archive)
    with convert_errors(TileError, click.ClickException):
        try:
            yield from tiles.records_from(first)
        except AlteredEntriesError as error:
            message = f"{error}; fix: run `railscope audit verify`"
            raise click.ClickException(message) from error
    yield from unsigned[max(0, first - size) :]


def decode_shown_record(raw: bytes) -> AuditRecord:
    """Decode a record."""
    try:
        return decode_audit_record(raw)
    except RecordError as error:
        message = f"invalid record: {error}; fix: run `railscope audit verify`"
        raise click.ClickException(message) from error


def is_of_kind(record_type: str, kind: str) -> bool:
    """True if a type is this one, or of this family."""
    return record_type == kind or record_type.startswith(f"{kind}.")


def is_selected(record: AuditRecord, kind: str | None, node: str | None) -> bool:
    """True if a record is of a type or family, and about a node."""
    is_about_node = node is None or record.obj.node == node
    return is_about_node and (kind is None or is_of_kind(record.type, kind))


def format_record(raw: bytes, *, as_json: bool) -> str:
    """A record for display: number, time, what happened, actor, outcome, object, data."""
    if as_json:
        return raw.decode()
    record = decode_shown_record(raw)
    data = " ".join(f"{key}={json.dumps(value)}" for key, value in record.data.items())
    what = f"{record_words.type_text(record.type)}, {record_words.actor_text(record)}"
    subject = record_words.subject_text(record)
    parts = (f"{record.seq:>8}", format_record_time(int(record.t)), what, record.out, subject, data)
    return escape_line("  ".join(filter(None, parts)))


def escape_line(line: str) -> str:
    """A line with unprintable characters escaped: no line breaks or terminal control sequences."""
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in line
    )


def format_record_time(time_ns: int) -> str:
    """A time for display."""
    try:
        return utc_text(time_ns)
    except OverflowError:
        return f"{time_ns} ns"


_DIRECTORY = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_KEY = click.option(
    "--key", "key", required=True, help="Public key of the log, or the file that contains it."
)


def _open_archive(
    _context: click.Context, _option: click.Parameter, url: str
) -> archive_stores.ArchiveReader | None:
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "") if url.startswith("s3:") else ""
    with convert_errors(SettingsError, click.BadParameter):
        return archive_stores.open_archive_store(ArchiveSettings(url=url, endpoint=endpoint))


_ARCHIVE = click.option(
    "--archive",
    default="",
    callback=_open_archive,
    help="Archive of old records: directory, or s3://BUCKET/PREFIX with credentials as AWS tools find them.",
)
_WIDE = click.option("--wide", is_flag=True, help="Whole lines, also in a narrow terminal.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the bytes that were hashed.")


_SALTS = click.option(
    "--salts",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(CollectorSettings().state_directory) / log_secrets.SALTS_DIRECTORY,
    show_default=True,
    help="Directory of the collector's salts of names.",
)
_MAX_NAMED = 20


@click.group()
def audit() -> None:
    """Check and read an audit log from its files and a public key."""


@audit.command("verify")
@_DIRECTORY
@_KEY
@click.option(
    "--anchor",
    "anchors",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Checkpoint stored elsewhere; may be repeated.",
)
@click.option("--ledger", "ledger", help="URL of the ledger, to compare its rows as well.")
@_ARCHIVE
def verify_command(
    directory: Path,
    key: str,
    anchors: tuple[Path, ...],
    ledger: str | None,
    archive: archive_stores.ArchiveReader | None,
) -> None:
    """Hash every record again, and compare with the signed checkpoint.

    Exit status: 0 consistent; 1 a record, tile or checkpoint was altered; 2 signed records are
    missing; 3 the key is not that of this log; 4 the log was rolled back or forked; 5 a file cannot
    be read, so nothing was verified; 6 consistent, but archived records were not checked: use
    --archive.
    """
    public = _parse_public_key(key)
    try:
        verified = verification.verify_log(
            directory, public, [_read_anchor(anchor) for anchor in anchors], archive
        )
        compared = _compare_ledger(ledger, verified) if ledger else None
    except verify_outcome.LogVerificationError as error:
        for line in f"{error.outcome.name.lower().replace('_', ' ')}: {error}".split("\n"):
            click.echo(escape_line(line), err=True)
        sys.exit(error.outcome)
    tree = verified.checkpoint.tree
    click.echo(f"consistent: {tree.size} records of {public.name}, root {tree.root.hex()}")
    click.echo(
        f"not signed yet: {verified.unsigned}; checkpoints kept elsewhere: {verified.anchors} consistent"
    )
    for line in _format_cosigners(verified.witnesses):
        click.echo(line)
    if compared:
        heads = compared.rows["head"]
        click.echo(f"database: {compared.rows.total() - heads} rows, {heads} heads, equal")
    for finding in (*verified.findings, *(compared.unrecorded if compared else ())):
        click.echo(escape_line(f"to explain: {finding}"))
    if verified.unchecked:
        click.echo(f"{verified.unchecked} records archived, not checked; fix: use --archive")
        sys.exit(verify_outcome.VerifyOutcome.UNCHECKED)


def _compare_ledger(url: str, verified: verification.VerifiedLog) -> LedgerComparison:
    """Compare with the ledger. Raises LogVerificationError."""
    if verified.unchecked:
        message = f"cannot compare the ledger: {verified.unchecked} records are archived; fix: use --archive"
        raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.UNREADABLE, message)
    # The ledger's libraries are large, and most checks do not need them.
    from railscope_collector.audit.ledger_check import compare_database_url  # noqa: PLC0415 - as above
    from railscope_collector.tables import metadata  # noqa: PLC0415 - as above

    return compare_database_url(url, metadata, verified.ledger)


def _format_cosigners(witnesses: Sequence[cosigners.Cosigner]) -> Iterator[str]:
    """Witnesses and the sizes that they cosigned: the first ones by name."""
    for cosigner in witnesses[:_MAX_NAMED]:
        text = (
            f"cosigned: {cosigner.size} records, by {cosigner.node}, "
            f"{format_record_time(cosigner.seconds * SECOND_NS)}"
        )
        yield escape_line(text)
    if len(witnesses) > _MAX_NAMED:
        yield f"cosigned: by {len(witnesses) - _MAX_NAMED} more"


@audit.command()
@_DIRECTORY
@_KEY
def checkpoint(directory: Path, key: str) -> None:
    """Print the signed checkpoint, to be stored elsewhere and used with `verify --anchor`."""
    note = read_checkpoint_note(directory)
    verify_checkpoint(note, _parse_public_key(key), directory)
    click.echo(note, nl=False)


@audit.command()
@_DIRECTORY
@_KEY
@click.argument("sequence", type=click.IntRange(min=0))
@_ARCHIVE
def prove(
    directory: Path, key: str, sequence: int, archive: archive_stores.ArchiveReader | None
) -> None:
    """Print record SEQUENCE with the proof that it is in the signed log."""
    note = read_checkpoint_note(directory)
    signed = verify_checkpoint(note, _parse_public_key(key), directory)
    with convert_errors((TileError, ValueError), click.ClickException):
        proof = make_proof(Tiles(directory, signed.tree.size, archive), sequence, note)
    click.echo(proof, nl=False)


@audit.command("check-proof")
@click.argument("file", type=click.File("rb"))
@_KEY
def check_proof_command(file: BinaryIO, key: str) -> None:
    """Check a proof printed by `prove`, and print its record; needs only the public key."""
    public = _parse_public_key(key)
    try:
        proof = file.read().decode()
        raw = check_proof(proof, public)
    except (ProofError, signed_note.NoteError, UnicodeDecodeError) as error:
        click.echo(f"not proven: {error}", err=True)
        sys.exit(verify_outcome.VerifyOutcome.ALTERED)
    head, note = read_record_head(raw), proof.partition("\n\n")[2]
    size, time_ns = log_checkpoint.read_checkpoint(note, public).tree.size, parse_number(head.t)
    time = "of an invalid time" if time_ns is None else format_record_time(time_ns)
    # Standard output is the record alone, for programs.
    click.echo(f"proven: record {head.seq} of {size}, signed by {public.name}, {time}", err=True)
    click.echo(raw.decode())


@audit.command()
@_DIRECTORY
@click.option("--type", "kind", help="Only records of this type or family.")
@click.option("--node", help="Only records about this node.")
@click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, help="First sequence number."
)
@_JSON
@_WIDE
@click.option("--person", help="Only records with a commitment to this name.")
@_SALTS
@_ARCHIVE
def show(  # noqa: PLR0913, PLR0917 - its options
    directory: Path,
    kind: str | None,
    node: str | None,
    first: int,
    as_json: bool,  # noqa: FBT001 - a flag
    wide: bool,  # noqa: FBT001 - a flag
    person: str | None,
    salts: Path,
    archive: archive_stores.ArchiveReader | None,
) -> None:
    """Print records, one per line, both signed records and those that are not signed yet.

    They are printed without verification: use `railscope audit verify` to check them against the
    signatures. The log does not contain names of persons: --person finds the records of a given name.
    """
    commitment = _find_commitment(salts, person) if person else None
    types = set[str]()
    for raw in read_records(directory, *read_extent(directory), first, archive):
        record = decode_shown_record(raw)
        types.add(record.type)
        if commitment and commitment not in record.pii.values():
            continue
        if is_selected(record, kind, node):
            _print_record(raw, as_json=as_json, wide=wide)
    known = types | record_words.TYPES
    if kind and not any(is_of_kind(each, kind) for each in known):
        message = f"unknown type {kind!r}: expected a type or family of: {', '.join(sorted(known))}"
        raise click.ClickException(message)


def _print_record(raw: bytes, *, as_json: bool, wide: bool) -> None:
    """Print a record as a line that fits the terminal, if there is one."""
    line = format_record(raw, as_json=as_json)
    fits = as_json or wide or not sys.stdout.isatty()
    click.echo(line if fits else cut(line, shutil.get_terminal_size().columns))


@audit.command()
@click.argument("person")
@_SALTS
def forget(person: str, salts: Path) -> None:
    """Delete the salt of PERSON, so that records about this name can no longer be identified.

    PERSON is the name as it was reported. The log is unchanged and verifies as before; its
    commitments to the name can never be confirmed again.
    """
    try:
        is_deleted = log_secrets.PersonalSalts(salts).erase(normalize("NFC", person))
    except OSError as error:
        message = f"cannot delete a salt in {salts}: {error.strerror}"
        raise click.ClickException(message) from error
    if not is_deleted:
        expected = "expected a recorded name whose salt was not erased"
        message = f"unknown name: no salt in {salts}: {expected}"
        raise click.ClickException(message)
    click.echo("salt erased: no record can be attributed to that name any more")


def _find_commitment(salts: Path, person: str) -> str:
    with convert_errors((OSError, log_secrets.SaltError), click.ClickException):
        commitment = log_secrets.PersonalSalts(salts).find_commitment(normalize("NFC", person))
    if commitment is None:
        message = f"unknown name: no salt in {salts}: nothing can be confirmed about it"
        raise click.ClickException(message)
    return commitment


@audit.command()
@_DIRECTORY
@click.option("--count", type=click.IntRange(min=1), default=10, show_default=True)
@_JSON
@_WIDE
@_ARCHIVE
def tail(
    directory: Path,
    count: int,
    as_json: bool,  # noqa: FBT001 - a flag
    wide: bool,  # noqa: FBT001 - a flag
    archive: archive_stores.ArchiveReader | None,
) -> None:
    """Print the newest records."""
    size, unsigned = read_extent(directory)
    first = max(0, size + len(unsigned) - count)
    for raw in read_records(directory, size, unsigned, first, archive):
        _print_record(raw, as_json=as_json, wide=wide)


def _read_anchor(path: Path) -> str:
    """Read an anchor checkpoint. Raises LogVerificationError if the file contains none."""
    try:
        return signed_note.read_note(path)
    except signed_note.NoteError as error:
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.KEY_PROBLEM, f"invalid checkpoint {path}: {error}"
        ) from error
    except OSError as error:
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.UNREADABLE, f"cannot read {path}: {error.strerror}"
        ) from error


def _parse_public_key(text: str) -> signed_note.PublicKey:
    """Parse a key, given as text or as the name of a file. Exits with status 3 if it is invalid."""
    try:
        return signed_note.PublicKey.parse(Path(text).read_text() if Path(text).is_file() else text)
    except (signed_note.NoteError, OSError, UnicodeDecodeError) as error:
        click.echo(str(error), err=True)
        sys.exit(verify_outcome.VerifyOutcome.KEY_PROBLEM)
