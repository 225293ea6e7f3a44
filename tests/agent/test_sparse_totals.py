"""Zeros on the metrics endpoint: omitted only where a present total shows that they are zero and not unread."""

from __future__ import annotations

from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import read_once

from railscope.exposition import Exposition, TextFormat
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.value_tables import SLOWDOWNS, THROTTLE_FIELDS

ACTIVE = 'railscope_gpu_throttle_active{gpu="GPU-0",reason="hardware_thermal"}'
TOTAL = 'railscope_gpu_all_reasons_throttle_seconds_total{gpu="GPU-0"}'
_NOT_SUPPORTED = [3, 0]


def page(host: FakeHost) -> list[str]:
    frame = read_once(GpuSource.load(), host).frame
    assert frame
    return Exposition().render([frame], TextFormat.PROMETHEUS).splitlines()


def test_a_reason_at_zero_is_shown_if_the_gpu_has_no_throttle_counters() -> None:
    host = FakeHost()
    add_gpus(host, 1)
    lines = page(host)
    assert any(line.startswith(TOTAL) for line in lines)
    assert f"{ACTIVE} 0" not in lines
    for field in (*THROTTLE_FIELDS, *range(251, 254), *range(269, 269 + len(SLOWDOWNS))):
        host.calls[f"nvml.nvmlDeviceGetFieldValues(0,{field})"] = _NOT_SUPPORTED
    lines = page(host)
    assert not any(line.startswith(TOTAL) for line in lines)
    assert f"{ACTIVE} 0" in lines
