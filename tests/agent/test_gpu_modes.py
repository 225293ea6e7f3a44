"""A changed mode of a GPU is reported."""

from __future__ import annotations

import pytest
from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, at_period

from railscope.catalog.entities import GPU_SETTINGS
from railscope.catalog.gpu import GPU_SETTINGS_INFO
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.gpu_devices import GpuSource

ECC, COMPUTE, LIMIT = (
    f"nvml.nvmlDeviceGet{name}(0)" for name in ("EccMode", "ComputeMode", "PowerManagementLimit")
)
LOST = NvmlError(15, "GPU is lost")


def machine() -> FakeHost:
    host = FakeHost()
    add_gpus(host, 2)
    host.calls |= {ECC: [1, 1], COMPUTE: 0, LIMIT: 700_000}
    return host


def changes(reader: SourceReader) -> list[tuple[str, str, str, str]]:
    frame = reader.run().frame
    assert frame is not None
    return [
        (event.facts["change"], event.facts["gpu"], event.facts["before"], event.facts["after"])
        for event in frame.events
    ]


@pytest.mark.parametrize(
    ("source", "call", "answer", "expected"),
    [
        (GpuSource.health, ECC, [0, 0], ("ecc_mode", "GPU-0", "1", "0")),
        (GpuSource.settings, COMPUTE, 3, ("compute_mode", "GPU-0", "default", "exclusive_process")),
        (GpuSource.settings, LIMIT, 650_500, ("power_limit", "GPU-0", "700", "650.5")),
    ],
)
def test_a_changed_setting_is_reported_once(
    source: type[GpuSource], call: str, answer: object, expected: tuple[str, ...]
) -> None:
    host = machine()
    reader = SourceReader(source(), host, ORIGIN)
    assert changes(reader) == []
    host.calls[call] = answer
    assert changes(reader) == [expected]
    assert changes(reader) == []


def test_an_unreadable_mode_is_not_a_change_and_is_compared_later() -> None:
    host = machine()
    reader = SourceReader(at_period(GpuSource.settings(), 1.0), host, ORIGIN)
    changes(reader)
    host.calls[COMPUTE] = LOST
    assert changes(reader) == []
    host.calls[COMPUTE] = 2
    assert changes(reader) == [("compute_mode", "GPU-0", "default", "prohibited")]


def facts(host: FakeHost) -> dict[str, dict[str, str]]:
    described = GpuSource.settings().probe(host).columnless_entities
    assert {entity.kind for entity in described} == {GPU_SETTINGS}
    return {entity.key[0]: dict(entity.facts) for entity in described}


def test_gpus_with_equal_modes_have_equal_hashes() -> None:
    host = machine()
    host.calls |= {ECC.replace("0", "1"): [1, 1], COMPUTE.replace("0", "1"): 0}
    found = facts(host)
    assert found["GPU-0"] == found["GPU-1"]
    expected = {"ecc": "on", "ecc_pending": "on", "compute_mode": "default"}
    assert found["GPU-0"].items() >= expected.items()
    host.calls[ECC] = [1, 0]
    changed = facts(host)
    assert changed["GPU-0"]["ecc_pending"] == "off"
    assert changed["GPU-0"]["hash"] != changed["GPU-1"]["hash"] == found["GPU-1"]["hash"]
    assert GPU_SETTINGS_INFO.about is GPU_SETTINGS


@pytest.mark.parametrize("answer", [LOST, NvmlError(999, "unknown"), {"mode": 1}, "on", [1, None]])
def test_without_all_modes_there_is_no_hash(answer: object) -> None:
    host = machine()
    host.calls[ECC] = answer
    found = facts(host)
    assert "hash" not in found["GPU-0"]
    assert found["GPU-0"]["compute_mode"] == "default"


def test_a_mode_that_a_gpu_lacks_is_omitted() -> None:
    host = machine()
    host.calls[ECC] = NvmlError(3, "not supported")
    found = facts(host)["GPU-0"]
    assert "ecc" not in found
    assert found["hash"]
