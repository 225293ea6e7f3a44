"""Evidence of any history: the order and batches of its arrival, its collectors and their restarts change no ledger day."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fact_stores import FILES, opened, write
from fleet_history import FleetHistory, fleet_histories, spelled_files
from hypothesis import given, strategies as st
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_started,
    gpus_of,
    host,
    temporary_core,
)

from railscope_collector.account.account_sums import AmountKey
from railscope_collector.evidence.day_metering import DayMeter
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.metering.counter_increments import CountedQuantity

HOUR = 3600
LATER = DAY_SECONDS + 7200
DAYS = range(DAY, DAY + 1)
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 9)),
    min_size=2,
    max_size=12,
)


@fewer_examples(20)
@given(fleet_histories(), spelled_files(), st.lists(st.integers(5, 60), min_size=1), STEPS)
async def test_any_collectors_with_any_restarts_write_the_ledger_of_one(
    story: FleetHistory, texts: dict[str, str], these: list[int], steps: list[tuple]
):
    """Each step: frames that one receives, or two do; its restart; then its round."""
    with tempfile.TemporaryDirectory() as name:
        alone = FinalizingCollector(Path(name) / "alone", f"sqlite:///{name}/alone.db")
        sides = [
            FinalizingCollector(Path(name) / f"side-{n}", f"sqlite:///{name}/shared.db")
            for n in range(3)
        ]
        for each in (alone, *sides):
            each.texts = dict(texts)
        envelopes = story.envelopes(these)
        accept(alone.core, envelopes)
        rest, second = list(envelopes), float(LATER)
        last = (0, True, False, len(envelopes))
        for receiver, is_sent_twice, is_restarted, count in [*steps, last]:
            for side in (sides[receiver], *sides[receiver - 1 : receiver] * is_sent_twice):
                accept(side.core, rest[:count])
            del rest[:count]
            if is_restarted:
                sides[receiver].restart(sides[receiver].checkpoint())
            await sides[receiver].round(second)
            second += 200
        for side in (*sides, sides[0], alone):
            await side.round(second, everything=True)
        assert content(sides[0].stores.ledger, DAYS) == content(alone.stores.ledger, DAYS)
        await check_conservation(alone, second)
        for side in (alone, *sides):
            side.finalizer.close()


def test_a_boot_begins_with_its_first_report_also_if_another_collector_received_its_gpus(url: str):
    node = NodeReporter(booted_at=0)
    again = NodeReporter(boot_id="boot-2", run="run-2", booted_at=HOUR)
    started = {0: [claim_started("GPU-0", "a", 0, tenant="red")]}
    one, other = temporary_core(), temporary_core()
    accept(one, [node.record(node.frames(gpus_of("GPU-0"), range(0, 600, 30), events=started))])
    accept(one, [again.record(again.frames(host(), [HOUR + 60]))])
    accept(other, [again.record(again.frames(gpus_of("GPU-0"), range(HOUR + 90, HOUR + 600, 30)))])
    with opened(url) as store:
        for core in (one, other):
            quarters = [each.interval for each in core.evidence.quarters.by_key.values()]
            write(store, [*quarters, *core.evidence.unwritten], DAY + 1)
        with store.database.transaction() as connection:
            found = store.read_day(connection, ["GPU-0"], DAY)
    (claim,) = DayMeter.of_facts(DAY, found, FILES).meter("GPU-0").claims
    assert claim.end_ns == at(HOUR + 60)


async def check_conservation(alone: FinalizingCollector, now: float) -> None:
    """The ledger is what is metered from the facts, and the account continues from it."""
    facts = UsageFacts(alone.stores.facts, alone.stores.files)
    again = {(each.gpu, each.day): each for each in facts.meter(DAY) if each.pieces}
    assert content(alone.stores.ledger, DAYS) == again
    assert (await alone.account(now)).balances
    assert all(amount >= 0 for amount in alone.live.amounts.values())
    assert AmountKey(CountedQuantity.ENERGY, "", "") not in alone.live.amounts
