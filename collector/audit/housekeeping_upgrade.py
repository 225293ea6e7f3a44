"""One-way upgrade of an audit log with unsigned housekeeping files.

Earlier versions stored a bare number in `epoch`, a bare count in `acknowledged` and bare JSON in
`witnesses`. Nothing authenticates those, so a person confirms once that they are right: no collector
accepts them on its own, or any process that can write the directory could restore such files.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from collector.audit.housekeeping_files import (
    ACKNOWLEDGED_FILE,
    EPOCH_FILE,
    KEY_FILE,
    WITNESSES_FILE,
    Acknowledgement,
    CosignatureStore,
    CosignedCheckpoint,
    HousekeepingError,
    LogOwnership,
    SignedStatement,
    read_bytes,
)
from collector.audit.journal import read_journal
from collector.audit.log_writer import CheckpointPublisher
from collector.audit.tiles import Tiles
from railscope.audit.merkle import CompactRange, leaf_hash, subtrees
from railscope.audit.signed_note import SecretKey
from railscope.durable_files import write_durably

_NUMBER = re.compile(rb"[0-9]{1,20}\n?")


def upgrade_housekeeping(directory: Path, signer: SecretKey) -> int:
    """Sign the housekeeping files of a log; return the number of its durable records.

    Raises HousekeepingError, TakenError, JournalError, NoteError, TileError, OSError.
    """
    ownership = LogOwnership(directory, signer)
    ownership.lock()
    try:
        return _upgraded(directory, signer, ownership)
    finally:
        ownership.release()


def _upgraded(directory: Path, signer: SecretKey, ownership: LogOwnership) -> int:
    epoch = _number(directory / EPOCH_FILE)
    count = _number(directory / ACKNOWLEDGED_FILE)
    publisher = CheckpointPublisher(directory, signer, ownership)
    publisher.open()
    size = publisher.signed.size
    node = Tiles(directory, size).node
    tree = CompactRange(size, [node(level, index) for level, index in subtrees(size)])
    files = read_journal(directory / "journal")
    first = files[0].first if files else size
    for raw in [raw for file in files for raw in file.records][max(0, size - first) :]:
        tree.append(leaf_hash(raw))
    if count > tree.size or first > size:
        message = (
            f"{directory / ACKNOWLEDGED_FILE}: states {count} records: expected {tree.size};"
            " fix: find the cause of the loss before signing"
        )
        raise HousekeepingError(message)
    witnesses = CosignatureStore(directory, signer, _legacy_witnesses(directory / WITNESSES_FILE))
    names = tuple(file.path.name for file in files)
    stated = Acknowledgement(epoch, tree.size, tree.root, names)
    write_durably(directory / ACKNOWLEDGED_FILE, stated.signed(signer))
    witnesses.keep(epoch)
    write_durably(directory / KEY_FILE, f"{signer.public}\n".encode())
    write_durably(
        directory / EPOCH_FILE, SignedStatement(EPOCH_FILE, epoch, ("upgraded",)).signed(signer)
    )
    return tree.size


def _number(path: Path) -> int:
    content = read_bytes(path)
    if not _NUMBER.fullmatch(content):
        message = (
            f"{path}: invalid content {content[:40]!r}: expected the number that earlier"
            " versions wrote"
        )
        raise HousekeepingError(message)
    return int(content)


def _legacy_witnesses(path: Path) -> dict[str, CosignedCheckpoint]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, CosignedCheckpoint])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{path}: {error}; fix: move it away: agents send their cosignatures again"
        raise HousekeepingError(message) from error
