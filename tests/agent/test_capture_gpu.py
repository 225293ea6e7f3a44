"""Real GPUs, as read by another exporter at the same moment: both must agree.

The captures contain the output of nvidia-smi and the metrics that nvidia_gpu_exporter made of it. The
output becomes NVML's answers, and our GPU sources make metrics of those.
"""

from __future__ import annotations

import pytest
from support import nvidia_smi_csv as csv
from support.exporter_capture import CASES, GPU, H100, L40S, RTX, ExporterMoment, read_moment
from support.exporter_pairs import (
    LABELS,
    MADE,
    OURS_ALONE,
    OURS_ALONE_BY_PART,
    PAIRS,
    THEIRS_ALONE,
)

from railscope.reading import Absent
from railscope_agent.topology.pci import pci_address

EACH_CASE = pytest.mark.parametrize(
    ("model", "moment"), CASES, ids=[f"{c[21:30]}-{m}" for c, m in CASES]
)
MEBIBYTE = 1 << 20


@pytest.fixture
def case(model: str, moment: str) -> ExporterMoment:
    return read_moment(model, moment)


@EACH_CASE
def test_every_pair_agrees(case: ExporterMoment) -> None:
    for name in PAIRS:
        if name in case.theirs:
            assert case.our(name) == pytest.approx(case.theirs[name], rel=1e-9), name
        else:
            assert case.our(name) is None, f"{name}: nvidia-smi has no value, we do"


@EACH_CASE
def test_every_missing_reading_is_unsupported(case: ExporterMoment) -> None:
    assert set(case.readings.absent.values()) == {Absent.UNSUPPORTED}
    for name, (metric, part) in PAIRS.items():
        if not part and name not in case.theirs:
            assert case.readings.absent[f"railscope_gpu_{metric}", (GPU,)] is Absent.UNSUPPORTED


@EACH_CASE
def test_values_derived_from_ours_agree(case: ExporterMoment) -> None:
    for name, make in MADE.items():
        if name in case.theirs:
            assert make(case.readings) == pytest.approx(case.theirs[name], rel=1e-9), name


def test_every_name_of_theirs_is_in_one_table_and_no_other_name_is() -> None:
    names = {name for model, moment in CASES for name in read_moment(model, moment).theirs}
    assert names == PAIRS.keys() | MADE.keys() | THEIRS_ALONE.keys()
    assert len(names) == len(PAIRS) + len(MADE) + len(THEIRS_ALONE)


def test_every_number_of_ours_is_paired_or_has_its_reason_and_no_other_has_one() -> None:
    reported = {
        (name.removeprefix("railscope_gpu_"), key[1:])
        for model, moment in CASES
        for name, key in read_moment(model, moment).readings.numbers
        if name.startswith("railscope_gpu_")
    }
    alone = reported - set(PAIRS.values())
    assert {label for label in alone if label[0] not in OURS_ALONE} == OURS_ALONE_BY_PART.keys()
    assert {name for name, _ in alone} - {
        name for name, _ in OURS_ALONE_BY_PART
    } == OURS_ALONE.keys()


@EACH_CASE
def test_labels_of_theirs_are_facts_of_ours(case: ExporterMoment) -> None:
    ((_, labels),) = [label for label in case.page if label[0] == "nvidia_smi_gpu_info"]
    theirs, ours = dict(labels), case.readings.facts["gpu", (GPU,)]
    for label, fact in LABELS.items():
        assert ours.get(fact, "[N/A]") == theirs[label], label
    assert ours["pci_address"] == pci_address(theirs["pci_bus_id"])


@EACH_CASE
def test_every_process_agrees(case: ExporterMoment) -> None:
    theirs = {
        dict(labels)["pid"]: (dict(labels)["process_name"], used)
        for (name, labels), used in case.page.items()
        if name == "nvidia_smi_compute_app_used_memory_bytes"
    }
    used = case.readings.named("gpu_process_memory_used_bytes")
    computing = {
        key[1]: (facts["process_name"], used[key])
        for (kind, key), facts in case.readings.facts.items()
        if kind == "gpu_process" and facts["context"] == "compute"
    }
    assert computing.keys() == theirs.keys()
    for pid, (name, bytes_used) in theirs.items():
        assert computing[pid] == (name.rpartition("/")[2], bytes_used)
    assert case.readings.number("gpu_suppressed_processes", GPU) == 0


