"""The CSV and the monitors of nvidia-smi, from the captures of nvidia_gpu_exporter."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from typing import Any

from support.nvidia_smi_shares import MigDevice, PrintedProcess

_SECTION = re.compile(r"^#{80}\n# (?P<title>.*?)\n(?:# .*\n)*#{80}\n", re.MULTILINE)
_LISTED = re.compile(r" +(MIG \S+) +Device +(\d+): \(UUID: (MIG-\S+)\)")
_CUDA = re.compile(r"CUDA Version *:? +(\d+\.\d+)")
_SAMPLES_END_US = 1_000_000


def sections(capture: str) -> dict[str, str]:
    """Return the sections of a capture by their titles: `load :: pmon (per-process monitor)`."""
    parts = _SECTION.split(capture)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def section(capture: str, title: str) -> str:
    """Return the one section with a title that begins with this one."""
    (body,) = [body for name, body in sections(capture).items() if name.startswith(title)]
    return body.strip("\n")


def _table(body: str) -> list[dict[str, str]]:
    head, *rows = csv.reader(body.splitlines(), skipinitialspace=True)
    names = [name.split(" [")[0] for name in head]
    return [dict(zip(names, row, strict=True)) for row in rows]


def query(capture: str, moment: str) -> dict[str, str]:
    """Return the one row of --query-gpu at a moment, "idle" or "load"."""
    (row,) = _table(section(capture, f"{moment} :: query-gpu"))
    cuda = _CUDA.search(capture)
    return row | ({"cuda_version": cuda[1]} if cuda else {})


def compute_processes(
    capture: str, moment: str, detailed: list[PrintedProcess]
) -> list[PrintedProcess]:
    """Return the processes of --query-compute-apps; `detailed` are those of -q, which also has contexts.

    -q ran a moment before: memory is that of the row of --query-gpu.
    """
    by_pid = {process.pid: process for process in detailed}
    rows = _table(section(capture, f"{moment} :: query-compute-apps"))
    computing = {
        int(row["pid"]): replace(by_pid[int(row["pid"])], memory=row["used_gpu_memory"])
        for row in rows
    }
    return [*computing.values(), *(p for pid, p in by_pid.items() if pid not in computing)]


def name_mig_devices(capture: str, model: str, devices: list[MigDevice]) -> list[MigDevice]:
    """Return MIG devices with the UUIDs and names of -L."""
    listed = {
        int(index): (uuid, f"{model} {profile}")
        for profile, index, uuid in _LISTED.findall(section(capture, "capabilities :: list"))
    }
    return [
        replace(device, uuid=listed[device.index][0], name=listed[device.index][1])
        for device in devices
    ]


# Monitors ----------------------------------------------------------------------------------------


def _columns(body: str) -> list[dict[str, str]]:
    """Return the rows of pmon or dmon; their heads repeat, and the second has units."""
    lines = body.splitlines()
    names = lines[0].strip("# ").split()
    return [
        dict(zip(names, line.split(), strict=True)) for line in lines if not line.startswith("#")
    ]


def process_samples(capture: str, moment: str) -> list[dict[str, Any]]:
    """Return the rows of pmon as samples of nvmlDeviceGetProcessUtilization: none of an idle process."""
    rows = _columns(section(capture, f"{moment} :: pmon"))
    samples: list[dict[str, Any]] = []
    for row in rows:
        busy = {name: row[name] for name in ("sm", "mem", "enc", "dec")}
        if set(busy.values()) == {"-"}:
            continue
        reported = {
            f"{name}Util": 0 if value == "-" else int(value) for name, value in busy.items()
        }
        stamp = _SAMPLES_END_US + len(samples)
        samples.append({"pid": int(row["pid"]), "timeStamp": stamp, **reported})
    return samples
