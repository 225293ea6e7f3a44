"""NVML readings of the simulated GPUs, consistent for every model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import fewer_examples
from support.simulated import ALL_WAYS, STEP, node, pairs

from railscope_simulator import find_model

ALL_LINKS = 0xFFFF_FFFF
KIBIBYTE, MEBIBYTE = 1024, 1 << 20
WITH_GPM = ["h100", "h200", "b200", "gb200"]
SHORT = settings(fewer_examples(25), deadline=None)


@SHORT
@given(st.sampled_from(WITH_GPM), st.integers(0, 50), st.integers(0, 1))
def test_rates_of_nvlink_and_pcie_are_those_of_their_counters(
    model: str, seed: int, gpu: int
) -> None:
    for before, after in pairs(node(model, seed=seed)):
        for metric, entry, unit in (
            (61, f"138:{ALL_LINKS}", KIBIBYTE),
            (60, f"139:{ALL_LINKS}", KIBIBYTE),
            (20, 197, 1),
            (21, 198, 1),
        ):
            grown = (after.field(gpu, entry) - before.field(gpu, entry)) * unit
            rate = after.metric(gpu, metric) * MEBIBYTE
            assert rate == pytest.approx(grown / STEP, abs=MEBIBYTE / 1000)


@pytest.mark.parametrize(("model", "mode"), ALL_WAYS)
def test_every_gpu_stays_within_its_limits(model: str, mode: str) -> None:
    kind = find_model(model)
    for _, nvml in pairs(node(model, mode)):
        least, most = (1000 * kind.idle_watts * 0.85, kind.power_limit_milliwatts)
        assert least < nvml.device("PowerUsage", 0) <= most
        assert 20 < nvml.device("Temperature", 0, 0) < kind.thresholds.slowdown
        assert kind.idle_megahertz <= nvml.device("ClockInfo", 0, 1) <= kind.max_megahertz
        assert nvml.field(0, 83) == nvml.device("TotalEnergyConsumption", 0)
        assert nvml.device("BAR1MemoryInfo", 0)["bar1Free"] >= 0
