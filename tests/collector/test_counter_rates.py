"""Rates of counters: continued, reset, and without a previous value."""

from __future__ import annotations

import math

import pytest
from fleet_updates import (
    KNOWN,
    LAYOUT,
    SCHEMA,
    SECOND,
    WIDTH,
    make_row,
    update,
)
from makers import rdma_schema
from support.schemas import known_schema

from railscope.catalog import gpu
from railscope_collector.fleet.fleet import Fleet
from railscope_collector.fleet.shapes import SchemaLayout


def narrow_rate(fleet: Fleet, layout: SchemaLayout) -> float:
    place = fleet.nodes["n"].rows["rdma"]
    return float(place.block.rates[place.index, list(layout.narrow).index(True)])


@pytest.mark.parametrize(
    ("run", "before", "after", "rate"),
    [
        ("run-1", 5 * 2**32 + 100, 5 * 2**32 + 130, 30),
        ("run-1", 5 * 2**32 + 100, 130, 130),
        ("run-1", 2**32 - 10, 20, 20),
        ("run-2", 5 * 2**32 + 100, 130, 30),
        ("run-2", 5 * 2**32 - 10, 20, 30),
        ("run-2", 5 * 2**32 + 100, 50, 50),
    ],
    ids=["continues", "reset", "reset near the end", "forgot", "forgot and wrapped", "reset away"],
)
def test_rates_of_a_counter_of_32_bits(run: str, before: int, after: int, rate: int):
    schema, fleet = known_schema(rdma_schema(1)), Fleet()
    for second, name, number in ((1, "run-1", before), (2, run, after)):
        at, numbers = second * SECOND, [0, number]
        fleet.apply(
            update(
                "n",
                schema,
                numbers,
                numbers,
                run=name,
                first_boot_ns=at,
                last_boot_ns=at,
                timestamp_ns=at,
            )
        )
    assert narrow_rate(fleet, schema.layout) == rate


def energy_rate(fleet: Fleet, name: str = "n") -> float:
    place = fleet.nodes[name].rows["test"]
    index = [m for m, _ in (SCHEMA.columns[c] for c in LAYOUT.counters)].index(gpu.GPU_ENERGY)
    return float(place.block.rates[place.index, index])


def test_a_rate_goes_from_batch_to_batch_and_not_over_a_reboot():
    fleet = Fleet()
    fleet.apply(update("n", KNOWN, make_row(1, 100), make_row(1, 300)))
    assert energy_rate(fleet) == 100.0
    fleet.apply(
        update(
            "n",
            KNOWN,
            make_row(1, 400),
            make_row(1, 800),
            first_boot_ns=4 * SECOND,
            last_boot_ns=8 * SECOND,
            timestamp_ns=105 * SECOND,
        )
    )
    assert energy_rate(fleet) == 100.0
    fleet.apply(
        update(
            "n",
            KNOWN,
            make_row(1, 5),
            make_row(1, 5),
            boot_id="b2",
            first_boot_ns=SECOND,
            last_boot_ns=SECOND,
            timestamp_ns=200 * SECOND,
        )
    )
    assert math.isnan(energy_rate(fleet)), "one sample of a new boot has no rate"


def test_no_rate_from_a_value_that_was_not_there():
    fleet = Fleet()
    absent = [4] * WIDTH
    fleet.apply(update("n", KNOWN, make_row(1, 0), make_row(1, 10**15), first_reasons=absent))
    assert math.isnan(energy_rate(fleet))
