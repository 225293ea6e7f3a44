"""Interfaces of the simulated node: complete, and in agreement with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.capture_index import index_of
from support.examples import few_examples
from support.simulated import scenario_run, scenario_seconds

from railscope.capture import PENDING, Capture, Json, read_capture
from railscope.catalog.rdma import COUNTER_FILES
from railscope_simulator import NICS, SCENARIOS, NodeSpec, capture_metadata, moments, simulate

SHORT = settings(few_examples(20), deadline=None)
SPECS = st.builds(
    NodeSpec,
    node=st.just("gpu-001"),
    seed=st.integers(0, 1000),
    gpus=st.integers(1, 4),
    model=st.sampled_from(["v100", "a100", "h100", "h200", "b200", "gb200"]),
    scenario=st.sampled_from(list(SCENARIOS)),
)
RAIL_DEVICES = [f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11)]


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


@SHORT
@given(SPECS, st.integers(0, 24))
def test_all_views_of_a_port_agree(spec: NodeSpec, second: int) -> None:
    check_ports(CaptureView(simulate(spec, 24), second))


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
def test_energy_and_power_agree_in_what_nvml_answers(spec: NodeSpec) -> None:
    capture = simulate(spec, 16)
    reset_second = 8 if spec.scenario == "counter_reset" else None
    for index in range(spec.gpus):
        views = [CaptureView(capture, second) for second in range(17)]
        energies = [
            view.result("calls", f"nvml.nvmlDeviceGetTotalEnergyConsumption({index})")
            for view in views
        ]
        powers = [view.result("calls", f"nvml.nvmlDeviceGetPowerUsage({index})") for view in views]
        for second in range(1, 17):
            if isinstance(energies[second], dict):
                fault = {
                    "xid79": {"error": ["nvml", 15]},
                    "gpu_hung": {"error": ["nvml", 10]},
                    "driver_stuck": PENDING,
                }
                assert energies[second] == powers[second] == fault[spec.scenario]
            elif second == reset_second:
                assert energies[second] == 0
            else:
                assert energies[second] - energies[second - 1] == powers[second]


@SHORT
@given(SPECS)
def test_equal_specs_give_equal_captures(spec: NodeSpec) -> None:
    one, other = simulate(spec, 5), simulate(spec, 5)
    assert one == other
    assert [m.to_line() for m in one.moments] == [m.to_line() for m in other.moments]


def test_seed_and_node_make_a_difference() -> None:
    captures = [
        simulate(spec, 2)
        for spec in (NodeSpec("gpu-001"), NodeSpec("gpu-002"), NodeSpec("gpu-001", seed=1))
    ]
    names = {c.moments[0].calls["nvml.nvmlDeviceGetUUID(0)"] for c in captures}
    assert len(names) == len({c.about.boot_id for c in captures}) == 3


def test_a_smaller_node_has_the_first_gpus_of_the_larger_one() -> None:
    small, large = simulate(NodeSpec("gpu-001", gpus=2), 3), simulate(NodeSpec("gpu-001"), 3)
    for one, other in zip(small.moments, large.moments, strict=True):
        for call, answer in one.calls.items():
            if call.startswith("nvml.nvmlDeviceGet") and not call.endswith("()"):
                assert other.calls[call] == answer


def test_moments_come_one_by_one_and_hold_changes_only() -> None:
    spec = NodeSpec("gpu-001")
    first, second, third = islice(moments(spec, 10**9), 3)
    assert (first.offset_ns, second.offset_ns) == (0, 10**9)
    assert not second.names
    assert not second.links
    assert not any(path.startswith("/sys/bus/pci") for path in {**second.files, **third.files})
    assert set(second.calls) < set(first.calls)
    for call in set(second.calls) & set(third.calls):
        assert second.calls[call] != third.calls[call]


def test_a_capture_survives_being_written(tmp_path: Path) -> None:
    capture = simulate(NodeSpec("gpu-001", scenario="xid79"), 6)
    capture.write(tmp_path)
    assert read_capture(tmp_path) == capture
    assert capture_metadata(NodeSpec("gpu-001", scenario="xid79"), 6) == capture.about


def test_ten_minutes_stay_below_42_megabytes() -> None:
    """Of these, the standard statistics of the NICs are one."""
    for scenario in ("training", "pause_storm"):
        lines = [len(m.to_line()) for m in moments(NodeSpec("gpu-001", scenario=scenario), 60)]
        assert lines[0] + 10 * sum(lines[1:]) < 42_000_000


def test_every_counter_file_is_in_the_catalog() -> None:
    start = simulate(NodeSpec("gpu-001", gpus=1), 1).moments[0]
    directories = [
        path for path in start.names if path.endswith(("/counters", "ports/1/hw_counters"))
    ]
    assert len(directories) == 2 * 3
    for directory in directories:
        files = set(start.names[directory])
        assert files - {"lifespan"} <= set(COUNTER_FILES)
        assert len(files) == (21 if directory.endswith("/counters") else 32)
        assert {f"{directory}/{name}" for name in files} <= set(start.files)


def test_the_first_moment_has_all_results() -> None:
    start = simulate(NodeSpec("gpu-001"), 1).moments[0]
    assert start.calls["nvml.nvmlDeviceGetCount()"] == 8
    assert start.calls["nvml.nvmlDeviceGetPciInfo(0)"]["busId"] == "00000000:1B:00.0"
    assert start.calls["ethtool.statistics(lo)"] == {"error": ["os", 95]}
    assert start.calls["ethtool.driver(eth0)"]["driver"] == "virtio_net"
    assert start.names["/sys/class/infiniband"] == sorted([*RAIL_DEVICES, "mlx5_1", "mlx5_7"])
    assert start.names["/sys/class/infiniband/mlx5_0/hw_counters"] == {"error": ["os", 2]}
    assert start.files["/sys/class/infiniband/mlx5_0/ports/1/rate"] == "400 Gb/sec (4X NDR)\n"
    assert {key for key in start.calls if key.startswith("psutil")} == {
        f"psutil.{name}()"
        for name in (
            "cpu_times", "cpu_count", "boot_time", "virtual_memory", "swap_memory",
            "disk_io_counters", "net_io_counters",
        )
    }  # fmt: skip
    json.dumps(start.to_line())


def test_only_the_lossless_priority_has_pause_counters() -> None:
    found = CaptureView(simulate(NodeSpec("gpu-001", gpus=1), 1), 0).statistics("ens1f0np0")
    pauses = {name for name in found if "pause" in name}
    assert {name for name in pauses if "prio" in name} == {
        "rx_prio3_pause",
        "rx_prio3_pause_duration",
        "rx_prio3_pause_transition",
        "tx_prio3_pause",
        "tx_prio3_pause_duration",
    }
    assert not any("global" in name for name in pauses)


def test_each_rail_is_behind_the_switch_of_its_gpu() -> None:
    start = simulate(NodeSpec("gpu-001"), 1).moments[0]

    def chain(address: str) -> list[str]:
        path: str = start.links[f"/sys/bus/pci/devices/{address}"]
        return path.split("/")[3:]

    def shared(one: list[str], other: list[str]) -> int:
        return sum(a == b for a, b in zip(one, other, strict=False))

    gpus = [
        start.calls[f"nvml.nvmlDeviceGetPciInfo({index})"]["busId"][4:].lower()
        for index in range(8)
    ]
    nics = [
        start.links[f"/sys/class/infiniband/{device}/device"].rpartition("/")[2]
        for device in RAIL_DEVICES
    ]
    for index, gpu in enumerate(gpus):
        for rail, nic in enumerate(nics):
            same_switch = len(chain(gpu)) - shared(chain(gpu), chain(nic)) <= 2
            assert same_switch == (rail == index)
        numa = f"/sys/bus/pci/devices/{gpu}/numa_node"
        assert start.files[numa] == f"{index // 4}\n"
    assert sorted(start.links[f"/sys/bus/pci/devices/{a}"] for a in gpus) == [
        start.links[f"/sys/bus/pci/devices/{a}"] for a in gpus
    ]


def test_pci_devices_lie_below_their_ports() -> None:
    start = simulate(NodeSpec("gpu-001"), 1).moments[0]
    addresses = start.names["/sys/bus/pci/devices"]
    assert addresses == sorted(set(addresses))
    for address in addresses:
        path = start.links[f"/sys/bus/pci/devices/{address}"]
        bridge, *above, last = path.split("/")[3:]
        assert bridge.startswith("pci")
        assert last == address
        assert set(above) <= set(addresses)


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


@pytest.mark.parametrize(("seconds", "step_seconds"), [(0, 1.0), (10, 0.0), (1, 2.0)])
def test_a_simulation_needs_time(seconds: int, step_seconds: float) -> None:
    with pytest.raises(ValueError, match="invalid step"):
        moments(NodeSpec("gpu-001"), seconds, step_seconds)


def test_the_driver_names_its_gpus_as_nvml_does_and_goes_on_when_one_is_lost() -> None:
    spec = NodeSpec(node="n", gpus=4, model="a100", scenario="xid79")
    capture = simulate(spec, 4)
    start = CaptureView(capture, 0)
    for index in range(4):
        bus = start.result("calls", f"nvml.nvmlDeviceGetPciInfo({index})")["busId"].lower()[4:]
        path = f"/proc/driver/nvidia/gpus/{bus}/information"
        uuid = start.result("calls", f"nvml.nvmlDeviceGetUUID({index})")
        for second in (0, 4):
            lines = CaptureView(capture, second).result("files", path).splitlines()
            assert f"GPU UUID: \t {uuid}" in lines
            assert f"Bus Location: \t {bus}" in lines
