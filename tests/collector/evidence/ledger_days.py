"""A day of a GPU, with its time in the ledger and in the account."""

from __future__ import annotations

from support.finalizing import FinalizingCollector
from support.story import DAY, DAY_SECONDS, NodeReporter, claim_ended, claim_started, gpus_of

from railscope_collector.metering.slot_state import SlotState

HOURS = 3600
ALICE = {"tenant": "alice"}
LATER = DAY_SECONDS + 2 * HOURS


def a_day(node: NodeReporter, *, until: int = DAY_SECONDS + HOURS, step: int = 30):
    """A GPU's day and an hour; alice holds it from 6:00 to 18:00, a namespace after."""
    events = {
        6 * HOURS: [claim_started("GPU-0", "a", 6 * HOURS, **ALICE)],
        18 * HOURS: [
            claim_ended("GPU-0", "a", 18 * HOURS),
            claim_started("GPU-0", "b", 18 * HOURS, source="kubernetes", owner="ns"),
        ],
    }
    return node.envelopes_of(gpus_of("GPU-0"), range(0, until, step), each=40, events=events)


def ledger_hours(site: FinalizingCollector, day: int = DAY) -> dict[tuple[str, str], float]:
    """Time of a day in the ledger, in GPU-hours of compute by state and tenant."""
    totals = site.stores.ledger.totals(range(day, day + 1))
    states = {state.value for state in SlotState}
    return {
        (of.name, of.tenant): float(quantity / (HOURS * 10**9))
        for (_, of), quantity in totals.items()
        if of.name in states and quantity
    }
