"""A disk that hangs stops shipping only."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from chain_support import ProgramDirectory
from support.waiting import wait_until

from bench.harness import http_get


async def test_an_agent_serves_its_metrics_and_ends_while_its_spool_hangs(
    site: ProgramDirectory,
) -> None:
    site.prepare({"n1": "training"})
    agent = await site.agent("n1")  # without a collector, it spools
    port = int((await agent.find_logged(r"address=\S+:(\d+)")).group(1))
    spool = site.directory / "state-n1" / "spool"

    envelope = await wait_until(lambda: min(spool.glob("*.envelope"), default=None), "it spools")
    os.mkfifo(site.directory / "fifo")
    (site.directory / "fifo").rename(envelope)
    writing = await wait_until(lambda: _open_for_writing(envelope), "the agent reads the envelope")
    try:
        before = _reads(port)
        await wait_until(lambda: _reads(port) > before, "the agent reads its devices", every=0.5)
        await agent.stop()
        assert agent.find("shipping_hangs"), agent.log_tail()
    finally:
        os.close(writing)


def _open_for_writing(fifo: Path) -> int | None:
    """Return a descriptor of a FIFO; None before a reader has opened it."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def _reads(port: int) -> int:
    found = re.search(
        r"^railscope_agent_reads_total (\d+)", http_get(port, "/metrics?detail=full"), re.MULTILINE
    )
    return int(found.group(1)) if found else 0
