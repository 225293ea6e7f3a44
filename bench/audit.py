"""`python -m bench.audit`: cost of the audit log, against an SQLite table without proofs."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from pathlib import Path

from bench.harness import Aim, BenchReport, ProcessStopwatch, benchmark, wall_seconds
from railscope.audit import record, signed_note
from railscope_collector.audit import entry_proof, log_writer, tiles, verification
from railscope_collector.ledger.record_draft import RecordDraft, build_record

GROUP = 100
APPENDED = Aim(">=", 20_000, " /s")
VERIFIED = Aim(">=", 150_000, " /s")
PROVEN = Aim("<=", 5, " ms")
PROOF_BYTES = Aim("<=", 1024, " B")
NOON_NS = 1_790_000_000_000_000_000
SOURCE = record.RecordSource("collector", "bench", "boot", 0)
_CREATE = "create table log (seq integer primary key, record blob not null, chain blob not null)"


def draft(number: int) -> RecordDraft:
    """Return a record of the usual size."""
    return RecordDraft(
        "tenancy.assign",
        record.RecordActor("scheduler", "slurm", "token", "10.0.0.1"),
        NOON_NS + number,
        "done",
        record.RecordSubject(
            f"gpu-node-{number % 1000}", f"GPU-8f3b0c52-0000-0000-0000-{number:012d}"
        ),
        {"tenant": "language", "workload": f"job-{number}", "level": "scheduler"},
        (f"frame/{number}",),
    )


@benchmark("Audit log", full=100_000, quick=2_000, on_disk=True)
def main(report: BenchReport, records: int, directory: Path) -> None:
    """Measure the audit log and print ratios."""
    key = signed_note.SecretKey.generate("bench.example")
    log, table = directory / "audit", directory / "table.sqlite"
    log_seconds = asyncio.run(append(log, key, records))
    sqlite_seconds = wall_seconds(lambda: append_sqlite(table, records))
    report.ratio(f"durable records, groups of {GROUP}", records / log_seconds, APPENDED)
    report.ratio("time per durable record, audit log / SQLite", log_seconds / sqlite_seconds)
    checked = wall_seconds(lambda: verification.verify_log(log, key.public))
    chained = wall_seconds(lambda: verify_sqlite(table))
    report.ratio("records verified", records / checked, VERIFIED)
    report.ratio("time per verified record, audit log / hash chain in SQLite", checked / chained)
    proofs(report, log, key, records)
    size, entries = size_of(log), size_of(log / "tile" / "entries")
    report.figure("bytes per record, tiles included", f"{size / records:.0f}")
    report.figure("bytes per record that stay after archiving", f"{(size - entries) / records:.0f}")
    per_record = "us per durable record"
    report.figure("audit log", f"{1e6 * log_seconds / records:.1f} {per_record}, signing included")
    report.figure(
        "SQLite", f"{1e6 * sqlite_seconds / records:.1f} {per_record}, WAL, full synchronous"
    )


def size_of(directory: Path) -> int:
    """Return the size of all files of a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def append(directory: Path, key: signed_note.SecretKey, records: int) -> float:
    """Return the seconds until all records are durable and signed, one group at a time."""
    log = log_writer.AuditLog(directory, key, SOURCE)
    log.open()
    running = asyncio.create_task(log.run())
    with ProcessStopwatch() as spent:
        for first in range(0, records, GROUP):
            await asyncio.gather(*(log.append(draft(first + at)) for at in range(GROUP)))
        await log.sign()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    log.close()
    return spent.wall_seconds


def append_sqlite(path: Path, records: int) -> None:
    """Add all records to a table, each with a hash over it and its predecessor."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute(_CREATE)
    chain = b""
    for first in range(0, records, GROUP):
        rows = []
        for number in range(first, first + GROUP):
            raw = record.encode_audit_record(build_record(draft(number), SOURCE, number))
            chain = hashlib.sha256(chain + raw).digest()
            rows.append((number, raw, chain))
        with connection:
            connection.executemany("insert into log values (?, ?, ?)", rows)
    connection.close()


def verify_sqlite(path: Path) -> None:
    """Read the table and compute every hash again. Raises ValueError if one is wrong."""
    connection = sqlite3.connect(path)
    chain = b""
    for raw, stored_chain in connection.execute("select record, chain from log order by seq"):
        chain = hashlib.sha256(chain + raw).digest()
        if chain != stored_chain:
            message = (
                f"invalid hash chain: {path}: expected the hash of each record and its predecessor"
            )
            raise ValueError(message)
    connection.close()


def proofs(report: BenchReport, directory: Path, key: signed_note.SecretKey, records: int) -> None:
    """Measure the proof of single records, from files that were not read before."""
    many = 100
    with ProcessStopwatch() as spent:
        note = (directory / "checkpoint").read_text()
        texts = [
            entry_proof.make_proof(tiles.Tiles(directory, records), at * records // many, note)
            for at in range(many)
        ]
    checked = (
        wall_seconds(lambda: [entry_proof.check_proof(text, key.public) for text in texts]) / many
    )
    report.ratio("time to make a proof", 1e3 * spent.wall_seconds / many, PROVEN)
    path_bytes = max(len(text.partition("\nindex ")[2]) for text in texts)
    report.ratio("size of a proof, without its record", path_bytes, PROOF_BYTES)
    report.figure("time to check a proof", f"{1e3 * checked:.2f} ms")


if __name__ == "__main__":
    main()
