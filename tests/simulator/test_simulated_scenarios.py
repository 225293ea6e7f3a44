"""Every scenario shows its signature after half time, at the right device, and not before."""

from __future__ import annotations

import re
from functools import cache

import pytest
from support.capture_index import CaptureIndex
from support.simulated import HEATING_SECONDS, SECONDS, scenario_run, scenario_seconds

from railscope.capture import Json
from railscope_simulator import SCENARIOS, NodeSpec, simulate
from railscope_simulator.scenarios import scenario_of

ONSET, HEATING_ONSET = SECONDS // 2, HEATING_SECONDS // 2
AFFECTED_DEVICE, AFFECTED_INTERFACE, AFFECTED_GPU = "mlx5_5", "ens4f0np0", 3
OTHER_DEVICE, OTHER_INTERFACE, OTHER_GPU = "mlx5_4", "ens3f0np0", 2
LINE_BYTES_PER_SECOND = 50_000_000_000


def span(scenario: str) -> tuple[int, int]:
    """Return the second of the onset, and the last second."""
    seconds = scenario_seconds(scenario)
    return seconds // 2, seconds


@cache
def index(scenario: str) -> CaptureIndex:
    return CaptureIndex(scenario_run(scenario))


def stored(scenario: str, section: str, key: str, second: int) -> Json:
    return index(scenario).result_at(section, key, second * 10**9)


def nvml(scenario: str, call: str, second: int | None = None) -> Json:
    at = span(scenario)[1] if second is None else second
    return stored(scenario, "calls", f"nvml.nvmlDeviceGet{call}", at)


def statistic(scenario: str, name: str, second: int, interface: str = AFFECTED_INTERFACE) -> int:
    answer = stored(scenario, "calls", f"ethtool.statistics({interface})", second)
    found: dict[str, int] = dict(zip(answer["names"], answer["values"], strict=True))
    return found[name]


def hardware(scenario: str, name: str, second: int, device: str = AFFECTED_DEVICE) -> int:
    path = f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}"
    return int(stored(scenario, "files", path, second))


def rate(
    scenario: str, name: str, interface: str = AFFECTED_INTERFACE, *, early: bool = False
) -> float:
    """A statistic's growth a second, after the onset or before it."""
    onset, last = span(scenario)
    start, end = (0, onset - 1) if early else (onset, last)
    before, after = (statistic(scenario, name, second, interface) for second in (start, end))
    return (after - before) / (end - start)


def load(
    scenario: str, way: str, interface: str = AFFECTED_INTERFACE, *, early: bool = False
) -> float:
    """Share of the line rate that RDMA took."""
    name = f"{way}_vport_rdma_unicast_bytes"
    return rate(scenario, name, interface, early=early) / LINE_BYTES_PER_SECOND


def marked(scenario: str, device: str, interface: str) -> float:
    marks = [hardware(scenario, "np_ecn_marked_roce_packets", s, device) for s in (ONSET, SECONDS)]
    packets = [
        statistic(scenario, "rx_vport_rdma_unicast_packets", s, interface) for s in (ONSET, SECONDS)
    ]
    return (marks[1] - marks[0]) / (packets[1] - packets[0])


