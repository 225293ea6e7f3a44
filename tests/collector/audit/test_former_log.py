"""The log of release 0.3.0: imported once with the same leaves, so that key, root and checkpoints stay valid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.audit import (
    KEY,
    NOON_NS,
    append_drafts,
    audit_log,
    draft,
    running_log,
    verify_directory,
    write_log,
)

from railscope.audit.record import RecordSource, decode_audit_record, encode_audit_record
from railscope.audit.signed_note import SecretKey
from railscope.service import run_in_thread
from railscope.timestamps import DAY_NS
from railscope_collector.audit import former_log
from railscope_collector.audit.log_writer import AuditLog
from railscope_collector.audit.tiles import encode_bundle
from railscope_collector.commands.audit import open_tree
from railscope_collector.framelog.segment_files import frame_payload
from railscope_collector.ledger.record_draft import build_record

SIGNED, UNSIGNED = 601, 5
MARKER = b"m" * 16


def write_former(directory: Path) -> str:
    """Write the directory of a log with signed records and a journal; return its checkpoint."""
    write_log(directory / "made", [300, 300])
    place = str(directory / "made" / "ledger.sqlite")
    with open_tree(place, None) as (note, tree):
        former_log.export_log(tree, note, directory / "audit")
        signed = tree.record(SIGNED - 1)
    raws = [
        encode_audit_record(build_record(draft(n), RecordSource("collector", "c1", "b9", n), SIGNED + n))
        for n in range(UNSIGNED)
    ]  # fmt: skip
    journal = directory / "audit" / "journal"
    journal.mkdir()
    # It begins with a record that is signed meanwhile, and ends in a group that a crash has torn.
    groups = [[signed, *raws[:2]], raws[2:], raws[:1]]
    content = b"".join(frame_payload(MARKER, encode_bundle(group)) for group in groups)[:-9]
    (journal / f"journal-{SIGNED - 1:020d}-{MARKER.hex()}.wal").write_bytes(content)
    return note


def imported_log(directory: Path, boot: str = "b0", key: SecretKey = KEY) -> AuditLog:
    """Return the log of a state directory, after the former one was imported."""
    log = audit_log(directory, boot=boot)
    log.signer = key
    log.store.open()
    try:
        if (directory / "audit").exists():
            former_log.import_directory(directory / "audit", log, directory / "disputed")
    finally:
        log.store.close()
    return log


async def test_a_log_is_imported_once_with_its_root(tmp_path: Path) -> None:
    note = await run_in_thread(write_former, tmp_path)
    for boot in ("b5", "b6"):
        async with running_log(imported_log(tmp_path, boot)) as log:
            log.follow()
            assert log.note.startswith(note) or boot == "b6"
            await append_drafts(log, [77])
            await log.sign()
            log.database().close()
    assert not (tmp_path / "audit").exists()
    found = verify_directory(tmp_path, [note])
    assert (found.checkpoint.tree.size, found.anchors, found.findings) == (
        SIGNED + UNSIGNED + 2,
        1,
        (),
    )
    with open_tree(str(tmp_path / "ledger.sqlite"), None) as (_, tree):
        records = [decode_audit_record(raw) for raw in tree.records_from(SIGNED)]
    assert [record.data["number"] for record in records] == [0, 1, 2, 3, 4, 77, 77]
    former_log.delete_old(tmp_path / "audit", NOON_NS + 6 * DAY_NS)
    assert (tmp_path / "audit.before").exists()
    former_log.delete_old(tmp_path / "audit", NOON_NS + 8 * DAY_NS)
    assert not (tmp_path / "audit.before").exists()


async def test_an_import_that_was_interrupted_at_its_end_is_repeated(tmp_path: Path) -> None:
    await run_in_thread(write_former, tmp_path)
    shutil.copytree(tmp_path / "audit", tmp_path / "kept")
    imported_log(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "audit")
    async with running_log(imported_log(tmp_path, "b1")) as log:
        await log.sign()
        assert (log.size, log.waiting) == (SIGNED + UNSIGNED, 0)
        log.database().close()
    assert verify_directory(tmp_path).findings == ()


async def test_archived_tiles_are_imported_by_their_hashes(tmp_path: Path) -> None:
    note = await run_in_thread(write_former, tmp_path)
    (tmp_path / "audit/tile/entries/000").unlink()
    async with running_log(imported_log(tmp_path)) as log:
        log.follow()
        assert log.note == note
        log.database().close()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tile/entries/001", r"its 601 records have the root \w+: expected 601 records with the signed root \w+; fix: restore"),
        ("checkpoint", "signature"),
    ],
)  # fmt: skip
def test_a_changed_log_is_not_imported(tmp_path: Path, name: str, problem: str) -> None:
    write_former(tmp_path)
    path = tmp_path / "audit" / name
    path.write_bytes(
        path.read_bytes().replace(b"node-1", b"node-7", 1).replace(b"\n601\n", b"\n600\n")
    )
    with pytest.raises(former_log.FormerLogError, match=problem):
        imported_log(tmp_path)
    assert (tmp_path / "audit").exists()


def test_a_log_of_another_key_is_not_imported(tmp_path: Path) -> None:
    write_former(tmp_path)
    with pytest.raises(former_log.FormerLogError, match="no signature of"):
        imported_log(tmp_path, key=SecretKey.generate("log.example"))
