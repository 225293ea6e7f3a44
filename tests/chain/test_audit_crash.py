"""Killing the collector at any moment: acknowledged events are in its audit log, once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory
from makers import ClaimingAgent, FrameSender
from support.audit import draft
from support.metered import record_number
from support.waiting import wait_until

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.audit.signed_note import PublicKey
from railscope.frame import Event
from railscope.service import run_in_thread
from railscope_collector.access.credentials import digest_token
from railscope_collector.audit.verification import verify_log
from railscope_collector.commands.audit import read_records
from railscope_collector.ledger.audit_outbox import count_unrecorded, put_record
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata

BODIES, FRAMES, FACTS = 5, 50, 20
SMALL = {
    "RAILSCOPE_COLLECTOR_FRAME_LOG__SEGMENT_BYTES": "65536",
    "RAILSCOPE_COLLECTOR_AUDIT__REQUIRED_WITNESSES": "0",
}


class SharingAgent(ClaimingAgent):
    """An agent with non-exclusive claims."""

    def event(self, number: int) -> Event:
        reported = super().event(number)
        return replace(reported, facts={**reported.facts, "exclusive": "false"})


def read(directory: Path) -> list[AuditRecord]:
    return [decode_audit_record(raw) for raw in read_records(str(directory / "ledger.sqlite"))]


async def send_until_acknowledged(site: ProgramDirectory, body: bytes, at: int) -> None:
    """Send until a collector acknowledges."""
    headers = {"Authorization": "Bearer token-n1", **FrameSender("n1").sent(at).to_headers()}

    async def taken() -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{site.url}/v1/frames", data=body, headers=headers) as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await wait_until(taken, "frames are taken")


def put_facts(database: Database, first: int) -> None:
    for number in range(first, first + FACTS):
        with database.transaction(writes=True) as connection:
            put_record(connection, f"fact/{number}", draft(number))


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.thorough)])
async def test_nothing_acknowledged_is_lost_or_doubled_on_its_way_into_the_log(
    site: ProgramDirectory, rounds: int
) -> None:
    (site.directory / "tokens.toml").write_text(f'[nodes]\nn1 = "{digest_token("token-n1")}"\n')
    chance, agent, sent = random.Random(7), SharingAgent(), list[bytes]()  # noqa: S311 - a test's
    directory = site.directory / "collector"
    (site.directory / "collector").mkdir()
    database = Database(f"sqlite:///{site.directory / 'collector' / 'ledger.sqlite'}", metadata)
    for number in range(rounds):
        collector = await site.collector(**SMALL)
        facts = asyncio.create_task(run_in_thread(put_facts, database, number * FACTS))
        for _ in range(BODIES):
            sent.append(agent.body(FRAMES))
            await send_until_acknowledged(site, sent[-1], agent.at)
            if chance.random() < 0.3:
                await send_until_acknowledged(site, chance.choice(sent), agent.at)
        if number % 2:
            await facts
        collector.kill()
        await collector.wait_for_end()
        await facts
    reported, wanted = rounds * BODIES * FRAMES, [f"outbox/fact/{n}" for n in range(rounds * FACTS)]
    collector = await site.collector(**SMALL)

    async def all_there() -> bool:
        found = Counter(record.src.kind for record in read(directory))
        with database.transaction() as connection:
            return found["agent"] >= reported and count_unrecorded(connection) == 0

    await wait_until(all_there, "all that was acknowledged is in the log")
    await collector.stop()
    assert await collector.wait_for_end() == 0, collector.log_tail()
    key = PublicKey.parse((directory / "audit.pub").read_text())
    assert verify_log(database.transaction, key, known_tables=metadata).findings == ()
    log = read(directory)
    assert sorted(one.src.n for one in log if one.src.kind == "agent") == list(range(reported))
    through = {one.ref[0]: one.seq for one in log if one.ref and one.ref[0] in set(wanted)}
    assert list(through) == wanted
    assert sum(one.ref[:1] == ["outbox/fact/0"] for one in log) == 1
    with database.transaction() as connection:
        assert [record_number(connection, name.removeprefix("outbox/")) for name in wanted] == list(
            through.values()
        )
    database.close()
