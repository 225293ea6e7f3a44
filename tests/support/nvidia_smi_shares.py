"""Processes and MIG devices in the output of nvidia-smi, converted to the answers of NVML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.machine import FakeHost
from support.nvidia_smi import MEBIBYTE, Answers, Row, members, number

from railscope_agent.host import NvmlError

_LISTS = {"C": "Compute", "G": "Graphics", "M": "MPSCompute"}
_NO_INSTANCE = 0xFFFF_FFFF
_PROFILE = re.compile(r"(?:(?P<compute>\d+)c\.)?(?P<gpu>\d+)g\.\d+gb$")
_SHARED = {
    "sharedCopyEngineCount": "copy_engines", "sharedDecoderCount": "decoders",
    "sharedEncoderCount": "encoders", "sharedJpegCount": "jpegs", "sharedOfaCount": "ofas",
}  # fmt: skip


@dataclass(frozen=True)
class PrintedProcess:
    """A process: its contexts by their letters (C, G, M), and its instances if the GPU is MIG-enabled."""

    pid: int
    contexts: str
    memory: str
    gpu_instance: str = "N/A"
    compute_instance: str = "N/A"
    name: str = ""

    def answers(self) -> dict[str, Any]:
        """Return the process as in a list of NVML."""
        memory = number(self.memory, MEBIBYTE)
        return {
            "pid": self.pid,
            "usedGpuMemory": None if isinstance(memory, NvmlError) else memory,
            "gpuInstanceId": _instance(self.gpu_instance),
            "computeInstanceId": _instance(self.compute_instance),
        }


@dataclass(frozen=True)
class MigDevice:
    """A MIG device: its instances, and its numbers as texts; no name if none was printed."""

    uuid: str
    index: int
    gpu_instance: str
    compute_instance: str
    row: Row = field(default_factory=dict)
    name: str = ""

    def answers(self) -> Answers:
        """Return NVML's answers about it."""
        memory = {n: f"memory.{n}" for n in ("total", "reserved", "used", "free")}
        bar1 = {f"bar1{n}": f"bar1.{n.lower()}" for n in ("Total", "Used", "Free")}
        attributes = members(self.row, {"multiprocessorCount": "multiprocessors", **_SHARED}, 1)
        found: Answers = {
            f"MemoryInfo({self.uuid})": members(self.row, memory, MEBIBYTE),
            f"BAR1MemoryInfo({self.uuid})": members(self.row, bar1, MEBIBYTE),
            f"TotalEccErrors({self.uuid},1,0)": number(self.row["sram_uncorrected"]),
            f"Attributes_v2({self.uuid})": attributes | _slices(self.name),
        }
        if self.name:
            found[f"Name({self.uuid})"] = self.name
        return {f"nvml.nvmlDeviceGet{call}": answer for call, answer in found.items()}


def _slices(name: str) -> dict[str, int]:
    """Return the slices of a profile: 1c.3g.71gb takes one of three, 2g.35gb two of two."""
    profile = _PROFILE.search(name)
    if profile is None:
        return {}
    gpu_slices = int(profile["gpu"])
    return {
        "gpuInstanceSliceCount": gpu_slices,
        "computeInstanceSliceCount": int(profile["compute"] or gpu_slices),
    }


def _instance(printed: str) -> int:
    return _NO_INSTANCE if printed == "N/A" else int(printed)


def shares(
    gpu: int, running: Sequence[PrintedProcess], devices: Sequence[MigDevice] = ()
) -> Answers:
    """Return the users of a GPU: the lists of its processes, or those of its MIG devices if MIG-enabled."""
    answers = {f"nvml.nvmlDeviceGetMigDevices({gpu})": [
        {
            "uuid": device.uuid, "index": device.index, "gpu": int(device.gpu_instance),
            "compute": int(device.compute_instance),
        }
        for device in devices
    ]} if devices else {}  # fmt: skip
    for device in devices:
        here = [
            process
            for process in running
            if (process.gpu_instance, process.compute_instance)
            == (device.gpu_instance, device.compute_instance)
        ]
        answers |= device.answers() | _lists(device.uuid, here)
    return answers or _lists(gpu, running)


def _lists(device: int | str, running: Sequence[PrintedProcess]) -> Answers:
    return {
        f"nvml.nvmlDeviceGet{name}RunningProcesses({device})": [
            process.answers() for process in running if letter in process.contexts
        ]
        for letter, name in _LISTS.items()
    }


def name_processes(host: FakeHost, running: Sequence[PrintedProcess]) -> None:
    """Set the names of processes in /proc: the program without its directory, truncated to 15."""
    for process in running:
        program = process.name.partition(" ")[0].rpartition("/")[2]
        host.files[f"/proc/{process.pid}/comm"] = program[:15]
