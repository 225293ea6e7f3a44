"""Healthy GPUs, as NVML reports them."""

from __future__ import annotations

from typing import Any

from support.machine import FakeHost

GIBIBYTE = 1 << 30
THROTTLE_FIELDS = (74, 75, 76, 269, 270, 271)


def host_with_gpus(count: int = 1) -> FakeHost:
    """Return a host with a number of GPUs."""
    host = FakeHost()
    add_gpus(host, count)
    return host


def add_gpus(host: FakeHost, count: int) -> None:
    """Add a number of GPUs to a host."""
    host.calls["nvml.nvmlDeviceGetCount()"] = count
    host.calls["nvml.nvmlSystemGetDriverVersion()"] = "590.48.01"
    for index in range(count):
        host.calls |= answers(index)


def answers(index: int) -> dict[str, Any]:
    """Return the answers to all calls of the sources about one GPU."""
    reported: dict[str, Any] = {
        "UUID": f"GPU-{index}",
        "PciInfo": {"busId": f"00000000:{index + 1:02X}:00.0"},
        "Name": "NVIDIA H100 80GB HBM3",
        "Serial": f"165{index:010d}",
        "VbiosVersion": "96.00.A5.00.01",
        "MinorNumber": index,
        "Architecture": 9,
        "UtilizationRates": {"gpu": 40 + index, "memory": 11},
        "MemoryInfo": {
            "total": 80 * GIBIBYTE, "reserved": GIBIBYTE, "used": 20 * GIBIBYTE,
            "free": 59 * GIBIBYTE,
        },
        "PowerUsage": 500_000 + index,
        "TotalEnergyConsumption": 10**12,
        "CurrentClocksEventReasons": 0x4,
        "PerformanceState": 0,
        "EnforcedPowerLimit": 700_000,
        "EccMode": [1, 1],
        "RemappedRows": [0, 0, 0, 0],
        "MarginTemperature": 26,
        "MigMode": [0, 0],
        "EncoderUtilization": [0, 167_000],
        "DecoderUtilization": [0, 167_000],
        "JpgUtilization": [0, 167_000],
        "OfaUtilization": [0, 167_000],
        "ComputeRunningProcesses": [],
        "CurrPcieLinkGeneration": 5,
        "MaxPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "PcieReplayCounter": 0,
    }  # fmt: skip
    found = {f"nvml.nvmlDeviceGet{name}({index})": answer for name, answer in reported.items()}
    found[f"nvml.nvmlDeviceGetTemperatureV({index},0)"] = 61
    fields = {82: 70, 83: 10**12, 185: 500_000, 186: 501_000, 91: 0, 230: 0, 94: 0}
    fields |= {field: second * 10**9 for second, field in enumerate(THROTTLE_FIELDS)}
    fields |= dict.fromkeys((3, 4, 5, 6), 0)
    fields |= {197: 10**9, 198: 2 * 10**9}
    for field, value in fields.items():
        found[f"nvml.nvmlDeviceGetFieldValues({index},{field})"] = [0, value]
    for metric in (1, 2, 3, 5, 10):
        found[f"nvml.nvmlGpmMetricsGet({index},{metric})"] = [0, 10.0 * metric]
    for clock in range(4):
        found[f"nvml.nvmlDeviceGetClockInfo({index},{clock})"] = 1980
        found[f"nvml.nvmlDeviceGetMaxClockInfo({index},{clock})"] = 1980
    for kind in range(2):
        for counter in range(2):
            found[f"nvml.nvmlDeviceGetTotalEccErrors({index},{kind},{counter})"] = 0
    return found


def of_gpu(host: FakeHost, index: int) -> list[str]:
    """Return the keys of all calls about one GPU."""
    parts = (f"({index})", f"({index},")
    return [key for key in host.calls if any(part in key for part in parts)]
