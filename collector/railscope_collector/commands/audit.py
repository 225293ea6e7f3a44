"""`railscope audit`: check and read an audit log, offline, from its database and a public key.

Records are displayed without verification. Functions raise ClickException throughout.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO
from unicodedata import normalize

import click
import sqlalchemy as sa

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
    former_log,
    log_secrets,
    record_words,
    tables,
    verification,
    verify_outcome,
)
from railscope_collector.audit.entry_proof import ProofError, check_proof, make_proof
from railscope_collector.config import ArchiveSettings, CollectorSettings
from railscope_collector.ledger.database import UnusableLedgerError, open_read_only


@contextmanager
def open_log(
    place: str, key: signed_note.PublicKey | None, archive: archive_stores.ArchiveReader | None
) -> Iterator[tables.Transaction]:
    """The tables of a log: of a database, by URL or file, or of the files in a directory. Raises UnusableLedgerError.

    Files are imported into a database in memory, as the log of the key.
    """
    if not Path(place).is_dir():
        with open_read_only(place if "://" in place else f"sqlite:///{place}") as transaction:
            yield transaction
        return
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    with engine.begin() as connection:
        for table in tables.TABLES:
            table.create(connection)
        name = tables.log_name(key) if key else ""
        former_log.import_log(connection, name, None, Path(place), archive)
    yield engine.connect
    engine.dispose()


@contextmanager
def open_tree(
    place: str, key: str | None, archive: archive_stores.ArchiveReader | None = None
) -> Iterator[tuple[str, tables.StoredTree]]:
    """The newest checkpoint of a log, verified if a key is given, and its tree, without verification."""
    try:
        public = _parse_public_key(key) if key else None
        with open_log(place, public, archive) as begin, begin() as connection:
            log = _find_log(connection, public)
            note = tables.read_note(connection, log) or ""
            with convert_errors(
                signed_note.NoteError, click.ClickException, "invalid checkpoint: "
            ):
                head = (
                    log_checkpoint.read_checkpoint(note, public).tree
                    if public
                    else former_log.claimed_tree(note)
                )
            yield note, tables.StoredTree(connection, log, head.size, archive)
    except tables.LogDamagedError as error:
        message = (
            str(error) if "fix:" in str(error) else f"{error}; fix: run `railscope audit verify`"
        )
        raise click.ClickException(message) from error
    except (*_READ_ERRORS, sa.exc.SQLAlchemyError) as error:
        message = f"cannot read {place}: {error}"
        raise click.ClickException(message) from error


def _find_log(connection: sa.Connection, key: signed_note.PublicKey | None) -> str:
    """The name of the log of a key, or of the only one."""
    names = sorted(connection.execute(sa.select(tables.heads.c.log)).scalars())
    wanted = tables.log_name(key) if key else ""
    if not names:
        message = "no audit log: nothing has been signed"
    elif wanted and wanted not in names:
        message = f"no log of this key: expected one of {', '.join(names)}"
    elif not wanted and len(names) > 1:
        message = f"several logs: {', '.join(names)}; fix: name one by --key"
    else:
        return wanted or str(names[0])
    raise click.ClickException(message)


def read_records(place: str, first: int = 0) -> Iterator[bytes]:
    """The records of a log from a number on."""
    with open_tree(place, None) as (_, tree):
        yield from tree.records_from(first)


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


_LOG = click.argument("log")
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
_READ_ERRORS = (UnusableLedgerError, former_log.FormerLogError, signed_note.NoteError, OSError)
_ONE_KEY = click.option(
    "--key",
    "key",
    help="Public key of the log, or the file that contains it; only needed if there are several.",
)


@click.group()
def audit() -> None:
    """Check and read an audit log from its database and a public key.

    LOG is the URL of the ledger's database, the file of one of SQLite, or a directory: an export, or the log of
    release 0.3.0 or earlier.
    """


@audit.command("verify")
@_LOG
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
    log: str,
    key: str,
    anchors: tuple[Path, ...],
    ledger: str | None,
    archive: archive_stores.ArchiveReader | None,
) -> None:
    """Hash every record again, and compare with the signed checkpoint.

    Exit status: 0 consistent; 1 a record, hash, table or checkpoint was altered; 2 signed records are
    missing; 3 the key is not that of this log; 4 the log was rolled back or forked; 5 the database or a
    file cannot be read, so nothing was verified; 6 consistent, but archived records were not checked: use
    --archive.
    """
    public = _parse_public_key(key)
    try:
        notes = [_read_anchor(anchor) for anchor in anchors]
        verified = _verify(log, public, notes, archive, ledger)
    except verify_outcome.LogVerificationError as error:
        for line in f"{error.outcome.name.lower().replace('_', ' ')}: {error}".split("\n"):
            click.echo(escape_line(line), err=True)
        sys.exit(error.outcome)
    tree = verified.checkpoint.tree
    click.echo(f"consistent: {tree.size} records of {public.name}, root {tree.root.hex()}")
    click.echo(f"checkpoints kept elsewhere: {verified.anchors} consistent")
    for line in _format_cosigners(verified.witnesses):
        click.echo(line)
    if ledger:
        heads = verified.rows["head"]
        click.echo(f"database: {verified.rows.total() - heads} rows, {heads} heads, equal")
    for finding in verified.findings:
        click.echo(escape_line(f"to explain: {finding}"))
    if verified.unchecked:
        click.echo(f"{verified.unchecked} records archived, not checked; fix: use --archive")
        sys.exit(verify_outcome.VerifyOutcome.UNCHECKED)


def _verify(
    place: str,
    key: signed_note.PublicKey,
    anchors: Sequence[str],
    archive: archive_stores.ArchiveReader | None,
    ledger: str | None,
) -> verification.VerifiedLog:
    """Verify the log of a key, and compare a ledger. Raises LogVerificationError."""
    from railscope_collector.tables import metadata  # noqa: PLC0415 - large, and no other command needs them

    outcomes = verify_outcome.VerifyOutcome
    try:
        with (
            verify_outcome.raise_verify_error(outcomes.UNREADABLE, UnusableLedgerError, OSError),
            verify_outcome.raise_verify_error(
                outcomes.ALTERED, former_log.FormerLogError, signed_note.NoteError
            ),
            open_log(place, key, archive) as transaction,
            open_read_only(ledger) if ledger else nullcontext() as compared,
        ):
            known = None if Path(place).is_dir() else metadata
            return verification.verify_log(
                transaction, key, anchors, archive, known_tables=known, ledger=compared
            )
    except tables.LogDamagedError as error:
        outcome = verification.damage_outcome(error)
        raise verify_outcome.LogVerificationError(outcome, str(error)) from error


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
@_LOG
@_KEY
def checkpoint(log: str, key: str) -> None:
    """Print the signed checkpoint, to be stored elsewhere and used with `verify --anchor`."""
    with open_tree(log, key) as (note, _):
        click.echo(note, nl=False)


@audit.command()
@_LOG
@_KEY
@click.argument("sequence", type=click.IntRange(min=0))
@_ARCHIVE
def prove(log: str, key: str, sequence: int, archive: archive_stores.ArchiveReader | None) -> None:
    """Print record SEQUENCE with the proof that it is in the signed log."""
    with (
        open_tree(log, key, archive) as (note, tree),
        convert_errors(ValueError, click.ClickException),
    ):
        proof = make_proof(tree, sequence, note)
    click.echo(proof, nl=False)


@audit.command()
@_LOG
@_KEY
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@_ARCHIVE
def export(
    log: str, key: str, directory: Path, archive: archive_stores.ArchiveReader | None
) -> None:
    """Write the log into DIRECTORY as C2SP tiles, for other tools and for `verify`.

    DIRECTORY must be empty or missing. Archived records are needed: use --archive.
    """
    if directory.exists() and any(directory.iterdir()):
        message = f"{directory} is not empty; fix: name another directory"
        raise click.ClickException(message)
    with open_tree(log, key, archive) as (note, tree):
        former_log.export_log(tree, note, directory)
    signed = former_log.claimed_tree(note)
    click.echo(f"exported: {signed.size} records, root {signed.root.hex()}")


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
@_LOG
@click.option("--type", "kind", help="Only records of this type or family.")
@click.option("--node", help="Only records about this node.")
@click.option("--from", "first", type=click.IntRange(min=0), help="First sequence number.")
@click.option("--last", type=click.IntRange(min=1), help="Only this number of the newest records.")
@_JSON
@_WIDE
@click.option("--person", help="Only records with a commitment to this name.")
@_SALTS
@_ARCHIVE
@_ONE_KEY
def show(  # noqa: PLR0913, PLR0917 - its options
    log: str,
    key: str | None,
    kind: str | None,
    node: str | None,
    first: int | None,
    last: int | None,
    as_json: bool,  # noqa: FBT001 - a flag
    wide: bool,  # noqa: FBT001 - a flag
    person: str | None,
    salts: Path,
    archive: archive_stores.ArchiveReader | None,
) -> None:
    """Print records, one per line.

    They are printed without verification: use `railscope audit verify` to check them against the
    signatures. The log does not contain names of persons: --person finds the records of a given name.
    """
    commitment = _find_commitment(salts, person) if person else None
    types = set[str]()
    with open_tree(log, key, archive) as (_, tree):
        begin = max(first or 0, tree.size - (last or tree.size))
        for raw in tree.records_from(begin):
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
