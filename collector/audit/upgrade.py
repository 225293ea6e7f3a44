"""One-way upgrade of an audit log with unsigned housekeeping files.

Earlier versions stored a bare number in `epoch`, a bare count in `acknowledged` and bare JSON in
`witnesses`. Nothing authenticates those, so a person confirms once that they are right: no collector
accepts them on its own, or any process that can write the directory could restore such files.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from collector.audit.acknowledgement import ACKNOWLEDGED, Acknowledgement
from collector.audit.housekeeping import KEY_FILE, HousekeepingError, Statement, read_bytes
from collector.audit.journal import read_journal
from collector.audit.ownership import EPOCH, Ownership
from collector.audit.publisher import Publisher
from collector.audit.tiles import Tiles
from collector.audit.witnesses import FILE, Vouched, Witnesses
from railscope.audit.merkle import CompactRange, leaf_hash, subtrees
from railscope.audit.note import SecretKey
from railscope.durable_files import write_durably

_NUMBER = re.compile(rb"[0-9]{1,20}\n?")


def upgrade(directory: Path, signer: SecretKey) -> int:
    """Sign the housekeeping files of a log; return the number of its durable records.

    Raises HousekeepingError, TakenError, JournalError, NoteError, TileError, OSError.
    """
    ownership = Ownership(directory, signer)
    ownership.lock()
    try:
        return _upgraded(directory, signer, ownership)
    finally:
        ownership.release()


def _upgraded(directory: Path, signer: SecretKey, ownership: Ownership) -> int:
    epoch = _number(directory / EPOCH)
    count = _number(directory / ACKNOWLEDGED)
    publisher = Publisher(directory, signer, ownership)
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
            f"{directory / ACKNOWLEDGED}: states {count} records, and {tree.size} are there: "
            "find out what was lost before you sign"
        )
        raise HousekeepingError(message)
    witnesses = Witnesses(directory, signer, _legacy_witnesses(directory / FILE))
    names = tuple(file.path.name for file in files)
    stated = Acknowledgement(epoch, tree.size, tree.root, names)
    write_durably(directory / ACKNOWLEDGED, stated.signed(signer))
    witnesses.keep(epoch)
    write_durably(directory / KEY_FILE, f"{signer.public}\n".encode())
    write_durably(directory / EPOCH, Statement(EPOCH, epoch, ("upgraded",)).signed(signer))
    return tree.size


def _number(path: Path) -> int:
    content = read_bytes(path)
    if not _NUMBER.fullmatch(content):
        message = f"{path}: expected a number as earlier versions wrote it: {content[:40]!r}"
        raise HousekeepingError(message)
    return int(content)


def _legacy_witnesses(path: Path) -> dict[str, Vouched]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Vouched])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{path}: {error}; move it away: agents send their cosignatures again"
        raise HousekeepingError(message) from error
