"""Netlink answers of other hardware, which the kernel of the test machine cannot give."""

from __future__ import annotations

import errno
import struct

import pytest
from support.netlink import (
    CONTROLLER,
    MULTI,
    NetlinkRequest,
    attribute,
    attributes,
    ethtool,
    open_netlink,
)

NESTED = 0x8000


def nest(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(inner))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def u64s(kind: int, *values: int) -> bytes:
    return attribute(kind, struct.pack(f"={len(values)}Q", *values))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def bitset(kind: int, bits: dict[int, tuple[str, bool]], *, mask: bool) -> bytes:
    """A verbose bitset (ETHTOOL_A_BITSET_*): with a mask, each bit carries its value."""
    entries = [
        nest(1, u32(1, index), text(2, name), *([attribute(3, b"")] if is_set and mask else []))
        for index, (name, is_set) in bits.items()
    ]
    no_mask = [] if mask else [attribute(1, b"")]
    return nest(kind, *no_mask, u32(2, 120), nest(3, *entries))


# Data centre bridging ---------------------------------------------------------------------------

# struct ieee_pfc, ieee_ets, dcbnl_buffer, dcb_app of dcbnl.h of an mlx5 NIC with RoCE on priority 3
# fills them.
PFC = struct.pack("=BBBxHxx8Q8Q", 8, 1 << 3, 0, 7, *range(8), *range(100, 108))
ETS = bytes([0, 8, 0, *[50, 0, 0, 50, 0, 0, 0, 0], *[0] * 8])
ETS += bytes([2, 0, 1, 2, 0, 0, 255, 7, *[0, 0, 0, 3, 0, 0, 6, 7], *[0] * 24])
BUFFER = struct.pack("=8B8II", 0, 0, 0, 1, 0, 0, 0, 0, 20_016, 156_096, 0, 0, 0, 0, 0, 0, 1_027_728)


def dcb_kernel(*replies: bytes):
    def answer(request: NetlinkRequest) -> list[bytes]:
        assert request.protocol == 0
        assert request.kind == 78, "RTM_GETDCB"
        assert request.body[:4] == bytes([0, 21, 0, 0]), "DCB_CMD_IEEE_GET"
        body = bytes([0, 21, 0, 0]) + attributes_of(request) + b"".join(replies)
        return [request.message(78, body)]

    def attributes_of(request: NetlinkRequest) -> bytes:
        assert attributes(request.body[4:]) == {1: b"ens1f0np0\0"}
        return text(1, "ens1f0np0")

    return answer


def test_data_centre_bridging_of_a_nic_configured_for_roce():
    applications = attribute(1, struct.pack("=BBH", 5, 3, 26))
    applications += attribute(1, struct.pack("=BBH", 1, 3, 0x8915))
    applications += attribute(2, struct.pack("=BBH", 255, 1, 9))
    answer = nest(
        13,
        attribute(1, ETS),
        attribute(7, struct.pack("=8Q", *[400_000_000] * 7, (1 << 64) - 1)),
        attribute(2, PFC),
        nest(3, applications),
        attribute(10, BUFFER),
        nest(11, u8(1, 5), u8(2, 255)),
    )
    with open_netlink(dcb_kernel(answer, u8(14, 0x01 | 0x08))) as (netlink, _):
        assert netlink.call("dcb", "ens1f0np0") == {
            "ets": {
                "traffic_class": [0, 0, 0, 3, 0, 0, 6, 7],
                "bandwidth_percent": [50, 0, 0, 50, 0, 0, 0, 0],
                "algorithm": [
                    "ets",
                    "strict",
                    "cbs",
                    "ets",
                    "strict",
                    "strict",
                    "vendor",
                    "unknown",
                ],
            },
            "pfc": {
                "capacity": 8,
                "enabled": [3],
                "delay_bits": 7,
                "requests": list(range(8)),
                "indications": list(range(100, 108)),
            },
            "applications": [
                {"selector": "dscp", "protocol": 26, "priority": 3},
                {"selector": "ethertype", "protocol": 0x8915, "priority": 3},
                {"selector": "pcp", "protocol": 9, "priority": 1},
            ],
            "buffer": {
                "of_priority": [0, 0, 0, 1, 0, 0, 0, 0],
                "size_bytes": [20_016, 156_096, 0, 0, 0, 0, 0, 0],
                "total_bytes": 1_027_728,
            },
            "maximum_rate_kilobits": [*[400_000_000] * 7, (1 << 64) - 1],
            "trust": ["dscp", "pcp"],
            "dcbx": ["host", "ieee"],
        }


def test_features_that_a_driver_lacks_are_not_in_its_answer():
    with open_netlink(dcb_kernel(nest(13, attribute(2, PFC)))) as (netlink, _):
        assert set(netlink.call("dcb", "ens1f0np0")) == {"pfc"}
    with open_netlink(dcb_kernel()) as (netlink, _):
        assert netlink.call("dcb", "ens1f0np0") == {}


