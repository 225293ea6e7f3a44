"""Killing the collector at any moment: acknowledged events are in its audit log, once."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp

from collector.tables import metadata

sys.path.insert(0, str(Path(__file__).parents[1] / "collector"))

from chain_support import Site, until
from makers import Sender
from support.audit import draft
from test_audit_live import Claiming

from collector.access.credentials import digest
from collector.audit.verification import verify_log
from collector.commands.audit import read_extent, read_records
from collector.ledger.audit_outbox import count_unrecorded, put_record, record_number
from collector.ledger.database import Database
from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.audit.signed_note import PublicKey
from railscope.frame import Event

ROUNDS = 5
BODIES, FRAMES, FACTS = 10, 100, 40
SMALL = {
    "RAILSCOPE_COLLECTOR_FRAME_LOG__SEGMENT_BYTES": "65536",
    "RAILSCOPE_COLLECTOR_AUDIT__REQUIRED_WITNESSES": "0",
}


class Sharing(Claiming):
    """An agent with non-exclusive claims."""

    def event(self, number: int) -> Event:
        told = super().event(number)
        return replace(told, facts={**told.facts, "exclusive": "false"})


def read(directory: Path) -> list[AuditRecord]:
    return [decode_audit_record(raw) for raw in read_records(directory, *read_extent(directory), 0)]


async def acknowledged(site: Site, body: bytes, at: int) -> None:
    """Send until a collector acknowledges."""
    headers = {"Authorization": "Bearer token-n1", **Sender("n1").sent(at).to_headers()}

    async def taken() -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{site.url}/v1/frames", data=body, headers=headers) as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await until(taken, "frames are taken")


def put_facts(database: Database, first: int) -> None:
    for number in range(first, first + FACTS):
        with database.transaction(writes=True) as connection:
            put_record(connection, f"fact/{number}", draft(number))


async def test_nothing_acknowledged_is_lost_or_doubled_on_its_way_into_the_log(site: Site) -> None:
    (site.directory / "tokens.toml").write_text(f'[nodes]\nn1 = "{digest("token-n1")}"\n')
    chance, agent, sent = random.Random(7), Sharing(), list[bytes]()  # noqa: S311 - a test's
    directory = site.directory / "collector" / "audit"
    (site.directory / "collector").mkdir()
    database = Database(f"sqlite:///{site.directory / 'collector' / 'ledger.sqlite'}", metadata)
    for number in range(ROUNDS):
        collector = await site.collector(**SMALL)
        facts = asyncio.create_task(asyncio.to_thread(put_facts, database, number * FACTS))
        for _ in range(BODIES):
            sent.append(agent.body(FRAMES))
            await acknowledged(site, sent[-1], agent.at)
            if chance.random() < 0.3:
                await acknowledged(site, chance.choice(sent), agent.at)
        if number % 2:
            await facts
        collector.kill()
        await collector.ended()
        await facts
    told, wanted = ROUNDS * BODIES * FRAMES, [f"outbox/fact/{n}" for n in range(ROUNDS * FACTS)]
    collector = await site.collector(**SMALL)

    async def all_there() -> bool:
        found = Counter(record.src.kind for record in read(directory))
        with database.transaction() as connection:
            return found["agent"] >= told and count_unrecorded(connection) == 0

    await until(all_there, "all that was acknowledged is in the log")
    await collector.stop()
    checked = verify_log(directory, PublicKey.parse((directory / "key.pub").read_text()))
    assert (checked.findings, checked.unsigned) == ((), 0)
    log = read(directory)
    assert sorted(one.src.n for one in log if one.src.kind == "agent") == list(range(told))
    through = {one.ref[0]: one.seq for one in log if one.ref and one.ref[0] in set(wanted)}
    assert list(through) == wanted
    assert sum(one.ref[:1] == ["outbox/fact/0"] for one in log) == 1
    with database.transaction() as connection:
        assert [record_number(connection, name.removeprefix("outbox/")) for name in wanted] == list(
            through.values()
        )
    database.close()
