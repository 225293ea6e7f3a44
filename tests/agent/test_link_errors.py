"""Error correction and pause frames of NICs whose driver statistics lack them."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from support.machine import DENIED, FakeHost
from support.nics import FEC, PAUSE, add_netlink, add_nic
from support.reading import ORIGIN, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.link_errors import LinkErrorSource
from railscope_agent.sources.nic_counters import NicSource

CORRECTED = ("railscope_nic_receive_fec_corrected_blocks_total", ("eth0",))
UNCORRECTABLE = ("railscope_nic_receive_fec_uncorrectable_blocks_total", ("eth0",))
BITS = ("railscope_nic_receive_corrected_errors_total", ("eth0",))
RECEIVED = ("railscope_nic_receive_global_pause_frames_total", ("eth0",))
SENT = ("railscope_nic_transmit_global_pause_frames_total", ("eth0",))
RECEIVED_OF_ANY_KIND = ("railscope_nic_receive_pause_frames_total", ("eth0",))
SENT_OF_ANY_KIND = ("railscope_nic_transmit_pause_frames_total", ("eth0",))
COUNTED_FEC = {
    "corrected_blocks": [70],
    "uncorrectable_blocks": [2, 1, 1, 0, 0],
    "corrected_bits": [900],
}


def host_with_nic(driver: str, *statistics: str) -> FakeHost:
    """Return a host whose NIC has all netlink counters and these driver statistics."""
    host = FakeHost()
    add_nic(host, driver=driver)
    host.calls["ethtool.statistics(eth0)"] = {
        "names": list(statistics),
        "values": list(range(len(statistics))),
    }
    count(host)
    return host


def count(host: FakeHost, fec: Any = None, pause: Any = None) -> None:
    frames = {"receive_frames": 5, "transmit_frames": 6}
    add_netlink(
        host,
        fec={**FEC, "statistics": COUNTED_FEC if fec is None else fec},
        pause={**PAUSE, "statistics": frames if pause is None else pause},
    )


def test_a_driver_without_such_statistics_reports_all_by_netlink() -> None:
    found = readings(read_once(LinkErrorSource(), host_with_nic("ixgbe", "rx_bytes")).frame)
    assert found == {CORRECTED: 70, UNCORRECTABLE: 2, BITS: 900, RECEIVED: 5, SENT: 6}


@pytest.mark.parametrize(
    ("driver", "statistics", "left"),
    [
        ("mlx5_core", ["rx_pause_ctrl_phy", "tx_pause_ctrl_phy", "rx_corrected_bits_phy"],
         {CORRECTED, UNCORRECTABLE}),
        ("bnxt_en", ["rx_fec_corrected_blocks", "rx_fec_uncorrectable_blocks", "rx_corrected_bits",
                     "rx_pause_frames", "tx_pause_frames"], set()),
        ("ice", ["link_xoff_rx.nic", "link_xoff_tx.nic"], {CORRECTED, UNCORRECTABLE, BITS}),
    ],
)  # fmt: skip
def test_no_nic_metric_has_two_sources(driver: str, statistics: list[str], left: set[Any]) -> None:
    host = host_with_nic(driver, *statistics)
    here = set(readings(read_once(LinkErrorSource(), host).frame))
    there = set(readings(read_once(NicSource(), host).frame))
    assert here == left
    assert not here & there
    any_kind = {RECEIVED_OF_ANY_KIND, SENT_OF_ANY_KIND}
    pauses = any_kind if driver == "mlx5_core" else {RECEIVED, SENT}
    assert here | there >= {CORRECTED, UNCORRECTABLE, *pauses}


@pytest.mark.parametrize(
    ("driver", "pauses"),
    [("mlx5_core", {RECEIVED_OF_ANY_KIND, SENT_OF_ANY_KIND}), ("ice", {RECEIVED, SENT})],
)
@pytest.mark.parametrize("denied", ["statistics", "driver"])
def test_where_the_statistics_cannot_be_read_netlink_stands_in(
    driver: str, pauses: set[Any], denied: str
) -> None:
    """Pause frames keep their meaning: with those of PFC for mlx5, without for the others."""
    host = host_with_nic(driver)
    host.links["/sys/class/net/eth0/device/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.calls[f"ethtool.{denied}(eth0)"] = DENIED
    assert set(readings(read_once(LinkErrorSource(), host).frame)) == {
        CORRECTED,
        UNCORRECTABLE,
        BITS,
        *pauses,
    }


def test_counters_of_standard_groups_that_the_driver_does_not_name() -> None:
    """Of a counter under two names, the driver's own counts, and it is published once."""
    host = host_with_nic("tg3", "rx_fcs_errors", "rx_octets", "dma_writeq_full")
    groups = {"FrameCheckSequenceErrors": 3, "OctetsReceivedOK": 9, "FramesReceivedOK": 7}
    add_netlink(host, standard_statistics={"statistics": groups})
    here, there = (
        readings(read_once(source, host).frame) for source in (LinkErrorSource(), NicSource())
    )
    assert here["railscope_nic_receive_packets_total", ("eth0",)] == 7
    assert not here.keys() & there.keys()
    assert there["railscope_nic_receive_bytes_total", ("eth0",)] == 1


