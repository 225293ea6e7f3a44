"""The table of switch facts, and facts as readings, for a dialect of the test."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest

from railscope.catalog import declare, switches as catalog
from railscope.reading import Absent, Reading
from railscope_collector.switches import cumulus_metrics, switch_facts as facts

ROWS = [fact for rows in facts.FACTS.values() for fact in rows]


def test_each_metric_has_one_row():
    assert Counter(fact.metric.name for fact in ROWS).most_common(1)[0][1] == 1


@pytest.mark.parametrize("dialect", ["sonic", "openconfig", "srlinux", "cumulus"])
def test_each_name_is_the_one_of_one_fact(dialect: str):
    """Except names of parts of sums, and sums of all priorities."""
    totals = {catalog.ALL_PFC_RECEIVED, catalog.ALL_PFC_SENT}
    columns = facts.select(lambda fact: getattr(fact, dialect))
    names = Counter(
        name
        for of_stream in columns.values()
        for metric, alternatives in of_stream.items()
        for name in {name for names in alternatives for name in names}
        if metric not in totals
    )
    assert names
    assert names.most_common(1)[0][1] == 1


def test_each_name_that_is_pushed_is_stored():
    pushed = {fact.metric for fact in ROWS if fact.cumulus}
    assert pushed == set(cumulus_metrics.METRICS.values())


@pytest.mark.parametrize(
    ("metric", "value", "unit", "stored"),
    [
        (catalog.RECEIVED, 7, None, 7),
        (catalog.RECEIVED, Absent.TIMEOUT, None, Absent.TIMEOUT),
        (catalog.SPEED, 400_000, None, 400_000),
        (catalog.SPEED, 400_000_000, declare.MEGABIT / 1000, 400_000),
        (catalog.SPEED, 400 * 10**9, Fraction(1, 8), 400_000),
        (catalog.SPEED, 0xFFFF_FFFF, declare.MEGABIT / 1000, Absent.UNSUPPORTED),
        (catalog.SPEED, 999, declare.MEGABIT / 1000, Absent.UNSUPPORTED),
        (catalog.TRANSCEIVER_TEMPERATURE, -5, Fraction(1), -5000),
        (catalog.TRANSCEIVER_SUPPLY, 330, declare.CENTI, 3_300_000),
        (catalog.TRANSCEIVER_BIAS, Decimal("64.5"), declare.MILLI, 64_500),
        (catalog.TRANSCEIVER_RECEIVE_POWER, Decimal("-0.80"), Fraction(1), 831_764),
        (catalog.TRANSCEIVER_RECEIVE_POWER, -80, declare.CENTI, 831_764),
        (catalog.TRANSCEIVER_RECEIVE_POWER, 3001, declare.CENTI, Absent.ERROR),
    ],
)
def test_value_of_a_unit_in_the_steps_of_the_catalog(
    metric: declare.Metric, value: Reading | Decimal, unit: Fraction | None, stored: Reading
):
    assert facts.as_stored(metric, value, unit) == stored
