"""Verdicts on real GPUs, from the output of nvidia-smi."""

from __future__ import annotations

import pytest
from support import nvidia_smi_text as text
from support.exporter_capture import CASES, read_moment
from support.judging import REASON, VerdictSources
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.reading import readings
from support.shared import capture_path

from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.reading import Absent


def judge_gpus(host: FakeHost) -> tuple[list[str], set[str]]:
    """Return the states of the GPUs and the reasons against them."""
    run = VerdictSources(host)
    run.step()
    run.step()
    values = readings(run.frame)
    states = [r for (name, _), r in values.items() if name == GPU_HEALTH.name]
    reasons = {key[1] for (name, key), r in values.items() if name == REASON and r == 1}
    state_names = [
        "absent" if isinstance(state, Absent) else GPU_HEALTH.states[state] for state in states
    ]
    return state_names, reasons


@pytest.mark.parametrize(("model", "moment"), CASES, ids=[f"{c[21:30]}-{m}" for c, m in CASES])
def test_gpus_in_order_are_healthy_idle_and_under_load(model: str, moment: str) -> None:
    assert judge_gpus(read_moment(model, moment).host) == (["healthy"], set())


def test_a_server_whose_power_supply_brakes_is_degraded_gpu_by_gpu() -> None:
    """Eight H100s, each with "HW Power Brake Slowdown: Active"."""
    printed = capture_path("nvidia-smi/gpud/nvidia-smi-query.535.161.08.out.0.valid").read_text()
    host = FakeHost()
    host.calls |= machine([text.row(printed, lines) for lines in text.gpus(printed)])
    assert printed.count("HW Power Brake Slowdown       : Active") == 8
    assert judge_gpus(host) == (["degraded"] * 8, {"power_brake"})
