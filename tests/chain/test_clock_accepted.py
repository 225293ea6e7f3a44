"""A real collector with a suspect clock, the command that accepts it, and the reload by SIGHUP."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory, wait_until
from crash_support import SMALL, read, send_until_acknowledged
from makers import FrameSender
from running_collector import gpu_frames

from railscope_collector import clock
from railscope_collector.access.credentials import digest_token
from railscope_collector.clock import ClockState
from railscope_collector.evidence.evidence_store import EvidenceStore
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata
from railscope_simulator.demo.process import run_to_end

HOUR_NS = 3_600_000_000_000
QUICK = SMALL | {
    "RAILSCOPE_COLLECTOR_METERING__PERIOD_SECONDS": "0.2",
    "RAILSCOPE_COLLECTOR_METERING__QUIET_SECONDS": "0",
}
"""Evidence is stored immediately, unless it is held back."""


def keep_reference(directory: Path, ahead_ns: int) -> None:
    """Write a reference as a collector does, behind the wall clock, as if the clock was stepped since."""
    directory.mkdir()
    reference_ns = time.time_ns() - clock.boot_clock_ns() - ahead_ns
    kept = ClockState(clock.this_boot(), reference_ns, kept_ns=time.time_ns() - ahead_ns)
    (directory / clock.FILE).write_bytes(clock.encode_state(kept))


async def shows(site: ProgramDirectory, line: str) -> bool:
    """True if the collector's metrics contain this line."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{site.url}/metrics") as answer:
            return line in (await answer.text()).splitlines()
    except aiohttp.ClientError:
        return False


async def accept_clock(site: ProgramDirectory) -> None:
    """Run the command as an administrator does."""
    (site.directory / "collector.toml").write_text('state_directory = "collector"\n')
    terms = ["collector", "accept-clock", "--config", "collector.toml", "--yes"]
    assert await run_to_end(terms, site.directory, os.environ) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("ahead_ns", [HOUR_NS, -3 * HOUR_NS])
async def test_an_accepted_clock_places_frames_again_after_a_real_reload(
    site: ProgramDirectory, ahead_ns: int
) -> None:
    (site.directory / "tokens.toml").write_text(
        f'[nodes]\nn1 = "{digest_token("token-n1")}"\n', encoding="utf-8"
    )
    state = site.directory / "collector"
    keep_reference(state, ahead_ns)
    begun_ns = time.time_ns()
    collector = await site.collector(**QUICK)
    sender = FrameSender("n1")
    await send_until_acknowledged(site, sender.body(gpu_frames(sender), schemas=True), 3)
    await wait_until(partial(shows, site, "railscope_collector_clock_suspect 1"), "it is suspect")
    database = Database(f"sqlite:///{state / 'ledger.sqlite'}", metadata)
    store = EvidenceStore(database)
    assert store.contacts() == {}

    await accept_clock(site)
    await collector.find_logged("reload_started")
    await wait_until(partial(shows, site, "railscope_collector_clock_suspect 0"), "it is trusted")

    async def is_stored() -> bool:
        return bool(store.homes())

    await wait_until(is_stored, "the evidence is stored")
    decided = clock.read_state(state)
    assert decided is not None
    (correction,) = decided.corrections
    assert abs(correction.delta_ns - ahead_ns) < HOUR_NS // 60
    known = store.evidence("GPU-n1-0", begun_ns - HOUR_NS, time.time_ns() + HOUR_NS)
    (doubt,) = {doubt.value for doubt in known.doubts}
    assert (doubt.since_ns, doubt.delta_ns) == (correction.since_ns, correction.delta_ns)
    for contact in store.contacts()["n1"].values():
        assert begun_ns - HOUR_NS // 60 < contact.received_ns < time.time_ns()

    await send_until_acknowledged(site, sender.body(gpu_frames(sender, at=10)), 13)
    await collector.stop()
    assert not collector.find("Traceback"), collector.log_tail()
    steps = [one for one in read(state / "audit") if one.type == "evidence.clock_step"]
    assert [step.out for step in steps][-1] == "done"
    assert steps[-1].data["delta_ns"] == str(correction.delta_ns)
    database.close()
