"""Time resolution of a recording: between two moments a device has no reading."""

from __future__ import annotations

import pytest
from support.clock import NS, ManualClock

from railscope.capture import Capture, CaptureMetadata, CaptureMoment
from railscope_agent.host.recorded_host import RecordedHost

MS = NS // 1000


def recorded_host(**moments_ms: list[int]) -> RecordedHost:
    """Return a recorded host whose devices were read at these moments."""
    moments = [
        CaptureMoment(
            at_ms * MS, calls={f"ethtool.statistics({device})": {"names": [], "values": []}}
        )
        for device, all_ms in moments_ms.items()
        for at_ms in all_ms
    ]
    ordered = tuple(sorted(moments, key=lambda moment: moment.offset_ns))
    return RecordedHost(
        Capture(CaptureMetadata("n", "b", 0, 0, NS, ""), ordered), ManualClock(), lambda: 0
    )


@pytest.mark.parametrize(
    ("host", "period_ms"),
    [
        (recorded_host(), 0),
        (recorded_host(ens1=[0]), 0),
        (recorded_host(ens1=[0, 1000, 2000, 3000]), 1000),
        (recorded_host(ens1=[0, 50, 1000, 2000, 3000]), 1000),
        (recorded_host(ens1=[0, 100, 200, 300], ens2=[0, 30_000]), 100),
    ],
)
def test_the_statistics_period_is_the_usual_interval_of_a_busy_nic(
    host: RecordedHost, period_ms: int
) -> None:
    assert host.statistics_period_ns == period_ms * MS
