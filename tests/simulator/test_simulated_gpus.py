"""NVML readings of the simulated GPUs, consistent for every model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from support.capture_index import index_of
from support.examples import fewer_examples
from support.simulated import ALL_WAYS, SECONDS, STEP, CapturedNvml, node, pairs

from railscope.capture import Capture
from railscope_simulator import MODELS, SHORT_NAMES, NodeSpec, find_model, simulate
from railscope_simulator.gpu_nvlinks import NO_ERROR, encode_ratio

ALL_LINKS = 0xFFFF_FFFF
KIBIBYTE, MEBIBYTE = 1024, 1 << 20
WITH_GPM = ["h100", "h200", "b200", "gb200"]
LINKED = ["v100", "a100", *WITH_GPM]
SHORT = settings(fewer_examples(25), deadline=None)


# Rates and counters ---------------------------------------------------------------------------------


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


@SHORT
@given(st.sampled_from(WITH_GPM), st.integers(0, 50), st.integers(0, 1))
def test_shares_of_cycles_are_the_activity(model: str, seed: int, gpu: int) -> None:
    for before, after in pairs(node(model, seed=seed)):
        elapsed = after.metric(gpu, 248) - before.metric(gpu, 248)
        for cycles, metric in ((249, 2), (250, 5), (252, 7), (257, 4), (259, 12), (260, 13)):
            active = after.metric(gpu, cycles) - before.metric(gpu, cycles)
            assert active / elapsed == pytest.approx(after.metric(gpu, metric) / 100, abs=1e-5)
        most = find_model(model).max_megahertz * find_model(model).multiprocessors * 10**6
        assert 0 < elapsed <= most * STEP


@pytest.mark.parametrize("model", LINKED)
def test_links_add_up_to_the_gpu_and_need_more_than_they_carry(model: str) -> None:
    nvlink = find_model(model).nvlink
    assert nvlink
    for before, after in pairs(node(model)):
        for entry in (138, 139):
            links = [after.field(0, f"{entry}:{link}") for link in range(nvlink.links)]
            assert sum(links) == after.field(0, f"{entry}:{ALL_LINKS}")
            earlier = [before.field(0, f"{entry}:{link}") for link in range(nvlink.links)]
            grown = [late - early for late, early in zip(links, earlier, strict=True)]
            assert max(grown) - min(grown) <= 1
            limit = nvlink.nominal_megabytes * 10**6 * STEP / KIBIBYTE
            assert 0 < min(grown) < limit
            raw = after.field(0, f"{entry + 2}:{ALL_LINKS}") / sum(links)
            assert raw == pytest.approx(nvlink.raw_megabytes / nvlink.nominal_megabytes)


def sent_and_received(capture: Capture, second: int) -> tuple[int, int]:
    """Bytes that the first GPU's NIC has moved."""
    counters = "/sys/class/infiniband/mlx5_0/ports/1/counters"
    sent, received = (
        4 * int(index_of(capture).result_at("files", f"{counters}/port_{way}", second * 10**9))
        for way in ("xmit_data", "rcv_data")
    )
    return sent, received


def test_a_gpu_moves_over_pcie_what_its_nic_sends_and_receives() -> None:
    capture = node("h100")
    for second in range(0, SECONDS, STEP):
        moved = []
        for at in (second, second + STEP):
            nvml = CapturedNvml(capture, at)
            sent, received = sent_and_received(capture, at)
            moved.append((nvml.field(0, 197) - sent, nvml.field(0, 198) - received))
        (out, back), (later_out, later_back) = moved
        assert 0 <= later_out - out < 2 * 10**9 * STEP
        assert 0 <= later_back - back < 2 * 10**9 * STEP


def test_a_gpu_beside_grace_moves_that_over_c2c_and_next_to_nothing_over_pcie() -> None:
    capture = node("gb200")
    for second in range(0, SECONDS, STEP):
        late = CapturedNvml(capture, second + STEP)
        moved = zip(
            sent_and_received(capture, second),
            sent_and_received(capture, second + STEP),
            strict=True,
        )
        for (before, after), c2c, pcie in zip(moved, (100, 101), (20, 21), strict=True):
            rail = (after - before) / STEP
            assert rail > 10**9
            assert 0 <= late.metric(0, c2c) * MEBIBYTE - rail < 2 * 10**9
            assert late.metric(0, pcie) < 1
    assert (
        CapturedNvml(capture, 0).field(0, 197)
        < CapturedNvml(node("b200"), 0).field(0, 197) / 10_000
    )


def test_an_idle_node_moves_nothing_and_computes_nothing() -> None:
    nvml = CapturedNvml(node("h100", scenario="idle"), SECONDS)
    for metric in (1, 2, 3, 5, 10, 20, 21, 60, 61):
        assert nvml.metric(0, metric) == 0
    assert nvml.device("ComputeRunningProcesses", 0) == []
    assert nvml.device("ProcessUtilization", 0) == {"error": ["nvml", 6]}


@pytest.mark.parametrize(
    ("ratio", "term"),
    [
        (0.0, NO_ERROR),
        (1e-12, 1 << 8 | 12),
        (4.4e-9, 4 << 8 | 9),
        (9.7e-3, 1 << 8 | 2),
        (1.0, 0x100),
    ],
)
def test_bit_error_ratios_are_written_as_nvml_does(ratio: float, term: int) -> None:
    assert encode_ratio(ratio) == term


