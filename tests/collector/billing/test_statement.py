"""Statements: the sum of each claim."""

from __future__ import annotations

from support.billing import MONTH, book, price, usage

from railscope.timestamps import HOUR_NS
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.invoices import draft_invoice
from railscope_collector.billing.price_book import Tariff
from railscope_collector.billing.rating import rate
from railscope_collector.billing.statement import TenantStatement

EUR = 10**9
PRICES = book(
    price(2 * EUR),
    price(EUR, mig_profile="1g.10gb", unit=PriceUnit.INSTANCE_HOURS),
    price(EUR // 4, tariff=Tariff.ENERGY, unit=PriceUnit.KILOWATT_HOURS),
)
KILOWATT_HOUR = 3_600_000_000  # mJ


def test_a_claim_is_the_sum_of_its_gpus_instances_and_energy():
    half_ns = HOUR_NS // 2
    instance = {"mig_profile": "1g.10gb", "capacity_units": 120, "instance_units": 120}
    usages = [
        usage(0, 2 * HOUR_NS, energy_millijoules=KILOWATT_HOUR),
        usage(HOUR_NS, 3 * HOUR_NS, resource="GPU-1", capacity_units=420),
        usage(6 * half_ns, 7 * half_ns, energy_millijoules=KILOWATT_HOUR // 4),
        usage(0, HOUR_NS, resource="GPU-2", claim="slurm/7@0"),
        usage(0, HOUR_NS, resource="GPU-3", claim="c3", **instance),
    ]
    charges = rate(usages, PRICES, MONTH).charges
    statement = TenantStatement(draft_invoice(charges, "team-a", MONTH, "EUR"))
    start, one, last = (f"1970-01-01 {time} UTC" for time in ("00:00", "01:00", "03:30"))
    assert [tuple(claim) for claim in statement.claims] == [
        ("c1", "2", start, last, "3.5", "1.25", "7.31"),
        ("job 7 of slurm", "1", start, one, "1", "", "2.00"),
        ("c3", "1", start, one, "1", "", "1.00"),
    ]
    assert statement.total == "10.31"
