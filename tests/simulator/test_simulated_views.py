"""Interfaces of the simulated node: complete, and in agreement with each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.capture_index import index_of
from support.examples import few_examples
from support.simulated import scenario_run, scenario_seconds

from railscope.capture import Capture, Json, read_capture
from railscope_simulator import NICS, SCENARIOS, NodeSpec, capture_metadata, simulate

SHORT = settings(few_examples(20), deadline=None)
SPECS = st.builds(
    NodeSpec,
    node=st.just("gpu-001"),
    seed=st.integers(0, 1000),
    gpus=st.integers(1, 4),
    model=st.sampled_from(["v100", "a100", "h100", "h200", "b200", "gb200"]),
    scenario=st.sampled_from(list(SCENARIOS)),
)


# Counters among the fields of NVML and the metrics of GPM.
FIELDS = (
    *range(3, 7), *range(32, 60), 74, 75, 83, 94, *range(96, 120), *range(138, 164), 169,
    *range(173, 184), 197, 198, *range(201, 216), 219, 221, *range(231, 251), 269, 270, 271, 289,
    290, 294, 295,
)  # fmt: skip
CYCLES = range(248, 261)


def _counts(call: str) -> bool:
    match = re.match(r"nvml\.nvml(DeviceGetFieldValues|GpmMetricsGet)\([^,]*,(\d+)", call)
    return bool(match) and int(match[2]) in (FIELDS if match[1][0] == "D" else CYCLES)


class CaptureView:
    """Capture at an offset."""

    def __init__(self, capture: Capture, second: float) -> None:
        self._timeline = index_of(capture)
        self._offset_ns = round(second * 1e9)

    def result(self, section: str, key: str) -> Json:
        return self._timeline.result_at(section, key, self._offset_ns)

    def number(self, path: str) -> int:
        return int(self.result("files", path))

    def statistics(self, interface: str) -> dict[str, int]:
        answer = self.result("calls", f"ethtool.statistics({interface})")
        return dict(zip(answer["names"], answer["values"], strict=True))

    def devices(self) -> Iterator[tuple[str, str]]:
        """RDMA devices that have an interface, and it."""
        for device in self.result("names", "/sys/class/infiniband"):
            interfaces = self.result("names", f"/sys/class/infiniband/{device}/device/net")
            if isinstance(interfaces, list):
                yield device, interfaces[0]


def counters(capture: Capture) -> Iterator[tuple[str, list[int]]]:
    """Every counter of a capture by name, and all values it took."""
    courses: dict[str, list[int]] = {}
    for moment in capture.moments:
        found = {
            path: int(text)
            for path, text in moment.files.items()
            if re.search(r"/(hw_)?counters/(?!lifespan)|carrier_changes$", path)
            and not isinstance(text, dict)
        }
        for call, answer in moment.calls.items():
            if call.startswith("ethtool.statistics") and "names" in answer:
                named = zip(answer["names"], answer["values"], strict=True)
                gauges = {"outbound_pci_stalled_rd", "outbound_pci_stalled_wr"}
                found |= {f"{call} {name}": value for name, value in named if name not in gauges}
            if "TotalEnergyConsumption" in call and isinstance(answer, int):
                found[call] = answer
            if _counts(call) and isinstance(answer, list):
                found[call] = answer[1]
            if call in {"psutil.net_io_counters()", "psutil.disk_io_counters()"}:
                found |= {
                    f"{name} {key}": value for name in answer for key, value in answer[name].items()
                }
        for name, value in found.items():
            courses.setdefault(name, []).append(value)
    yield from courses.items()


@SHORT
@given(SPECS, st.sampled_from(list(NICS)), st.sampled_from((0.5, 1.0, 4.0)))
def test_counters_never_decrease_except_when_the_drivers_are_reloaded(
    spec: NodeSpec, nic: str, step_seconds: float
) -> None:
    spec = replace(spec, nic=nic)
    falls = {
        name
        for name, values in counters(simulate(spec, 24, step_seconds))
        if values != sorted(values)
    }
    if spec.scenario == "counter_reset":
        assert any(name.endswith(("port_rcv_data", "ip4InOctets")) for name in falls)
        assert any("TotalEnergyConsumption" in name for name in falls)
        assert not any("eth0" in name or "nvme" in name for name in falls)
    else:
        assert not falls


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_views_of_a_port_agree_throughout_a_fault(scenario: str) -> None:
    capture, last = scenario_run(scenario), scenario_seconds(scenario)
    onset = last // 2
    for second in (0, onset, onset + 1, onset + 3, onset * 3 // 2, last):
        check_ports(CaptureView(capture, second))


def check_ports(seen: CaptureView) -> None:
    network = seen.result("calls", "psutil.net_io_counters()")
    for device, interface in seen.devices():
        port, found = f"/sys/class/infiniband/{device}/ports/1", seen.statistics(interface)
        neighbours = found["rx_packets"]
        for way, sysfs in (("rx", "rcv"), ("tx", "xmit")):
            terms = seen.number(f"{port}/counters/port_{sysfs}_data")
            packets = seen.number(f"{port}/counters/port_{sysfs}_packets")
            assert found[f"{way}_vport_rdma_unicast_bytes"] == 4 * terms
            assert found[f"{way}_vport_rdma_unicast_packets"] == packets
            for what in ("bytes", "packets"):
                parts = [found[f"{way}_prio{priority}_{what}"] for priority in range(8)]
                assert found[f"{way}_{what}_phy"] == sum(parts)
                assert found[f"{way}_prio0_{what}"] >= found[f"{way}_{what}"]
            discards = sum(found[f"rx_prio{p}_discards"] for p in range(8)) if way == "rx" else 0
            arrived = found[f"{way}_prio0_packets"] + found[f"{way}_prio3_packets"]
            assert arrived == packets + discards + neighbours
            pauses = found[f"{way}_pause_ctrl_phy"]
            assert found.get(f"{way}_prio3_pause", pauses) == pauses
        assert found["rx_discards_phy"] == sum(found[f"rx_prio{p}_discards"] for p in range(8))
        hardware = f"{port}/hw_counters"
        assert found["tx_prio6_packets"] == seen.number(f"{hardware}/np_cnp_sent")
        assert found["rx_prio6_packets"] == seen.number(f"{hardware}/rp_cnp_handled")
        lanes = [found[f"rx_err_lane_{lane}_phy"] for lane in range(4)]
        assert found["rx_corrected_bits_phy"] == sum(lanes) <= found["rx_bits_phy"]
        assert network[interface]["bytes_recv"] == found["rx_bytes"]
        downs = seen.number(f"{port}/counters/link_downed")
        up = seen.number(f"/sys/class/net/{interface}/carrier")
        assert found["link_down_events_phy"] == downs
        assert seen.number(f"/sys/class/net/{interface}/carrier_changes") == 2 * downs + up
        assert (seen.result("files", f"{port}/state") == "4: ACTIVE\n") == bool(up)


@SHORT
@given(SPECS)
def test_equal_specs_give_equal_captures(spec: NodeSpec) -> None:
    one, other = simulate(spec, 5), simulate(spec, 5)
    assert one == other
    assert [m.to_line() for m in one.moments] == [m.to_line() for m in other.moments]


def test_a_capture_survives_being_written(tmp_path: Path) -> None:
    capture = simulate(NodeSpec("gpu-001", scenario="xid79"), 6)
    capture.write(tmp_path)
    assert read_capture(tmp_path) == capture
    assert capture_metadata(NodeSpec("gpu-001", scenario="xid79"), 6) == capture.about


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": 0},
        {"gpus": 9},
        {"scenario": "earthquake"},
        {"mode": "rented"},
        {"nic": "token-ring"},
        {"model": "NVIDIA Riva 128"},
        {"model": "gb200", "gpus": 5},
        {"model": "l40s", "mode": "mig"},
        {"model": "h100", "mode": "vgpu"},
        {"gpus": 1, "mode": "passthrough"},
        {"model": "t4", "scenario": "nvlink_errors"},
        {"mode": "mig", "scenario": "nvlink_errors"},
    ],
)
def test_what_cannot_be_simulated_is_rejected(wrong: dict[str, Json]) -> None:
    with pytest.raises(ValueError, match=r"GPU|scenario|mode|NIC"):
        simulate(NodeSpec("gpu-001", **wrong), 1)
