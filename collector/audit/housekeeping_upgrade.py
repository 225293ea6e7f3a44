"""One-way upgrade of an audit log with unsigned housekeeping files.

Earlier versions stored a bare number in `epoch`, a bare count in `acknowledged` and bare JSON in
`witnesses`. Nothing authenticates those, so a person confirms once that they are right: no collector
accepts them on its own, or any process that can write the directory could restore such files.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from collector.audit import housekeeping_files, journal, log_writer, tiles
from railscope.audit import merkle, signed_note
from railscope.durable_files import write_durably

_NUMBER = re.compile(rb"[0-9]{1,20}\n?")


def upgrade_housekeeping(directory: Path, signer: signed_note.SecretKey) -> int:
    """Sign the housekeeping files of a log; return the number of its durable records.

    Raises HousekeepingError, LogLockedError, JournalError, NoteError, TileError, OSError.
    """
    ownership = housekeeping_files.LogOwnership(directory, signer)
    ownership.lock()
    try:
        return _upgrade(directory, signer, ownership)
    finally:
        ownership.release()


def _upgrade(
    directory: Path, signer: signed_note.SecretKey, ownership: housekeeping_files.LogOwnership
) -> int:
    epoch = _read_number(directory / housekeeping_files.EPOCH_FILE)
    count = _read_number(directory / housekeeping_files.ACKNOWLEDGED_FILE)
    publisher = log_writer.CheckpointPublisher(directory, signer, ownership)
    publisher.open()
    size = publisher.signed.size
    node = tiles.Tiles(directory, size).node
    tree = merkle.CompactRange(size, [node(level, index) for level, index in merkle.subtrees(size)])
    files = journal.read_journal(directory / "journal")
    first = files[0].first if files else size
    for raw in [raw for file in files for raw in file.records][max(0, size - first) :]:
        tree.append(merkle.leaf_hash(raw))
    if count > tree.size or first > size:
        message = (
            f"cannot sign {directory / housekeeping_files.ACKNOWLEDGED_FILE}: states {count} records: expected {tree.size};"
            " fix: find the cause of the loss before signing"
        )
        raise housekeeping_files.HousekeepingError(message)
    cosigned = _read_legacy_witnesses(directory / housekeeping_files.WITNESSES_FILE)
    witnesses = housekeeping_files.CosignatureStore(directory, signer, cosigned)
    names = tuple(file.path.name for file in files)
    acknowledgement = housekeeping_files.Acknowledgement(epoch, tree.size, tree.root, names)
    write_durably(directory / housekeeping_files.ACKNOWLEDGED_FILE, acknowledgement.signed(signer))
    witnesses.keep(epoch)
    write_durably(directory / housekeeping_files.KEY_FILE, f"{signer.public}\n".encode())
    kind = housekeeping_files.EPOCH_FILE
    statement = housekeeping_files.SignedStatement(kind, epoch, ("upgraded",))
    write_durably(directory / kind, statement.signed(signer))
    return tree.size


def _read_number(path: Path) -> int:
    content = housekeeping_files.read_bytes(path)
    if not _NUMBER.fullmatch(content):
        message = (
            f"invalid content of {path}: {content[:40]!r}: expected the number that earlier"
            " versions wrote"
        )
        raise housekeeping_files.HousekeepingError(message)
    return int(content)


def _read_legacy_witnesses(path: Path) -> dict[str, housekeeping_files.CosignedCheckpoint]:
    if not path.exists():
        return {}
    try:
        kind = dict[str, housekeeping_files.CosignedCheckpoint]
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"cannot decode {path}: {error}; fix: move it away: agents send their cosignatures again"
        raise housekeeping_files.HousekeepingError(message) from error
