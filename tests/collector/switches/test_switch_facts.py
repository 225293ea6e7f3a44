"""The table of switch facts, and facts as readings, for a dialect of the test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import pytest

from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_collector.switches import comware_dialout, cumulus_metrics, switch_facts as facts
from railscope_collector.switches.fact_readings import SwitchAnswers, fact_readings
from railscope_collector.switches.switch_reading import LANES, PORTS, PRIORITY

ROWS = [fact for rows in facts.FACTS.values() for fact in rows]


def test_each_metric_has_one_row():
    assert Counter(fact.metric.name for fact in ROWS).most_common(1)[0][1] == 1


@pytest.mark.parametrize("dialect", ["sonic", "openconfig", "srlinux", "cumulus", "dialout"])
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
    pushed = {fact.metric for fact in ROWS if fact.dialout}
    tables = comware_dialout.TABLES.values()
    assert pushed == {metric for table in tables for metric in table.fields.values()}
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


@dataclass
class ConstructedAnswers(SwitchAnswers[int, str]):
    """Values by name."""

    values: dict[str, Reading] = field(default_factory=dict)

    def read(self, _metric: declare.Metric, name: str, port: int, part: object) -> Reading:
        value = self.values.get(name, Absent.UNSUPPORTED)
        number = part if isinstance(part, int) else 0
        return value + 100 * port + 10 * number if isinstance(value, int) else value

    def absence(self, _metric: declare.Metric) -> Absent:
        return Absent.TIMEOUT


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((("a",),), 101),
        ((("none",), ("a",)), 101),
        ((("bad",), ("a",)), Absent.ERROR),
        ((("a", "b"),), 203),
        ((("a", "none"), ("b",)), 102),
        ((("a", "bad"),), Absent.ERROR),
        ((("none",),), Absent.TIMEOUT),
        ((), Absent.TIMEOUT),
    ],
)
def test_first_alternative_with_an_answer_counts(names: facts.Names[str], expected: Reading):
    answers = ConstructedAnswers({"a": 1, "b": 2, "bad": Absent.ERROR})
    port = Entity(entities.SWITCH_PORT, ("leaf", "e1"), {"index": "1"})
    found = fact_readings({PORTS: {catalog.RECEIVED: names}}, {1: port}, answers)
    assert found == {PORTS: [((catalog.RECEIVED, port), expected)]}


def test_facts_are_of_the_ports_and_their_parts_and_those_of_a_port_are_in_one_stream():
    answers = ConstructedAnswers({"a": 1})
    port = Entity(entities.SWITCH_PORT, ("leaf", "e1"), {"index": "1"})
    name = (("a",),)
    columns = {PRIORITY: {catalog.PFC_SENT: name}, LANES: {catalog.TRANSCEIVER_TEMPERATURE: name}}
    found = fact_readings(columns, {1: port}, answers)
    assert [(entity.key, value) for (_, entity), value in found[PRIORITY]] == [
        (("leaf", "e1", str(number)), 101 + 10 * number) for number in range(8)
    ]
    (((_, entity), _),) = found[LANES]
    assert (entity.key, entity.facts) == (port.key, {})
