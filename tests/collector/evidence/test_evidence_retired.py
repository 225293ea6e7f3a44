"""Retired GPUs: from an instant on they have no capacity, exactly; nothing before it changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import select
from support.finalizing import FinalizingCollector
from support.metered import revision_of
from support.story import (
    DAY,
    DAY_SECONDS,
    START_NS,
    NodeReporter,
    accept,
    account_at,
    at,
    claim_started,
    core_in,
    gpus_of,
    no_turns,
    seconds_of,
)

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.account.account_sums import AmountKey
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_claims import clip_claim
from railscope_collector.files.claims_file import parse_claims
from railscope_collector.files.retirements_file import (
    RETIREMENTS_HEADER,
    RetiredGpus,
    Retirement,
    parse_retirements,
)
from railscope_collector.files.watched_file import FileError
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.ledger_records import HEAD as BILLING_HEAD
from railscope_collector.metering.amount_shares import AmountAttribution
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.evidence import Evidence, MeteredClaim, NodeStay
from railscope_collector.metering.tiling import GpuTimeline
from railscope_collector.metering.units import Tiling

HEAD = ",".join(RETIREMENTS_HEADER) + "\n"
HOURS = 3600
LATER = DAY_SECONDS + 2 * HOURS
ALICE = {"tenant": "alice"}


def spelled(timestamp_ns: int) -> str:
    if timestamp_ns == FOREVER_NS:
        return ""
    return (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_ns // 1000)
    ).isoformat()


def as_text(*retired: Retirement) -> str:
    rows = [
        f"{one.gpu},{spelled(one.start_ns)},{spelled(one.end_ns)},{one.reason}\n" for one in retired
    ]
    return HEAD + "".join(rows)


def retirement(second: float, until: float | None = None, gpu: str = "GPU-0") -> Retirement:
    end_ns = FOREVER_NS if until is None else at(until)
    return Retirement(at(second), end_ns, gpu, "sent back")


# The file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpu,at\n", "line 1: invalid header: expected gpu,from,to,reason"),
        ("gpu,from,to,why\n", "line 1: invalid header: expected gpu,from,to,reason"),
        (HEAD + "GPU-1,2026-01-01T00:00:00Z,\n", "line 2: .*: expected gpu,from,to,reason"),
        (HEAD + ",2026-01-01T00:00:00Z,,broken\n", "line 2: empty gpu"),
        (HEAD + "# why\nGPU-1,now,,broken\n", "line 3, from: invalid time 'now'"),
        (HEAD + "GPU-1,2026-01-01T00:00:00Z,2026-01-01T00:00:00Z,x\n", "line 2, to: invalid span"),
        (HEAD + f"GPU-1,2026-01-01T00:00:00Z,,{'x' * 401}\n", "line 2: invalid reason"),
        (HEAD + f"{'G' * 401},2026-01-01T00:00:00Z,,x\n", "line 2: invalid gpu"),
    ],
)
def test_a_wrong_line_and_column_is_named(text: str, problem: str):
    with pytest.raises(FileError, match=problem):
        parse_retirements(text)


micros = st.integers(0, 10_000).map(lambda n: START_NS + n * 1000)
retirements = st.builds(
    lambda start, length, gpu, why: Retirement(
        start, FOREVER_NS if length is None else start + length * 1000, gpu, why
    ),
    micros,
    st.none() | st.integers(1, 5000),
    st.sampled_from(["GPU-0", "GPU-1"]),
    st.sampled_from(["", "sent back", "é; burnt"]),
)


@given(st.lists(retirements, max_size=6))
def test_what_is_written_is_what_is_read(found: list[Retirement]):
    assert parse_retirements(as_text(*found)) == RetiredGpus.from_rows(set(found))


@given(st.lists(retirements, max_size=6), st.lists(micros, min_size=2, max_size=8, unique=True))
def test_an_instant_is_in_service_or_retired_and_never_both(
    found: list[Retirement], edges: list[int]
):
    """Of stays, and of claims on the GPU, exactly the retired instants are taken away."""
    retired = RetiredGpus.from_rows(found)
    edges.sort()
    stays = [NodeStay(a, f"n{i}", b) for i, (a, b) in enumerate(pairwise(edges))]
    kept = retired.service_stays("GPU-0", stays)
    claims = list(
        retired.clip(
            "GPU-0", MeteredClaim(ClaimAuthority.ADMINISTRATOR, edges[0], "c", "t", edges[-1])
        )
    )
    assert len({claim.id for claim in claims}) == len(claims)
    for timestamp_ns in {*edges, *(one.start_ns for one in found), *(one.end_ns for one in found)}:
        for near in (timestamp_ns - 1, timestamp_ns):
            gone = retired.find_retirement("GPU-0", near) is not None
            was = [s.node for s in stays if s.start_ns <= near < s.end_ns]
            now = [s.node for s in kept if s.start_ns <= near < s.end_ns]
            assert now == ([] if gone else was)
            held = [c for c in claims if c.start_ns <= near < c.end_ns]
            assert len(held) == (0 if gone or not edges[0] <= near < edges[-1] else 1)


def test_a_retirement_changes_no_precedence_of_claims_after_it():
    """An exception of one GPU in a claim on its node, and the GPU is repaired meanwhile."""
    rows = "zoe,node1,1970-01-01T00:00:00Z,\nann,GPU-0,1970-01-01T01:00:00Z,\n"
    claims = parse_claims(f"tenant,gpu,from,to\n{rows}").claims_on_gpu("GPU-0", ["node1"])
    hour_ns = HOURS * 10**9
    retired = RetiredGpus.from_rows([Retirement(2 * hour_ns, 3 * hour_ns, "GPU-0")])
    served = [NodeStay(0, "node1")]
    parts = [part for claim in claims for part in retired.clip("GPU-0", claim)]
    limited = [each for part in parts for each in clip_claim(part, served)]
    for found in (parts, limited):
        stays = retired.service_stays("GPU-0", served)
        evidence = Evidence("GPU-0", stays, tuple(found))
        entries = GpuTimeline.compute(evidence).entries(0, 4 * hour_ns)
        holders = [(e.t0_ns // hour_ns, e.tenant) for e in entries if e.tiling is Tiling.COMPUTE]
        assert holders == [(0, "zoe"), (1, "ann"), (3, "ann")]
        assert len({(claim.tenant, claim.begins_ns) for claim in found}) == len(found) == 4


# The account -------------------------------------------------------------------------------------


async def test_a_gpu_that_left_is_unknown_until_it_is_retired(tmp_path: Path):
    core = core_in(tmp_path)
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 601, 20)))
    account = await account_at(core, 1000)
    assert seconds_of(account) == {("idle", ""): 1200, ("unknown", ""): 800}
    account = await account_at(
        core, 1000, AdministratorInputs(retired=RetiredGpus.from_rows([retirement(700)]))
    )
    assert seconds_of(account) == {("idle", ""): 1200, ("unknown", ""): 500}
    assert account.capacity == (700 + 1000) * 10**9 * GPU_CAPACITY
    assert account.balances


async def test_before_the_instant_nothing_changes_and_after_it_there_is_nothing(tmp_path: Path):
    core = core_in(tmp_path)
    events = {100: [claim_started("GPU-0", "a", 100, **ALICE)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 601, 20), events=events))
    instant = Retirement(at(300) + 1, FOREVER_NS, "GPU-0")
    files = AdministratorInputs(retired=RetiredGpus.from_rows([instant]))
    account = await account_at(core, 600, files)
    assert account.capacity == (300 * 10**9 + 1) * GPU_CAPACITY, "to the nanosecond"
    assert account.balances
    assert seconds_of(account) == {("idle", ""): 100, ("observed", "alice"): 200 + 1e-9}
    back = AdministratorInputs(
        retired=RetiredGpus.from_rows([Retirement(instant.start_ns, at(500), "GPU-0")])
    )
    account = await account_at(core, 600, back)
    assert seconds_of(account) == {("idle", ""): 100, ("observed", "alice"): 300 + 1e-9}


class RepeatedAccount:
    """An account that is read repeatedly, as the views read it."""

    def __init__(self, directory: Path) -> None:
        self.core = core_in(directory)
        self.files = AdministratorInputs()
        self.live = LiveAccount(self.core.evidence, lambda: self.files)

    async def at(self, second: float):
        return await self.live.refresh(at(second), no_turns)


async def test_an_announced_retirement_takes_effect_while_the_gpu_still_reports(tmp_path: Path):
    one = RepeatedAccount(tmp_path)
    one.files = AdministratorInputs(
        retired=RetiredGpus.from_rows([retirement(50), retirement(90, 120, "GPU-1")])
    )
    node = NodeReporter()
    for second in range(0, 200, 10):
        accept(one.core, node.envelopes_of(gpus_of("GPU-0", "GPU-1"), [second]))
        account = await one.at(second + 5)
        now = second + 5
        served = min(now, 50) + min(now, 90) + max(now - 120, 0)
        assert account.capacity == served * 10**9 * GPU_CAPACITY
        assert account.balances
    assert one.live.held_units() == {}


seconds = st.integers(0, 900)


@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(st.integers(0, 300), min_size=2, max_size=2),
    spans=st.lists(
        st.tuples(st.integers(0, 1), seconds, st.none() | st.integers(1, 400)), max_size=4
    ),
    asked=st.lists(st.integers(301, 1000), min_size=1, max_size=4),
)
async def test_capacity_is_the_time_between_first_evidence_and_retirement(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[int],
    spans: list[tuple[int, int, int | None]],
    asked: list[int],
):
    """Sum over GPUs, at any time and in any order of reads; the states add up to it."""
    one = RepeatedAccount(tmp_path_factory.mktemp("core"))
    for gpu, since in enumerate(first):
        claim = {since: [claim_started(f"GPU-{gpu}", f"c{gpu}", since + 5, **ALICE)]}
        node = NodeReporter(f"n{gpu}")
        accept(
            one.core, node.envelopes_of(gpus_of(f"GPU-{gpu}"), range(since, 700, 20), events=claim)
        )
    retired = [
        retirement(start, None if length is None else start + length, f"GPU-{gpu}")
        for gpu, start, length in spans
    ]
    before = await one.at(1)
    assert before.balances
    one.files = AdministratorInputs(retired=RetiredGpus.from_rows(retired))
    for second in asked:
        served = sum(
            not any(
                one.gpu == f"GPU-{gpu}" and one.start_ns <= at(moment) < one.end_ns
                for one in retired
            )
            for gpu, since in enumerate(first)
            for moment in range(since, second)
        )
        account = await one.at(second)
        assert account.capacity == served * 10**9 * GPU_CAPACITY
        assert account.balances


# The ledger --------------------------------------------------------------------------------------


def a_day(*gpus: str, until: int = DAY_SECONDS + HOURS):
    """A day and an hour of some GPUs; alice holds the first from 6:00 on."""
    events = {6 * HOURS: [claim_started(gpus[0], "a", 6 * HOURS, **ALICE)]}
    return NodeReporter().envelopes_of(gpus_of(*gpus), range(0, until, 30), each=40, events=events)


def covered(site: FinalizingCollector, gpu: str, day: int) -> int | None:
    """The GPU time that the ledger has of a day; None where the day is not in it."""
    revision = revision_of(site.stores.ledger, gpu, day)
    if revision is None:
        return None
    return sum(entry.quantity for entry in revision.tiling.entries) // 2 // GPU_CAPACITY


async def test_a_retirement_revises_the_days_it_is_about_and_ends_the_account(make, url: str):
    site = make("one", url)
    accept(site.core, a_day("GPU-0", "GPU-1"))
    for day in (1, 2, 3):
        await site.round(day * DAY_SECONDS + 2 * HOURS)
    assert [covered(site, "GPU-0", DAY + n) for n in range(3)] == [DAY_NS] * 3, "for ever"
    energy = AmountKey(CountedQuantity.ENERGY, AmountAttribution.ATTRIBUTED, "alice")
    before = site.live.amounts.totals()[energy]
    site.texts["retired"] = as_text(Retirement(at(12 * HOURS) + 1000, FOREVER_NS, "GPU-0", "burnt"))
    now = 3 * DAY_SECONDS + 3 * HOURS
    await site.round(now)
    served_ns = 12 * HOURS * 10**9 + 1000
    assert [covered(site, "GPU-0", DAY + n) for n in range(3)] == [served_ns, 0, 0]
    assert revision_of(site.stores.ledger, "GPU-0", DAY).number == 2
    assert [covered(site, "GPU-1", DAY + n) for n in range(3)] == [DAY_NS] * 3
    assert revision_of(site.stores.ledger, "GPU-1", DAY).number == 1, "another GPU's days stay"
    account = await site.account(now)
    assert account.balances
    assert account.capacity == (served_ns + now * 10**9) * GPU_CAPACITY
    after = site.live.amounts.totals()[energy]
    assert 0 < after < before, "what it used after that is nobody's"
    await site.round(4 * DAY_SECONDS + 3 * HOURS)
    assert covered(site, "GPU-0", DAY + 3) == 0
    assert covered(site, "GPU-1", DAY + 3) == DAY_NS


async def test_each_retirement_is_recorded_once(make, url: str):
    site = make("one", url)
    accept(site.core, a_day("GPU-0", "GPU-1"))
    await site.round(LATER)
    one = Retirement(at(12 * HOURS), FOREVER_NS, "GPU-0", "burnt")
    site.texts["retired"] = as_text(one)
    for seconds_later in (60, 120):
        await site.round(LATER + seconds_later)
    other = Retirement(at(13 * HOURS), at(14 * HOURS), "GPU-1", "lent")
    site.texts["retired"] = as_text(other)
    await site.round(LATER + 180)
    with site.stores.ledger.database.transaction() as connection:
        rows = connection.execute(
            select(outbox_rows)
            .where(outbox_rows.c.type != BILLING_HEAD)
            .order_by(outbox_rows.c.number)
        ).all()
    reported = [
        (row.type, msgspec.json.decode(row.subject)["gpu"], msgspec.json.decode(row.data))
        for row in rows
    ]
    assert [(kind, gpu, data["what"], data["why"]) for kind, gpu, data in reported] == [
        ("device.retire", "GPU-0", "retired", "burnt"),
        ("device.retire", "GPU-0", "withdrawn", "burnt"),
        ("device.retire", "GPU-1", "retired", "lent"),
    ]
    assert reported[2][2]["to_ns"] == str(at(14 * HOURS))
    assert {msgspec.json.decode(row.actor)["kind"] for row in rows} == {"administrator"}


async def test_what_a_retired_gpu_does_is_not_lost(make, url: str):
    """Its evidence is stored; after its row is removed, its days are as if it had never been
    retired.
    """
    site = make("one", url)
    site.texts["retired"] = as_text(retirement(6 * HOURS))
    accept(site.core, a_day("GPU-0"))
    await site.round(LATER)
    assert covered(site, "GPU-0", DAY) == 6 * HOURS * 10**9
    site.texts["retired"] = HEAD
    await site.round(LATER + 600)
    assert covered(site, "GPU-0", DAY) == DAY_NS
    found = revision_of(site.stores.ledger, "GPU-0", DAY)
    assert {(e.state.value, e.tenant) for e in found.tiling.entries} == {
        ("idle", ""),
        ("observed", "alice"),
    }
    account = await site.account(LATER + 600)
    assert account.balances
    assert account.capacity == (LATER + 600) * 10**9 * GPU_CAPACITY


async def test_a_gpu_that_comes_back_is_accounted_for_again(make, url: str):
    site = make("one", url)
    accept(site.core, a_day("GPU-0", until=4 * DAY_SECONDS + HOURS))
    site.texts["retired"] = as_text(retirement(6 * HOURS, 2 * DAY_SECONDS + 12 * HOURS))
    await site.round(4 * DAY_SECONDS + 2 * HOURS)
    hours = [covered(site, "GPU-0", DAY + n) for n in range(4)]
    assert hours == [6 * HOURS * 10**9, 0, 12 * HOURS * 10**9, DAY_NS]
    account = await site.account(4 * DAY_SECONDS + 2 * HOURS)
    assert account.balances
    assert account.capacity == (6 + 12 + 24 + 2) * HOURS * 10**9 * GPU_CAPACITY


async def test_a_collector_that_takes_over_finds_the_same(make, url: str):
    one, two = make("one", url), make("two", url)
    text = as_text(retirement(12 * HOURS))
    for site in (one, two):
        site.texts["retired"] = text
    accept(one.core, a_day("GPU-0", "GPU-1"))
    now = 2 * DAY_SECONDS + 2 * HOURS
    await one.round(now, everything=True)
    accept(two.core, a_day("GPU-0", "GPU-1", until=60))
    await two.round(now + 60)
    accounts = [await site.account(now + 120) for site in (one, two)]
    assert accounts[0].capacity == accounts[1].capacity
    assert all(account.balances for account in accounts)
    one.restart(one.checkpoint())
    await one.round(now + 180)
    assert (await one.account(now + 180)).capacity == accounts[0].capacity + 60 * 10**9 * 840
