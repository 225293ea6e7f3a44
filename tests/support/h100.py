"""A node with a first GPU that reports everything an H100 can report, with distinct numbers."""

from __future__ import annotations

from typing import Any

from support.gpus import GIBIBYTE, add_gpus
from support.machine import FakeHost

LINKS = 18
MEBIBYTE = 1 << 20


def add_answers(host: FakeHost, gpu: int, **answers: Any) -> None:
    """Set the answers of calls about a GPU, `MemoryInfo` for nvmlDeviceGetMemoryInfo."""
    for name, answer in answers.items():
        host.calls[f"nvml.nvmlDeviceGet{name}({gpu})"] = answer


def fields(host: FakeHost, gpu: int, values: dict[Any, Any]) -> None:
    """Set the answers of NVML's fields, by number or "number:scope".

    An answer is a value, a pair of return code and value, or an error of the whole call.
    """
    for field, value in values.items():
        host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},{field})"] = value


def gpm(host: FakeHost, device: int | str, values: dict[int, float]) -> None:
    """Set the values of GPM metrics."""
    for metric, value in values.items():
        host.calls[f"nvml.nvmlGpmMetricsGet({device},{metric})"] = [0, value]


def h100() -> FakeHost:
    """Two GPUs, and a kernel log without messages."""
    host = FakeHost()
    add_gpus(host, 2)
    add_answers(
        host,
        0,
        EncoderUtilization=[7, 167_000],
        DecoderUtilization=[8, 167_000],
        BAR1MemoryInfo={"bar1Total": 128 * GIBIBYTE, "bar1Free": 1, "bar1Used": MEBIBYTE // 2},
        CurrentClocksEventReasons=0x84,
        RemappedRows=[1, 2, 1, 0],
        PersistenceMode=1,
        SramEccErrorStatus={"bThresholdExceeded": 0},
        PcieReplayCounter=94,
        PerformanceState=2,
        TotalEnergyConsumption=1,
        PowerUsage=512_345,
    )
    fields(host, 0, {3: 3, 4: 4, 5: 5, 6: 6, 94: 94, 230: 1, 91: LINKS})
    fields(host, 0, {83: 2**60 + 1, 186: 600_500, 187: 200_000, 188: 700_000, 189: 650_000})
    fields(host, 0, {192: 400_000, **{number: number * 10**9 for number in range(74, 82)}})
    for link in range(LINKS):
        fields(host, 0, {f"161:{link}": 1, f"162:{link}": 2, f"163:{link}": link})
    gpm(host, 0, {1: 99.5, 2: 80, 3: 25, 4: 4, 5: 50, 6: 6, 7: 7, 9: 9, 10: 12.25, 11: 11, 12: 12})
    gpm(host, 0, {13: 13, 20: 20, 21: 21, 60: 6000, 61: 1000})
    for number, megahertz in enumerate((1900, 1905, 2619, 1500)):
        host.calls[f"nvml.nvmlDeviceGetClockInfo(0,{number})"] = megahertz
    return host
