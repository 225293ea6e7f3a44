"""`python -m bench.audit`: cost of the audit log, against an SQLite table without proofs."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from bench.harness import Aim, BenchReport
from collector.audit.log_writer import AuditLog
from collector.audit.tiles import Tiles, check_proof, make_proof
from collector.audit.verification import verify_log
from collector.ledger.audit_outbox import RecordDraft, record_of
from railscope.audit.record import RecordActor, RecordSource, RecordSubject, encode_audit_record
from railscope.audit.signed_note import SecretKey

GROUP = 100
APPENDED = Aim(">=", 20_000, " /s")
VERIFIED = Aim(">=", 150_000, " /s")
PROVEN = Aim("<=", 5, " ms")
PROOF_BYTES = Aim("<=", 1024, " B")
NOON_NS = 1_790_000_000_000_000_000
SOURCE = RecordSource("collector", "bench", "boot", 0)
_CREATE = "create table log (seq integer primary key, record blob not null, chain blob not null)"


def draft(number: int) -> RecordDraft:
    """Return a record of the usual size."""
    return RecordDraft(
        "tenancy.assign", RecordActor("scheduler", "slurm", "token", "10.0.0.1"), NOON_NS + number, "done",
        RecordSubject(f"gpu-node-{number % 1000}", f"GPU-8f3b0c52-0000-0000-0000-{number:012d}"),
        {"tenant": "language", "workload": f"job-{number}", "level": "scheduler"},
        (f"frame/{number}",),
    )  # fmt: skip


@click.command()
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
def main(*, quick: bool) -> None:
    """Measure and print ratios."""
    records = 2_000 if quick else 100_000
    report = BenchReport("Audit log")
    key = SecretKey.generate("bench.example")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path.cwd()) as temporary:
        directory = Path(temporary)
        ours = asyncio.run(append(directory / "audit", key, records))
        theirs = append_sqlite(directory / "table.sqlite", records)
        report.ratio(f"durable records, groups of {GROUP}", records / ours, APPENDED)
        report.ratio("time a durable record, audit log / SQLite", ours / theirs)
        checked = _timed(lambda: verify_log(directory / "audit", key.public))
        chained = _timed(lambda: verify_sqlite(directory / "table.sqlite"))
        report.ratio("records verified", records / checked, VERIFIED)
        report.ratio("time a verified record, audit log / hash chain in SQLite", checked / chained)
        proofs(report, directory / "audit", key, records)
        size = sum(
            path.stat().st_size for path in (directory / "audit").rglob("*") if path.is_file()
        )
        report.figure("bytes a record, tiles included", f"{size / records:.0f}")
    report.figure("audit log", f"{1e6 * ours / records:.1f} us a durable record, signing included")
    report.figure(
        "SQLite", f"{1e6 * theirs / records:.1f} us a durable record, WAL, full synchronous"
    )
    click.echo(str(report))


async def append(directory: Path, key: SecretKey, records: int) -> float:
    """Return the seconds until all records are durable and signed, one group at a time."""
    log = AuditLog(directory, key, SOURCE)
    log.open()
    running = asyncio.create_task(log.run())
    started = time.perf_counter()
    for first in range(0, records, GROUP):
        await asyncio.gather(*(log.append(draft(first + at)) for at in range(GROUP)))
    await log.sign()
    elapsed = time.perf_counter() - started
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    log.close()
    return elapsed


def append_sqlite(path: Path, records: int) -> float:
    """Return the seconds until all records are in a table, each with a hash over it and its predecessor."""
    started = time.perf_counter()
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute(_CREATE)
    chain = b""
    for first in range(0, records, GROUP):
        rows = []
        for number in range(first, first + GROUP):
            raw = encode_audit_record(record_of(draft(number), SOURCE, number))
            chain = hashlib.sha256(chain + raw).digest()
            rows.append((number, raw, chain))
        with connection:
            connection.executemany("insert into log values (?, ?, ?)", rows)
    connection.close()
    return time.perf_counter() - started


def verify_sqlite(path: Path) -> None:
    """Read the table and compute every hash again. Raises ValueError if one is wrong."""
    connection = sqlite3.connect(path)
    chain = b""
    for raw, kept in connection.execute("select record, chain from log order by seq"):
        chain = hashlib.sha256(chain + raw).digest()
        if chain != kept:
            message = "the chain is broken"
            raise ValueError(message)
    connection.close()


def proofs(report: BenchReport, directory: Path, key: SecretKey, records: int) -> None:
    """Measure the proof of single records, from files that were not read before."""
    many = 100
    started = time.perf_counter()
    note = (directory / "checkpoint").read_text()
    texts = [
        make_proof(Tiles(directory, records), at * records // many, note) for at in range(many)
    ]
    made = (time.perf_counter() - started) / many
    checked = _timed(lambda: [check_proof(text, key.public) for text in texts]) / many
    report.ratio("a proof made", 1e3 * made, PROVEN)
    path_bytes = max(len(text.partition("\nindex ")[2]) for text in texts)
    report.ratio("a proof's size, without its record", path_bytes, PROOF_BYTES)
    report.figure("a proof checked", f"{1e3 * checked:.2f} ms")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
