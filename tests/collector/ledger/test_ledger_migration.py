"""A ledger of schema version 2, as an earlier release wrote it, opens and goes on."""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec
import pytest
from days import DAY, START, held, metered
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from support.metered import revision_of, sizes_of_day

from collector.ledger.database import Database, LedgerError
from collector.ledger.day_metering import MeteredGpu, MeteringComputation
from collector.ledger.day_tiling import content_root, find_capacity_units
from collector.ledger.head_chain import HashedRow, read_rows
from collector.ledger.ledger_store import Ledger
from collector.ledger.row_conversion import GpuDay
from collector.ledger.schema import covered_tables
from collector.metering.evidence import ClockDoubt
from collector.metering.tiling import SlotState
from collector.metering.units import compute_slices
from collector.tables import metadata
from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS

KEY = "gpu_uuid TEXT NOT NULL, day BIGINT NOT NULL, revision BIGINT NOT NULL"
OF_REVISION = (
    "FOREIGN KEY (gpu_uuid, day, revision) REFERENCES ledger_revision (gpu_uuid, day, revision)"
)
SLOTS = "CONSTRAINT slots_exist CHECK (0 <= slot_lo AND slot_lo < slot_hi AND slot_hi <= 840)"
VERSION_2 = (
    "CREATE TABLE ledger_schema (version BIGINT NOT NULL PRIMARY KEY)",
    (
        f"CREATE TABLE ledger_revision ({KEY}, supersedes BIGINT, sku TEXT NOT NULL,"
        " content_root TEXT NOT NULL, evidence_root TEXT NOT NULL, engine_version TEXT NOT NULL,"
        " computed_ns BIGINT NOT NULL, PRIMARY KEY (gpu_uuid, day, revision))"
    ),
    (
        f"CREATE TABLE ledger_entry ({KEY}, entry BIGINT NOT NULL, tiling TEXT NOT NULL,"
        " slot_lo BIGINT NOT NULL, slot_hi BIGINT NOT NULL, t0_ns BIGINT NOT NULL,"
        " t1_ns BIGINT NOT NULL, node TEXT NOT NULL, state TEXT NOT NULL, witness TEXT,"
        " silence_ns BIGINT NOT NULL, tenant_id TEXT NOT NULL, workload_id TEXT NOT NULL,"
        " claim_id TEXT NOT NULL, layout_id TEXT NOT NULL, qty_capns BIGINT NOT NULL,"
        f" PRIMARY KEY (gpu_uuid, day, revision, entry), {OF_REVISION}, {SLOTS},"
        " CONSTRAINT quantity_is_exact CHECK (qty_capns = (slot_hi - slot_lo) * (t1_ns - t0_ns)))"
    ),
    (
        f"CREATE TABLE ledger_share ({KEY}, share BIGINT NOT NULL, measure TEXT NOT NULL,"
        " use TEXT NOT NULL, slot_lo BIGINT NOT NULL, slot_hi BIGINT NOT NULL,"
        " t0_ns BIGINT NOT NULL, t1_ns BIGINT NOT NULL, amount BIGINT NOT NULL,"
        " tenant_id TEXT NOT NULL, workload_id TEXT NOT NULL, claim_id TEXT NOT NULL,"
        f" PRIMARY KEY (gpu_uuid, day, revision, share), {OF_REVISION}, {SLOTS})"
    ),
    (
        f"CREATE TABLE ledger_claim ({KEY}, claim_id TEXT NOT NULL, start_ns BIGINT NOT NULL,"
        f" mig_profile TEXT NOT NULL, PRIMARY KEY (gpu_uuid, day, revision, claim_id), {OF_REVISION})"
    ),
    "CREATE VIEW ledger AS SELECT e.gpu_uuid, e.qty_capns FROM ledger_entry e",
    "INSERT INTO ledger_schema VALUES (2)",
)
TABLES = ("schema", "revision", "entry", "share", "claim")
CLAIM = {"id": "job-1", "start_ns": START, "mig_profile": ""}
ENTRIES = [
    {
        "gpu": "GPU-0", "tiling": tiling, "t0_ns": START, "slot_lo": 0, "slot_hi": 840,
        "t1_ns": START + DAY_NS, "node": "node1", "state": "inferred", "witness": 0,
        "silence_ns": 7, "tenant": "red", "workload": "", "claim": "job-1", "layout": "",
    }
    for tiling in ("compute", "memory")
]  # fmt: skip
SHARE = {
    "t0_ns": START, "t1_ns": START + 9, "slot_lo": 0, "slot_hi": 840, "use": "attributed",
    "amount": 5, "tenant": "red", "workload": "", "claim": "job-1",
}  # fmt: skip
CONTENT = ("h100-sxm", ENTRIES, [{"measure": "energy", "share": SHARE}], [CLAIM])
ROOT = sha256(json.dumps(CONTENT, separators=(",", ":")).encode()).hexdigest()


