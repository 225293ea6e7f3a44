"""Metrics from the counter files of each RDMA driver."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from itertools import groupby

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, Label, read_once, readings

from railscope.catalog.declare import MetricKind
from railscope.catalog.rdma import FILES, RDMA_COUNTERS, meaning
from railscope.reading import Absent, Reading
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.rdma import RdmaSource

ROOT = "/sys/class/infiniband"
DRIVERS = {
    "mlx5_0": ("mlx5_core", "mlx5"), "bnxt_re0": ("bnxt_en", "bnxt_re"),
    "rocep1s0": ("ice", "irdma"), "mlx4_0": ("mlx4_core", "mlx4"), "rdmap0s6": ("efa", "efa"),
    "mana_0": ("mana", "mana"), "hfi1_0": ("hfi1", "hfi1"), "ionic_0": ("ionic", "ionic"),
    "erdma_0": ("erdma", "erdma"), "hns_0": ("hns3", "hns"),
}  # fmt: skip


def machine(device: str, files: Mapping[str, object], pci_driver: str = "") -> FakeHost:
    """An RDMA device with these files under its directory, at a PCI device with this driver."""
    host = FakeHost()
    host.files = {f"{ROOT}/{device}/{path}": content for path, content in files.items()}
    place = "/sys/devices/pci0000:3a/0000:3b:00.0"
    host.files[f"{place}/vendor"] = "0x15b3"
    host.links[f"{ROOT}/{device}/device"] = place
    host.links["/sys/bus/pci/devices/0000:3b:00.0"] = place
    if pci_driver:
        host.files[f"/sys/bus/pci/drivers/{pci_driver}/bind"] = ""
        host.links[f"{place}/driver"] = f"/sys/bus/pci/drivers/{pci_driver}"
    return host


def reported(host: FakeHost) -> dict[Label, Reading]:
    """The readings of counters and resources, without the prefix."""
    found = readings(read_once(RdmaSource(), host).frame)
    short = {
        (name.removeprefix("railscope_rdma_"), key): value for (name, key), value in found.items()
    }
    return {label: value for label, value in short.items() if not label[0].startswith("port_")}


def hw(device: str, files: Mapping[str, int], pci_driver: str = "") -> dict[Label, Reading]:
    host = machine(
        device, {f"ports/1/hw_counters/{name}": str(n) for name, n in files.items()}, pci_driver
    )
    return reported(host)


@pytest.mark.parametrize(("device", "drivers"), DRIVERS.items(), ids=list(DRIVERS))
def test_each_driver_file_maps_to_a_metric_or_keeps_its_own_name(
    device: str, drivers: tuple[str, str]
) -> None:
    pci_driver, driver = drivers
    names = [*sorted(FILES[driver]), "never_heard_of_it"]
    numbers = {name: 1000 + position for position, name in enumerate(names)}
    found = hw(device, numbers, pci_driver)
    own = {key[2]: value for (_, key), value in found.items() if len(key) == 3}
    typed = {name: value for (name, key), value in found.items() if len(key) == 2}
    assert own["never_heard_of_it"] == numbers["never_heard_of_it"]
    first: set[str] = set()
    for name in names:
        metric = meaning(driver, name)
        if metric is None or metric.name in first:
            assert own[name] == numbers[name], "of two files with the same meaning the first counts"
            continue
        first.add(metric.name)
        step = 8 if driver == "hfi1" else 1
        assert typed[metric.name.removeprefix("railscope_rdma_")] == numbers[name] * step
    assert len(typed) + len(own) == len(names)


def test_drivers_name_the_same_counter_differently() -> None:
    """A metric has one meaning for every driver."""
    timeouts = "ack_timeouts_total", "out_of_sequence_packets_total"
    for device, (pci_driver, files) in {
        "mlx5_0": ("mlx5_core", ("local_ack_timeout_err", "out_of_sequence")),
        "bnxt_re0": ("bnxt_en", ("to_retransmits", "oos_drop_count")),
        "bnxt_re1": ("bnxt_en", ("local_ack_timeout_err", "out_of_sequence")),
        "rocep1s0": ("ice", ("RTO", "Rcvd Out of order packets")),
        "mana_0": ("mana", ("requester_timeout", "responder_oos")),
        "mlx4_0": ("mlx4_core", ("sq_num_to", "rq_num_oos")),
    }.items():
        found = hw(device, dict(zip(files, (7, 9), strict=True)), pci_driver)
        assert found == {(name, (device, "1")): n for name, n in zip(timeouts, (7, 9), strict=True)}


def test_names_with_spaces_are_kept_as_they_are() -> None:
    found = hw("irdma0", {"Some new count": 5, "CRC errors": 6})
    assert found == {
        ("vendor_total", ("irdma0", "1", "Some new count")): 5,
        ("icrc_errors_total", ("irdma0", "1")): 6,
    }


@pytest.mark.parametrize(
    ("device", "pci_driver", "bytes_per_step"),
    [("mlx5_0", "mlx5_core", 4), ("mlx4_0", "mlx4_core", 4), ("hfi1_0", "hfi1", 8),
     ("hfi1_0", "", 8), ("qib0", "ib_qib", 4), ("renamed0", "hfi1", 8)],
)  # fmt: skip
def test_port_data_is_counted_in_32_bit_units_or_flits(
    device: str, pci_driver: str, bytes_per_step: int
) -> None:
    files = {"ports/1/counters/port_xmit_data": "1000", "ports/1/counters/port_rcv_data": "1"}
    found = reported(machine(device, files, pci_driver))
    assert found["transmit_bytes_total", (device, "1")] == 1000 * bytes_per_step
    assert found["receive_bytes_total", (device, "1")] == bytes_per_step


def test_port_data_beyond_64_bits_of_bytes_starts_over() -> None:
    found = reported(machine("mlx5_0", {"ports/1/counters/port_xmit_data": str(2**62 + 5)}))
    assert found["transmit_bytes_total", ("mlx5_0", "1")] == 20


def test_all_bits_of_port_data_are_no_number_of_bytes() -> None:
    found = reported(machine("mlx5_0", {"ports/1/counters/port_xmit_data": str(2**64 - 1)}))
    assert found["transmit_bytes_total", ("mlx5_0", "1")] is Absent.ERROR


@pytest.mark.parametrize("driver", ["efa", "bnxt_en", "mana"])
def test_bytes_are_bytes_where_the_driver_counts_them(driver: str) -> None:
    found = hw("x0", {"tx_bytes": 12_345}, driver)
    assert found == {("transmit_bytes_total", ("x0", "1")): 12_345}


def test_old_kernels_keep_the_wide_counters_apart() -> None:
    """There counters/port_xmit_data has 32 bits and sticks."""
    port = "ports/1"
    found = reported(
        machine(
            "mlx5_0",
            {
                f"{port}/counters_ext/port_xmit_data_64": str(2**33),
                f"{port}/counters/port_xmit_data": str(2**32 - 1),
                f"{port}/counters_ext/port_xmit_packets_64": "17",
                f"{port}/counters/port_xmit_packets": "16",
            },
        )
    )
    assert found == {
        ("transmit_bytes_total", ("mlx5_0", "1")): 2**35,
        ("transmit_packets_total", ("mlx5_0", "1")): 17,
        ("vendor_total", ("mlx5_0", "1", "port_xmit_data")): 2**32 - 1,
        ("vendor_total", ("mlx5_0", "1", "port_xmit_packets")): 16,
    }


def test_counters_of_the_device_are_those_of_port_0() -> None:
    found = reported(
        machine(
            "rdmap0s6",
            {
                "hw_counters/lifespan": "10",
                "hw_counters/cmds_err": "3",
                "hw_counters/brand_new": "4",
                "ports/1/hw_counters/lifespan": "10",
                "ports/1/hw_counters/rx_drops": "5",
                "ports/1/hw_counters/brand_new": "6",
            },
            "efa",
        )
    )
    assert found == {
        ("admin_command_errors_total", ("rdmap0s6", "0")): 3,
        ("vendor_total", ("rdmap0s6", "0", "brand_new")): 4,
        ("receive_discarded_packets_total", ("rdmap0s6", "1")): 5,
        ("vendor_total", ("rdmap0s6", "1", "brand_new")): 6,
    }


def test_sums_of_a_device_over_its_ports_are_not_counted_twice() -> None:
    """mlx4 counts for each port and for the device; sums over ports must hold each once."""
    files = {"ports/1/hw_counters/sq_num_to": "3", "ports/2/hw_counters/sq_num_to": "4",
             "hw_counters/sq_num_to": "7", "hw_counters/num_cqovf": "1"}  # fmt: skip
    found = reported(machine("mlx4_0", files, "mlx4_core"))
    assert found == {
        ("ack_timeouts_total", ("mlx4_0", "1")): 3,
        ("ack_timeouts_total", ("mlx4_0", "2")): 4,
        ("vendor_total", ("mlx4_0", "0", "sq_num_to")): 7,
        ("completion_queue_overflows_total", ("mlx4_0", "0")): 1,
    }


def test_port_0_has_counters_and_no_state() -> None:
    host = machine("mana_0", {"hw_counters/sent_cnps": "2", "ports/1/state": "4: ACTIVE"}, "mana")
    frame = read_once(RdmaSource(), host).frame
    assert frame is not None
    found = readings(frame)
    assert found["railscope_rdma_port_up", ("mana_0", "1")] == 1
    assert ("railscope_rdma_port_up", ("mana_0", "0")) not in found
    (whole,) = (entity for entity in frame.schema.entities if entity.key == ("mana_0", "0"))
    assert dict(whole.facts) == {"driver": "mana", "pci_address": "0000:3b:00.0"}


@pytest.mark.parametrize(
    ("content", "is_up"),
    [
        ("0: NOP", 0),
        ("1: DOWN", 0),
        ("2: INIT", 0),
        ("3: ARMED", 0),
        ("4: ACTIVE", 1),
        ("5: ACTIVE_DEFER", 1),
    ],
)
def test_a_port_is_up_while_its_state_is_active_or_deferred(content: str, is_up: int) -> None:
    host = machine("mlx5_0", {"ports/1/state": content})
    found = readings(read_once(RdmaSource(), host).frame)
    assert found["railscope_rdma_port_up", ("mlx5_0", "1")] == is_up


def test_a_subfunction_is_known_by_the_driver_of_its_own_bus() -> None:
    device = "rocep8s0f0s88"
    host = machine(device, {"ports/1/hw_counters/out_of_buffer": "5"})
    place = "/sys/devices/pci0000:3a/0000:3b:00.0/mlx5_core.sf.4"
    host.links[f"{ROOT}/{device}/device"] = place
    host.files[f"{place}/sfnum"] = "88"
    host.files["/sys/bus/auxiliary/drivers/mlx5_core.sf/bind"] = ""
    host.links[f"{place}/driver"] = "/sys/bus/auxiliary/drivers/mlx5_core.sf"
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    drops = "railscope_rdma_out_of_buffer_drops_total", (device, "1")
    for shown, carried in ((2**32 - 1, 2**32 - 1), (5, 2**32 + 5)):
        host.files[f"{ROOT}/{device}/ports/1/hw_counters/out_of_buffer"] = str(shown)
        frame = reader.run().frame
        assert frame is not None
        assert readings(frame)[drops] == carried, "mlx5 wraps at 32 bits"
    assert frame.schema.entities[0].facts["driver"] == "mlx5_core.sf"


def test_the_files_of_a_set_are_read_back_to_back_and_its_lifespan_never() -> None:
    """The first file of a set makes the driver refresh all of it."""
    order: list[str] = []

    def seen(path: str) -> Callable[[], str]:
        return lambda: order.append(path.rpartition("/")[0]) or "1"  # type: ignore[func-returns-value]

    sets = {
        "ports/1/hw_counters": ("out_of_buffer", "np_cnp_sent", "new"),
        "ports/1/counters": ("link_downed", "port_xmit_data", "other"),
        "ports/2/hw_counters": ("out_of_buffer", "np_cnp_sent", "new"),
        "hw_counters": ("packet_seq_err", "new"),
    }
    files = [
        f"{directory}/{name}" for directory, names in sets.items() for name in (*names, "lifespan")
    ]
    host = machine("mlx5_0", {path: seen(path) for path in files}, "mlx5_core")
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    reader.run()
    order.clear()
    reader.run()
    found = {directory: len(list(reads)) for directory, reads in groupby(order)}
    assert found == {directory: len(names) for directory, names in sets.items()}
    assert len(order) == 3 * 3 + 2, "no lifespan"


def test_resources_are_present_values() -> None:
    found = hw("bnxt_re0", {"active_qps": 12, "watermark_qps": 90, "db_fifo_register": 3})
    assert found == {
        ("queue_pairs", ("bnxt_re0", "1")): 12,
        ("max_queue_pairs", ("bnxt_re0", "1")): 90,
        ("vendor_value", ("bnxt_re0", "1", "db_fifo_register")): 3,
    }


def test_every_counter_has_a_driver_and_no_name_has_two_meanings() -> None:
    metrics_of_files = {metric for files in FILES.values() for metric in files.values()}
    assert set(RDMA_COUNTERS) <= metrics_of_files
    assert all(metric.kind is MetricKind.COUNTER for metric in RDMA_COUNTERS)


# Counters that stick at their end ----------------------------------------------------------------


def test_counters_at_their_end_are_counted() -> None:
    full = {"symbol_error": 65535, "link_downed": 255, "local_link_integrity_errors": 15,
            "port_xmit_wait": 2**32 - 1, "port_rcv_errors": 65534, "VL15_dropped": 0}  # fmt: skip
    host = machine("mlx5_0", {f"ports/1/counters/{name}": str(n) for name, n in full.items()})
    found = reported(host)
    assert found["saturated_counters", ("mlx5_0", "1")] == 4
    assert found["symbol_errors_total", ("mlx5_0", "1")] == 65535, "no growth is made up"


def test_saturation_is_unknown_where_no_narrow_counter_can_be_read() -> None:
    files = {"ports/1/counters/symbol_error": "N/A (no PMA)"}
    assert reported(machine("mlx5_0", files))["saturated_counters", ("mlx5_0", "1")] is (
        Absent.UNSUPPORTED
    )
    files["ports/1/counters/link_downed"] = "255"
    assert reported(machine("mlx5_0", files))["saturated_counters", ("mlx5_0", "1")] == 1


def test_a_driver_s_counter_of_the_same_meaning_does_not_stick() -> None:
    """bnxt_re counts errors in 64 bits: 65535 of them are not the maximum."""
    found = hw("bnxt_re0", {"rx_roce_errors": 65535}, "bnxt_en")
    assert found == {("receive_errors_total", ("bnxt_re0", "1")): 65535}


# Optional counters, which have no files ----------------------------------------------------------

ANSWER = "netlink.rdma_statistics(mlx5_0,1)"
NP = "ports/1/hw_counters/np_ecn_marked_roce_packets"


def test_optional_counters_come_by_netlink_in_one_call() -> None:
    host = machine("mlx5_0", {NP: "11"}, "mlx5_core")
    host.calls[ANSWER] = {
        "np_ecn_marked_roce_packets": 11, "cc_rx_ce_pkts": 12, "cc_tx_cnp_pkts": 13,
        "rdma_tx_bytes": 2**63 + 1,
    }  # fmt: skip
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    reader.run()
    host.asked.clear()
    found = readings(reader.run().frame)
    port = ("mlx5_0", "1")
    assert found["railscope_rdma_ecn_marked_packets_total", port] == 11, "the file counts first"
    assert found["railscope_rdma_vendor_total", (*port, "cc_rx_ce_pkts")] == 12
    assert found["railscope_rdma_congestion_notifications_sent_total", port] == 13
    assert found["railscope_rdma_roce_transmit_bytes_total", port] == 2**63 + 1
    assert host.asked[ANSWER] == 1


@pytest.mark.parametrize("answer", [OSError(errno.EOPNOTSUPP, ""), PermissionError(1, ""), {}])
def test_without_optional_counters_netlink_is_not_queried_again(answer: object) -> None:
    host = machine("mlx5_0", {NP: "11"}, "mlx5_core")
    host.calls[ANSWER] = answer
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    reader.run()
    host.asked.clear()
    found = readings(reader.run().frame)
    assert found["railscope_rdma_ecn_marked_packets_total", ("mlx5_0", "1")] == 11
    assert host.asked[ANSWER] == 0


def test_an_optional_counter_that_was_switched_off_is_gone() -> None:
    host = machine("mlx5_0", {NP: "11"}, "mlx5_core")
    host.calls[ANSWER] = {"rdma_tx_bytes": 5, "rdma_rx_bytes": 6}
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    reader.run()
    sent, got = (
        (f"railscope_rdma_roce_{way}_bytes_total", ("mlx5_0", "1"))
        for way in ("transmit", "receive")
    )
    host.calls[ANSWER] = {"rdma_rx_bytes": 7}
    found = readings(reader.run().frame)
    assert (found[sent], found[got]) == (Absent.GONE, 7)
    host.calls[ANSWER] = OSError(errno.ENODEV, "")
    found = readings(reader.run().frame)
    assert (found[sent], found[got]) == (Absent.GONE, Absent.GONE)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100 Gb/sec (4X EDR)", 100_000), ("2.5 Gb/sec (1X SDR)", 2_500), ("0 Gb/sec", Absent.UNSUPPORTED)],
)  # fmt: skip
def test_a_rate_of_zero_is_unknown(text: str, rate: Reading) -> None:
    """A driver that does not know the speed of its port must not lower the sum of a rail."""
    host = machine("bnxt_re0", {"ports/1/rate": text, "ports/1/state": "1: DOWN"})
    found = readings(read_once(RdmaSource(), host).frame)
    assert found["railscope_rdma_port_rate_bytes_per_second", ("bnxt_re0", "1")] == rate
