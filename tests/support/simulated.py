"""Simulated GPUs, and NVML's answers about them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from support.capture_index import index_of

from railscope.capture import Capture, Json
from railscope_simulator import MODES, SHORT_NAMES, NodeSpec, simulate
from railscope_simulator.device_models import GpuModel

SECONDS, STEP = 40, 10
HEATING_SECONDS = 60
"""Of the scenario "thermal": a GPU takes half a minute to become hot."""


def modes_of(model: GpuModel) -> list[str]:
    """Return the sharing modes of GPUs of a model."""
    lacking = {"mig": not model.mig_profiles, "vgpu": model.vgpu_type is None}
    return [mode for mode in MODES if not lacking.get(mode, False)]


ALL_WAYS = [(name, mode) for name, model in SHORT_NAMES.items() for mode in modes_of(model)]


class CapturedNvml:
    """NVML's answers at a moment of a capture."""

    def __init__(self, capture: Capture, second: int) -> None:
        self._timeline = index_of(capture)
        self._offset_ns = second * 10**9

    def call(self, name: str, *arguments: int | str) -> Json:
        key = f"nvml.nvml{name}({','.join(map(str, arguments))})"
        return self._timeline.result_at("calls", key, self._offset_ns)

    def device(self, name: str, *arguments: int | str) -> Json:
        return self.call(f"DeviceGet{name}", *arguments)

    def field(self, gpu: int, entry: int | str) -> int:
        code, value = self.device("FieldValues", gpu, entry)
        assert code == 0
        return int(value)

    def metric(self, device: int | str, number: int) -> float:
        code, value = self.call("GpmMetricsGet", device, number)
        assert code == 0
        return float(value)


@cache
def node(model: str, mode: str = "whole", seed: int = 0, scenario: str = "training") -> Capture:
    """A node with two GPUs."""
    spec = NodeSpec("gpu-001", seed=seed, gpus=2, model=model, mode=mode, scenario=scenario)
    return simulate(spec, SECONDS, STEP)


def scenario_seconds(scenario: str) -> int:
    """Return the length of a run; the fault begins at half time."""
    return HEATING_SECONDS if scenario == "thermal" else SECONDS


@cache
def scenario_run(scenario: str) -> Capture:
    """A node with four GPUs, each second."""
    return simulate(NodeSpec("gpu-001", scenario=scenario, gpus=4), scenario_seconds(scenario))


def pairs(capture: Capture) -> Iterator[tuple[CapturedNvml, CapturedNvml]]:
    """Yield each moment, and the one after it."""
    for second in range(0, SECONDS, STEP):
        yield CapturedNvml(capture, second), CapturedNvml(capture, second + STEP)
