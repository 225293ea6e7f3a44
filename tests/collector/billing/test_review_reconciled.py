"""R2, cluster = inventory x time: GPUs under review are outside of it until a person accepts them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.books import BOSS, PRICES
from support.finalizing import FinalizingCollector
from support.story import DAY_SECONDS, NodeReporter, accept, at, claim_started, gpus_of

from railscope.audit.record import RecordActor
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS
from railscope_collector.billing import administration
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.billing.reconciliation_check import ReconciliationCheck
from railscope_collector.commands.command_options import read_evidence
from railscope_collector.evidence.review_decisions import (
    ReviewDecision,
    find_pending_evidence,
    record_decision,
)
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.fleet.schema_columns import sku_of
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.units import Period

MODEL = "NVIDIA H100 80GB HBM3"
HOUR = 3600
PERIOD = Period(at(0), at(DAY_SECONDS))
SELLER = Seller("Hall", {"red": PayerAccount("red")})
TILINGS = 2
NAMES = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
LATER = DAY_SECONDS + 2 * HOUR


def checked(site: FinalizingCollector) -> dict[str, ReconciliationCheck]:
    """The checks of the day; each must pass."""
    books = BillingBooks.for_ledger(site.stores.ledger, read_evidence(site.stores.ledger.database))
    prices = PRICES.replace('"h100"', f'"{sku_of(MODEL)}"')
    administration.publish(books, prices, "p", TimedActor(BOSS, at(0)))
    checks = reconcile_period(books, PERIOD, SELLER)
    assert [check for check in checks if not check.passes] == []
    return {check.rule: check for check in checks}


@pytest.mark.parametrize("accepted", [True, False])
async def test_r2_counts_gpus_of_the_inventory_and_those_accepted(
    site: FinalizingCollector, *, accepted: bool
) -> None:
    site.texts["inventory"] = "node,gpus,rdma_ports,from,to\nn1,2,,2026-01-01T00:00:00Z,\n"
    events = {
        6 * HOUR: [
            claim_started("GPU-0", "a", 6 * HOUR, tenant="red"),
            claim_started("GPU-2", "b", 6 * HOUR, tenant="red"),
        ]
    }
    seconds = range(0, LATER, 30)
    schema = gpus_of(*NAMES, model=MODEL)
    accept(site.core, NodeReporter().envelopes_of(schema, seconds, each=200, events=events))
    await site.round(LATER, everything=True)
    (cluster,) = [one for rule, one in checked(site).items() if rule == "R2"]
    assert cluster.found == cluster.expected == TILINGS * 2 * GPU_CAPACITY * DAY_NS

    found = find_pending_evidence(site.stores.store, site.stores.ledger.database, at(LATER))
    assert {one.subject.name: one.gpu_ns for one in found} == {
        "GPU-2": Fraction(at(LATER) - at(6 * HOUR)),
        "GPU-3": 0,
    }
    decision = ReviewDecision(accepted, RecordActor("operator", "ann"), at(LATER + 60), "checked")
    record_decision(site.stores.ledger.database, found, decision)
    await site.round(LATER + 120, everything=True)
    (cluster,) = [one for rule, one in checked(site).items() if rule == "R2"]
    gpus = 4 if accepted else 2
    assert cluster.found == cluster.expected == TILINGS * gpus * GPU_CAPACITY * DAY_NS
