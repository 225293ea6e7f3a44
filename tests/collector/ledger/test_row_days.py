"""A day that release 0.3.0 wrote as rows of slots: read, added up, verified, and revised as a document.

`rows_0_3.json` has the rows of one GPU-day with exclusive, shared, partitioned, counted and unclaimed time, an outage, a
gap and energy; empty columns are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from days import DAY, HOUR, START
from msgspec.structs import replace
from support.books import claim, evidence_of, gpu
from support.metered import revision_of, write_day
from support.story import NodeReporter, accept, gpus_of, temporary_core

from railscope.cli import root
from railscope.timestamps import DAY_NS
from railscope_collector.archive_stores import DirectoryStore
from railscope_collector.billing.evidence_reconciliation import evidence_checks
from railscope_collector.evidence.day_archive import DayArchive, RecomputedDay
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.finalization.marked_days import finalize_day
from railscope_collector.ledger import schema
from railscope_collector.ledger.database import UnusableLedgerError
from railscope_collector.ledger.day_documents import WrittenRevision, sum_day
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import Period
from railscope_collector.tables import metadata

ROWS = json.loads((Path(__file__).parent / "rows_0_3.json").read_text())
GPU = "GPU-0"


def without_triggers(connection: sa.Connection, table: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
    else:
        connection.execute(sa.text(f"DROP TRIGGER {table}_no_update"))


@pytest.fixture
def former(url: str) -> str:
    """The URL of a ledger of release 0.3.0."""
    earlier = Ledger.open(url, metadata)
    with earlier.database.transaction(writes=True) as connection:
        for name, rows in ROWS.items():
            columns = schema.metadata.tables[name].columns
            empty = {c.name: "" if isinstance(c.type, sa.Text) else None for c in columns}
            empty |= {"witness": None, "clock_suspect": None, "instance": None}
            names = {column.name for column in columns}
            filled = [{k: v for k, v in (empty | row).items() if k in names} for row in rows]
            connection.execute(schema.metadata.tables[name].insert(), filled)
        without_triggers(connection, "ledger_schema")
        connection.execute(sa.text("UPDATE ledger_schema SET version = 6"))
    earlier.close()
    return url


@pytest.fixture
def upgraded(former: str) -> Iterator[Ledger]:
    """A ledger of release 0.3.0, opened by this one."""
    ledger = Ledger.open(former, metadata)
    yield ledger
    ledger.close()


def test_commands_leave_a_ledger_that_former_collectors_may_write(former: str, tmp_path: Path):
    """Days that these write after the sums of all days were added would be in no sum."""
    settings = tmp_path / "collector.toml"
    settings.write_text(f'state_directory = "{tmp_path}"\n[ledger]\nurl = "{former}"\n')
    command = CliRunner()
    checked = command.invoke(root, ["collector", "check", "--config", str(settings)])
    assert "is of release 0.3.0: the first start raises it" in checked.stdout
    listed = command.invoke(root, ["bill", "list", "--ledger", former])
    assert listed.exit_code == 1
    assert "has schema version 6: expected 8; fix: start a collector" in listed.stderr
    engine = sa.create_engine(former.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        versions = connection.execute(sa.text("SELECT max(version) FROM ledger_schema"))
        assert versions.scalar_one() == schema.ROWS_VERSION
    engine.dispose()


def test_a_day_is_read_from_its_rows(upgraded: Ledger):
    found = revision_of(upgraded, GPU, DAY)
    assert (found.number, found.root) == (2, ROWS["ledger_revision"][0]["content_root"])
    found.day.check()
    times: dict[tuple[str, str, str], Fraction] = {}
    for piece in found.day.pieces:
        for part in piece.parts:
            key = (part.state.value, part.tenant, part.claim)
            hours = Fraction(part.size * (piece.end_ns - piece.start_ns), 840 * HOUR)
            times[key] = times.get(key, Fraction(0)) + hours
    assert times == {
        ("idle", "", ""): Fraction(5933, 770),
        ("inferred", "blue", "d"): Fraction(2, 5),
        ("inferred", "red", "c"): Fraction(3, 55),
        ("maintenance", "red", "a"): 1,
        ("observed", "blue", "b"): 2,
        ("observed", "blue", "d"): Fraction(8, 5),
        ("observed", "green", "f"): Fraction(9, 7),
        ("observed", "red", "a"): 5,
        ("observed", "red", "c"): Fraction(17, 55),
        ("observed", "red", "g"): 3,
        ("unclaimed", "", "e"): 1,
        ("unknown", "", ""): Fraction(8, 55),
    }
    assert {claim.id for claim in found.day.claims if claim.counted} == {"g"}
    (partitioned,) = [claim for claim in found.day.claims if claim.mig_profile]
    assert (partitioned.id, partitioned.mig_profile, partitioned.instance) == ("f", "3g.40gb", 360)
    assert upgraded.finalized_day() == DAY


def test_the_first_start_adds_up_the_days_of_rows(upgraded: Ledger):
    totals = upgraded.totals(range(DAY, DAY + 1))
    expected = sum_day(revision_of(upgraded, GPU, DAY).day)
    assert totals == {(DAY, key): quantity for key, quantity in expected.items()}
    hours = [q for (_, of), q in totals.items() if "/" not in of.name and of.name != "energy"]
    assert sum(hours) == DAY_NS - HOUR // 2


def test_a_document_is_the_next_revision_of_rows(upgraded: Ledger):
    before = revision_of(upgraded, GPU, DAY)
    assert write_day(upgraded, before.day) == WrittenRevision(2, added=False)
    assert write_day(upgraded, replace(before.day, sku="h200")) == WrittenRevision(3, added=True)
    assert revision_of(upgraded, GPU, DAY).day.sku == "h200"
    assert revision_of(upgraded, GPU, DAY, 2) == before
    shorter = replace(before.day, pieces=before.day.pieces[:1], amounts=(), claims=())
    write_day(upgraded, shorter)
    totals = upgraded.totals(range(DAY, DAY + 1))
    (total,) = [(of, quantity) for (_, of), quantity in totals.items() if quantity]
    assert total == (("", "idle"), Fraction(HOUR, 2))
    assert shorter.pieces[0].start_ns == START + HOUR // 2


def test_gpus_that_the_collector_placed_claims_on_are_not_metered_again(upgraded: Ledger):
    """Claim g was for a number of GPUs: its time would be credited with any late fact about its node."""
    node, core = NodeReporter("node1", origin_ns=START), temporary_core()
    accept(core, [node.record(node.frames(gpus_of(GPU, "GPU-1"), range(0, 600, 30)))])
    store, days = FactStore(upgraded.database), range(DAY, DAY + 1)
    store.write([each.interval for each in core.evidence.quarters.by_key.values()], (), days)
    finalize_day(store, lambda _: AdministratorInputs(), ("node1", DAY), START + 2 * DAY_NS)
    assert not store.marked_days(days)
    assert upgraded.newest(DAY, DAY + 1) == {(GPU, DAY): 2, ("GPU-1", DAY): 1}


def test_a_day_of_rows_is_not_compared_with_the_facts(upgraded: Ledger):
    """Its gaps and amounts are stated otherwise: it would differ from the same day metered again."""
    day = range(DAY, DAY + 1)
    known = evidence_of(gpu(GPU, claim("red", 1, 5)))
    checks = list(evidence_checks(upgraded, known, Period(START, START + DAY_NS)))
    assert all(check.passes for check in checks)
    (named,) = [check for check in checks if check.absence]
    assert named.absence.startswith("1 GPU-days of release 0.3 are not compared")
    write_day(upgraded, next(iter(known.meter(day.start))))
    checks = list(evidence_checks(upgraded, known, Period(START, START + DAY_NS)))
    assert not [check for check in checks if check.absence or not check.passes]


def test_a_day_of_rows_is_not_compared_with_the_archive(upgraded: Ledger, tmp_path: Path):
    archive = DayArchive(FactStore(upgraded.database), DirectoryStore(tmp_path))
    assert archive.recompute_day(DAY, AdministratorInputs()) == RecomputedDay(DAY, former=1)


@pytest.mark.parametrize(
    "change",
    [
        "ledger_entry SET tenant_id = 'x' WHERE entry = 3",
        "ledger_share SET amount = amount + 1",
        "ledger_claim SET start_ns = 0",
        "ledger_overlap SET units = units + 1",
        "ledger_revision SET sku = 'x'",
        "ledger_entry SET state = 'x'",
    ],
)
def test_rows_that_were_altered_are_detected(upgraded: Ledger, change: str):
    with upgraded.database.transaction(writes=True) as connection:
        without_triggers(connection, change.split(maxsplit=1)[0])
        connection.execute(sa.text(f"UPDATE {change}"))
    with pytest.raises(UnusableLedgerError, match=r"altered: .*revision 2 of GPU-0 on day 20000"):
        revision_of(upgraded, GPU, DAY)
