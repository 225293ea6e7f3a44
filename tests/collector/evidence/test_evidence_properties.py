"""Evidence of any history: the order and batches of its arrival, its collectors and their restarts change no ledger day."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from fleet_history import FleetHistory, fleet_histories, spelled_files
from hypothesis import given, strategies as st
from msgspec.structs import replace
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of, tile
from support.story import DAY, DAY_SECONDS, SECOND, accept, at, known_of, no_turns, temporary_core

from railscope_collector.account.account_sums import AmountKey, sum_entries
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence.claim_events import ReportedClaim
from railscope_collector.evidence.gpu_evidence import build_evidence
from railscope_collector.ledger import leases
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.day_metering import join_entries
from railscope_collector.metering.amount_shares import AmountAttribution
from railscope_collector.metering.counter_increments import CountedQuantity

LATER = DAY_SECONDS + 7200
DAYS = range(DAY, DAY + 1)
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4)
since_the_newest = st.sampled_from([-15, -8, -3, -1, 0, 1, 5, 40, 400, 8000])
"""Seconds from the arrival of the newest frame to the refresh."""


def reports(reported: list[ReportedClaim]) -> list[ReportedClaim]:
    """Claims in order, without the times of their reports, which depend on their receipt."""
    return sorted(
        {replace(one, reported_ns=0, trusted_from_ns=0, received_ns=0) for one in reported}
    )


@fewer_examples(50)
@given(fleet_histories(), sizes, sizes, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_nor_batches_mean_anything(
    story: FleetHistory, these: list[int], those: list[int], random
):
    one, other = temporary_core(), temporary_core()
    accept(one, story.envelopes(these))
    shuffled = [*story.envelopes(those), *story.envelopes(these)]
    random.shuffle(shuffled)
    accept(other, shuffled)
    gpus = one.evidence.gpus
    assert gpus.keys() == other.evidence.gpus.keys()
    # The receipt decides which node reported a GPU first.
    is_contested = any(len({p.node for p in m.presences.values()}) > 1 for m in gpus.values())
    for gpu in gpus:
        assert reports(gpus[gpu].claims) == reports(other.evidence.gpus[gpu].claims)
        first, second = (known_of(core, gpu, story.files) for core in (one, other))
        assert is_contested or first.evidence == second.evidence
        for measure, counted in first.counted.items():
            again = second.counted[measure]
            assert is_contested or np.array_equal(counted.amounts, again.amounts)


@fewer_examples(50)
@given(fleet_histories(), sizes, st.lists(since_the_newest, min_size=1, max_size=8), st.data())
async def test_the_live_account_is_what_the_engine_makes_of_the_same_evidence(
    story: FleetHistory, these: list[int], offsets: list[int], data: st.DataObject
):
    """Read before and after the newest sample, which may be newer than the time of the read."""
    core = temporary_core()
    live = LiveAccount(core.evidence, lambda: story.files)
    envelopes = story.envelopes(these)
    cuts = sorted(data.draw(st.integers(0, len(envelopes))) for _ in offsets)
    begin, now_ns, newest_ns = 0, at(0), at(0)
    for offset, end in zip(offsets, cuts, strict=True):
        accept(core, envelopes[begin:end])
        newest_ns = max([newest_ns, *(r.received_wall_ns for r, _ in envelopes[begin:end])])
        begin, now_ns = end, max(now_ns, newest_ns + offset * SECOND)
        account = await live.refresh(now_ns, no_turns)
        assert account.balances
        expected: dict = {}
        for gpu in core.evidence.gpus:
            evidence, _ = build_evidence(core.evidence.facts(gpu), story.files)
            since = min((stay.start_ns for stay in evidence.stays), default=now_ns)
            if since < now_ns:
                for key, quantity in sum_entries(tile(evidence, since, now_ns)).items():
                    expected[key] = expected.get(key, 0) + quantity
        assert dict(account.sums) == expected


class ScriptedLease(leases.Lease):
    """A lease that is taken by this process only while `is_wanted`, also with SQLite."""

    is_wanted = False

    def take(self, database: Database) -> leases.LeaseTerm | None:
        return super().take(database) if self.is_wanted else None


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9)),
    min_size=2,
    max_size=12,
)


@fewer_examples(20)
@given(fleet_histories(), spelled_files(), st.lists(st.integers(5, 60), min_size=1), STEPS)
async def test_any_collectors_with_any_holders_and_restarts_write_the_ledger_of_one(
    story: FleetHistory, texts: dict[str, str], these: list[int], steps: list[tuple]
):
    """Each step: frames that one receives, or two do; its restart; then its round, as the holder or not."""
    with tempfile.TemporaryDirectory() as name:
        alone = FinalizingCollector(Path(name) / "alone", f"sqlite:///{name}/alone.db")
        sides = [
            FinalizingCollector(Path(name) / f"side-{n}", f"sqlite:///{name}/shared.db")
            for n in range(3)
        ]
        for each in (alone, *sides):
            each.texts = dict(texts)
        for side in sides:
            side.finalizer.lease = ScriptedLease(leases.FINALIZATION)
        envelopes = story.envelopes(these)
        accept(alone.core, envelopes)
        rest, second = list(envelopes), float(LATER)
        last = (0, False, True, False, len(envelopes))
        for receiver, is_holder, is_sent_twice, is_restarted, count in [*steps, last]:
            for side in (sides[receiver], *sides[receiver - 1 : receiver] * is_sent_twice):
                accept(side.core, rest[:count])
            del rest[:count]
            if is_restarted:
                sides[receiver].restart(sides[receiver].checkpoint())
                sides[receiver].finalizer.lease = ScriptedLease(leases.FINALIZATION)
            sides[receiver].finalizer.lease.is_wanted = is_holder
            await sides[receiver].round(second)
            second += 200
        for holder in (1, 2):
            for number, side in enumerate(sides):
                side.finalizer.lease.is_wanted = number == holder
                await side.round(second)
            second += 200
        for side in (sides[0], sides[1], alone):
            await side.round(second)
        assert content(sides[0].stores.ledger, DAYS) == content(alone.stores.ledger, DAYS)
        await check_conservation(alone, second)
        for side in (alone, *sides):
            side.finalizer.close()


async def check_conservation(alone: FinalizingCollector, now: float) -> None:
    """The ledger is the engine's result, has all counted energy, and the account continues from it."""
    ledger, store, _ = alone.stores
    for gpu in alone.core.evidence.gpus:
        known = store.evidence(gpu, at(0), at(DAY_SECONDS))
        revision = revision_of(ledger, gpu, DAY)
        pieces = join_entries(tile(known.evidence, at(0), at(DAY_SECONDS)))
        assert (revision.day.pieces if revision else ()) == pieces
        if (energy := known.counted.get(CountedQuantity.ENERGY)) is not None:
            counted = revision.day.amounts if revision else ()
            amounts = [each.amount for each in counted if each.measure is CountedQuantity.ENERGY]
            within = (energy.ends_ns > at(0)) & (energy.ends_ns <= at(DAY_SECONDS))
            assert sum(amounts) == energy.amounts[within].sum()
    assert (await alone.account(now)).balances
    totals = alone.live.amounts.totals()
    assert all(amount >= 0 for amount in totals.values())
    assert AmountKey(CountedQuantity.ENERGY, AmountAttribution.ATTRIBUTED, "") not in totals