def test_a_structure_that_is_cut_off_is_an_error():
    with (
        open_netlink(dcb_kernel(nest(13, attribute(2, PFC[:-1])))) as (netlink, _),
        pytest.raises(OSError, match="135 bytes: expected 136") as raised,
    ):
        netlink.call("dcb", "ens1f0np0")
    assert raised.value.errno == errno.EBADMSG


# Ethtool ----------------------------------------------------------------------------------------


def test_pause_frames_are_counted_where_the_driver_counts():
    counted = nest(5, u64s(2, 7), u64s(3, 1 << 40))
    with open_netlink(ethtool(21, u8(2, 1), u8(3, 0), u8(4, 1), counted)) as (netlink, kernel):
        assert netlink.call("pause", "eth0") == {
            "autonegotiation": True,
            "receive": False,
            "transmit": True,
            "statistics": {"receive_frames": 1 << 40, "transmit_frames": 7},
        }
    header = attributes(attributes(kernel.requests[-1].body[4:])[1])
    assert header == {2: b"eth0\0", 3: struct.pack("=I", 4)}, "ETHTOOL_FLAG_STATS"


def test_forward_error_correction_with_its_lanes():
    counted = nest(5, u64s(2, 30, 10, 20), u64s(3, 1), u64s(4))
    modes = bitset(2, {50: ("RS", True)}, mask=False)
    with open_netlink(ethtool(29, modes, u8(3, 0), u32(4, 50), counted)) as (netlink, _):
        assert netlink.call("fec", "eth0") == {
            "modes": ["RS"],
            "automatic": False,
            "active": "RS",
            "statistics": {"corrected_blocks": [30, 10, 20], "uncorrectable_blocks": [1]},
        }


@pytest.mark.parametrize(
    ("bit", "mode"), [(49, "None"), (50, "RS"), (51, "BASER"), (74, "LLRS"), (0, ""), (99, "")]
)
def test_the_error_correction_in_use(bit: int, mode: str):
    with open_netlink(ethtool(29, bitset(2, {}, mask=False), u32(4, bit))) as (netlink, _):
        assert netlink.call("fec", "eth0") == {"modes": [], "active": mode, "statistics": {}}


def test_a_list_of_counters_that_is_cut_off_is_an_error():
    with (
        open_netlink(ethtool(29, nest(5, attribute(2, bytes(9))))) as (netlink, _),
        pytest.raises(OSError, match="counters of 9 bytes"),
    ):
        netlink.call("fec", "eth0")


def test_statistics_of_standard_groups():
    """Groups repeat: each with its number, and a nest for every statistic."""
    mac = nest(
        4,
        u32(2, 1),
        u32(3, 17),
        nest(4, u64s(0, 9)),
        nest(4, u64s(4, 3)),
        nest(4, u64s(12, 1 << 40)),
    )
    rmon = nest(4, u32(2, 3), nest(4, u64s(3, 5)), nest(5, u32(7, 0), u32(8, 64), u64s(9, 1)))
    newer = nest(4, u32(2, 77), nest(4, u64s(0, 1)))
    beyond = nest(4, u32(2, 2), nest(4, u64s(40, 1)))
    with open_netlink(ethtool(32, mac, rmon, newer, beyond)) as (netlink, kernel):
        assert netlink.call("standard_statistics", "eth0") == {
            "statistics": {
                "FramesTransmittedOK": 9, "FrameCheckSequenceErrors": 3,
                "OctetsReceivedOK": 1 << 40, "etherStatsJabbers": 5,
            },
        }  # fmt: skip
    asked = attributes(kernel.requests[-1].body[4:])
    assert attributes(asked[3]) == {1: b"", 2: struct.pack("=I", 4), 4: struct.pack("=I", 15)}


def test_rings():
    with open_netlink(ethtool(15, u32(2, 8192), u32(5, 8192), u32(6, 1024), u32(9, 512))) as (
        netlink,
        _,
    ):
        assert netlink.call("rings", "eth0") == {
            "receive": 1024,
            "receive_limit": 8192,
            "transmit": 512,
            "transmit_limit": 8192,
        }


def test_link_modes_of_both_ends():
    ours = {
        6: ("Autoneg", True),
        50: ("RS", True),
        101: ("400000baseCR4/Full", True),
        38: ("100000baseCR4/Full", False),
    }
    answer = (
        bitset(3, ours, mask=True),
        bitset(4, {101: ("400000baseCR4/Full", True)}, mask=False),
        u8(2, 1),
        u32(5, 400_000),
        u8(6, 1),
        u32(9, 4),
    )
    with open_netlink(ethtool(4, *answer)) as (netlink, _):
        assert netlink.call("link_modes", "eth0") == {
            "supported": ["400000baseCR4/Full", "100000baseCR4/Full"],
            "advertised": ["400000baseCR4/Full"],
            "peer": ["400000baseCR4/Full"],
            "autonegotiation": True,
            "speed_megabits": 400_000,
            "duplex": "full",
            "lanes": 4,
        }


