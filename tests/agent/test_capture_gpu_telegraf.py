"""Real GPUs, as read by Telegraf's nvidia_smi input: both must agree in each field.

Telegraf parses the XML of nvidia-smi; its own tests state the expected output of each file. The XML
becomes NVML's answers, and our GPU sources make metrics of those.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from support import nvidia_smi_xml as xml
from support.gpu_readings import GpuReadings, read_gpus
from support.machine import FakeHost
from support.nvidia_smi import MEBIBYTE, Row, machine
from support.nvidia_smi_shares import name_processes, shares
from support.shared import capture_path

from railscope.reading import Absent

DIRECTORY = "nvidia-smi/xml"
FILES = (
    "a100-sxm4-v12", "gtx-1070-ti", "quadro-p400", "rtx-3060-v12", "rtx-3080-v12", "rtx-3080-v13",
    "tesla-t4",
)  # fmt: skip
EACH_FILE = pytest.mark.parametrize("file", FILES)
Part = tuple[str, ...]

# A field of theirs, ours, its part, and how many of theirs make one of ours.
PAIRS: dict[str, tuple[str, Part, float]] = {
    "utilization_gpu": ("utilization_ratio", (), 100),
    "utilization_memory": ("memory_activity_ratio", (), 100),
    "utilization_encoder": ("engine_utilization_ratio", ("encoder",), 100),
    "utilization_decoder": ("engine_utilization_ratio", ("decoder",), 100),
    "utilization_jpeg": ("engine_utilization_ratio", ("jpeg",), 100),
    "utilization_ofa": ("engine_utilization_ratio", ("optical_flow",), 100),
    "encoder_stats_session_count": ("encoder_sessions", (), 1),
    "encoder_stats_average_fps": ("encoder_frames_per_second", (), 1),
    "encoder_stats_average_latency": ("encoder_latency_seconds", (), 1e6),
    "memory_total": ("memory_size_bytes", (), 1 / MEBIBYTE),
    "memory_reserved": ("memory_reserved_bytes", (), 1 / MEBIBYTE),
    "memory_used": ("memory_used_bytes", (), 1 / MEBIBYTE),
    "memory_free": ("memory_free_bytes", (), 1 / MEBIBYTE),
    "clocks_current_graphics": ("clock_hertz", ("graphics",), 1e-6),
    "clocks_current_sm": ("clock_hertz", ("sm",), 1e-6),
    "clocks_current_memory": ("clock_hertz", ("memory",), 1e-6),
    "clocks_current_video": ("clock_hertz", ("video",), 1e-6),
    "power_draw_average": ("power_average_watts", (), 1),
    "power_limit_requested": ("power_limit_bound_watts", ("requested",), 1),
    "power_limit_default": ("power_limit_bound_watts", ("default",), 1),
    "power_limit_min": ("power_limit_bound_watts", ("minimum",), 1),
    "power_limit_max": ("power_limit_bound_watts", ("maximum",), 1),
    "temperature_gpu": ("temperature_celsius", (), 1),
    "temperature_memory": ("memory_temperature_celsius", (), 1),
    "temperature_max_threshold": ("temperature_threshold_celsius", ("shutdown",), 1),
    "temperature_slow_threshold": ("temperature_threshold_celsius", ("slowdown",), 1),
    "temperature_max_gpu_threshold": ("temperature_threshold_celsius", ("gpu_maximum",), 1),
    "temperature_max_mem_threshold": ("temperature_threshold_celsius", ("memory_maximum",), 1),
    "fan_speed": ("fan_speed_ratio", ("0",), 100),
    "pcie_link_gen_current": ("pcie_link_generation", (), 1),
    "pcie_link_width_current": ("pcie_link_width_lanes", (), 1),
    "retired_pages_multiple_single_bit": ("retired_pages", ("correctable",), 1),
    "retired_pages_double_bit": ("retired_pages", ("uncorrectable",), 1),
    "clocks_event_reason_gpu_idle": ("throttle_active", ("gpu_idle",), 1),
    "clocks_event_reason_applications_clocks_setting": (
        "throttle_active", ("application_clocks",), 1,
    ),
    "clocks_event_reason_sw_power_cap": ("throttle_active", ("software_power_cap",), 1),
    "clocks_event_reason_hw_slowdown": ("throttle_active", ("hardware_slowdown",), 1),
    "clocks_event_reason_hw_thermal_slowdown": ("throttle_active", ("hardware_thermal",), 1),
    "clocks_event_reason_hw_power_brake_slowdown": (
        "throttle_active", ("hardware_power_brake",), 1,
    ),
    "clocks_event_reason_sync_boost": ("throttle_active", ("sync_boost",), 1),
    "clocks_event_reason_sw_thermal_slowdown": ("throttle_active", ("software_thermal",), 1),
    "clocks_event_reason_display_clocks_setting": ("throttle_active", ("display_clocks",), 1),
    "clocks_event_reasons_counters_sw_power_cap": (
        "throttle_seconds_total", ("software_power_cap",), 1e6,
    ),
    "clocks_event_reasons_counters_sync_boost": ("throttle_seconds_total", ("sync_boost",), 1e6),
    "clocks_event_reasons_counters_sw_therm_slowdown": (
        "throttle_seconds_total", ("software_thermal",), 1e6,
    ),
    "clocks_event_reasons_counters_hw_therm_slowdown": (
        "throttle_seconds_total", ("hardware_thermal",), 1e6,
    ),
    "clocks_event_reasons_counters_hw_power_brake": (
        "throttle_seconds_total", ("hardware_power_brake",), 1e6,
    ),
}  # fmt: skip
# Telegraf field with a text value: our metric and its part; _SWITCH maps the texts to numbers.
_SWITCH = {"Enabled": 1, "Disabled": 0, "Yes": 1, "No": 0}
STATES: dict[str, tuple[str, Part]] = {
    "current_ecc": ("ecc_enabled", ()),
    "retired_pages_pending": ("retired_pages_pending", ()),
    "ecc_errors_channel_repair_pending": ("repair_pending", ("memory_channel",)),
    "ecc_errors_tpc_repair_pending": ("repair_pending", ("tpc",)),
}
FACTS = {
    "driver_version": "driver",
    "cuda_version": "cuda",
    "vbios_version": "vbios",
    "serial": "serial",
}
TAGS = {"index": "index", "name": "model", "arch": "architecture"}
THEIRS_ALONE = {
    "display_active": "of screens, which servers have none of",
    "display_mode": "of screens, which servers have none of",
    "fbc_stats_session_count": "of the capture of screens, which servers have none of",
    "fbc_stats_average_fps": "of the capture of screens, which servers have none of",
    "fbc_stats_average_latency": "of the capture of screens, which servers have none of",
    "pcie_rx_util": "NVML measures 20 ms for each answer; we count bytes, or ask GPM",
    "pcie_tx_util": "NVML measures 20 ms for each answer; we count bytes, or ask GPM",
    "retired_pages_blacklist": "the older name of retired_pages_pending",
    "temperature_gpu_target": "a setting of the fans of a board, not a limit",
    "temperature_gpu_target_min": "a setting of the fans of a board, not a limit",
    "temperature_gpu_target_max": "a setting of the fans of a board, not a limit",
    "power_draw": "the instant or the average, as the XML has it: see test_power_matches",
    "power_limit": "what is in force or what was asked for: see test_power_matches",
}
DIFFERENT = {
    ("gtx-1070-ti", "memory_used"): "counts what the driver keeps as well: the XML has no reserve",
    ("quadro-p400", "memory_used"): "counts what the driver keeps as well: the XML has no reserve",
}


@dataclass(frozen=True)
class TelegrafCase:
    """One file: the fields of its XML, our readings, and the output expected of Telegraf."""

    file: str
    row: Row
    reported: GpuReadings
    emitted: list[dict[str, Any]]

    @property
    def gpu(self) -> str:
        return self.row["uuid"]

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self._one("nvidia_smi")["fields"])

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._one("nvidia_smi")["tags"])

    def _one(self, measurement: str) -> Any:
        (found,) = self.all(measurement)
        return found

    def all(self, measurement: str) -> list[dict[str, Any]]:
        return [one for one in self.emitted if one["measurement"] == measurement]


@cache
def read(file: str) -> TelegrafCase:
    log = xml.root(capture_path(f"{DIRECTORY}/{file}.xml"))
    (element,) = log.findall("gpu")
    row, running = xml.row(log, element), xml.processes(element)
    host = FakeHost()
    host.calls |= machine([row]) | shares(0, running, xml.mig_devices(element))
    name_processes(host, running)
    emitted = json.loads(capture_path(f"{DIRECTORY}/telegraf-expected.json").read_text())
    return TelegrafCase(file, row, read_gpus(host), emitted[f"{file}.xml"])


@EACH_FILE
def test_every_number_agrees(file: str) -> None:
    case = read(file)
    for name, (metric, part, times) in PAIRS.items():
        ours = case.reported.number(f"gpu_{metric}", case.gpu, *part)
        if (file, name) in DIFFERENT or name not in case.fields:
            continue
        assert ours is not None, name
        assert ours * times == pytest.approx(case.fields[name], rel=1e-9), name


@EACH_FILE
def test_every_missing_reading_is_unsupported(file: str) -> None:
    assert set(read(file).reported.absent.values()) == {Absent.UNSUPPORTED}


def test_differences_are_those_of_the_table() -> None:
    for file, name in DIFFERENT:
        case, (metric, _, _) = read(file), PAIRS[name]
        assert name in case.fields
        assert case.reported.absent[f"railscope_gpu_{metric}", (case.gpu,)] is Absent.UNSUPPORTED


@EACH_FILE
def test_texts_agree(file: str) -> None:
    case = read(file)
    for name, (metric, part) in STATES.items():
        ours = case.reported.number(f"gpu_{metric}", case.gpu, *part)
        theirs = case.fields.get(name)
        assert ours == (None if theirs is None else _SWITCH[theirs]), name


@EACH_FILE
def test_power_matches(file: str) -> None:
    case = read(file)
    reported, gpu = case.reported, case.gpu
    if "power_draw" in case.fields:
        instant = reported.number("gpu_power_instant_watts", gpu)
        average = reported.number("gpu_power_watts", gpu)
        assert case.fields["power_draw"] == (average if instant is None else instant)
    if "power_limit" in case.fields:
        assert reported.number("gpu_power_limit_watts", gpu) == case.fields["power_limit"]


@EACH_FILE
def test_facts_and_tags_agree(file: str) -> None:
    case = read(file)
    facts = case.reported.facts["gpu", (case.gpu,)]
    for name, fact in FACTS.items():
        assert facts.get(fact) == case.fields.get(name), name
    for tag, fact in TAGS.items():
        if tag in case.tags:
            assert facts[fact] == case.tags[tag], tag
    assert case.tags["uuid"] == case.gpu
    state = case.reported.number("gpu_performance_state", case.gpu)
    assert case.tags["pstate"] == f"P{state:.0f}"
    assert case.tags["compute_mode"] == "Default"
    assert case.reported.number("gpu_compute_mode", case.gpu) == 0


@EACH_FILE
def test_processes_agree(file: str) -> None:
    case = read(file)
    for one in case.all("nvidia_smi_process"):
        key = (case.gpu, str(one["fields"]["pid"]))
        used = case.reported.number("gpu_process_memory_used_bytes", *key)
        assert used == one["fields"]["used_memory"] * MEBIBYTE
        facts = case.reported.facts["gpu_process", key]
        assert facts["context"] == {"C": "compute", "G": "graphics"}[one["tags"]["type"]]
        program = one["tags"]["name"].partition(" ")[0].rpartition("/")[2]
        assert facts["process_name"] == program[:15]


@EACH_FILE
def test_mig_devices_agree(file: str) -> None:
    case = read(file)
    for one in case.all("nvidia_smi_mig"):
        tags, fields = one["tags"], one["fields"]
        key = (case.gpu, f"MIG-{tags['gpu_index']}-{tags['compute_index']}")
        assert case.reported.facts["mig", key]["mig_index"] == tags["index"]
        size, used = (case.reported.number(f"mig_bar1_{w}_bytes", *key) for w in ("size", "used"))
        assert size is not None
        assert used is not None
        ours = {
            "memory_fb_total": case.reported.number("mig_memory_size_bytes", *key),
            "memory_fb_used": case.reported.number("mig_memory_used_bytes", *key),
            "memory_fb_free": case.reported.number("mig_memory_free_bytes", *key),
            "memory_fb_reserved": case.reported.number("mig_memory_reserved_bytes", *key),
            "memory_bar1_total": size,
            "memory_bar1_used": used,
            "memory_bar1_free": size - used,
        }
        errors = case.reported.number("mig_ecc_uncorrected_errors_total", *key)
        assert errors == fields["sram_uncorrectable"]
        assert {name: fields[name] * MEBIBYTE for name in ours} == ours
        assert fields.keys() == ours.keys() | {"sram_uncorrectable"}


def test_every_field_of_theirs_is_in_one_table_and_no_other_is() -> None:
    fields = {name for file in FILES for name in read(file).fields}
    tables = [*PAIRS, *STATES, *FACTS, *THEIRS_ALONE]
    assert fields == set(tables)
    assert len(fields) == len(tables)
    tags = {name for file in FILES for name in read(file).tags}
    assert tags == {*TAGS, "uuid", "pstate", "compute_mode"}


def test_every_file_of_theirs_is_read() -> None:
    emitted = json.loads(capture_path(f"{DIRECTORY}/telegraf-expected.json").read_text())
    assert {name.removesuffix(".xml") for name in emitted} == set(FILES)


# A file that Telegraf has no expectation for, by eye --------------------------------------------------


def test_two_a5000_by_hand() -> None:
    log = xml.root(capture_path(f"{DIRECTORY}/dual_a5000-v13.xml"))
    host = FakeHost()
    elements = log.findall("gpu")
    host.calls |= machine([xml.row(log, element) for element in elements])
    for index, element in enumerate(elements):
        host.calls |= shares(index, xml.processes(element))
    reported = read_gpus(host)
    assert set(reported.absent.values()) == {Absent.UNSUPPORTED}
    one, other = sorted(key[0] for kind, key in reported.facts if kind == "gpu")
    capped = reported.named("gpu_throttle_seconds_total")
    assert capped[one, "software_power_cap"] == 31_637.354094
    assert capped[other, "software_power_cap"] == 31_195.898111
    assert reported.number("gpu_process_memory_used_bytes", one, "100477") == 22_430 * MEBIBYTE
    assert reported.number("gpu_row_remap_banks", one, "max") == 192
    assert reported.number("gpu_power_average_watts", one) == 6.41
    assert reported.number("gpu_power_instant_watts", one) == 6.52
    assert reported.facts["gpu", (one,)]["architecture"] == "Ampere"
