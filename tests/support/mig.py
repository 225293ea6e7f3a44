"""A partitioned (MIG-enabled) GPU."""

from __future__ import annotations

from collections.abc import Sequence

from support.machine import FakeHost

GIBIBYTE = 1 << 30


def cut(host: FakeHost, index: int, profiles: Sequence[str]) -> list[str]:
    """Partition a GPU into devices of profiles such as `3g.40gb`; return their UUIDs."""
    uuids = [f"MIG-{index}-{number}-{profile}" for number, profile in enumerate(profiles)]
    host.calls[f"nvml.nvmlDeviceGetMigMode({index})"] = [1, 1]
    host.calls[f"nvml.nvmlDeviceGetMigDevices({index})"] = [
        {"uuid": uuid, "index": number, "gpu": number + 1, "compute": 0}
        for number, uuid in enumerate(uuids)
    ]
    for uuid, profile in zip(uuids, profiles, strict=True):
        host.calls |= _answers(uuid, profile)
    return uuids


def disable_mig(host: FakeHost, index: int) -> None:
    """Make it one GPU again."""
    host.calls[f"nvml.nvmlDeviceGetMigMode({index})"] = [0, 0]
    host.calls[f"nvml.nvmlDeviceGetMigDevices({index})"] = []


def _answers(uuid: str, profile: str) -> dict[str, object]:
    slices = int(profile.partition("g")[0])
    reported: dict[str, object] = {
        "Name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
        "MemoryInfo": {
            "total": slices * 10 * GIBIBYTE, "reserved": 0, "used": slices * GIBIBYTE,
            "free": slices * 9 * GIBIBYTE,
        },
        "Attributes_v2": {
            "multiprocessorCount": 16 * slices, "gpuInstanceSliceCount": slices,
            "computeInstanceSliceCount": slices,
        },
        "ComputeRunningProcesses": [],
    }  # fmt: skip
    found = {f"nvml.nvmlDeviceGet{name}({uuid})": answer for name, answer in reported.items()}
    found[f"nvml.nvmlDeviceGetTotalEccErrors({uuid},1,0)"] = 0
    for metric in (1, 2, 3, 5, 10):
        found[f"nvml.nvmlGpmMetricsGet({uuid},{metric})"] = [0, 20.0 * slices]
    return found
