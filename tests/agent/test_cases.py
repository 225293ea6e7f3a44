"""Case directories: simulated servers of every kind, and the page that must come of each.

`python tests/captures/make.py` makes them anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from captures.make import (
    CASES,
    EXPECTED,
    HERE,
    committed,
    files,
    main,
    page,
    without_the_agent,
)
from support.pages import Sample, sample, samples

from railscope.capture import SECTIONS, Capture, Moment, read_capture

MAX_BYTES_OF_ALL = 9_000_000
EACH_CASE = pytest.mark.parametrize("case", CASES)
STRUCK = "0000:61:00.0"
LOST, HUNG = "GPU-561aa6e6-8938-4a36-9103-2c3b8e5b96f8", "GPU-bf9bac40-b130-4c39-877e-f58a33c92348"
CUT_IN_SEVEN = "GPU-7519dfcf-a70b-4574-8256-8431e6685ad9"
HANDED_OVER = "0000:43:00.0"
TRAFFIC = "railscope_gpu_nvlink_transmitted_bytes_total"


@cache
def once(case: str) -> str:
    return page(HERE / case)


@EACH_CASE
def test_once_shows_what_is_expected(case: str) -> None:
    text = (HERE / case / EXPECTED).read_text(encoding="utf-8")
    assert without_the_agent(once(case)) == text, "run python tests/captures/make.py"


@EACH_CASE
def test_the_directory_is_what_the_maker_makes(case: str) -> None:
    made, here = files(case), committed(case)
    assert {name for name in made if made[name] != here.get(name)} == set()
    assert set(here) == set(made)


@EACH_CASE
def test_no_family_comes_twice(case: str) -> None:
    families = Counter(re.findall(r"^# TYPE (\S+)", once(case), re.MULTILINE))
    assert max(families.values()) == 1
    assert samples(once(case))


@EACH_CASE
def test_promtool_accepts_the_page(case: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", "check", "metrics"], input=once(case), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")


def test_there_is_no_directory_without_a_case_and_all_are_small() -> None:
    directories = {path.name for path in HERE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert directories == set(CASES)
    assert sum(path.stat().st_size for path in HERE.glob("*/*")) < MAX_BYTES_OF_ALL


@pytest.mark.timeout(300)  # simulates every case: a minute on a busy machine
def test_the_check_finds_all_as_they_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.timeout(300)  # as above
def test_the_check_names_what_is_not_as_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no-such-case").mkdir()
    assert main(["--check"], tmp_path) == 1
    told = capsys.readouterr().out
    assert {"no-such-case", "l40s/expected.prom"} <= set(re.findall(r"[\w.-]+(?:/[\w.-]+)?", told))
    assert [path.name for path in tmp_path.iterdir()] == ["no-such-case"]


# What one can see ---------------------------------------------------------------------------------


@cache
def expected(case: str) -> dict[Sample, float]:
    return samples((HERE / case / EXPECTED).read_text(encoding="utf-8"))


def series(case: str, name: str, **labels: str) -> list[float]:
    """The values of a metric, in the series that have these labels."""
    wanted = set(labels.items())
    return [v for (metric, has), v in expected(case).items() if metric == name and has >= wanted]


NUMBER_OF_SERIES = [
    ("dgx-a100", "railscope_gpu_nvlinks_active", {}, 2),
    ("dgx-a100", "railscope_nvlink_state", {"state": "active"}, 2 * 12),
    ("dgx-a100", "railscope_gpu_power_average_watts", {}, 0),
    ("dgx-a100", "railscope_gpu_sm_activity_ratio", {}, 0),
    ("dgx-a100", "railscope_gpu_temperature_threshold_celsius", {}, 2 * 4),
    ("dgx-a100", "railscope_gpu_temperature_threshold_margin_celsius", {}, 0),
    ("dgx-a100", "railscope_gpu_recovery_action", {}, 0),
    ("hgx-h100-load", "railscope_nvlink_errors_total", {"error": "crc"}, 2 * 18),
    ("hgx-h100-load", "railscope_nvlink_fec_codewords_total", {}, 0),
    ("hgx-h100-load", "railscope_gpu_process_info", {"process_name": "python3"}, 2),
    ("hgx-h100-idle", "railscope_gpu_process_info", {}, 0),
    ("hgx-b200", "railscope_nvlink_errors_total", {"error": "crc"}, 0),
    ("hgx-b200", "railscope_nvlink_fec_codewords_total", {}, 18 * 16),
    ("hgx-b200", "railscope_nvlink_transmitted_packets_total", {}, 18),
    ("hgx-b200", "railscope_gpu_module_power_watts", {}, 0),
    ("gb200-tray", "railscope_gpu_module_power_watts", {}, 2),
    ("gb200-tray", "railscope_gpu_c2c_errors_total", {}, 2 * 5 * 3),
    ("gb200-tray", "railscope_gpu_c2c_transmit_bytes_per_second", {}, 2),
    ("gb200-tray", "railscope_gpu_info", {"chassis": "1821724190042"}, 2),
    ("gb200-tray", "railscope_gpu_info", {"module": "2", "fabric_clique": "1"}, 1),
    ("h200-mig", "railscope_mig_info", {"profile": "1g.18gb"}, 7),
    ("h200-mig", "railscope_mig_sm_activity_ratio", {}, 7),
    ("h200-mig", "railscope_gpu_utilization_ratio", {}, 0),
    ("h200-mig", "railscope_gpu_remapped_rows", {}, 0),
    ("h200-mig", "railscope_nvlink_state", {}, 0),
    ("h200-mig", "railscope_gpu_power_watts", {}, 1),
    ("l40s", "railscope_gpu_nvlinks", {}, 0),
    ("l40s", "railscope_gpu_fan_speed_ratio", {}, 0),
    ("l40s", "railscope_gpu_memory_temperature_celsius", {}, 0),
    ("l40s", "railscope_gpu_temperature_margin_celsius", {}, 2),
    ("l40s", "railscope_gpu_mig_enabled", {}, 0),
    ("l40s", "railscope_gpu_sm_activity_ratio", {}, 0),
    ("t4", "railscope_gpu_retired_pages", {}, 2 * 2),
    ("t4", "railscope_gpu_remapped_rows", {}, 0),
    ("t4", "railscope_gpu_row_remap_banks", {}, 0),
    ("t4", "railscope_gpu_mig_enabled", {}, 0),
    ("t4", "railscope_gpu_pcie_transmitted_bytes_total", {}, 0),
    ("mps-node", "railscope_gpu_process_info", {"context": "mps"}, 4),
    ("mps-node", "railscope_gpu_process_info", {"process_name": "nvidia-cuda-mps"}, 1),
    ("vgpu-host", "railscope_vgpu_info", {"vgpu_type": "NVIDIA L40S-12Q"}, 2 * 3),
    ("vgpu-host", "railscope_vgpu_sm_utilization_ratio", {}, 2 * 3),
    ("vgpu-host", "railscope_gpu_info", {"virtualization": "vgpu_host"}, 2),
    ("passthrough-host", "railscope_gpu_info", {}, 1),
    ("passthrough-host", "railscope_gpu_device_state", {"pci_address": HANDED_OVER}, 5),
    ("lost-gpu", "railscope_gpu_info", {}, 4),
    ("lost-gpu", "railscope_gpu_info", {"index": "3"}, 1),
    ("lost-gpu", "railscope_gpu_health", {"state": "failed"}, 4),
    ("lost-gpu", "railscope_gpu_power_watts", {}, 3),
    ("hung-gpu", "railscope_gpu_power_watts", {}, 3),
    ("hung-gpu", "railscope_gpu_health", {"state": "failed"}, 4),
    ("denied", "railscope_gpu_sm_activity_ratio", {}, 0),
    ("denied", "railscope_gpu_sram_threshold_exceeded", {}, 0),
    ("denied", "railscope_gpu_power_watts", {}, 1),
]

VALUES = [
    ("hgx-h100-load", "railscope_gpu_sharing", {"state": "exclusive"}, 1),
    ("hgx-h100-idle", "railscope_gpu_sharing", {"state": "unused"}, 1),
    ("hgx-h100-idle", "railscope_gpu_sm_activity_ratio", {}, 0),
    ("hgx-h100-idle", "railscope_gpu_nvlink_transmit_bytes_per_second", {}, 0),
    ("hgx-h100-idle", "railscope_gpu_throttle_active", {"reason": "gpu_idle"}, 1),
    ("hgx-b200", "railscope_gpu_fabric_health", {"state": "healthy"}, 1),
    ("hgx-b200", "railscope_nvlink_speed_bytes_per_second", {}, 53_125_000_000),
    ("gb200-tray", "railscope_gpu_c2c_links", {}, 5),
    ("gb200-tray", "railscope_gpu_c2c_enabled", {}, 1),
    ("h200-mig", "railscope_gpu_mig_devices", {}, 7),
    ("h200-mig", "railscope_gpu_sharing", {"state": "mig"}, 1),
    ("mps-node", "railscope_gpu_sharing", {"state": "mps"}, 1),
    ("mps-node", "railscope_gpu_compute_mode", {"state": "exclusive_process"}, 1),
    ("pods-on-mig", "railscope_gpu_claims", {"gpu": CUT_IN_SEVEN}, 6),
    ("pods-on-mig", "railscope_gpu_claimed_ratio", {"gpu": CUT_IN_SEVEN}, 6 / 7),
    ("pods-on-mig", "railscope_gpu_unclaimed_processes", {"gpu": CUT_IN_SEVEN}, 1),
    ("slurm-job", "railscope_gpu_claims", {}, 1),
    ("slurm-job", "railscope_gpu_unclaimed_processes", {}, 0),
    ("vgpu-host", "railscope_gpu_sharing", {"state": "vgpu"}, 1),
    ("vgpu-host", "railscope_gpu_vgpus", {}, 3),
    (
        "passthrough-host",
        "railscope_gpu_device_state",
        {"pci_address": HANDED_OVER, "state": "virtual_machine"},
        1,
    ),
    ("lost-gpu", "railscope_gpu_last_xid", {"pci_address": STRUCK}, 79),
    (
        "lost-gpu",
        "railscope_gpu_device_state",
        {"pci_address": STRUCK, "state": "driver"},
        1,
    ),
    ("lost-gpu", "railscope_gpu_recommended_action", {"gpu": LOST, "state": "reboot"}, 1),
    ("hung-gpu", "railscope_gpu_recommended_action", {"gpu": HUNG, "state": "reboot"}, 1),
    ("lost-gpu", "railscope_kernel_gpu_failures_total", {}, 1),
    ("hung-gpu", "railscope_gpu_last_xid", {"pci_address": STRUCK}, 119),
    ("pending-row-remap", "railscope_gpu_row_remap_pending", {}, 1),
    ("pending-row-remap", "railscope_gpu_remapped_rows_inactive", {"cause": "correctable"}, 1),
    ("pending-row-remap", "railscope_gpu_row_remap_banks", {"spares": "high"}, 1),
    ("pending-row-remap", "railscope_gpu_recovery_action", {"state": "drain_and_reset"}, 1),
    ("pending-row-remap", "railscope_gpu_xid_errors_total", {"xid": "63"}, 1),
    ("pending-row-remap", "railscope_gpu_events_total", {"event": "dram_retirement"}, 1),
    ("thermal-throttling", "railscope_gpu_throttle_active", {"reason": "software_thermal"}, 1),
    ("nvlink-errors", "railscope_nvlink_errors_total", {"link": "6"}, 0),
    ("nvlink-errors", "railscope_nvlink_errors_total", {"link": "7", "error": "replay"}, 1201),
    ("nvlink-errors", "railscope_gpu_xid_errors_total", {"xid": "74"}, 1),
    ("nvlink-errors", "railscope_nvswitch_sxid_errors_total", {"severity": "non_fatal"}, 1),
]


@pytest.mark.parametrize(("case", "name", "labels", "count"), NUMBER_OF_SERIES)
def test_each_kind_of_server_has_what_it_should(
    case: str, name: str, labels: dict[str, str], count: int
) -> None:
    assert len(series(case, name, **labels)) == count


@pytest.mark.parametrize(("case", "name", "labels", "value"), VALUES)
def test_each_case_shows_its_fact(
    case: str, name: str, labels: dict[str, str], value: float
) -> None:
    assert set(series(case, name, **labels)) == {value}


FAULTS = {
    "lost-gpu": {(LOST, "gpu_lost"), (LOST, "xid_fatal")},
    "hung-gpu": {(HUNG, "driver_silent"), (HUNG, "xid_fatal")},
    "pending-row-remap": {"recovery_drain", "xid_action", "row_remap_pending"},
    "thermal-throttling": {"thermal_hardware", "thermal_software", "temperature_margin"},
    "nvlink-errors": {
        "recovery_action", "xid_fatal", "xid_action", "nvlink_recovering", "nvlink_crc",
    },
}  # fmt: skip
"""What speaks against a GPU; with the GPU where there is more than one."""


@EACH_CASE
def test_each_fault_has_its_reasons_and_what_is_well_has_none(case: str) -> None:
    told = {
        (dict(has)["gpu"], dict(has)["reason"])
        for (metric, has), value in expected(case).items()
        if metric == "railscope_gpu_health_reason_active" and value
    }
    wanted = FAULTS.get(case, set())
    assert {pair if pair in wanted else pair[1] for pair in told} == wanted


@pytest.mark.parametrize(
    ("case", "reason"), [("lost-gpu", "gpu_lost"), ("hung-gpu", "driver_silent")]
)
def test_a_gpu_that_was_sick_before_the_first_look_is_told_of_too(
    case: str, reason: str, tmp_path: Path
) -> None:
    at_end = _end_of(read_capture(HERE / case))
    at_end.write(tmp_path)
    shown = samples(page(tmp_path))
    (gpu,) = {gpu for gpu in (LOST, HUNG) if (gpu, "xid_fatal") in FAULTS[case]}
    state = sample("railscope_gpu_device_state", pci_address=STRUCK, state="missing")
    assert shown[state] == 1
    assert shown[sample("railscope_gpu_health", gpu=gpu, state="failed")] == 1
    active = sample("railscope_gpu_health_reason_active", gpu=gpu, reason=reason)
    assert shown[active] == 1


def _end_of(capture: Capture) -> Capture:
    """A capture of the last instant alone."""
    last = Moment(0)
    for moment in capture.moments:
        last.log += moment.log
        for section in SECTIONS:
            getattr(last, section).update(getattr(moment, section))
    started_ns = capture.about.started_boot_ns + capture.about.duration_ns
    return Capture(replace(capture.about, started_boot_ns=started_ns, duration_ns=0), (last,))


def test_a_loaded_gpu_is_busier_than_an_idle_one() -> None:
    for metric in ("railscope_gpu_power_watts", "railscope_gpu_memory_used_bytes", TRAFFIC):
        (idle,) = series("hgx-h100-idle", metric)
        assert min(series("hgx-h100-load", metric)) >= idle
    assert min(series("hgx-h100-load", "railscope_gpu_sm_activity_ratio")) > 0.5
