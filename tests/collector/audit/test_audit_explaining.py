"""Findings of `verify_log` in a valid log: claims that do not pair, impossible times, invoices."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from click.testing import CliRunner, Result
from support.audit import KEY, NOON_NS, audit_log, running_log, verify_directory
from support.books import ONE, books_with, claim, evidence_of, gpu, manager_after

from railscope.audit.record import RecordActor, RecordData, RecordSource, RecordSubject
from railscope.cli import root
from railscope_collector.ledger.database import Database, UnusableLedgerError
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.tables import metadata

S_NS = 1_000_000_000


def reported(
    number: int, kind: str, claim_id: str, outcome: str = "done", **data: str
) -> RecordDraft:
    """Record of a claim as an agent reported it."""
    content: RecordData = {"claim": claim_id, **data}
    source = RecordSource("agent", "n1", "run", number)
    return RecordDraft(
        f"tenancy.{kind}",
        RecordActor("scheduler", "slurm"),
        NOON_NS,
        outcome,
        RecordSubject("n1", "GPU-1"),
        content,
        source=source,
    )


def findings_of(directory: Path, drafts: list[RecordDraft]) -> list[str]:
    async def write() -> None:
        async with running_log(audit_log(directory)) as log:
            for draft in drafts:
                await log.append(draft)

    asyncio.run(write())
    return list(verify_directory(directory).findings)


def test_claims_that_pair_need_no_explanation(tmp_path: Path) -> None:
    pairs = [
        reported(0, "assign", "a"),
        reported(1, "assign", "a", "seen"),
        reported(2, "transfer", "a"),
        reported(3, "release", "a"),
        reported(4, "assign", "b"),
    ]
    assert findings_of(tmp_path, pairs) == []


def test_claims_that_do_not_pair_are_found(tmp_path: Path) -> None:
    odd = [
        reported(0, "release", "a"),
        reported(1, "assign", "b"),
        reported(2, "assign", "b"),
        reported(3, "transfer", "c"),
        reported(4, "assign", "d", "seen"),
    ]
    assert findings_of(tmp_path, odd) == [
        "record 1: tenancy.release of claim a on GPU-1, which had not been assigned",
        "record 3: tenancy.assign of claim b on GPU-1, which was already assigned by record 2",
        "record 4: tenancy.transfer of claim c on GPU-1, which had not been assigned",
        "record 5: tenancy.assign of claim d on GPU-1, which had not been assigned",
    ]


def test_impossible_times_are_found(tmp_path: Path) -> None:
    actor = RecordActor("collector", "c1")
    back = [RecordDraft("admin.config", actor, NOON_NS + s * S_NS, "done") for s in (0, 10, 9, 7)]
    ahead = [
        reported(0, "assign", "a", received_ns=str(NOON_NS - 59 * S_NS)),
        reported(1, "assign", "b", received_ns=str(NOON_NS - 70 * S_NS)),
    ]
    evaluated = RecordDraft("evidence.incident_close", actor, NOON_NS - 3600 * S_NS, "seen")
    assert findings_of(tmp_path, [*back, *ahead, evaluated]) == [
        "record 4: admin.config: its time is 3 s before that of an earlier record",
        "record 6: tenancy.assign: its time is 70 s after its receipt",
    ]


async def test_invoices_and_their_records_are_compared(tmp_path: Path, database: Database) -> None:
    closed = books_with(
        Ledger(database),
        evidence_of(gpu("GPU-0", claim("red", 5, 60)), gpu("GPU-1", claim("blue", 1))),
    ).close(ONE, manager_after(ONE))
    assert len(closed.invoices) == 2
    url = database.engine.url.render_as_string(hide_password=False)

    def check(ledger: str) -> Result:
        command = ["audit", "verify", url, "--key", str(KEY.public), "--ledger", ledger]
        return CliRunner().invoke(root, command)

    async def write(boot: str, *drafts: RecordDraft, is_taken: bool = True) -> None:
        log = audit_log(tmp_path, boot=boot, database=database)
        if not is_taken:
            log.check_ledger = older_copy
        async with running_log(log):
            for each in drafts:
                await log.append(each)
            await log.sign()

    await write("b0", is_taken=False)
    waiting = check(url)
    assert (waiting.exit_code, waiting.output.count("is not recorded yet")) == (0, 4)
    await write("b1")
    good = check(url)
    assert (good.exit_code, good.output.count("to explain")) == (0, 0)
    Database(f"sqlite:///{tmp_path / 'empty.db'}", metadata).close()
    empty = check(f"sqlite:///{tmp_path / 'empty.db'}")
    missing = re.findall(r"of record \d+ is missing(?! in)", empty.output)
    assert (empty.exit_code, len(missing)) == (1, 4)
    data: RecordData = {"invoice": closed.invoices[0].invoice_id, "content_hash": "0" * 64}
    await write(
        "b2", RecordDraft("billing.issue", RecordActor("a", "b"), NOON_NS, "done", data=data)
    )
    assert "billing.issue without a source row in a database" in check(url).output
    assert check("sqlite:////nowhere/at/all.db").exit_code == 5
    nowhere = "postgresql://127.0.0.1:1/none"
    assert check(nowhere).exit_code == 5
    command = ["audit", "verify", nowhere, "--key", str(KEY.public)]
    assert CliRunner().invoke(root, command).exit_code == 5


def older_copy() -> None:
    message = "an older copy"
    raise UnusableLedgerError(message)
