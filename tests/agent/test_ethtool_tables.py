"""The tables of the drivers' statistics: complete on both sides, and each name with one meaning."""

from __future__ import annotations

import re

import pytest
from support.machine import FakeHost
from support.nics import set_statistics
from support.reading import ORIGIN, read_once, readings

from railscope.catalog import METRICS, nic
from railscope.catalog.declare import Metric, MetricKind
from railscope.catalog.entities import NIC, NIC_LANE, NIC_PRIORITY, NIC_TRAFFIC_CLASS
from railscope.reading import to_stored
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.ethtool_statistics import (
    DRIVERS,
    GROUPS,
    STANDARD,
    is_narrow,
    match_statistics,
)
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.topology.network_interface import NetworkInterface

PLACES = {NIC: "", NIC_PRIORITY: "{priority}", NIC_TRAFFIC_CLASS: "{class}", NIC_LANE: "{lane}"}
SHORT = {
    "mlx5_core": "mlx5", "mlx5e_rep": "mlx5", "bnxt_en": "bnxt", "ice": "ice", "i40e": "i40e", "ionic": "ionic",
    "mlx4_en": "mlx4", "hns3": "hns3", "cxgb4": "cxgb4", "ena": "ena", "mana": "mana", "gve": "gve", "hv_netvsc": "hv_netvsc",
}  # fmt: skip
ROWS = [(driver, text, metric) for driver, rows in DRIVERS.items() for text, metric in rows]


def host_with_nic(driver: str, statistics: dict[str, int]) -> FakeHost:
    host = FakeHost()
    set_statistics(host, driver, statistics)
    return host


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_statistic_of_a_driver_reaches_its_metric(driver: str) -> None:
    """Each statistic alone, so that both names of one metric are checked."""
    for number, (text, metric) in enumerate(DRIVERS[driver], 1):
        place = PLACES[metric.about]
        for part in ("0", "3", "7") if place else ("",):
            name = text.replace(place, part) if place else text
            found = readings(read_once(NicSource(), host_with_nic(driver, {name: number})).frame)
            if metric is nic.PRIORITY_DISCARDS:
                assert found.pop((nic.ALL_PRIORITIES_DISCARDS.name, ("eth0",))) == number
            assert found == {(metric.name, ("eth0", part) if part else ("eth0",)): number}


@pytest.mark.parametrize(("driver", "text", "metric"), ROWS)
def test_the_catalog_names_the_statistic_of_a_metric(
    driver: str, text: str, metric: Metric
) -> None:
    name = text.replace("{priority}", "N").replace("{class}", "N").replace("{lane}", "L")
    assert re.search(rf"\b{SHORT[driver]}\b.*\b{re.escape(name)}\b", metric.origin)


def test_every_nic_metric_is_reported_by_some_driver() -> None:
    metrics = {metric for _, _, metric in ROWS}
    declared = {
        value
        for value in vars(nic).values()
        if isinstance(value, Metric) and value.kind is not MetricKind.INFO
    }
    assert declared - metrics == {nic.ALL_PRIORITIES_DISCARDS}
    assert {metric.name for metric in metrics} <= set(METRICS)


def test_no_driver_statistic_feeds_two_metrics() -> None:
    for driver, rows in {**DRIVERS, "any other": STANDARD}.items():
        texts = [text for text, _ in rows]
        assert len(set(texts)) == len(texts), driver


def test_of_two_names_for_one_metric_the_first_row_counts() -> None:
    names = ["dev_out_of_buffer", "dev_internal_queue_oob"]
    assert [
        position
        for _, _, position in match_statistics(NetworkInterface("eth0", driver="mlx5_core"), names)
    ] == [1]


def test_wrapping_metrics_are_declared_with_their_width() -> None:
    wrapping = {(d, metric) for d, text, metric in ROWS if is_narrow(d, text)}
    assert {metric.wraps_at_bits for _, metric in wrapping} == {32}
    assert {driver for driver, _ in wrapping} == {"mlx5_core"}


def test_statistics_by_queue_have_no_standard_name() -> None:
    assert (
        match_statistics(
            NetworkInterface("eth0", driver="virtio_net"),
            ["rx_queue_0_bytes", "rx_queue_0_drops", "rx0_bytes"],
        )
        == []
    )


def test_numbers_of_64_bits_fit() -> None:
    found = readings(
        read_once(NicSource(), host_with_nic("ena", {"ena_srd_rx_pkts": 2**64 - 2})).frame
    )
    assert found == {("railscope_nic_receive_srd_packets_total", ("eth0",)): 2**64 - 2}
    assert to_stored(2**64 - 1) == -1


