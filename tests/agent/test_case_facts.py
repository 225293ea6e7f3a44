"""Cases of GPUs compared with each other, and read again from their end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.cases import CASES, capture_of, page, read_case
from support.metric_samples import sample, samples

from railscope.capture import SECTIONS, Capture, CaptureMoment

AFFECTED = "0000:61:00.0"


@pytest.mark.parametrize(
    ("case", "reason"), [("lost-gpu", "gpu_lost"), ("hung-gpu", "driver_unresponsive")]
)
def test_a_gpu_that_failed_before_the_first_sample_is_reported_too(
    case: str, reason: str, tmp_path: Path
) -> None:
    _end_of(capture_of(case)).write(tmp_path)
    shown = samples(page(tmp_path))
    (gpu,) = read_case(CASES / case).health_reasons
    state = sample("railscope_gpu_device_state", pci_address=AFFECTED, state="driver")
    assert shown[state] == 1
    assert shown[sample("railscope_gpu_health", gpu=gpu, state="failed")] == 1
    active = sample("railscope_gpu_health_reason_active", gpu=gpu, reason=reason)
    assert shown[active] == 1


def _end_of(capture: Capture) -> Capture:
    """Return a capture of the last moment alone."""
    last = CaptureMoment(0)
    for moment in capture.moments:
        last.log += moment.log
        for section in SECTIONS:
            getattr(last, section).update(getattr(moment, section))
    started_ns = capture.about.started_boot_ns + capture.about.duration_ns
    return Capture(replace(capture.about, started_boot_ns=started_ns, duration_ns=0), (last,))
