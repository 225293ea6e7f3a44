"""Agents of a collector that is killed, and the records of its audit log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import aiohttp
from chain_support import ProgramDirectory, wait_until
from makers import ClaimingAgent, FrameSender

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.frame import Event
from railscope_collector.commands.audit import read_extent, read_records

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
    return [decode_audit_record(raw) for raw in read_records(directory, *read_extent(directory), 0)]


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