def log(scenario: str) -> list[str]:
    return [record for moment in scenario_run(scenario).moments[1:] for record in moment.log]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_a_description_and_a_model(scenario: str) -> None:
    assert SCENARIOS[scenario].endswith(".")
    assert scenario_of(NodeSpec("gpu-001", scenario=scenario), 10**9).onset_ns == 5 * 10**8


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "idle"])
def test_until_half_time_every_job_is_healthy(scenario: str) -> None:
    assert 0.25 < load(scenario, "rx", early=True) < 0.45
    assert rate(scenario, "tx_prio3_pause_duration", early=True) < 100
    assert rate(scenario, "rx_prio3_pause_duration", early=True) < 1000
    assert nvml(scenario, f"UtilizationRates({AFFECTED_GPU})", ONSET // 2)["gpu"] > 90
    assert nvml(scenario, f"PowerUsage({AFFECTED_GPU})", ONSET // 2) > 300_000
    assert not [record for m in scenario_run(scenario).moments[1:ONSET] for record in m.log]


def test_idle_means_idle() -> None:
    assert load("idle", "rx") == 0
    assert nvml("idle", "UtilizationRates(0)") == {"gpu": 0, "memory": 0}
    assert nvml("idle", "CurrentClocksEventReasons(0)") == 0x1
    assert nvml("idle", "ClockInfo(0,1)") == 345
    assert 60_000 < nvml("idle", "PowerUsage(0)") < 85_000
    assert nvml("idle", "MemoryInfo(0)")["used"] == 0


def test_training_stays_healthy() -> None:
    assert 0.25 < load("training", "rx") < 0.45
    assert 0.25 < load("training", "tx") < 0.45
    assert marked("training", AFFECTED_DEVICE, AFFECTED_INTERFACE) < 0.005
    assert not log("training")
    energy = [nvml("training", "TotalEnergyConsumption(0)", s) for s in (0, SECONDS)]
    assert 500 < (energy[1] - energy[0]) / 1000 / SECONDS < 700


def test_incast_marks_and_notifies_without_pause() -> None:
    assert load("incast", "rx") > 0.85
    assert marked("incast", AFFECTED_DEVICE, AFFECTED_INTERFACE) > 0.02
    sent = [hardware("incast", "np_cnp_sent", second) for second in (ONSET, SECONDS)]
    assert sent[1] - sent[0] > 100_000 * (SECONDS - ONSET)
    assert rate("incast", "tx_prio3_pause_duration") < 0.005 * 1e6
    assert load("incast", "tx") < 0.9 * load("training", "tx")
    assert marked("incast", OTHER_DEVICE, OTHER_INTERFACE) < 0.005


def test_a_pause_storm_stops_all_traffic_and_is_counted_by_the_nic() -> None:
    assert rate("pause_storm", "tx_prio3_pause") > 1000
    assert 0.5e6 < rate("pause_storm", "tx_prio3_pause_duration") <= 1e6
    assert load("pause_storm", "rx") < 0.02
    assert load("pause_storm", "rx", OTHER_INTERFACE) < 0.1
    for kind in ("warning", "error"):
        name = f"tx_pause_storm_{kind}_events"
        assert statistic("pause_storm", name, ONSET) == 0
        assert statistic("pause_storm", name, ONSET + 3) >= 1
        assert statistic("pause_storm", name, SECONDS, OTHER_INTERFACE) == 0
    assert rate("pause_storm", "rx_discards_phy") > 0
    assert rate("pause_storm", "tx_prio3_pause", OTHER_INTERFACE) < 1


def test_a_slow_receiver_pauses_the_switch_and_waits_for_pcie() -> None:
    assert 0.005e6 < rate("slow_receiver", "tx_prio3_pause_duration") < 0.5e6
    assert rate("slow_receiver", "tx_prio3_pause") > 20
    assert rate("slow_receiver", "rx_prio3_pause_duration") < 0.01e6
    stalls = [
        statistic("slow_receiver", "outbound_pci_stalled_wr", second)
        for second in range(ONSET + 1, SECONDS)
    ]
    assert max(stalls) > 30
    assert rate("slow_receiver", "outbound_pci_stalled_wr_events") > 0.1
    assert statistic("slow_receiver", "tx_pause_storm_error_events", SECONDS) == 0
    assert rate("slow_receiver", "outbound_pci_stalled_wr_events", OTHER_INTERFACE) == 0


def test_a_victim_is_paused_and_pauses_no_other_port() -> None:
    assert rate("pfc_victim", "rx_prio3_pause_duration") > 0.01e6
    assert rate("pfc_victim", "rx_prio3_pause") > 50
    assert rate("pfc_victim", "tx_prio3_pause_duration") < 100
    assert marked("pfc_victim", AFFECTED_DEVICE, AFFECTED_INTERFACE) < 0.01
    assert load("pfc_victim", "tx") < 0.75 * load("training", "tx")


def test_a_hot_gpu_throttles_and_the_job_waits_for_it() -> None:
    clocks = [
        [nvml("thermal", f"ClockInfo({gpu},1)", second) for gpu in (AFFECTED_GPU, OTHER_GPU)]
        for second in range(HEATING_ONSET + 20, HEATING_SECONDS)
    ]
    assert sum(hot for hot, _ in clocks) < 0.9 * sum(cool for _, cool in clocks)
    assert nvml("thermal", f"TemperatureV({AFFECTED_GPU},0)") >= 83
    reasons = [
        nvml("thermal", f"CurrentClocksEventReasons({AFFECTED_GPU})", second)
        for second in range(HEATING_ONSET + 20, HEATING_SECONDS)
    ]
    assert sum(bool(reason & 0x20) for reason in reasons) > len(reasons) / 3
    code, heat_ns = nvml("thermal", f"FieldValues({AFFECTED_GPU},269)")
    assert (code, heat_ns) == tuple(nvml("thermal", f"FieldValues({AFFECTED_GPU},75)"))
    assert heat_ns > 10 * 10**9
    assert nvml("thermal", f"FieldValues({OTHER_GPU},269)") == [0, 0]
    assert load("thermal", "tx") < 0.95 * load("training", "tx")


def test_a_lost_gpu_answers_nothing_and_the_job_hangs() -> None:
    lost = {"error": ["nvml", 15]}
    assert nvml("xid79", f"UUID({AFFECTED_GPU})", ONSET - 1) != lost
    assert nvml("xid79", "Count()") == 4
    start = scenario_run("xid79").moments[0]
    own = [call for call in start.calls if re.match(rf"nvml.*\({AFFECTED_GPU}[,)]", call)]
    assert len(own) > 30
    assert all(stored("xid79", "calls", call, ONSET) == lost for call in own)
    assert nvml("xid79", f"UtilizationRates({OTHER_GPU})")["gpu"] > 95
    assert nvml("xid79", f"PowerUsage({OTHER_GPU})") < 200_000
    assert load("xid79", "tx", OTHER_INTERFACE) < 0.01
    address = start.calls[f"nvml.nvmlDeviceGetPciInfo({AFFECTED_GPU})"]["busId"][4:-2].lower()
    assert any(f"Xid (PCI:{address}): 79," in record for record in log("xid79"))
    directory = f"/sys/bus/pci/devices/{address}.0"
    assert stored("xid79", "files", f"{directory}/current_link_speed", SECONDS) == "Unknown\n"


def test_a_row_waits_for_its_remapping() -> None:
    call = f"RemappedRows({AFFECTED_GPU})"
    assert nvml("row_remap", call, ONSET - 1) == [0, 0, 0, 0]
    assert nvml("row_remap", call) == [1, 0, 1, 0]
    errors = [nvml("row_remap", f"TotalEccErrors({AFFECTED_GPU},0,0)", s) for s in (0, SECONDS)]
    assert errors[1] > errors[0]
    assert nvml("row_remap", f"TotalEccErrors({AFFECTED_GPU},1,1)") == 0
    assert any("): 63, " in record for record in log("row_remap"))
    assert load("row_remap", "rx") > 0.25


def test_a_flap_shows_in_state_counters_and_log() -> None:
    port = f"/sys/class/infiniband/{AFFECTED_DEVICE}/ports/1"
    net = f"/sys/class/net/{AFFECTED_INTERFACE}"

    def files(second: int) -> list[str]:
        return [
            stored("link_flap", "files", path, second).strip()
            for path in (
                f"{port}/state",
                f"{port}/phys_state",
                f"{port}/counters/link_downed",
                f"{net}/carrier",
                f"{net}/operstate",
                f"{net}/speed",
                f"{net}/carrier_changes",
            )
        ]

    assert files(0) == ["4: ACTIVE", "5: LinkUp", "0", "1", "up", "400000", "1"]
    assert files(ONSET) == ["1: DOWN", "3: Disabled", "1", "0", "down", "-1", "2"]
    assert files(SECONDS) == ["4: ACTIVE", "5: LinkUp", "1", "1", "up", "400000", "3"]
    down, up = log("link_flap")
    assert down.endswith(f"{AFFECTED_INTERFACE}: Link down")
    assert up.endswith(f"{AFFECTED_INTERFACE}: Link up")
    assert statistic("link_flap", "link_down_events_phy", SECONDS) == 1
    assert hardware("link_flap", "local_ack_timeout_err", SECONDS) > 0
    assert statistic("link_flap", "link_down_events_phy", SECONDS, OTHER_INTERFACE) == 0


def test_a_driver_reload_lets_counters_begin_at_zero() -> None:
    assert nvml("counter_reset", "TotalEnergyConsumption(0)", ONSET - 1) > 10**11
    assert nvml("counter_reset", "TotalEnergyConsumption(0)", ONSET) == 0
    assert statistic("counter_reset", "rx_vport_rdma_unicast_bytes", ONSET) == 0
    assert statistic("counter_reset", "rx_vport_rdma_unicast_bytes", SECONDS) > 0
    assert any("NVRM: loading" in record for record in log("counter_reset"))
    times = [stored("counter_reset", "calls", "psutil.cpu_times()", s) for s in (0, SECONDS)]
    assert times[1]["user"] > times[0]["user"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kernel_records_are_numbered_and_dated(scenario: str) -> None:
    capture = scenario_run(scenario)
    boot_us = capture.about.started_boot_ns // 1000
    sequence, latest_us = 0, 0
    for moment in capture.moments:
        for record in moment.log:
            priority, number, at_us, rest = record.split(",", 3)
            assert int(number) == sequence
            assert 0 <= int(priority) <= 7
            assert latest_us <= int(at_us) <= boot_us + moment.offset_ns // 1000
            assert rest.startswith("-;")
            sequence, latest_us = sequence + 1, int(at_us)
    assert sequence > 10


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_node_with_one_gpu_can_be_affected_as_well(scenario: str) -> None:
    capture = simulate(NodeSpec("gpu-001", gpus=1, scenario=scenario), 10, 2.5)
    assert [m.offset_ns for m in capture.moments] == [n * 2_500_000_000 for n in range(5)]
