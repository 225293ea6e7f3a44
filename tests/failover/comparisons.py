"""Comparison of what several collectors have recorded with one that received everything: ledgers, closings, and audit logs.

The frame log of that one is made of the frame logs of the others: each envelope as it was received, with the time of its
receipt, in the order of receipt. A collector that starts with it de-duplicates, stores and meters as after any
other restart. Periods are closed, and logs verified, by the commands that operators use. Functions block; one command runs
at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from railscope import cli
from railscope.audit.record import decode_audit_record
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_agent.witness.witness_store import WitnessStore
from railscope_collector.commands import audit
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.framelog import segment_files
from railscope_collector.ledger import audit_outbox
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.metered_day import encode_day
from railscope_collector.state_store import StateStore
from railscope_simulator.spec import SimulatorError

_OF_THE_RUN = ("issued", "audit_record", "audit_checkpoint_size", "roots")
"""Members of a statement that differ with each run: times of computation and closing, and positions in the log."""
_PRICES = """version = 1
published = {since}
currency = "EUR"
"""
_PRICE = """
[[price]]
sku = "{sku}"
tariff = "{tariff}"
{unit} = 2_490_000_000
from = {since}
version = 1
"""
_TARIFFS = {
    "allocated": "nano_per_gpu_hour",
    "reservation": "nano_per_gpu_hour",
    "energy": "nano_per_kilowatt_hour",
}


class CommandError(SimulatorError, RuntimeError):
    """A command failed; the message has its output."""


class ComparisonResult(NamedTuple):
    """One comparison, as a line, and the number of its differences."""

    text: str
    differences: int


def run_command(*arguments: str | Path) -> str:
    """Run `railscope` with arguments, in this process; return its output. Raises CommandError."""
    texts, output = list(map(str, arguments)), io.StringIO()
    status: object = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            cli.main(texts)
    except SystemExit as ended:
        status = ended.code
    if status:
        message = f"`railscope {' '.join(texts)}` failed with {status}: {output.getvalue().strip()}"
        raise CommandError(message)
    return output.getvalue()


# Closed periods ----------------------------------------------------------------------------------


def close_day(settings: Path, day: int, skus: set[str], to: Path) -> dict[str, bytes]:
    """Publish prices, close the period of a day, and return the statements of its tenants, by tenant.

    `to` is a directory for what the commands read and write.
    """
    to.mkdir()
    since = format_timestamp(day * DAY_NS)
    prices = _PRICES.format(since=since) + "".join(
        _PRICE.format(sku=sku, tariff=tariff, unit=unit, since=since)
        for sku in sorted(skus)
        for tariff, unit in _TARIFFS.items()
    )
    (to / "prices.toml").write_text(prices, encoding="utf-8")
    at = ("--config", settings)
    run_command("bill", "prices", "publish", to / "prices.toml", *at)
    period = f"{since[:10]}..{since[:10]}"
    run_command("bill", "close", period, *at)
    invoices = json.loads(run_command("bill", "list", "--format", "json", *at))["invoices"]
    statements = {}
    for tenant in sorted(invoice["tenant"] for invoice in invoices):
        text = run_command("bill", "statement", tenant, period, "--format", "json", *at)
        document = {key: each for key, each in json.loads(text).items() if key not in _OF_THE_RUN}
        content = statements[tenant] = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
        (to / f"{tenant}.json").write_bytes(content)
    run_command("collector", "archive", "run", *at)
    run_command("collector", "archive", "verify", *at)
    return statements


def compare_statements(
    found: Mapping[str, bytes], expected: Mapping[str, bytes]
) -> ComparisonResult:
    """Compare the statements of a closed period."""
    tenants = found.keys() | expected.keys()
    differing = [tenant for tenant in tenants if found.get(tenant) != expected.get(tenant)]
    lines = sum(len(json.loads(content)["lines"]) for content in expected.values())
    text = f"closed period: {len(expected)} statements with {lines} lines, {len(differing)} differences"
    return ComparisonResult(text, len(differing) if expected else 1)


# Audit logs --------------------------------------------------------------------------------------


def verify_log(key: Path, stores: Iterable[WitnessStore], ledger: str) -> ComparisonResult:
    """Verify the log of the group with `railscope audit verify`, with the ledger and the checkpoints of the witness."""
    held = [store.directory / "held" for store in stores if store.read_checkpoint()]
    anchors = [option for path in held for option in ("--anchor", path)]
    try:
        state = run_command("audit", "verify", ledger, "--key", key, "--ledger", ledger, *anchors)
    except CommandError as error:
        return ComparisonResult(f"audit log: {error}", 1)
    text = f"audit log: {state.partition(' of ')[0]}, {len(held)} checkpoints of the witness"
    return ComparisonResult(text, 0 if held else 1)


def compare_records(ledger: str, expected: set[str]) -> ComparisonResult:
    """Compare the records about the ledger in the log with its outbox: each is there, once."""
    counts: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for raw in audit.read_records(ledger):
        record = decode_audit_record(raw)
        for reference in record.ref:
            if reference.startswith(audit_outbox.REFERENCE):
                counts[reference.removeprefix(audit_outbox.REFERENCE)] += 1
                types[record.type] += 1
    repeated = [id_ for id_, count in counts.items() if count > 1]
    # The last records of collectors that end while another one is active, or none, wait for the next active one.
    missing = {id_ for id_ in expected - counts.keys() if not id_.startswith("collector/")}
    differences = len(repeated) + len(missing) + len(counts.keys() - expected)
    named = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    text = f"audit records of the ledger: {len(expected)} ({named}), {len(repeated)} twice, {differences} differences"
    return ComparisonResult(text, differences if expected else 1)


_UNRECORDED = (
    "SELECT 1 FROM audit_outbox o LEFT JOIN audit_placed p ON p.id = o.id WHERE p.id IS NULL"
)
ALL_RECORDED = f"SELECT 1 WHERE NOT EXISTS ({_UNRECORDED})"
"""Query with a row once each record that the ledger requires is in the log."""


def compare_all(compared: Iterator[ComparisonResult], report: Callable[[str], None]) -> int:
    """Report each comparison; return the number of differences."""
    differences = 0
    for each in compared:
        report(each.text)
        differences += each.differences
    return differences


def copy_frames(state: Path, to: Path) -> None:
    """Copy frame log and schemas of a collector that is not running. Blocking."""
    shutil.copytree(state / "frames", to / "frames")
    for path in state.glob("state.sqlite*"):
        shutil.copy(path, to / path.name)


def merge_frames(sources: Iterable[Path], to: Path) -> int:
    """Write the state directory of one collector with the frames of all; return the number of envelopes. Blocking."""
    (to / "frames").mkdir(parents=True)
    records: list[segment_files.FrameRecord] = []
    for source in sources:
        records += _read_records(source / "frames")
        _merge_schemas(source, to)
    records.sort(key=lambda record: record.received_wall_ns)
    descriptor, marker = segment_files.start_segment(to / "frames", 1)
    with os.fdopen(descriptor, "wb") as segment:
        for record in records:
            payload = segment_files.encode_record(record)
            segment.write(segment_files.frame_payload(marker, payload))
    return len(records)


def _merge_schemas(source: Path, to: Path) -> None:
    """Add the shapes and names of a collector to those in another state directory."""
    store = StateStore(to)
    store.open()
    StoredSchemas(store).open()
    with contextlib.closing(sqlite3.connect(source / store.path.name)) as former:
        for table in ("shapes", "names", "former_schemas"):
            rows = former.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - of constants
            for row in rows:
                places = ", ".join("?" * len(row))
                with store.transaction() as connection:
                    insert = f"INSERT OR IGNORE INTO {table} VALUES ({places})"  # noqa: S608 - as above
                    connection.execute(insert, row)
    store.close()


def _read_records(directory: Path) -> Iterator[segment_files.FrameRecord]:
    stats = segment_files.FrameLogStats()
    for number in segment_files.segment_numbers(directory):
        path = segment_files.segment_path(directory, number)
        for _, record in segment_files.read_segment(path, stats):
            yield record


def ledger_lines(ledger: Ledger, day: int) -> list[bytes]:
    """Return the documents of the newest revisions of a day, sorted. Blocking."""
    revisions = ledger.revisions(ledger.newest(day, day + 1))
    return sorted(encode_day(revision.day) for revision in revisions)
