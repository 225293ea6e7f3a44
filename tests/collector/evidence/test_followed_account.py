"""The account of the head follows from what the collectors have stored, not from the time that has passed."""

from __future__ import annotations

from pathlib import Path

from support.finalizing import SETTINGS, FinalizingCollector
from support.story import NodeReporter, accept, at, core_in, gpus_of, no_turns, seconds_of

from railscope_collector.account.live_account import LiveAccount
from railscope_collector.finalization.followed_account import FollowedAccount

DAY_SECONDS = 86_400
RELEASED = 600
"""Seconds after which a collector has usually stored its evidence."""


class Head:
    """An account of the records of a collector, and of its database."""

    def __init__(self, directory: Path, site: FinalizingCollector) -> None:
        self.site = site
        self.core = core_in(directory / "head")
        self.live = LiveAccount(self.core.evidence, site.files, is_ready=False)
        self.account = FollowedAccount(
            self.core.evidence, self.live, lambda: site.stores, SETTINGS, lambda: at(site.now)
        )

    async def amounts(self, now: float) -> dict:
        """The amounts after a refresh."""
        self.site.now = now
        await self.account.refresh()
        return self.live.amounts.totals()


async def test_amounts_are_counted_once_their_collector_has_stored_them(
    site: FinalizingCollector, tmp_path: Path
):
    await site.round(1)
    head, node = Head(tmp_path, site), NodeReporter()
    accepted = node.envelopes_of(gpus_of("GPU-0"), range(0, 1800, 30), each=10)
    for core in (site.core, head.core):
        accept(core, accepted)
    assert await head.amounts(1800) == {}
    assert not head.core.evidence.intervals.by_key, "they have no other use"
    await site.round(1800, everything=True)
    first = await head.amounts(1810)
    assert first == site.live.amounts.totals() != {}
    more = node.envelopes_of(gpus_of("GPU-0"), range(1800, 3600, 30), each=10)
    for core in (site.core, head.core):
        accept(core, more)
    assert await head.amounts(3600 + RELEASED) == first, "the database was not available"
    assert await head.amounts(3630 + RELEASED) == first
    await site.round(3660 + RELEASED, everything=True)
    assert await head.amounts(3670 + RELEASED) == site.live.amounts.totals() != first


async def test_amounts_follow_the_files_of_administrators(
    site: FinalizingCollector, tmp_path: Path
):
    await site.round(1)
    head, node = Head(tmp_path, site), NodeReporter()
    accepted = node.envelopes_of(gpus_of("GPU-0"), range(0, 1800, 30), each=10)
    for core in (site.core, head.core):
        accept(core, accepted)
    await site.round(1800, everything=True)
    before = await head.amounts(1810)
    assert {key.tenant for key in before} == {""}
    site.texts["claims"] = (
        "tenant,holds,from,to\nred,GPU-0,2020-01-01T00:00:00Z,2030-01-01T00:00:00Z\n"
    )
    await site.round(1900, everything=True)
    assert {key.tenant for key in await head.amounts(1910)} == {"red"}


async def test_days_that_are_in_the_ledger_count_once(site: FinalizingCollector, tmp_path: Path):
    await site.round(1)
    head = Head(tmp_path, site)
    accepted = NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, DAY_SECONDS, 30), each=40)
    for core in (site.core, head.core):
        accept(core, accepted)
    later = DAY_SECONDS + 7200
    for now in (DAY_SECONDS, later):
        await site.round(now, everything=True)
        assert await head.amounts(now + 10) == site.live.amounts.totals()
        account = await head.live.refresh(at(now + 10), no_turns)
        assert seconds_of(account) == seconds_of(await site.account(now + 10))
    assert head.live.finalized.days == site.live.finalized.days != {}
