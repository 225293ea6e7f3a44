"""The tables of the drivers' statistics: complete on both sides, and each name with one meaning."""

from __future__ import annotations

import re

import pytest
from support.machine import FakeHost
from support.reading import read_once, readings

from agent.sources.ethtool_drivers import DRIVERS, narrow, typed
from agent.sources.nic import Nic
from railscope.catalog import METRICS, nic, nic_detail, nic_link
from railscope.catalog.declare import Kind, Metric
from railscope.catalog.entities import NIC, NIC_LANE, NIC_PRIORITY, NIC_TRAFFIC_CLASS
from railscope.reading import to_stored

PLACES = {NIC: "", NIC_PRIORITY: "{priority}", NIC_TRAFFIC_CLASS: "{class}", NIC_LANE: "{lane}"}
SHORT = {
    "mlx5_core": "mlx5", "bnxt_en": "bnxt", "ice": "ice", "i40e": "i40e", "ena": "ena",
    "mana": "mana", "gve": "gve", "hv_netvsc": "hv_netvsc",
}  # fmt: skip
ROWS = [(driver, text, metric) for driver, rows in DRIVERS.items() for text, metric in rows]


def card(driver: str, statistics: dict[str, int]) -> FakeHost:
    host = FakeHost()
    host.files["/sys/class/net/eth0/mtu"] = "9000"
    host.calls["ethtool.driver(eth0)"] = {
        "driver": driver, "version": "", "firmware": "", "bus": "",
    }  # fmt: skip
    host.calls["ethtool.statistics(eth0)"] = {
        "names": list(statistics), "values": list(statistics.values()),
    }  # fmt: skip
    return host


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_statistic_of_a_driver_reaches_its_metric(driver: str) -> None:
    """Each alone, so that of two names for one metric both are seen."""
    for number, (text, metric) in enumerate(DRIVERS[driver], 1000):
        place = PLACES[metric.about]
        for part in ("0", "3", "7") if place else ("",):
            name = text.replace(place, part) if place else text
            found = readings(read_once(Nic(), card(driver, {name: number})).frame)
            assert found == {(metric.name, ("eth0", part) if part else ("eth0",)): number}


@pytest.mark.parametrize(("driver", "text", "metric"), ROWS)
def test_the_catalog_names_what_tells_a_metric(driver: str, text: str, metric: Metric) -> None:
    name = text.replace("{priority}", "N").replace("{class}", "N").replace("{lane}", "L")
    assert re.search(rf"\b{SHORT[driver]}\b.*\b{re.escape(name)}\b", metric.origin)


def test_every_metric_of_a_card_is_told_by_some_driver() -> None:
    told = {metric for _, _, metric in ROWS}
    declared = {
        value
        for module in (nic, nic_link, nic_detail)
        for value in vars(module).values()
        if isinstance(value, Metric) and value.kind is not Kind.INFO
    }
    assert {metric.name for metric in declared - told} == set()
    assert {metric.name for metric in told} <= set(METRICS)


def test_no_statistic_of_a_driver_tells_two_metrics() -> None:
    for driver, rows in DRIVERS.items():
        texts = [text for text, _ in rows]
        assert len(set(texts)) == len(texts), driver


def test_of_two_names_for_one_metric_the_first_row_counts() -> None:
    names = ["dev_out_of_buffer", "dev_internal_queue_oob"]
    assert [position for _, _, position in typed("mlx5_core", names)] == [1]


def test_what_wraps_is_declared_with_its_width() -> None:
    wrapping = {(d, metric) for d, text, metric in ROWS if narrow(d, text)}
    assert {metric.wraps_at_bits for _, metric in wrapping} == {32}
    assert {driver for driver, _ in wrapping} == {"mlx5_core"}


def test_a_driver_we_do_not_know_tells_nothing() -> None:
    assert typed("virtio_net", ["rx_bytes", "rx_queue_0_drops"]) == []


def test_numbers_of_64_bits_fit() -> None:
    found = readings(read_once(Nic(), card("ena", {"ena_srd_rx_pkts": 2**64 - 1})).frame)
    assert found == {("railscope_nic_receive_srd_packets_total", ("eth0",)): 2**64 - 1}
    assert to_stored(2**64 - 1) == -1