def triggers(dialect: str) -> list[str]:
    """The statements that made the tables of that release append-only."""
    if dialect == "postgresql":
        refuse = (
            "CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
        )
        return [refuse] + [
            f"CREATE TRIGGER ledger_{name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON "
            f"ledger_{name} FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only()"
            for name in TABLES
        ]
    return [
        f"CREATE TRIGGER ledger_{name}_no_{change.lower()} BEFORE {change} ON ledger_{name} "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for name in TABLES
        for change in ("UPDATE", "DELETE")
    ]


def write_version_2(url: str) -> None:
    """Make the tables of version 2 and one revision of a GPU-day."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    key = {"gpu_uuid": "GPU-0", "day": DAY, "revision": 1}
    names = {"tenant": "tenant_id", "workload": "workload_id", "claim": "claim_id",
             "layout": "layout_id"}  # fmt: skip

    def insert(table: str, values: dict[str, object]) -> None:
        row = {**key, **{names.get(name, name): value for name, value in values.items()}}
        row.pop("gpu", None)
        places = ", ".join(f":{name}" for name in row)
        into = f"INSERT INTO ledger_{table} ({', '.join(row)}) VALUES ({places})"  # noqa: S608 - constant names
        connection.execute(text(into), row)

    with engine.begin() as connection:
        for statement in (*VERSION_2, *triggers(engine.dialect.name)):
            connection.execute(text(statement))
        insert("revision", {"sku": "h100-sxm", "content_root": ROOT, "evidence_root": "e",
                            "engine_version": "1", "computed_ns": START + DAY_NS})  # fmt: skip
        for at, entry in enumerate(ENTRIES):
            quantity = {"entry": at, "witness": "none", "qty_capns": 840 * DAY_NS}
            insert("entry", {**entry, **quantity})
        insert("share", {**SHARE, "share": 0, "measure": "energy"})
        insert("claim", {"claim_id": "job-1", "start_ns": START, "mig_profile": ""})
    engine.dispose()


def test_a_ledger_of_version_2_keeps_its_revisions_and_takes_new_ones(url):
    write_version_2(url)
    for _ in range(2):  # the second time it is of this version
        ledger = Ledger.open(url, metadata)
        old = revision_of(ledger, "GPU-0", DAY, 1)
        assert (old.content_root, find_capacity_units(old.tiling)) == (ROOT, 840)
        assert [(e.slot_lo, e.slot_hi, e.claim) for e in old.tiling.entries] == [
            (0, 840, "job-1"),
            (0, 840, "job-1"),
        ]
        assert [one.share.amount for one in old.tiling.shares] == [5]
        assert sum(sizes_of_day(ledger, DAY).values()) == 2 * 840 * DAY_NS
        new = metered(held("GPU-0", "red", "blue"))
        assert ledger.write(new).revision == 2
        found = revision_of(ledger, "GPU-0", DAY)
        assert (found.supersedes, find_capacity_units(found.tiling)) == (1, 84_000)
        assert sum(sizes_of_day(ledger, DAY).values()) == 2 * 840 * DAY_NS
        ledger.close()


def hashes(ledger: Ledger) -> set[HashedRow]:
    """All rows that heads commit to, as they read back."""
    with ledger.database.transaction() as connection:
        return {one for kind in covered_tables for one in read_rows(connection, kind)}


def test_a_ledger_of_version_3_keeps_its_rows_and_heads(tmp_path):
    """Its claims have no size of an instance; those of new revisions do."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url, metadata)
    evidence = held("GPU-0", "red")
    ledger.write(metered(evidence))
    root = revision_of(ledger, "GPU-0", DAY).content_root
    before = hashes(ledger)
    assert before
    ledger.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in (
            "DROP TRIGGER ledger_schema_no_delete", "DELETE FROM ledger_schema",
            "INSERT INTO ledger_schema VALUES (3)", "ALTER TABLE ledger_claim DROP COLUMN instance",
            "DROP VIEW ledger", "ALTER TABLE ledger_revision DROP COLUMN clock_suspect",
        ):  # fmt: skip
            connection.execute(text(statement))
    engine.dispose()
    for _ in range(2):
        ledger = Ledger.open(url, metadata)
        old = revision_of(ledger, "GPU-0", DAY, 1)
        assert (old.content_root, content_root(old.tiling)) == (root, root)
        assert before <= hashes(ledger)
        (claim,) = evidence.claims
        part = msgspec.structs.replace(claim, compute=compute_slices(0, 2))
        gpu = MeteredGpu.compute(
            msgspec.structs.replace(evidence, claims=(part,)), {}, "h100-sxm", {claim.id: "2g.20gb"}
        )
        ledger.write(gpu.day(DAY, MeteringComputation("1", START + DAY_NS)))
        assert [one.instance for one in revision_of(ledger, "GPU-0", DAY).tiling.claims] == ["2/7"]
        ledger.close()


