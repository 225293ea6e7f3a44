"""The faults of GPUs show in NVML, in its events and in the kernel log, as each generation has it."""

from __future__ import annotations

from functools import cache

import pytest
from support.capture_index import index_of

from railscope.capture import PENDING, Capture, Json
from railscope_simulator import NodeSpec, find_model, simulate
from railscope_simulator.gpu_nvlinks import FAULTY_LINK, NO_ERROR

SECONDS, ONSET = 40, 20
AFFECTED, OTHER = 1, 0
LOST, TIMEOUT, DENIED = ({"error": ["nvml", code]} for code in (15, 10, 4))
XID, DOUBLE_BIT, RETIREMENT, RECOVERY = 0x8, 0x2, 0x400, 0x8000


@cache
def run(scenario: str, model: str = "h100") -> Capture:
    return simulate(NodeSpec("gpu-001", gpus=2, model=model, scenario=scenario), SECONDS)


def nvml(capture: Capture, call: str, second: int = SECONDS) -> Json:
    return index_of(capture).result_at("calls", f"nvml.nvml{call}", second * 10**9)


def field(capture: Capture, gpu: int, entry: int | str, second: int = SECONDS) -> int:
    code, value = nvml(capture, f"DeviceGetFieldValues({gpu},{entry})", second)
    assert code == 0
    return int(value)


def xids(capture: Capture) -> list[int]:
    """Numbers of the Xids in the kernel log, in their order."""
    log = [record for moment in capture.moments for record in moment.log]
    return [int(r.split("): ", 1)[1].split(",")[0]) for r in log if "NVRM: Xid" in r]


def events(capture: Capture, second: int = SECONDS) -> list[tuple[int, int]]:
    reported = nvml(capture, "EventSetWait()", second)
    assert [number for number, *_ in reported] == list(range(1, len(reported) + 1))
    assert {gpu for _, gpu, *_ in reported} <= {AFFECTED}
    return [(kind, data) for _, _, kind, data, *_ in reported]


@pytest.mark.parametrize("model", ["v100", "a100", "h100", "b200"])
def test_a_bad_nvlink_has_errors_where_its_generation_counts_them(model: str) -> None:
    capture = run("nvlink_errors", model)
    nvlink = find_model(model).nvlink
    assert nvlink
    link = min(FAULTY_LINK, nvlink.links - 1)
    entries: dict[str, tuple[int | str, ...]] = {
        "v100": (32 + link, 46 + link, 53 + link),
        "a100": (96 + link - 6, 108 + link - 6, 114 + link - 6),
        "h100": (f"161:{link}", f"162:{link}", f"163:{link}"),
        "b200": (f"219:{link}", f"221:{link}", f"295:{link}", f"243:{link}"),
    }
    for entry in entries[model]:
        assert field(capture, AFFECTED, entry, ONSET - 1) == 0
        assert field(capture, AFFECTED, entry) > 0
        assert field(capture, OTHER, entry) == 0


def test_the_ratios_of_a_bad_link_get_worse_and_those_of_others_stay() -> None:
    capture = run("nvlink_errors", "b200")
    for entry in (220, 222):
        assert field(capture, AFFECTED, f"{entry}:{FAULTY_LINK}", ONSET - 1) == NO_ERROR
        term = field(capture, AFFECTED, f"{entry}:{FAULTY_LINK}")
        assert (term >> 8) * 10.0 ** -(term & 0xFF) > 1e-12
        assert field(capture, AFFECTED, f"{entry}:{FAULTY_LINK - 1}") == NO_ERROR


