"""Usage and price books for the tests of billing: strategies, and short constructors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from railscope.reading import Absent
from railscope.timestamps import DAY_NS, FOREVER_NS, HOUR_NS, SECOND_NS
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.price_book import Price, PriceBook, Tariff
from railscope_collector.billing.usage import Usage
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Period

TENANTS = ("team-a", "team-b")
MONTH = Period(0, 30 * DAY_NS)
NEXT_MONTH = Period(30 * DAY_NS, 60 * DAY_NS)
CURRENCIES = ("EUR", "JPY", "KWD")
SKU = "h100"
HIGHEST_PRICE = 10**12  # a thousand units of currency
LENGTHS = (SECOND_NS, HOUR_NS, DAY_NS, 20 * DAY_NS)


def usage(start_ns: int, end_ns: int, **more: object) -> Usage:
    """Usage of one GPU by one tenant, observed, in the first claim; `more` overrides fields."""
    usual: dict[str, object] = {
        "tenant": "team-a",
        "resource": "GPU-0",
        "sku": SKU,
        "capacity_units": 840,
        "state": SlotState.OBSERVED,
        "claim": "c1",
    }
    return Usage(start_ns=start_ns, end_ns=end_ns, **{**usual, **more})  # type: ignore[arg-type]


def price(nano: int, from_ns: int = -FOREVER_NS, to_ns: int = FOREVER_NS, **more: object) -> Price:
    """A list price of allocated time; `more` overrides fields."""
    usual: dict[str, object] = {"sku": SKU, "tariff": Tariff.ALLOCATED}
    return Price(nano=nano, from_ns=from_ns, to_ns=to_ns, **{**usual, **more})  # type: ignore[arg-type]


def book(*prices: Price, currency: str = "EUR", version: int = 1) -> PriceBook:
    return PriceBook(version, 0, currency, prices)


def between(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers that are as often far from the bounds as near them, which plain ones are not."""
    even = st.integers(0, 9_973).map(lambda step: low + (high - low) * step // 9_973)
    return even | st.integers(low, high)


instants = between(MONTH.start_ns + 1, MONTH.end_ns - 1)
nanos = between(0, HIGHEST_PRICE)


@st.composite
def rows_of_prices(draw: st.DrawFn, **more: object) -> list[Price]:
    """Consecutive prices over all time, changing at a few timestamps of the month."""
    edges = sorted(draw(st.sets(instants, max_size=4)))
    spans = pairwise([-FOREVER_NS, *edges, FOREVER_NS])
    return [price(draw(nanos), start, end, **more) for start, end in spans]


@st.composite
def books(draw: st.DrawFn) -> PriceBook:
    """List prices of time, energy and reservation, and perhaps one tenant's own for a while."""
    extras = {
        "minimum_ns": draw(st.sampled_from([0, 60 * SECOND_NS, HOUR_NS])),
        "granularity_ns": draw(st.sampled_from([1, SECOND_NS, HOUR_NS])),
    }
    prices = draw(rows_of_prices(**extras, at_claim_start=draw(st.booleans())))
    prices += draw(rows_of_prices(tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS))
    prices += draw(rows_of_prices(tariff=Tariff.RESERVATION))
    if draw(st.booleans()):
        start, end = sorted(draw(st.sets(instants, min_size=2, max_size=2)))
        tariff = draw(st.sampled_from([Tariff.ALLOCATED, Tariff.USED]))
        prices.append(price(draw(nanos), start, end, tenant="team-a", tariff=tariff, **extras))
        prices[-1] = replace(prices[-1], at_claim_start=draw(st.booleans()))
    return PriceBook(1, 0, draw(st.sampled_from(CURRENCIES)), tuple(prices))


@st.composite
def timelines(draw: st.DrawFn) -> list[Usage]:
    """Usage of a few GPUs in and around the month: consecutive claims, in changing states."""
    found: list[Usage] = []
    for gpu in range(draw(st.integers(1, 3))):
        edges = [draw(between(-2 * DAY_NS, 29 * DAY_NS))]
        for longest in draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=6)):
            edges.append(edges[-1] + draw(between(1, longest)))
        claim = ("", "", 0)
        for start, end in pairwise(edges):
            if not claim[0] or draw(st.booleans()):
                claim = (draw(st.sampled_from(TENANTS)), f"c{gpu}-{start}", start)
            found.append(_usage(draw, f"GPU-{gpu}", (start, end), claim))
    return found


def _usage(draw: st.DrawFn, gpu: str, span: tuple[int, int], claim: tuple[str, str, int]) -> Usage:
    states = [
        SlotState.OBSERVED,
        SlotState.OBSERVED,
        SlotState.INFERRED,
        SlotState.DOWN,
        SlotState.IDLE,
    ]
    state = draw(st.sampled_from([*states, SlotState.RESERVED, SlotState.UNKNOWN]))
    held = state in (SlotState.OBSERVED, SlotState.INFERRED, SlotState.DOWN)
    tenant, name, since = claim
    return Usage(
        tenant=tenant if held or state is SlotState.RESERVED else "",
        resource=gpu,
        sku=SKU,
        start_ns=span[0],
        end_ns=span[1],
        capacity_units=draw(st.sampled_from([840, 420, 360, 120, 105, 1])),
        state=state,
        node_evidence=draw(st.sampled_from(list(NodeEvidence))),
        claim=name if held else "",
        claim_start_ns=since if held else 0,
        energy_millijoules=draw(st.integers(0, 10**13) | st.just(Absent.ERROR)),
    )