@pytest.mark.parametrize("unknown", [0xFFFFFFFF, 0xFFFF, 0])
def test_a_link_that_is_down_has_no_speed(unknown: int):
    with open_netlink(ethtool(4, u8(2, 1), u32(5, unknown), u8(6, 0xFF), u32(9, 0))) as (
        netlink,
        _,
    ):
        answer = netlink.call("link_modes", "eth0")
    assert answer == {"supported": [], "advertised": [], "peer": [], "autonegotiation": True}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([u8(5, 4)], {"extended_state": "No cable"}),
        (
            [u8(5, 10), u8(6, 1)],
            {
                "extended_state": "Module",
                "extended_substate": "CMIS module is not in ModuleReady state",
            },
        ),
        (
            [u8(5, 0), u8(6, 1)],
            {"extended_state": "Autoneg", "extended_substate": "No partner detected"},
        ),
        (
            [u8(5, 77), u8(6, 3)],
            {"extended_state": "unknown (77)", "extended_substate": "unknown (3)"},
        ),
        ([u32(7, 12)], {"down_events": 12}),
        ([], {}),
    ],
)
def test_why_a_link_is_down(answer: list[bytes], expected: dict[str, object]):
    with open_netlink(ethtool(6, u8(2, 0), *answer)) as (netlink, _):
        assert netlink.call("link_state", "eth0") == {"up": False, **expected}


def test_a_kernel_without_statistics_of_a_request_is_queried_without_them():
    """Before 6.2 the flag for statistics is rejected for link states."""
    counting = ethtool(6, u8(2, 1))

    def answer(request: NetlinkRequest) -> list[bytes]:
        if request.kind != CONTROLLER:
            header = attributes(attributes(request.body[4:])[1])
            if header[3] != bytes(4):
                return [request.refused(errno.EINVAL, "reserved bit set")]
        return list(counting(request))

    with open_netlink(answer) as (netlink, _):
        assert netlink.call("link_state", "eth0") == {"up": True}


def test_the_family_is_looked_up_once():
    with open_netlink(ethtool(15, u32(6, 256))) as (netlink, kernel):
        for _ in range(3):
            assert netlink.call("rings", "eth0") == {"receive": 256}
    assert [request.kind for request in kernel.requests].count(CONTROLLER) == 1
    assert kernel.opened == [16]


def test_a_kernel_without_ethtool_over_netlink_does_not_support_it():
    with (
        open_netlink(lambda request: [request.refused(errno.ENOENT)]) as (netlink, _),
        pytest.raises(OSError, match=r"older than 5\.6") as raised,
    ):
        netlink.call("rings", "eth0")
    assert raised.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize("name", ["", "a" * 16, "ä" * 8, "eth0\0x"])
@pytest.mark.parametrize("function", ["rings", "dcb", "module"])
def test_invalid_interface_names_are_not_queried(function: str, name: str):
    with open_netlink(ethtool(15)) as (netlink, kernel):
        with pytest.raises(OSError, match="invalid interface name") as raised:
            netlink.call(function, name)
        assert raised.value.errno == errno.ENODEV
        assert kernel.requests == []


# RDMA -------------------------------------------------------------------------------------------


class FakeRdmaKernel:
    """Devices by name and index, as in drivers/infiniband/core/nldev.c."""

    def __init__(self) -> None:
        self.indexes = {"mlx5_0": 3, "mlx5_1": 4}
        self.counted = 1 << 63
        self.optional = "rdma_tx_bytes"

    def __call__(self, request: NetlinkRequest) -> list[bytes]:
        assert request.protocol == 20
        assert request.kind >> 10 == 5, "RDMA_NL_NLDEV"
        command = request.kind & 0x3FF
        if command == 1:
            entries = [
                request.message(request.kind, u32(1, index) + text(2, name), MULTI)
                for name, index in self.indexes.items()
            ]
            return [b"".join(entries), request.done()]
        fields = attributes(request.body)
        index, port = (struct.unpack("=I", fields[kind])[0] for kind in (1, 3))
        names = [name for name, other in self.indexes.items() if other == index]
        if command != 17 or not names or port != 1:
            return [request.refused(errno.EINVAL)]
        counters = [
            nest(81, text(82, "out_of_sequence"), u64s(83, self.counted)),
            nest(81, text(82, self.optional), u64s(83, index)),
        ]
        body = u32(1, index) + text(2, names[0]) + u32(3, port) + nest(80, *counters)
        return [request.message(request.kind, body)]