MLX5_STANDARD = {
    "SymbolErrorDuringCarrier": "rx_symbol_err_phy",
    "FramesTransmittedOK": "tx_packets_phy", "FramesReceivedOK": "rx_packets_phy",
    "FrameCheckSequenceErrors": "rx_crc_errors_phy",
    "OctetsTransmittedOK": "tx_bytes_phy", "OctetsReceivedOK": "rx_bytes_phy",
    "MulticastFramesXmittedOK": "tx_multicast_phy", "MulticastFramesReceivedOK": "rx_multicast_phy",
    "BroadcastFramesXmittedOK": "tx_broadcast_phy", "BroadcastFramesReceivedOK": "rx_broadcast_phy",
    "InRangeLengthErrors": "rx_in_range_len_errors_phy",
    "OutOfRangeLengthField": "rx_out_of_range_len_phy",
    "FrameTooLongErrors": "rx_oversize_pkts_phy",
    "MACControlFramesTransmitted": "tx_mac_control_phy",
    "MACControlFramesReceived": "rx_mac_control_phy",
    "UnsupportedOpcodesReceived": "rx_unsupported_op_phy",
    "etherStatsUndersizePkts": "rx_undersize_pkts_phy",
    "etherStatsFragments": "rx_fragments_phy", "etherStatsJabbers": "rx_jabbers_phy",
}  # fmt: skip
BNXT_STANDARD = {
    "SymbolErrorDuringCarrier": "rx_pcs_symbol_err",
    "FramesTransmittedOK": "tx_good_frames", "FramesReceivedOK": "rx_good_frames",
    "FrameCheckSequenceErrors": "rx_fcs_err_frames", "AlignmentErrors": "rx_align_err_frames",
    "MACControlFramesReceived": "rx_ctrl_frames", "etherStatsJabbers": "rx_jbr_frames",
    "FrameTooLongErrors": "rx_ovrsz_frames", "etherStatsUndersizePkts": "rx_undrsz_frames",
}  # fmt: skip
STANDARD_OF_DRIVERS = [
    (driver, group, own)
    for driver, table in (("mlx5_core", MLX5_STANDARD), ("bnxt_en", BNXT_STANDARD))
    for group, own in table.items()
]
"""Value that a driver reports for a counter of a standard group: mlx5 en_stats.c, bnxt bnxt_ethtool.c."""


@pytest.mark.parametrize(("driver", "group", "own"), STANDARD_OF_DRIVERS)
def test_a_counter_with_two_names_is_one_metric(driver: str, group: str, own: str) -> None:
    """Under the driver's name, under the standard one, or under both: always the same series."""
    found = []
    for names, groups in (([own], {}), ([], {group: 7}), ([own], {group: 7})):
        host = FakeHost()
        add_nic(host, driver=driver)
        host.calls["ethtool.statistics(eth0)"] = {"names": names, "values": [7] * len(names)}
        add_netlink(host, standard_statistics={"statistics": groups})
        here, there = (readings(read_once(s, host).frame) for s in (LinkErrorSource(), NicSource()))
        assert not here.keys() & there.keys()
        found.append({label: n for label, n in (here | there).items() if n == 7})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


def test_one_question_that_fails_costs_its_own_counters() -> None:
    host = host_with_nic("ixgbe")
    reader = SourceReader(LinkErrorSource(), host, ORIGIN)
    reader.run()
    count(host, {"corrected_blocks": [71]}, {"receive_frames": 2**64 - 2, "transmit_frames": 0})
    assert readings(reader.run().frame) == {
        CORRECTED: 71, UNCORRECTABLE: Absent.UNSUPPORTED, BITS: Absent.UNSUPPORTED,
        RECEIVED: 2**64 - 2, SENT: 0,
    }  # fmt: skip
    add_netlink(host, pause=OSError(errno.ENODEV, "No such device"))
    found = readings(reader.run().frame)
    assert (found[CORRECTED], found[RECEIVED], found[SENT]) == (71, Absent.GONE, Absent.GONE)


@pytest.mark.parametrize(
    ("trouble", "verdicts", "absent"),
    [
        (OSError(errno.EOPNOTSUPP, "no"), [ProbeVerdict.ABSENT], None),
        (DENIED, [ProbeVerdict.DENIED] * 2, Absent.DENIED),
        (OSError(errno.EIO, "trouble"), [ProbeVerdict.BROKEN] * 2, Absent.ERROR),
        (OSError(errno.ENODEV, "trouble"), [ProbeVerdict.BROKEN] * 2, Absent.GONE),
    ],
)
def test_a_nic_that_counts_nothing_is_a_finding(
    trouble: OSError, verdicts: list[ProbeVerdict], absent: Absent | None
) -> None:
    host = host_with_nic("virtio_net")
    add_netlink(host, fec=trouble, pause=trouble)
    outcome = read_once(LinkErrorSource(), host)
    expected = dict.fromkeys((CORRECTED, UNCORRECTABLE, RECEIVED, SENT), absent) if absent else {}
    assert readings(outcome.frame) == expected
    assert [finding.verdict for finding in outcome.findings] == verdicts
