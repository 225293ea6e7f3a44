"""NVIDIA's own profiles of an H100, an A100 and a T4 server: every number is exported.

They are not captures: they are the data of NVIDIA's mock of NVML.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from support import nvml_mock
from support.gpu_readings import GpuReadings, read_gpus
from support.machine import FakeHost
from support.nvml_mock import Profile
from support.shared import capture_path

from railscope.reading import Absent

PROFILES = ("h100", "a100", "t4")
EACH_PROFILE = pytest.mark.parametrize("name", PROFILES)
Part = tuple[str, ...]

# A number of a profile, ours, its part, and how many of theirs make one of ours.
PAIRS: dict[str, tuple[str, Part, float]] = {
    "memory.total_bytes": ("memory_size_bytes", (), 1),
    "memory.reserved_bytes": ("memory_reserved_bytes", (), 1),
    "memory.free_bytes": ("memory_free_bytes", (), 1),
    "memory.used_bytes": ("memory_used_bytes", (), 1),
    "bar1_memory.total_bytes": ("bar1_size_bytes", (), 1),
    "bar1_memory.used_bytes": ("bar1_used_bytes", (), 1),
    "pcie.max_link_gen": ("pcie_link_generation_limit", (), 1),
    "pcie.current_link_gen": ("pcie_link_generation", (), 1),
    "pcie.max_link_width": ("pcie_link_width_limit_lanes", (), 1),
    "pcie.current_link_width": ("pcie_link_width_lanes", (), 1),
    "pcie.replay_counter": ("pcie_replays_total", (), 1),
    "power.current_draw_mw": ("power_watts", (), 1000),
    "power.default_limit_mw": ("power_limit_bound_watts", ("default",), 1000),
    "power.min_limit_mw": ("power_limit_bound_watts", ("minimum",), 1000),
    "power.max_limit_mw": ("power_limit_bound_watts", ("maximum",), 1000),
    "power.enforced_limit_mw": ("power_limit_watts", (), 1000),
    "power.total_energy_consumption_mj": ("energy_joules_total", (), 1000),
    "thermal.temperature_gpu_c": ("temperature_celsius", (), 1),
    "thermal.temperature_memory_c": ("memory_temperature_celsius", (), 1),
    "retired_pages.single_bit_retirement.count": ("retired_pages", ("correctable",), 1),
    "retired_pages.double_bit_retirement.count": ("retired_pages", ("uncorrectable",), 1),
    "retired_pages.pending_retirement": ("retired_pages_pending", (), 1),
    "remapped_rows.correctable": ("remapped_rows", ("correctable",), 1),
    "remapped_rows.uncorrectable": ("remapped_rows", ("uncorrectable",), 1),
    "remapped_rows.pending": ("row_remap_pending", (), 1),
    "remapped_rows.failure_occurred": ("row_remap_failure", (), 1),
    "utilization.gpu": ("utilization_ratio", (), 100),
    "utilization.memory": ("memory_activity_ratio", (), 100),
    "utilization.ofa": ("engine_utilization_ratio", ("optical_flow",), 100),
    "encoder_stats.session_count": ("encoder_sessions", (), 1),
    "encoder_stats.average_fps": ("encoder_frames_per_second", (), 1),
    "encoder_stats.average_latency_us": ("encoder_latency_seconds", (), 1e6),
    **{
        f"utilization.{engine}": ("engine_utilization_ratio", (engine,), 100)
        for engine in ("encoder", "decoder", "jpeg")
    },
    **{
        f"clocks.{clock}_{when}": (ours, (clock,), 1e-6)
        for clock in ("graphics", "sm", "memory", "video")
        for when, ours in (("current", "clock_hertz"), ("max", "clock_limit_hertz"))
    },
    **{
        f"remapped_rows.availability_histogram.{bank}": ("row_remap_banks", (bank,), 1)
        for bank in ("max", "high", "partial", "low", "none")
    },
    **{
        f"clocks_throttle_reasons.{theirs}": ("throttle_active", (ours,), 1)
        for theirs, ours in {
            "gpu_idle": "gpu_idle", "applications_clocks_setting": "application_clocks",
            "sw_power_cap": "software_power_cap", "hw_slowdown": "hardware_slowdown",
            "hw_thermal_slowdown": "hardware_thermal",
            "hw_power_brake_slowdown": "hardware_power_brake", "sync_boost": "sync_boost",
            "sw_thermal_slowdown": "software_thermal", "display_clocks_setting": "display_clocks",
        }.items()
    },
    **{
        f"ecc.errors.{lifetime}.{bits}.{theirs}": (ours, (error, lifetime, *place), 1)
        for lifetime in ("volatile", "aggregate")
        for bits, error in (("single_bit", "corrected"), ("double_bit", "uncorrected"))
        for theirs, ours, place in (
            ("total", "ecc_errors_total", ()),
            ("device_memory", "ecc_location_errors_total", ("dram",)),
            ("l1_cache", "ecc_location_errors_total", ("l1",)),
            ("l2_cache", "ecc_location_errors_total", ("l2",)),
            ("register_file", "ecc_location_errors_total", ("register_file",)),
            ("texture_memory", "ecc_location_errors_total", ("texture",)),
        )
    },
}  # fmt: skip
THRESHOLDS = {
    "thermal.shutdown_threshold_c": "shutdown",
    "thermal.slowdown_threshold_c": "slowdown",
    "thermal.max_operating_c": "gpu_maximum",
}
# Names in a profile for numbers in the fixture.
MODES: dict[str, tuple[str, Part]] = {
    "ecc.mode_current": ("ecc_enabled", ()),
    "ecc.mode_pending": ("ecc_pending", ()),
    "mig.mode_current": ("mig_enabled", ()),
    "mig.mode_pending": ("mig_pending", ()),
    "persistence_mode": ("persistence_enabled", ()),
    "compute_mode": ("compute_mode", ()),
    "accounting.mode": ("accounting_enabled", ()),
    "gsp_firmware.mode": ("gsp_firmware_enabled", ()),
    "performance_state": ("performance_state", ()),
}
_STATES = {"enabled": 1, "disabled": 0, "default": 0, "P0": 0}
FACTS = {
    "index",
    "minor_number",
    "compute_capability.major",
    "compute_capability.minor",
    "fabric.clique_id",
}
THEIRS_ALONE = {
    "num_gpu_cores": "a fact of the model",
    "memory.memory_bus_width": "a fact of the model",
    "pci.device_id": "the model as a number",
    "pci.subsystem_id": "the vendor of the board as a number",
    "bar1_memory.free_bytes": "the size less what is used",
    "pcie.tx_throughput_kbps": "NVML measures 20 ms for each answer; we count bytes",
    "pcie.rx_throughput_kbps": "NVML measures 20 ms for each answer; we count bytes",
    "power.management_supported": "shows by the limits being there",
    "thermal.target_temperature_c": "a setting of the fans of a board, not a limit",
    "fan.count": "shows by the fans being there: none of these has any",
    "clocks.graphics_app": "application clocks are no more since driver 580",
    "clocks.graphics_app_default": "application clocks are no more since driver 580",
    "clocks.memory_app": "application clocks are no more since driver 580",
    "clocks.memory_app_default": "application clocks are no more since driver 580",
    "dynamic_metrics.utilization.gpu_min": "how the mock makes its numbers move",
    "dynamic_metrics.utilization.gpu_max": "how the mock makes its numbers move",
    "dynamic_metrics.utilization.memory_min": "how the mock makes its numbers move",
    "dynamic_metrics.utilization.memory_max": "how the mock makes its numbers move",
    "fbc_stats.session_count": "of the capture of screens, which servers have none of",
    "fbc_stats.average_fps": "of the capture of screens, which servers have none of",
    "fbc_stats.average_latency_us": "of the capture of screens, which servers have none of",
    "retired_pages.pending_blacklist": "the older name of pending_retirement",
    "mig.max_gpu_instances": "a fact of the model",
    "accounting.buffer_size": "4000 processes, of every GPU",
    "features.transformer_engine": "a fact of the model",
    "features.fp8_support": "a fact of the model",
    "features.confidential_compute": "what the model could do, not what it does",
}
# Further metrics that a profile provides, and the field of each.
OURS_ALSO = {
    "busy_seconds_total": "the agent sums it over time",
    "memory_used_byte_seconds_total": "the agent sums it over time",
    "all_reasons_throttle_seconds_total": "the agent sums it over the reasons",
    "power_average_watts": "the mock's one draw",
    "power_instant_watts": "the mock's one draw",
    "temperature_threshold_celsius": "thresholds, which have their own test",
    "temperature_threshold_margin_celsius": "thresholds, which have their own test",
    "fabric_state": "the fabric, which has its own test",
    "fabric_status_code": "the fabric, which has its own test",
    "fabric_health": "the fabric, which has its own test",
    "fabric_condition_active": "the fabric, which has its own test",
    "c2c_enabled": "of the part on NVLink",
    "nvlinks": "of the part on NVLink",
    "nvlinks_active": "of the part on NVLink",
    "processes": "the mock runs none",
    "suppressed_processes": "the mock runs none",
    "sharing": "the mock runs none",
    "mig_devices": "the mock is not cut",
}


@cache
def read(name: str) -> tuple[Profile, GpuReadings]:
    written = nvml_mock.profile(capture_path(f"nvml-mock/{name}.yaml"))
    host = FakeHost()
    host.calls |= nvml_mock.answers(written)
    return written, read_gpus(host)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        elif not isinstance(value, list):
            yield f"{path}{name}", value


@EACH_PROFILE
def test_every_number_of_every_device_comes_out(name: str) -> None:
    written, reported = read(name)
    for device in nvml_mock.devices(written):
        for path, value in leaves(device):
            if path in PAIRS:
                metric, part, times = PAIRS[path]
                ours = reported.number(f"gpu_{metric}", device["uuid"], *part)
                assert ours is not None, path
                assert ours * times == pytest.approx(float(value), rel=1e-9), path
            elif path in MODES:
                metric, part = MODES[path]
                ours = reported.number(f"gpu_{metric}", device["uuid"], *part)
                assert ours == _STATES[value], path


@EACH_PROFILE
def test_every_number_of_a_profile_is_in_a_table(name: str) -> None:
    written, _ = read(name)
    for device in nvml_mock.devices(written):
        numbers = {path for path, value in leaves(device) if isinstance(value, int)}
        assert numbers - {*PAIRS, *THRESHOLDS, *FACTS, *THEIRS_ALONE} == set()


def test_tables_name_only_fields_of_a_profile() -> None:
    paths = {p for name in PROFILES for d in nvml_mock.devices(read(name)[0]) for p, _ in leaves(d)}
    assert {*PAIRS, *THRESHOLDS, *MODES, *FACTS, *THEIRS_ALONE} - paths == set()


@EACH_PROFILE
def test_fields_missing_from_a_profile_are_unsupported_and_never_zero(name: str) -> None:
    written, reported = read(name)
    assert set(reported.absent.values()) == {Absent.UNSUPPORTED}
    (first, *_) = nvml_mock.devices(written)
    has = {path for path, _ in leaves(first)}
    may_have = {PAIRS[path][:2] for path in has & PAIRS.keys()}
    may_have |= {MODES[path] for path in has & MODES.keys()}
    of_gpu = {
        (metric.removeprefix("railscope_gpu_"), key[1:])
        for metric, key in reported.numbers
        if metric.startswith("railscope_gpu_")
    }
    assert {label for label in of_gpu - may_have if label[0] not in OURS_ALSO} == set()


@pytest.mark.parametrize(("name", "margins"), [("h100", True), ("a100", False), ("t4", False)])
def test_thresholds_are_temperatures_before_ada_and_margins_since(name: str, margins: bool) -> None:  # noqa: FBT001 - a column of the table above
    written, reported = read(name)
    heat = written["device_defaults"]["thermal"]
    for device in nvml_mock.devices(written):
        for path, threshold in THRESHOLDS.items():
            value = heat[path.partition(".")[2]]
            key = (device["uuid"], threshold)
            below = heat["slowdown_threshold_c"] - value
            absolute = reported.number("gpu_temperature_threshold_celsius", *key)
            margin = reported.number("gpu_temperature_threshold_margin_celsius", *key)
            assert (absolute, margin) == ((None, below) if margins else (value, None))


@EACH_PROFILE
def test_facts_are_those_of_each_device(name: str) -> None:
    written, reported = read(name)
    for device in nvml_mock.devices(written):
        facts = reported.facts["gpu", (device["uuid"],)]
        assert facts["index"] == str(device["index"])
        assert facts["minor"] == str(device["minor_number"])
        assert facts["model"] == device["name"]
        assert facts["serial"] == device["serial"]
        assert facts["pci_address"] == device["pci"]["bus_id"].lower()
        assert facts["architecture"].lower() == device["architecture"]
        major, minor = device["compute_capability"].values()
        assert facts["compute_capability"] == f"{major}.{minor}"
        assert facts["vbios"] == device["vbios_version"]
        assert facts["inforom"] == device["inforom"]["image_version"]
        assert facts["part_number"] == device["board_part_number"]
        assert facts["gsp_firmware"] == device["gsp_firmware"]["version"]
        assert facts["driver"] == written["system"]["driver_version"]
        assert facts["cuda"] == written["system"]["cuda_version"]
        if "fabric" in device:
            assert facts["fabric_cluster"] == device["fabric"]["cluster_uuid"]
            assert facts["fabric_clique"] == str(device["fabric"]["clique_id"])


@pytest.mark.parametrize(("name", "version"), [("h100", "4.0"), ("a100", "3.0")])
def test_every_link_leads_to_a_switch_at_its_speed(name: str, version: str) -> None:
    written, reported = read(name)
    fabric = written["nvlink"]
    speeds = reported.named("nvlink_speed_bytes_per_second")
    assert len(speeds) == 8 * fabric["links_per_gpu"]
    assert set(speeds.values()) == {fabric["bandwidth_per_link_mbps"] * 1e6}
    assert set(reported.named("gpu_nvlinks_active").values()) == {fabric["links_per_gpu"]}
    links = [facts for (kind, _), facts in reported.facts.items() if kind == "nvlink"]
    assert {facts["version"] for facts in links} == {version}
    assert {facts["remote_type"] for facts in links} == {"switch"}
    switches = {switch["bdf"] for switch in fabric["switches"]}
    assert {facts["remote_pci_address"] for facts in links} == switches


def test_the_fabric_of_the_h100_is_healthy() -> None:
    _, reported = read("h100")
    assert set(reported.named("gpu_fabric_state").values()) == {3}
    assert set(reported.named("gpu_fabric_health").values()) == {1}
    conditions = reported.named("gpu_fabric_condition_active")
    assert len(conditions) == 8 * 5
    assert set(conditions.values()) == {0}


def test_a_t4_has_no_links() -> None:
    _, reported = read("t4")
    assert reported.named("gpu_nvlinks") == {}
    assert len(reported.named("gpu_power_watts")) == 4
