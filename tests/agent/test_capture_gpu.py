"""Real GPUs, as another exporter saw them at the same moment: the two must agree.

The captures hold what nvidia-smi printed and the page that nvidia_gpu_exporter made of it. What
nvidia-smi printed becomes NVML's answers, and our GPU sources make metrics of those.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.machine import FakeHost
from support.nvidia_smi import nvml, query
from support.pages import samples
from support.reading import Label, numbers, read_once, readings
from support.shared import captured

from agent.sources.gpu import Gpu
from railscope.reading import Absent

FOLDER = "nvidia-smi/exporter-captures"
H100 = "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01"
H200_MIG = "linux-x86_64__nvidia-h200-mig__590.48.01"
L40S = "linux-x86_64__nvidia-l40s__595.80"
RTX = "linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05"
CASES = [(card, moment) for card in (H100, H200_MIG, L40S, RTX) for moment in ("idle", "load")]
EACH_CASE = pytest.mark.parametrize(("card", "moment"), CASES, ids=[f"{c[14:30]}-{m}" for c, m in CASES])  # fmt: skip

# Their metric, ours, and the part of the GPU ours is about.
PAIRS: dict[str, tuple[str, tuple[str, ...]]] = {
    "utilization_gpu_ratio": ("utilization_ratio", ()),
    "utilization_memory_ratio": ("memory_activity_ratio", ()),
    "memory_total_bytes": ("memory_size_bytes", ()),
    "memory_used_bytes": ("memory_used_bytes", ()),
    "memory_free_bytes": ("memory_free_bytes", ()),
    "memory_reserved_bytes": ("memory_reserved_bytes", ()),
    "clocks_current_graphics_clock_hz": ("clock_hertz", ("graphics",)),
    "clocks_current_sm_clock_hz": ("clock_hertz", ("sm",)),
    "clocks_current_memory_clock_hz": ("clock_hertz", ("memory",)),
    "clocks_current_video_clock_hz": ("clock_hertz", ("video",)),
    "clocks_max_graphics_clock_hz": ("clock_limit_hertz", ("graphics",)),
    "clocks_max_sm_clock_hz": ("clock_limit_hertz", ("sm",)),
    "clocks_max_memory_clock_hz": ("clock_limit_hertz", ("memory",)),
    "power_draw_watts": ("power_watts", ()),
    "enforced_power_limit_watts": ("power_limit_watts", ()),
    "temperature_gpu": ("temperature_celsius", ()),
    "temperature_memory": ("memory_temperature_celsius", ()),
    "pstate": ("performance_state", ()),
    "ecc_mode_current": ("ecc_enabled", ()),
    "ecc_errors_corrected_volatile_total": ("ecc_errors_total", ("corrected", "volatile")),
    "ecc_errors_corrected_aggregate_total": ("ecc_errors_total", ("corrected", "aggregate")),
    "ecc_errors_uncorrected_volatile_total": ("ecc_errors_total", ("uncorrected", "volatile")),
    "ecc_errors_uncorrected_aggregate_total": ("ecc_errors_total", ("uncorrected", "aggregate")),
    "remapped_rows_correctable": ("remapped_rows", ("correctable",)),
    "remapped_rows_uncorrectable": ("remapped_rows", ("uncorrectable",)),
    "remapped_rows_pending": ("row_remap_pending", ()),
    "remapped_rows_failure": ("row_remap_failure", ()),
    "pcie_link_gen_gpucurrent": ("pcie_link_generation", ()),
    "pcie_link_gen_max": ("pcie_link_generation_limit", ()),
    "pcie_link_width_current": ("pcie_link_width_lanes", ()),
    "pcie_link_width_max": ("pcie_link_width_limit_lanes", ()),
}
# Their word for a reason to hold the clocks down, and ours.
REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "software_power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "software_thermal",
    "hw_thermal_slowdown": "hardware_thermal",
    "hw_power_brake_slowdown": "hardware_power_brake",
}
TIMED = set(REASONS) - {"gpu_idle", "applications_clocks_setting", "hw_slowdown"}
for theirs, ours in REASONS.items():
    PAIRS[f"clocks_event_reasons_{theirs}"] = ("throttle_active", (ours,))
for theirs in TIMED:
    seconds = f"clocks_event_reasons_counters_{theirs}_seconds"
    PAIRS[seconds] = ("throttle_seconds_total", (REASONS[theirs],))

# Theirs that we have no metric for, by how their names begin, and why.
THEIRS_ALONE = {
    "ecc_errors": "ours is the total; they split it by memory",
    "clocks_event_reasons_active": "ours is one metric a reason; theirs is the bit mask",
    "clocks_event_reasons_supported": "says what may be told, not what is",
    "pcie_link_gen_current": "NVML's own generation is told, as gpucurrent",
    "pcie_link_gen_gpumax": "limit of the GPU alone; ours is that of GPU and slot together",
    "pcie_link_gen_hostmax": "limit of the slot alone",
    "power": "draw and enforced limit are told; the rest are settings and other averages",
    "module_power": "of Grace modules",
    "temperature_gpu_tlimit": "distance to the limit: another quantity",
    "remapped_rows": "spares left, and rows in use only after a reset",
    "retired_pages": "of GPUs before Ampere",
    "utilization": "video engines",
    "fan_speed": "servers cool their GPUs",
    "clocks_applications": "a setting", "clocks_default": "a setting",
    "compute_app": "processes of tenants are no business of a node's page",
    "encoder": "video engines", "accounting": "a setting", "compute_": "a setting",
    "display": "a setting", "persistence": "a setting", "gom": "a setting", "gsp": "a setting",
    "mig": "a setting", "driver_model": "a setting", "protected_memory": "a setting",
    "dram_encryption": "a setting", "addressing": "a setting", "c2c": "a setting",
    "edpp": "a setting", "ecc_mode_pending": "a setting", "gpu_recovery_action": "told by Xid 154",
    "fabric": "of NVLink domains", "platform": "a fact", "inforom": "a fact",
    "pci_": "a fact", "index": "a fact", "count": "a fact", "serial": "a fact", "name": "a fact",
    "gpu_info": "a fact", "driver_version": "a fact", "kmd_version": "a fact",
    "vbios": "a fact", "uuid": "a fact", "hostname": "a fact",
    "command_exit_code": "of the exporter", "failed_scrapes": "of the exporter",
    "last_collect": "of the exporter", "vgpu": "of virtual GPUs",
}  # fmt: skip

# Ours that are not in what nvidia-smi printed.
OURS_ALONE = {
    ("railscope_gpu_energy_joules_total", ()),
    ("railscope_gpu_pcie_replays_total", ()),
    ("railscope_gpu_clock_limit_hertz", ("video",)),
    ("railscope_gpu_throttle_seconds_total", ("thermal",)),
    ("railscope_gpu_throttle_active", ("display_clocks",)),
}


@dataclass(frozen=True)
class Case:
    """One card at one moment: our readings and theirs."""

    ours: dict[Label, float]
    absent: dict[Label, Absent]
    theirs: dict[str, float]

    def our(self, name: str) -> tuple[Label, float | None]:
        metric, part = PAIRS[name]
        label = f"railscope_gpu_{metric}", part
        return label, self.ours.get(label)


@pytest.fixture
def case(card: str, moment: str) -> Case:
    host = FakeHost()
    host.calls |= nvml(query(captured(f"{FOLDER}/{card}.txt").read_text(), moment))
    page = samples(captured(f"{FOLDER}/{card}__{moment}.metrics").read_text())
    frames = [read_once(source, host).frame for source in (Gpu.load(), Gpu.health())]
    ours = {(name, key[1:]): v for f in frames for (name, key), v in numbers(f).items()}
    absent = {
        (name, key[1:]): reading
        for frame in frames
        for (name, key), reading in readings(frame).items()
        if isinstance(reading, Absent)
    }
    theirs = {name.removeprefix("nvidia_smi_"): value for (name, _), value in page.items()}
    return Case(ours, absent, theirs)


@EACH_CASE
def test_every_pair_agrees(case: Case) -> None:
    for name in PAIRS:
        label, ours = case.our(name)
        if name in case.theirs:
            assert ours == pytest.approx(case.theirs[name], rel=1e-9), name
        else:
            assert ours is None, f"{name}: nvidia-smi has no value, we do"
            assert case.absent[label] is Absent.UNSUPPORTED


@EACH_CASE
def test_every_difference_is_explained(case: Case) -> None:
    unpaired = set(case.theirs) - set(PAIRS)
    assert {name for name in unpaired if not name.startswith(tuple(THEIRS_ALONE))} == set()
    paired = {case.our(name)[0] for name in PAIRS}
    assert (set(case.ours) | set(case.absent)) - paired == OURS_ALONE


@pytest.mark.parametrize(("card", "moment"), [(H100, "load")])
def test_the_loaded_h100_by_hand(case: Case) -> None:
    """Some numbers read from the capture by eye, so that no table can be wrong on both sides."""
    assert case.ours["railscope_gpu_power_watts", ()] == 631.95
    assert case.ours["railscope_gpu_memory_used_bytes", ()] == 19_818 * 1024**2
    assert case.ours["railscope_gpu_clock_hertz", ("sm",)] == 1.98e9
    assert case.ours["railscope_gpu_utilization_ratio", ()] == 1.0
    assert case.ours["railscope_gpu_memory_activity_ratio", ()] == 0.11
    assert case.ours["railscope_gpu_temperature_celsius", ()] == 59
    assert case.ours["railscope_gpu_memory_temperature_celsius", ()] == 54


@pytest.mark.parametrize(("card", "moment"), [(H200_MIG, "load")])
def test_a_gpu_in_mig_mode_has_no_utilisation_and_says_so(case: Case) -> None:
    assert case.absent["railscope_gpu_utilization_ratio", ()] is Absent.UNSUPPORTED
    assert case.absent["railscope_gpu_remapped_rows", ("correctable",)] is Absent.UNSUPPORTED
    assert case.ours["railscope_gpu_power_watts", ()] == 295.01