OUR_OWN = {"nvmlDeviceGetMigDevices", "nvmlEventSetWait"}


def test_every_called_function_is_in_the_library_of_a_driver() -> None:
    case = read_moment(H100, "load")
    exported = set(csv.section(case.capture, "capabilities :: nvml-symbols").split())
    asked = {key.removeprefix("nvml.").partition("(")[0] for key in case.host.asked}
    assert len(asked) > 50
    assert asked - exported - OUR_OWN == set()


# By eye, so that no table can be wrong on both sides -----------------------------------------------


@pytest.mark.parametrize(("model", "moment"), [(H100, "load")])
def test_the_loaded_h100_by_hand(case: ExporterMoment) -> None:
    number = case.readings.number
    assert number("gpu_power_watts", GPU) == 631.95
    assert number("gpu_power_instant_watts", GPU) == 625.68
    assert number("gpu_memory_power_watts", GPU) == 85.83
    assert number("gpu_memory_used_bytes", GPU) == 19_818 * MEBIBYTE
    assert number("gpu_bar1_used_bytes", GPU) == 19_819 * MEBIBYTE
    assert number("gpu_clock_hertz", GPU, "sm") == 1.98e9
    assert number("gpu_utilization_ratio", GPU) == 1.0
    assert number("gpu_memory_activity_ratio", GPU) == 0.11
    assert number("gpu_temperature_celsius", GPU) == 59
    assert number("gpu_memory_temperature_celsius", GPU) == 54
    assert number("gpu_temperature_margin_celsius", GPU) == 26
    assert number("gpu_temperature_threshold_margin_celsius", GPU, "shutdown") == -8
    assert number("gpu_pcie_replays_total", GPU) == 9
    assert number("gpu_row_remap_banks", GPU, "max") == 2560
    assert number("gpu_fabric_state", GPU) == 3
    assert number("gpu_fabric_status_code", GPU) == 0
    assert number("gpu_sharing", GPU) == 2  # three processes without MPS take turns
    facts = case.readings.facts["gpu", (GPU,)]
    assert (facts["architecture"], facts["virtualization"]) == ("Hopper", "passthrough")
    assert (facts["gsp_firmware"], facts["inforom"]) == ("590.48.01", "G520.0200.00.05")
    assert (facts["module"], facts["part_number"]) == ("7", "692-2G520-0200-000")
    assert "slot" not in facts
    assert "fabric_cluster" not in facts


@pytest.mark.parametrize(("model", "moment"), [(L40S, "load")])
def test_the_loaded_l40s_by_hand(case: ExporterMoment) -> None:
    number = case.readings.number
    assert number("gpu_throttle_seconds_total", GPU, "software_power_cap") == 204.642816
    assert number("gpu_encoder_sessions", GPU) == 2
    assert number("gpu_encoder_latency_seconds", GPU) == 4.271133
    assert number("gpu_engine_utilization_ratio", GPU, "encoder") == 0.6
    assert number("gpu_accounting_enabled", GPU) == 1
    assert number("gpu_remapped_rows_inactive", GPU, "uncorrectable") == 0
    assert case.readings.absent["railscope_gpu_memory_temperature_celsius", (GPU,)]
    assert case.readings.absent["railscope_gpu_memory_power_watts", (GPU,)]


@pytest.mark.parametrize(("model", "moment"), [(RTX, "load")])
def test_a_process_with_two_contexts_counts_once(case: ExporterMoment) -> None:
    number = case.readings.number
    assert number("gpu_processes", GPU) == 7
    assert number("gpu_process_memory_used_bytes", GPU, "2165") == 25 * MEBIBYTE  # C+G
    assert number("gpu_process_memory_used_bytes", GPU, "2496") == 200 * MEBIBYTE  # G
    facts = case.readings.facts["gpu_process", (GPU, "2165")]
    assert (facts["process_name"], facts["context"]) == ("kwin_wayland", "compute")
    assert number("gpu_temperature_threshold_celsius", GPU, "shutdown") == 101