# Models ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("model", SHORT_NAMES)
def test_an_idle_gpu_has_next_to_nothing_in_bar1(model: str) -> None:
    used = CapturedNvml(node(model, scenario="idle"), SECONDS).device("BAR1MemoryInfo", 0)[
        "bar1Used"
    ]
    assert used == 2 * MEBIBYTE


@pytest.mark.parametrize(
    ("model", "mode", "mebibytes"),
    [
        ("v100", "whole", 4096),
        ("a100", "whole", 4096),
        ("a100", "passthrough", 4096),
        ("t4", "whole", 5),
        ("a100", "time_slicing", 2),
        ("l40s", "vgpu", 2),
    ],
)
def test_bar1_shows_what_is_registered_for_the_rail(model: str, mode: str, mebibytes: int) -> None:
    for _, nvml in pairs(node(model, mode)):
        bar1 = nvml.device("BAR1MemoryInfo", 0)
        assert bar1["bar1Used"] == mebibytes * MEBIBYTE
        assert bar1["bar1Used"] + bar1["bar1Free"] == bar1["bar1Total"]
        assert bar1["bar1Used"] < nvml.device("MemoryInfo", 0)["used"]


@pytest.mark.parametrize("model", ["h100", "h200", "b200"])
def test_newer_drivers_map_all_that_is_used(model: str) -> None:
    for _, nvml in pairs(node(model)):
        bar1 = nvml.device("BAR1MemoryInfo", 0)
        assert bar1["bar1Used"] == nvml.device("MemoryInfo", 0)["used"]
        assert bar1["bar1Used"] + bar1["bar1Free"] == bar1["bar1Total"]


# What each generation has: a call or a field, and the models that answer it.
ANSWERED_BY = [
    ("DeviceGetRemappedRows(0)", {"a100", "l40s", *WITH_GPM}),
    ("DeviceGetRetiredPages(0,1)", {"v100", "t4"}),
    ("DeviceGetMigMode(0)", {"a100", *WITH_GPM}),
    ("DeviceGetGpuFabricInfoV(0)", set(WITH_GPM)),
    ("DeviceGetPlatformInfo(0)", {"b200", "gb200"}),
    ("DeviceGetMarginTemperature(0)", {"l40s", *WITH_GPM}),
    ("DeviceGetTemperatureThreshold(0,0)", {"v100", "t4", "a100"}),
    ("DeviceGetSramEccErrorStatus(0)", {"a100", "l40s", *WITH_GPM}),
    ("DeviceGetJpgUtilization(0)", {"a100", "l40s", *WITH_GPM}),
    ("DeviceGetNumFans(0)", set()),
    ("DeviceGetFieldValues(0,82)", {"v100", "a100", *WITH_GPM}),
    ("DeviceGetFieldValues(0,185)", {"l40s", *WITH_GPM}),
    ("DeviceGetFieldValues(0,186)", set(SHORT_NAMES)),
    ("DeviceGetFieldValues(0,186:1)", {"gb200"}),
    ("DeviceGetFieldValues(0,170)", {"gb200"}),
    ("DeviceGetFieldValues(0,91)", set(LINKED)),
    ("DeviceGetFieldValues(0,32)", {"v100", "a100"}),
    ("DeviceGetFieldValues(0,161:0)", {"h100", "h200"}),
    ("DeviceGetFieldValues(0,201:0)", {"b200", "gb200"}),
    ("DeviceGetFieldValues(0,250:17)", {"b200", "gb200"}),
    ("DeviceGetFieldValues(0,193)", {"l40s", *WITH_GPM}),
    ("DeviceGetFieldValues(0,197)", {"l40s", *WITH_GPM}),
    ("DeviceGetFieldValues(0,230)", {"l40s", *WITH_GPM}),
    ("GpmMetricsGet(0,2)", set(WITH_GPM)),
    ("GpmMetricsGet(0,61)", set(WITH_GPM)),
    ("GpmMetricsGet(0,100)", {"gb200"}),
]


@pytest.mark.parametrize(("call", "models"), ANSWERED_BY)
def test_each_generation_answers_what_it_has(call: str, models: set[str]) -> None:
    name, _, arguments = call.partition("(")
    answering = {
        model
        for model in SHORT_NAMES
        if CapturedNvml(node(model), SECONDS).has(name, *arguments.rstrip(")").split(","))
    }
    assert answering == models


def test_a_model_is_found_by_either_name() -> None:
    for name, model in SHORT_NAMES.items():
        assert find_model(name) is find_model(model.name) is MODELS[model.name]


def test_a_tray_with_grace_has_a_domain_for_each_gpu_and_one_fabric_with_its_neighbours() -> None:
    nodes = [
        CapturedNvml(simulate(NodeSpec(name, gpus=4, model="gb200"), 1), 0)
        for name in ("tray-1", "tray-2")
    ]
    buses = [nodes[0].device("PciInfo", gpu)["busId"] for gpu in range(4)]
    assert [bus[:8] for bus in buses] == ["00000008", "00000009", "00000018", "00000019"]
    fabrics = [nvml.device("GpuFabricInfoV", 0)["clusterUuid"] for nvml in nodes]
    assert fabrics[0] == fabrics[1]
    assert any(fabrics[0])
    places = [nodes[0].device("PlatformInfo", gpu) for gpu in range(4)]
    assert len({place["trayIndex"] for place in places}) == 1
    assert [ord(place["moduleId"]) for place in places] == [1, 2, 3, 4]