TG3 = [
    "rx_octets", "rx_fragments", "rx_ucast_packets", "rx_fcs_errors", "rx_xon_pause_rcvd",
    "rx_xoff_pause_rcvd", "tx_octets", "tx_collisions", "dma_writeq_full", "rx_discards",
]  # fmt: skip
E1000E = [
    "rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_crc_errors", "rx_missed_errors",
    "rx_long_length_errors", "tx_flow_control_xoff", "rx_smbus", "tx_timeout_count",
]  # fmt: skip
BE2NET = [
    "rx_crc_errors", "rx_priority_pause_frames", "tx_pauseframes", "rx_drops_no_pbuf",
    "pmem_fifo_overflow_drop", "jabber_events",
]  # fmt: skip


QEDE = ["rx_pfc_frames", "tx_pfc_frames", "no_buff_discards", "brb_discards", "ttl0_discard"]
BNX2X = ["pfc_frames_received", "pfc_frames_sent", "rx_brb_discard"]


@pytest.mark.parametrize(
    ("driver", "names", "rest"),
    [
        ("qede", QEDE, ["ttl0_discard"]),
        ("bnx2x", BNX2X, ["rx_brb_discard"]),
        ("tg3", TG3, ["tx_collisions", "dma_writeq_full"]),
        ("e1000e", E1000E, ["rx_smbus"]),
        ("be2net", BE2NET, ["pmem_fifo_overflow_drop", "jabber_events"]),
        (
            "of_tomorrow",
            ["rx_bytes", *(f"rxq{n}" for n in range(60))],
            [f"rxq{n}" for n in range(40)],
        ),
    ],
)
def test_drivers_without_a_table_report_standard_names(
    driver: str, names: list[str], rest: list[str]
) -> None:
    outcome = read_once(
        NicSource(), host_with_nic(driver, {name: n for n, name in enumerate(names)})
    )
    found = readings(outcome.frame)
    assert len(found) == len(names) - len(rest) - (20 if driver == "of_tomorrow" else 0)
    assert set(found.values()) == {
        names.index(name) for name in names[:61] if name not in rest and not name.startswith("rxq")
    }
    (finding,) = outcome.findings
    assert finding.detail.startswith(f"driver {driver}, {len(found)} of {len(names)} statistics")
    assert f"the rest: {', '.join(rest)}" in finding.detail


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_with_a_table_reports_nothing_else(driver: str) -> None:
    """Two drivers may count different things under the same name."""
    of_driver = {text for text, _ in DRIVERS[driver]}
    others = [name for name, _ in STANDARD if name not in of_driver]
    assert match_statistics(NetworkInterface("eth0", driver=driver), others) == []


def test_no_standard_name_feeds_two_metrics() -> None:
    names = [name for name, _ in STANDARD]
    assert len(set(names)) == len(names)
    assert len({*GROUPS.values()}) == len(GROUPS)


def test_discards_of_all_priorities_are_added_up() -> None:
    host = host_with_nic("mlx5_core", {"rx_prio0_discards": 3, "rx_prio3_discards": 4})
    reader = SourceReader(NicSource(), host, ORIGIN)
    total = (nic.ALL_PRIORITIES_DISCARDS.name, ("eth0",))
    assert readings(reader.run().frame)[total] == 7
    for discards, expected in ((5, 9), (6, 10)):  # priority 3 is not counted now
        set_statistics(host, "mlx5_core", {"rx_prio0_discards": discards})
        for _ in range(2):  # other names lead to another probe
            assert readings(reader.run().frame)[total] == expected


@pytest.mark.parametrize(
    "names", [["rx_fcs_errors   "], [" rx_fcs_errors"], ["rx_fcs_errors\t", "rx_fcs_errors"]]
)
def test_names_are_compared_without_blanks_at_their_ends(names: list[str]) -> None:
    found = match_statistics(NetworkInterface("eth0", driver="cxgb4"), names)
    assert found == [(nic.CRC_ERRORS, "", 0)]


def test_ip_packets_are_not_the_traffic_of_an_infiniband_port() -> None:
    for driver, count in (("ib_ipoib", 0), ("mlx5_core", 1)):
        interface = NetworkInterface("ib0", driver=driver, is_infiniband=True)
        names = ["rx_bytes", "rx_packets", "rx_bytes_phy"]
        assert len(match_statistics(interface, names)) == count


@pytest.mark.parametrize("suffix", ["[ib_ipoib]", "[ib_ipo", " [x]"])
def test_a_driver_is_known_without_its_suffix(suffix: str) -> None:
    host = host_with_nic(f"mlx5_core{suffix}", {"rx_bytes": 5, "rx_bytes_phy": 600})
    found = readings(read_once(NicSource(), host).frame)
    assert found == {(nic.RECEIVED.name, ("eth0",)): 600}