@pytest.mark.parametrize(
    ("model", "numbers", "sxids"),
    [("a100", [74], 3), ("h100", [74, 154], 3), ("v100", [74], 0), ("b200", [149], 0)],
)
def test_a_bad_link_is_reported_by_the_driver_and_by_visible_switches(
    model: str, numbers: list[int], sxids: int
) -> None:
    capture = run("nvlink_errors", model)
    assert xids(capture) == numbers
    assert [data for kind, data in events(capture) if kind == XID] == numbers
    log = [record for moment in capture.moments for record in moment.log]
    assert sum("SXid" in record for record in log) == sxids


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        ("h100", [48, 63, 94, 154]),
        ("l40s", [48, 63, 94, 154]),
        ("a100", [48, 63, 94]),
        ("t4", [48, 63]),
    ],
)
def test_an_uncorrectable_error_is_counted_reported_and_ends_the_job(
    model: str, numbers: list[int]
) -> None:
    capture = run("ecc_uncorrected", model)
    assert xids(capture) == numbers
    reported = events(capture)
    assert [data for kind, data in reported if kind == XID] == numbers
    assert (DOUBLE_BIT, 0) in reported
    assert events(capture, ONSET - 1) == []
    for gpu, errors in ((AFFECTED, 1), (OTHER, 0)):
        for lifetime in (0, 1):
            assert nvml(capture, f"DeviceGetTotalEccErrors({gpu},1,{lifetime})") == errors
            assert nvml(capture, f"DeviceGetMemoryErrorCounter({gpu},1,{lifetime},2)") == errors
            assert field(capture, gpu, 4 + 2 * lifetime) == errors
    if find_model(model).remaps_rows:
        assert nvml(capture, f"DeviceGetRemappedRows({AFFECTED})") == [0, 1, 1, 0]
    else:
        assert len(nvml(capture, f"DeviceGetRetiredPages({AFFECTED},1)")) == 1
        assert nvml(capture, f"DeviceGetRetiredPagesPendingStatus({AFFECTED})") == 1
    assert nvml(capture, f"DeviceGetComputeRunningProcesses({OTHER})") == []


def test_a_pending_row_shows_in_banks_in_fields_and_in_the_recovery_action() -> None:
    capture = run("row_remap")
    banks = find_model("h100").banks
    histograms = [
        nvml(capture, f"DeviceGetRowRemapperHistogram({gpu})") for gpu in (AFFECTED, OTHER)
    ]
    assert [(h["max"], h["high"]) for h in histograms] == [(banks - 1, 1), (banks, 0)]
    assert [field(capture, AFFECTED, number) for number in (301, 302, 230)] == [1, 0, 4]
    assert [field(capture, OTHER, number) for number in (301, 302, 230)] == [0, 0, 0]
    assert events(capture) == [(XID, 63), (RETIREMENT, 0), (XID, 154), (RECOVERY, 4)]


@pytest.mark.parametrize(
    ("scenario", "answer", "numbers"),
    [
        ("xid79", LOST, [79, 154]),
        ("gpu_hung", TIMEOUT, [119, 154]),
        ("driver_stuck", PENDING, []),
    ],
)
def test_a_dead_gpu_answers_one_thing_and_sends_no_event(
    scenario: str, answer: Json, numbers: list[int]
) -> None:
    capture = run(scenario)
    own = [
        call
        for call in capture.moments[0].calls
        if f"({AFFECTED}," in call or f"({AFFECTED})" in call
    ]
    assert len(own) > 300
    timeline = index_of(capture)
    assert all(timeline.result_at("calls", call, ONSET * 10**9) == answer for call in own)
    assert all(timeline.result_at("calls", call, SECONDS * 10**9) == answer for call in own)
    assert nvml(capture, "DeviceGetCount()") == 2
    assert nvml(capture, f"DeviceGetPowerUsage({OTHER})") < 250_000
    assert xids(capture) == numbers
    assert events(capture) == []


def test_an_older_driver_reports_no_recovery_action() -> None:
    assert xids(run("xid79", "a100")) == [79]


def test_what_is_denied_is_denied_everywhere_and_always() -> None:
    capture = run("nvml_denied")
    for gpu in (AFFECTED, OTHER):
        for second in (0, SECONDS):
            assert nvml(capture, f"GpmMetricsGet({gpu},2)", second) == DENIED
            assert nvml(capture, f"DeviceGetSramEccErrorStatus({gpu})", second) == DENIED
            assert nvml(capture, f"DeviceGetPowerUsage({gpu})", second) > 0
    assert xids(capture) == []


def test_links_are_reported_every_ten_seconds_and_a_lost_gpu_at_once() -> None:
    capture = simulate(NodeSpec("gpu-001", gpus=1, scenario="xid79"), 46)
    at = [
        moment.offset_ns // 10**9
        for moment in capture.moments
        if "nvml.nvmlDeviceGetFieldValues(0,138:3)" in moment.calls
    ]
    assert at == [0, 10, 20, 23]
