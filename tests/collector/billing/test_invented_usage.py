"""A new node invents usage of 27 past days: the metered, the reviewed and the billed part."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

from click.testing import CliRunner
from support.books import BOSS, PRICES
from support.finalizing import FinalizingCollector
from support.story import (
    DAY_SECONDS,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
)

from railscope_collector.billing import administration
from railscope_collector.billing.invoices import CLOSE_AFTER_NS
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.commands.bill import bill
from railscope_collector.commands.command_options import read_evidence
from railscope_collector.evidence.node_intervals import TOLERANCE_NS
from railscope_collector.evidence.review_rules import MAX_GPUS_AT_ONCE
from railscope_collector.fleet.schema_columns import sku_of
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period, Tiling

MODEL = "NVIDIA H100 80GB HBM3"
DAYS, REQUESTS, GPUS, STEP = 27, 14, 64, 30
NOW = DAYS * DAY_SECONDS
NAMES = [f"GPU-{number:02}" for number in range(GPUS)]
PERIOD = Period(at(0), at(28 * DAY_SECONDS))
PRICE = Fraction("2.49")


def invented() -> Envelopes:
    """Samples of 64 GPUs every 30 s of 27 days, in 14 requests of as many boots, all claimed."""
    found: Envelopes = []
    schema = gpus_of(*NAMES, model=MODEL)
    rows = range(0, NOW + 1, STEP)
    each = -(-len(rows) // REQUESTS)
    for number in range(REQUESTS):
        some = rows[number * each : (number + 1) * each]
        node = NodeReporter("new", f"boot-{number}", f"run-{number}", booted_at=-9_000_000)
        claims = [claim_started(name, f"job-{name}", 0, tenant="red") for name in NAMES]
        ends = [claim_ended(name, f"job-{name}", NOW) for name in NAMES]
        events = {some[0]: claims, some[-1]: ends if number == REQUESTS - 1 else []}
        frames = node.frames(schema, some, values=lambda _s, n: [7] * n, events=events)
        found.append(node.record(frames, sent=NOW + number))
    return found


def billable_seconds(site: FinalizingCollector) -> Counter[tuple[str, str]]:
    """GPU-seconds of the ledger by GPU and state, of what is or may be billed."""
    found: Counter[tuple[str, str]] = Counter()
    for name in NAMES:
        for entry in site.stores.ledger.entries(PERIOD.start_ns, PERIOD.end_ns, name):
            if entry.tiling is Tiling.COMPUTE:
                found[name, entry.state.value] += (entry.t1_ns - entry.t0_ns) // SECOND
    return found


async def test_invented_usage_of_a_new_node_is_not_billed(
    site: FinalizingCollector, url: str
) -> None:
    envelopes = invented()
    assert len(envelopes) == REQUESTS
    accept(site.core, envelopes)
    claimed_hours = GPUS * NOW // 3600
    assert claimed_hours == 41_472
    await site.round(29 * DAY_SECONDS, everything=True)
    found = billable_seconds(site)
    bound = TOLERANCE_NS // SECOND + REQUESTS
    for name in NAMES:
        held = {state: n for (gpu, state), n in found.items() if gpu == name}
        assert (
            held.get(SlotState.OBSERVED.value, 0) + held.get(SlotState.INFERRED.value, 0) <= bound
        )
        assert held[SlotState.REVIEW.value] >= NOW - bound, "nor is any of it lost"
    observed = [name for name in NAMES if found[name, SlotState.OBSERVED.value]]
    assert len(observed) <= MAX_GPUS_AT_ONCE

    listed = CliRunner().invoke(bill, ["review", "--ledger", url, "--format", "json"])
    assert listed.exit_code == 0, listed.output
    waits = json.loads(listed.stdout)
    assert {row["node"] for row in waits} == {"new"}
    hours = sum(Fraction(row["gpu_hours"]) for row in waits)
    assert claimed_hours - GPUS * Fraction(bound, 3600) <= hours <= claimed_hours

    books = BillingBooks.for_ledger(site.stores.ledger, read_evidence(site.stores.ledger.database))
    administration.publish(
        books, PRICES.replace('"h100"', f'"{sku_of(MODEL)}"'), "p", TimedActor(BOSS, at(0))
    )
    undecided = sum((one.gpu_hours for one in books.bill(PERIOD).undecided), Fraction(0))
    assert hours - 1 <= undecided <= claimed_hours, "the part under review is on the bill"
    closed = books.close(PERIOD, TimedActor(BOSS, PERIOD.end_ns + CLOSE_AFTER_NS))
    billed = sum(
        (line.charge.amount for invoice in closed.invoices for line in invoice.lines), Fraction(0)
    )
    assert billed <= MAX_GPUS_AT_ONCE * PRICE * Fraction(bound, 3600)
