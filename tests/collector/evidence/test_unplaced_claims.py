"""Claims of a node without a device: live account and ledger days place them alike, and again the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_days import HOURS, LATER, hours
from looks import troubles
from support.settling import Site
from support.story import (
    DAY_SECONDS,
    Reporter,
    accept,
    account_at,
    ended,
    gpus_of,
    seconds_of,
    started,
)

from collector.core import Core
from collector.evidence.told import unplaced_in
from railscope.frame import Event

ALICE, BOB = {"tenant": "alice"}, {"tenant": "bob"}


def count(claim: str, second: float, number: int, **facts: str) -> Event:
    """A claim of so many GPUs without their names."""
    return started("", claim, second, count=str(number), **facts)


async def test_a_count_is_billed_and_takes_free_gpus(core: Core):
    events = {
        10: [started("GPU-0", "a", 0, **ALICE), count("u", 20, 1, **BOB)],
        80: [ended("", "u", 70)],
    }
    accept(core, Reporter().told(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events))
    account = await account_at(core, 100)
    assert account.balances
    assert account.gpus == 2
    assert seconds_of(account) == {
        ("observed", "alice"): 100, ("observed", "bob"): 50, ("idle", ""): 50,
    }  # fmt: skip


async def test_what_does_not_fit_displaces_nobody(core: Core):
    heard = troubles(core)
    events = {10: [started("GPU-0", "a", 0, **ALICE), count("u", 0, 2, **BOB)]}
    accept(core, Reporter().told(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events))
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 100, ("observed", "bob"): 100,
    }  # fmt: skip
    assert [(one.kind, one.node, one.facts) for one in heard] == [
        ("unplaced_excess", "n1", {"claim": "u", "tenant": "bob", "gpus": "1"})
    ]


async def test_a_claim_on_one_gpu_moves_the_count_of_its_node(core: Core):
    node = Reporter()
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    accept(core, node.told(schema, range(0, 51, 10), events={10: [count("u", 0, 1, **BOB)]}))
    assert seconds_of(await account_at(core, 50)) == {
        ("observed", "bob"): 50, ("idle", ""): 100,
    }  # fmt: skip
    later = {60: [started("GPU-0", "a", 20, **ALICE)]}
    accept(core, node.told(schema, range(60, 101, 10), events=later))
    account = await account_at(core, 100)
    assert seconds_of(account) == {
        ("observed", "bob"): 100, ("observed", "alice"): 80, ("idle", ""): 120,
    }  # fmt: skip


async def test_nothing_of_one_node_is_placed_on_another(core: Core):
    accept(core, Reporter("n1").told(gpus_of("GPU-0"), range(0, 51, 10)))
    events = {10: [count("u", 0, 4, **BOB)]}
    accept(core, Reporter("n2", "boot-2").told(gpus_of("GPU-1"), range(0, 51, 10), events=events))
    assert seconds_of(await account_at(core, 50)) == {
        ("observed", "bob"): 50, ("idle", ""): 50,
    }  # fmt: skip


def a_day(node: Reporter):
    """A node's day: alice has one GPU from 6:00 to 12:00, bob two of three from 8:00 to 20:00."""
    events = {
        6 * HOURS: [started("GPU-0", "a", 6 * HOURS, **ALICE)],
        8 * HOURS: [count("u", 8 * HOURS, 2, source="slurm", owner="astro")],
        12 * HOURS: [ended("GPU-0", "a", 12 * HOURS)],
        20 * HOURS: [ended("", "u", 20 * HOURS)],
    }
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    return node.told(schema, range(0, DAY_SECONDS + HOURS, 30), each=40, events=events)


EXPECTED = {("observed", "alice"): 6, ("observed", "slurm:astro"): 24, ("idle", ""): 42}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


async def test_the_ledger_has_what_the_account_has_and_the_same_again(tmp_path: Path, url: str):
    site = Site(tmp_path / "one", url)
    accept(site.core, a_day(Reporter()))
    live = seconds_of(await account_at(site.core, DAY_SECONDS))
    assert {key: seconds / HOURS for key, seconds in live.items()} == EXPECTED
    await site.round(LATER, everything=True)
    assert hours(site) == EXPECTED
    site.restart(site.checkpoint())
    accept(site.core, a_day(Reporter()))
    await site.round(LATER + HOURS, everything=True)
    assert hours(site) == EXPECTED
    assert site.settler.counts.revisions == 0, "nothing is written again"


async def test_a_count_that_comes_late_is_a_revision_of_all_gpus_of_its_node(
    tmp_path: Path, url: str
):
    site = Site(tmp_path / "one", url)
    node = Reporter()
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    accept(site.core, node.told(schema, range(0, DAY_SECONDS + HOURS, 30), each=40))
    await site.round(LATER, everything=True)
    assert hours(site) == {("idle", ""): 72}
    late = LATER + HOURS
    events = {late: [count("u", 8 * HOURS, 2, **BOB), ended("", "u", 20 * HOURS)]}
    accept(site.core, node.told(schema, [late], events=events))
    await site.round(late + 600, everything=True)
    assert ("observed", "bob") not in hours(site), "it waits for a person"
    assert site.accept_all(late + 620) == 1
    await site.round(late + 640)
    assert hours(site) == {("idle", ""): 48, ("observed", "bob"): 24}
    more = {late + 700: [started("GPU-0", "a", 0, **ALICE), ended("GPU-0", "a", 24 * HOURS)]}
    accept(site.core, node.told(schema, [late + 700], events=more))
    await site.round(late + 1400, everything=True)
    assert site.accept_all(late + 1420) == 1
    await site.round(late + 1440)
    assert hours(site) == {
        ("idle", ""): 24, ("observed", "bob"): 24, ("observed", "alice"): 24,
    }, "the count makes way, on other GPUs of the node"  # fmt: skip


async def test_another_collector_learns_of_counts(tmp_path: Path, url: str):
    one, two = Site(tmp_path / "one", url), Site(tmp_path / "two", url)
    schema = gpus_of("GPU-0", "GPU-1")
    events = {10: [count("u", 0, 1, **BOB)]}
    node = Reporter()
    accept(one.core, node.told(schema, range(0, 101, 10), events=events))
    await one.round(200, everything=True)
    accept(two.core, node.told(schema, range(110, 201, 10)))
    await two.round(300, everything=True)
    await two.round(400, everything=True)
    assert two.core.evidence.has_unplaced("n1")
    found = seconds_of(await account_at(two.core, 200))
    assert found["observed", "bob"] == 90


async def test_counts_of_the_past_are_forgotten(tmp_path: Path, url: str):
    site = Site(tmp_path / "one", url)
    accept(site.core, a_day(Reporter()))
    await site.round(LATER, everything=True)
    assert not site.core.evidence.gpus[unplaced_in("n1")].told