def change_back(url: str, version: int, *statements: str) -> None:
    """Give a ledger the schema of an earlier version."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    triggers_off = (
        "ALTER TABLE ledger_schema DISABLE TRIGGER USER"
        if engine.dialect.name == "postgresql"
        else "DROP TRIGGER ledger_schema_no_delete"
    )
    with engine.begin() as connection:
        for statement in (triggers_off, "DELETE FROM ledger_schema", *statements):
            connection.execute(text(statement))
        connection.execute(text("INSERT INTO ledger_schema VALUES (:v)"), {"v": version})
    engine.dispose()


def test_a_ledger_of_version_4_has_no_mark_and_takes_some(url):
    """Revisions of a suspect clock are marked from version 5 on."""
    ledger = Ledger.open(url, metadata)
    ledger.write(metered(held("GPU-0", "red")))
    before = hashes(ledger)
    ledger.close()
    change_back(url, 4, "DROP VIEW ledger", "ALTER TABLE ledger_revision DROP COLUMN clock_suspect")
    doubts = (ClockDoubt(START, -5), ClockDoubt(START + 1))
    marked = msgspec.structs.replace(metered(held("GPU-0", "red")), clock_suspect=doubts[::-1])
    key = GpuDay("GPU-0", DAY)
    for _ in range(2):
        ledger = Ledger.open(url, metadata)
        assert revision_of(ledger, *key, 1).tiling.clock_suspect == ()
        assert before <= hashes(ledger)
        assert ledger.clock_suspect({key: 1}) == {}
        assert ledger.write(marked).revision == 2, "the mark alone makes a revision"
        assert revision_of(ledger, *key).tiling.clock_suspect == doubts
        assert ledger.clock_suspect({key: 2}) == {key: doubts}
        with ledger.database.transaction() as connection:
            marks = connection.execute(text("SELECT revision, clock_suspect FROM ledger")).all()
        assert set(marks) == {
            (1, None),
            (2, f'[{{"since_ns":{START},"delta_ns":-5}},{{"since_ns":{START + 1},"delta_ns":0}}]'),
        }
        ledger.close()


def test_a_ledger_of_version_5_takes_undecided_use_of_a_fraction(url):
    """Its closings keep their hashes; the new column is empty in their rows."""
    ledger = Ledger.open(url, metadata)
    ledger.write(metered(held("GPU-0", "red")))
    before = hashes(ledger)
    ledger.close()
    change_back(url, 5, "ALTER TABLE billing_review DROP COLUMN exact_units")
    for _ in range(2):
        ledger = Ledger.open(url, metadata)
        assert before <= hashes(ledger)
        with ledger.database.transaction() as connection:
            assert connection.execute(text("SELECT exact_units FROM billing_review")).all() == []
        ledger.close()


def test_a_ledger_with_the_former_name_of_unclaimed_use_remains_readable(url):
    """Its revision keeps its content root, and its time adds up with that of the present name."""
    ledger = Ledger.open(url, metadata)
    evidence = held("GPU-0", "red")
    (claim,) = evidence.claims
    used = msgspec.structs.replace(claim, authority=ClaimAuthority.PROCESS)
    ledger.write(metered(msgspec.structs.replace(evidence, claims=(used,))))
    written = revision_of(ledger, "GPU-0", DAY)
    totals = ledger.totals(START, START + DAY_NS)
    with ledger.database.transaction(writes=True) as connection:
        off = (
            "ALTER TABLE ledger_entry DISABLE TRIGGER USER"
            if connection.dialect.name == "postgresql"
            else "DROP TRIGGER ledger_entry_no_update"
        )
        connection.execute(text(off))
        former = "UPDATE ledger_entry SET state = 'rogue' WHERE state = 'unclaimed' AND tiling = 'compute'"
        assert connection.execute(text(former)).rowcount
    assert revision_of(ledger, "GPU-0", DAY) == written
    assert SlotState.UNCLAIMED in {entry.state for entry in written.tiling.entries}
    assert ledger.totals(START, START + DAY_NS) == totals
    ledger.close()


@pytest.mark.parametrize("mark", ["", "5", '[{"since_ns":1.5}]', '[{"since_ns":7,"delta_ns":7}]'])
def test_a_mark_that_was_altered_is_reported(url, mark):
    ledger = Ledger.open(url, metadata)
    doubts = (ClockDoubt(START, 7),)
    ledger.write(msgspec.structs.replace(metered(held("GPU-0", "red")), clock_suspect=doubts))
    with ledger.database.transaction(writes=True) as connection:
        off = (
            "ALTER TABLE ledger_revision DISABLE TRIGGER USER"
            if connection.dialect.name == "postgresql"
            else "DROP TRIGGER ledger_revision_no_update"
        )
        connection.execute(text(off))
        connection.execute(text("UPDATE ledger_revision SET clock_suspect = :mark"), {"mark": mark})
    with pytest.raises(
        LedgerError, match=r"revision 1 of GPU-0 .* (does not match what was written|invalid)"
    ):
        revision_of(ledger, "GPU-0", DAY)
    ledger.close()


def test_a_migrated_ledger_refuses_changes_of_its_rows(url):
    write_version_2(url)
    database = Database(url, metadata)
    changes = [f"UPDATE ledger_{name} SET revision = 9" for name in TABLES[1:]]  # noqa: S608 - constant names
    changes += [f"DELETE FROM ledger_{name}" for name in TABLES]  # noqa: S608 - constant names
    for change in changes:
        with (
            pytest.raises(DBAPIError, match="append-only"),
            database.engine.connect() as connection,
            connection.begin(),
        ):
            connection.execute(text(change))
    with database.transaction() as connection:
        rows = connection.execute(text("SELECT capacity_units, slot_hi, mem_hi FROM ledger")).all()
    assert sorted(map(tuple, rows), key=str) == [(840, 840, None), (840, None, 840)]
    database.close()
