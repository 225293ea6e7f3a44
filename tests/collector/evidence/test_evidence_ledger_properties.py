"""For any history, the ledger of several collectors with restarts equals that of one collector."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, strategies as st
from stories import fleet_histories, spelled_files
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector, content
from support.metered import revision_of, tile
from support.story import DAY, DAY_SECONDS, accept, at

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.account.account_sums import AmountKey
from railscope_collector.metering.amount_shares import AmountAttribution
from railscope_collector.metering.counter_increments import CountedQuantity

# Each example makes databases and waits for the disk.
few = fewer_examples(20)
sizes = st.lists(st.integers(5, 60), min_size=1, max_size=3)
LATER = DAY_SECONDS + 7200
DAYS = range(DAY, DAY + 1)
HANDS = st.lists(st.sampled_from(["one", "two", "both"]), min_size=1, max_size=7)


def site(directory: Path, name: str, database: str) -> FinalizingCollector:
    return FinalizingCollector(directory / name, f"sqlite:///{directory / database}")


@few
@given(fleet_histories(), spelled_files(), sizes, HANDS, st.data())
async def test_two_collectors_one_of_them_restarted_write_the_ledger_of_one(
    story, texts, these, hands, data
):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        alone = site(directory, "alone", "alone.db")
        sides = {holder: site(directory, holder, "shared.db") for holder in ("one", "two")}
        for each in (alone, *sides.values()):
            each.texts = dict(texts)
        envelopes = story.envelopes(these)
        accept(alone.core, envelopes)
        shares = {
            holder: [
                e for i, e in enumerate(envelopes) if hands[i % len(hands)] in {holder, "both"}
            ]
            for holder in sides
        }
        cut = data.draw(st.integers(0, len(shares["one"])))
        accept(sides["one"].core, shares["one"][:cut])
        kept = sides["one"].checkpoint()
        accept(sides["one"].core, shares["one"][cut : cut + 2])
        await sides["one"].round(data.draw(st.integers(0, 8000)))
        sides["one"].restart(kept)
        accept(sides["one"].core, shares["one"][cut:])
        accept(sides["two"].core, shares["two"])
        for turn in range(2):
            for each in (alone, *sides.values()):
                await each.round(LATER + 400 * turn)
        expected = content(alone.stores.ledger, DAYS)
        assert content(sides["one"].stores.ledger, DAYS) == expected
        await still_the_evidence(alone)
        for each in (alone, *sides.values()):
            each.finalizer.close()


async def still_the_evidence(alone: FinalizingCollector) -> None:
    """The ledger equals the engine's result for the evidence, and the account continues from it."""
    ledger, store, _ = alone.stores
    for gpu in alone.core.evidence.gpus:
        known = store.evidence(gpu, at(0), at(DAY_SECONDS))
        entries = tuple(tile(known.evidence, at(0), at(DAY_SECONDS)))
        revision = revision_of(ledger, gpu, DAY)
        assert (revision.tiling.entries if revision else ()) == entries
        energy = known.counted.get(CountedQuantity.ENERGY)
        shares = (
            [s.share for s in revision.tiling.shares if s.measure is CountedQuantity.ENERGY]
            if revision
            else []
        )
        if energy is not None:
            within = (energy.ends_ns > at(0)) & (energy.ends_ns <= at(DAY_SECONDS))
            assert sum(share.amount for share in shares) == energy.amounts[within].sum()
    account = await alone.account(LATER + 500)
    assert account.balances
    served = (
        min(stay.end_ns, account.until_ns) - stay.start_ns
        for gpu in alone.core.evidence.gpus
        for stay in alone.stores.store.evidence(gpu, at(0), at(LATER)).evidence.stays
        if stay.start_ns < account.until_ns
    )
    assert account.capacity == GPU_CAPACITY * sum(served)
    totals = alone.live.amounts.totals()
    assert all(amount >= 0 for amount in totals.values())
    assert AmountKey(CountedQuantity.ENERGY, AmountAttribution.ATTRIBUTED, "") not in totals