def test_counters_of_an_rdma_port_with_optional_ones():
    with open_netlink(FakeRdmaKernel()) as (netlink, kernel):
        for device, index in (("mlx5_0", 3), ("mlx5_1", 4), ("mlx5_0", 3)):
            assert netlink.call("rdma_statistics", device, 1) == {
                "out_of_sequence": 1 << 63,
                "rdma_tx_bytes": index,
            }
    dumps = [request for request in kernel.requests if request.kind & 0x3FF == 1]
    assert len(dumps) == 1, "indexes are remembered"


def test_names_of_counters_are_decoded_again_when_they_change():
    kernel = FakeRdmaKernel()
    with open_netlink(kernel) as (netlink, _):
        names, values = netlink.rdma.counters("mlx5_0", 1)
        assert (names, values) == (("out_of_sequence", "rdma_tx_bytes"), (1 << 63, 3))
        kernel.counted = 4
        assert netlink.rdma.counters("mlx5_0", 1)[0] is names
        assert netlink.rdma.counters("mlx5_0", 1)[1] == (4, 3)
        kernel.optional = "rdma_rx_bytes"  # as long as the name before
        assert netlink.rdma.counters("mlx5_0", 1) == (("out_of_sequence", "rdma_rx_bytes"), (4, 3))
        kernel.optional = "cc_rx_ce_pkts_more"
        assert netlink.rdma.counters("mlx5_0", 1)[0][1] == "cc_rx_ce_pkts_more"


def test_a_device_that_came_back_under_another_index_is_found_again():
    kernel = FakeRdmaKernel()
    with open_netlink(kernel) as (netlink, _):
        assert netlink.call("rdma_statistics", "mlx5_0", 1)["rdma_tx_bytes"] == 3
        kernel.indexes = {"mlx5_1": 3, "mlx5_0": 9}
        assert netlink.call("rdma_statistics", "mlx5_0", 1)["rdma_tx_bytes"] == 9
        kernel.indexes = {"mlx5_0": 10}
        assert netlink.call("rdma_statistics", "mlx5_0", 1)["rdma_tx_bytes"] == 10


def test_a_port_or_a_device_that_is_not_there():
    with open_netlink(FakeRdmaKernel()) as (netlink, _):
        with pytest.raises(OSError, match="Invalid argument"):
            netlink.call("rdma_statistics", "mlx5_0", 2)
        with pytest.raises(OSError, match="RDMA device mlx5_7 does not exist") as raised:
            netlink.call("rdma_statistics", "mlx5_7", 1)
        assert raised.value.errno == errno.ENODEV


# Links ------------------------------------------------------------------------------------------


def test_links_of_an_older_kernel_and_of_another_namespace():
    """23 counters before 4.6 (rx_nohandler), no counts of the carrier before 4.16."""
    loopback = struct.pack("=BxHiII", 0, 772, 1, 0x49, 0) + text(3, "lo")
    port = struct.pack("=BxHiII", 0, 1, 2, 0x1003, 0) + b"".join(
        [
            text(3, "ens1f0np0"),
            attribute(1, bytes.fromhex("a088c2000001")),
            u32(4, 4200),
            u32(5, 1),
            u32(10, 1),
            u8(16, 6),
            u8(33, 1),
            u32(35, 3),
            u64s(23, *range(1, 24)),
        ]
    )
    moved = struct.pack("=BxHiII", 0, 1, 3, 0, 0) + b"".join(
        [text(3, "net1"), u32(5, 2), u32(37, 0), u8(16, 99), nest(18, text(1, "macvlan"))]
    )

    def answer(request: NetlinkRequest) -> list[bytes]:
        bodies = [request.message(16, body, MULTI) for body in (loopback, port, moved)]
        return [b"".join(bodies), request.done()]

    with open_netlink(answer) as (netlink, _):
        first, second, third = netlink.call("links")
    assert first == {
        "index": 1, "name": "lo", "kind": "", "up": True, "address": "", "master": "", "lower": "",
    }  # fmt: skip
    statistics = second.pop("statistics")
    assert list(statistics.values()) == list(range(1, 24))
    assert (statistics["rx_packets"], statistics["tx_compressed"]) == (1, 23)
    assert second == {
        "index": 2, "name": "ens1f0np0", "kind": "", "up": True, "address": "a0:88:c2:00:00:01",
        "master": "lo", "lower": "lo", "operational_state": "up", "mtu": 4200, "carrier": 1,
        "carrier_changes": 3,
    }  # fmt: skip
    assert (third["lower"], third["kind"]) == ("", "macvlan"), "index 2 of another namespace"
    assert (third["up"], third["operational_state"]) == (False, "unknown")
