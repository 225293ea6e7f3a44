"""Tables of the counters of NIC and RDMA drivers: the catalog names them, and each has one meaning."""

from __future__ import annotations

import re

import pytest
from support.machine import FakeHost
from support.nics import set_statistics
from support.reading import read_once, readings

from railscope.catalog import METRICS, nic
from railscope.catalog.declare import Metric, MetricKind
from railscope.catalog.entities import NIC, NIC_LANE, NIC_PRIORITY, NIC_TRAFFIC_CLASS
from railscope.catalog.rdma import FILES, RDMA_COUNTERS
from railscope_agent.sources.ethtool_statistics import DRIVERS, GROUPS, STANDARD, is_narrow
from railscope_agent.sources.nic_counters import NicSource

PLACES = {NIC: "", NIC_PRIORITY: "{priority}", NIC_TRAFFIC_CLASS: "{class}", NIC_LANE: "{lane}"}
SHORT = {"mlx5_core": "mlx5", "mlx5e_rep": "mlx5", "bnxt_en": "bnxt", "mlx4_en": "mlx4"}
ROWS = [(driver, text, metric) for driver, rows in DRIVERS.items() for text, metric in rows]


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_statistic_of_a_driver_reaches_its_metric_and_the_catalog_names_it(
    driver: str,
) -> None:
    first = {metric: text for text, metric in reversed(DRIVERS[driver])}
    names = {metric: text.replace(PLACES[metric.about] or "{}", "3") for metric, text in first.items()}  # fmt: skip
    host = FakeHost()
    set_statistics(host, driver, {name: n for n, name in enumerate(names.values(), 1)})
    found = readings(read_once(NicSource(), host).frame)
    found.pop((nic.ALL_PRIORITIES_DISCARDS.name, ("eth0",)), None)
    assert found == {
        (metric.name, ("eth0", "3") if PLACES[metric.about] else ("eth0",)): n
        for n, metric in enumerate(names, 1)
    }
    for text, metric in DRIVERS[driver]:
        name = re.sub(r"\{(priority|class)\}", "N", text).replace("{lane}", "L")
        kernel_name = SHORT.get(driver, driver)
        assert re.search(rf"\b{kernel_name}\b.*\b{re.escape(name)}\b", metric.origin)


def test_every_metric_has_a_driver_and_no_name_has_two_meanings() -> None:
    declared = {
        value
        for value in vars(nic).values()
        if isinstance(value, Metric) and value.kind is not MetricKind.INFO
    }
    assert declared - {metric for _, _, metric in ROWS} == {nic.ALL_PRIORITIES_DISCARDS}
    assert {metric.name for _, _, metric in ROWS} <= set(METRICS)
    for rows in (*DRIVERS.values(), STANDARD):
        assert len({text for text, _ in rows}) == len(rows)
    assert len({*GROUPS.values()}) == len(GROUPS)
    assert set(RDMA_COUNTERS) <= {metric for files in FILES.values() for metric in files.values()}
    assert all(metric.kind is MetricKind.COUNTER for metric in RDMA_COUNTERS)


def test_counters_that_wrap_are_declared_with_their_width() -> None:
    narrow = {(driver, metric.wraps_at_bits) for driver, text, metric in ROWS if is_narrow(driver, text)}  # fmt: skip
    assert narrow == {("mlx5_core", 32)}
