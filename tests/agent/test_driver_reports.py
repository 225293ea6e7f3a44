"""A driver's report of a fault counts until the driver reports the opposite, whatever link and counters show."""

from __future__ import annotations

import pytest
from support.clock import NS, ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog.kernel import DRIVER_REPORT
from railscope.frame import NodeTimestamp
from railscope.reading import Reading
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.streams.kernel_log import KernelLogStream

ADDRESS = "0000:98:00.0"
MLX5, BNXT = f"mlx5_core {ADDRESS} ens2f0np0", f"bnxt_en {ADDRESS} ens2f0np0"
STUCK = (0, f"{MLX5}: TX timeout detected")
COMPROMISED = (0, f"mlx5_core {ADDRESS}: device's health compromised - reached miss count")
NOT_OURS = (9, "mlx5_core 0000:99:00.0: firmware version: 28.39.1002")
LOOP = [
    (10 * n, line)
    for n in range(3)
    for line in (f"{BNXT}: firmware not responding", f"{BNXT}: resetting the adapter")
]


def report_after(lines: list[tuple[int, str]], later_seconds: int = 0) -> Reading | None:
    """Return the report on the device, some seconds after these lines of the kernel log; None without a column."""
    host = FakeHost(ManualClock(NodeTimestamp(1_790_000_000 * NS, 10_000_000 * NS)))
    began_us = host.clock.now().boot_ns // 1000 - (later_seconds + 100) * 1_000_000
    host.log.waiting = [
        f"4,{number},{began_us + seconds * 1_000_000},-;{text}"
        for number, (seconds, text) in enumerate(lines)
    ]
    reader = SourceReader(KernelLogStream(), host, ORIGIN)
    frame = [reader.run().frame for _ in range(3)][-1]
    return readings(frame).get((DRIVER_REPORT.name, (ADDRESS,)))


@pytest.mark.parametrize(
    ("lines", "report"),
    [
        ([STUCK], "send_queue_stuck"),
        ([STUCK, (5, f"{MLX5}: Recovered 3 EQEs on EQ 0x12")], "none"),
        ([STUCK, COMPROMISED, NOT_OURS], "failed"),
        ([COMPROMISED, (5, f"mlx5_core {ADDRESS}: health recovery succeeded")], "none"),
        ([COMPROMISED, (5, f"mlx5_core {ADDRESS}: enabling device (0000 -> 0002)")], "none"),
        ([COMPROMISED, (5, f"mlx5_core {ADDRESS}: health recovery failed")], "failed"),
        ([(0, f"{BNXT}: firmware not responding"), (1, f"{BNXT}: resetting the adapter")], "none"),
        (LOOP, "failed"),
        ([*LOOP, (40, f"{BNXT}: enabling device (0000 -> 0002)")], "none"),
        ([(0, f"mlx5_core {ADDRESS}: Port module event[error]: module 0, Cable error, Bus stuck")], "module_error"),
        (
            [
                (0, f"mlx5_core {ADDRESS}: Port module event[error]: module 0, Cable error, Bus stuck"),
                (5, f"mlx5_core {ADDRESS}: Port module event: module 0, Cable plugged"),
            ],
            "none",
        ),
    ],
)  # fmt: skip
def test_a_report_counts_until_the_driver_reports_the_opposite(
    lines: list[tuple[int, str]], report: str
) -> None:
    (code,) = (code for code, name in DRIVER_REPORT.states.items() if name == report)
    assert report_after(lines) == code


def test_heat_counts_for_ten_minutes_and_a_failure_for_ever() -> None:
    hot = [(0, f"mlx5_core {ADDRESS}: High temperature on sensors with bit set 0x1")]
    assert (report_after(hot, 300), report_after(hot, 600)) == (1, 0)
    assert report_after([COMPROMISED], 5 * 86_400) == 4


def test_a_start_of_a_device_is_no_report() -> None:
    assert report_after([(0, f"mlx5_core {ADDRESS}: firmware version: 28.39.1002")]) is None
