"""The captures of nvidia_gpu_exporter, as a host with the answers that nvidia-smi printed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from support import nvidia_smi_csv as csv, nvidia_smi_text as text
from support.exporter_pairs import PAIRS
from support.gpu_readings import GpuReadings, read_gpus
from support.machine import FakeHost
from support.metric_samples import Sample, samples
from support.nvidia_smi import Row, machine
from support.nvidia_smi_shares import MigDevice, name_processes, shares
from support.shared import capture_path

DIRECTORY = "nvidia-smi/exporter-captures"
H100 = "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01"
H200_MIG = "linux-x86_64__nvidia-h200-mig__590.48.01"
L40S = "linux-x86_64__nvidia-l40s__595.80"
RTX = "linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05"
CASES = [(nic, moment) for nic in (H100, H200_MIG, L40S, RTX) for moment in ("idle", "load")]
GPU = "GPU-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class ExporterMoment:
    """One GPU at one moment: nvidia-smi's output, our readings, and their metrics."""

    capture: str
    row: Row
    mig_devices: list[MigDevice]
    host: FakeHost
    readings: GpuReadings
    page: dict[Sample, float]

    def our(self, name: str) -> float | None:
        """Return our number for one of their names."""
        metric, part = PAIRS[name]
        return self.readings.number(f"gpu_{metric}", GPU, *part)

    @property
    def theirs(self) -> dict[str, float]:
        """Return their metrics of the GPU by name; those of processes have one for each."""
        return {name.removeprefix("nvidia_smi_"): value for (name, _), value in self.page.items()}


@cache
def read_moment(nic: str, moment: str) -> ExporterMoment:
    """Return a GPU at a moment, "idle" or "load"; read once for all tests."""
    capture = capture_path(f"{DIRECTORY}/{nic}.txt").read_text()
    printed = csv.section(capture, f"{moment} :: query (-q)")
    (lines,) = text.gpus(printed)
    row = text.row(printed, lines) | csv.query(capture, moment)
    running = csv.compute_processes(capture, moment, text.processes(lines))
    devices = csv.name_mig_devices(capture, row["name"], text.mig_devices(lines))
    host = FakeHost()
    host.calls |= machine([row]) | shares(0, running, devices)
    busy = csv.process_samples(capture, moment)
    host.calls["nvml.nvmlDeviceGetProcessUtilization(0)"] = busy
    name_processes(host, running)
    page = samples(capture_path(f"{DIRECTORY}/{nic}__{moment}.metrics").read_text())
    return ExporterMoment(capture, row, devices, host, read_gpus(host), page)
