"""Names that device plugins assign to GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from railscope_agent.owners.kubernetes_devices import (
    DeviceFileId,
    DeviceId,
    GpuId,
    GpuIndexId,
    MigDeviceId,
    MigInstanceId,
    parse_device_id,
)

UUID = "8f3b0a5c-17d2-4c1e-9a55-0d6c1e2f3a4b"
GPU, MIG = f"GPU-{UUID}", f"MIG-{UUID}"
IDS: dict[str, DeviceId] = {
    GPU: GpuId(GPU),
    f"{GPU}::3": GpuId(GPU, 3),
    "0": GpuIndexId(0),
    "12": GpuIndexId(12),
    "0:1": GpuIndexId(0, 1),
    "2::0": GpuIndexId(2, replica=0),
    "0:1::7": GpuIndexId(0, 1, 7),
    f"{GPU}-3": GpuId(GPU, is_part=True),
    f"{GPU}-_-3": GpuId(GPU, is_part=True),
    f"{GPU}:1": GpuId(GPU, is_part=True),
    f"{GPU}/shared/1g": GpuId(GPU, is_part=True),
    f"{GPU}[0-3]": GpuId(GPU, mig_index=3),
    f"{MIG}-_-3": MigDeviceId(MIG, is_part=True),
    f"MIG-{GPU}/3/0-1": MigInstanceId(GPU, 3, 0, is_part=True),
    MIG: MigDeviceId(MIG),
    f"{MIG}::7": MigDeviceId(MIG, 7),
    f"MIG-{GPU}/3/0": MigInstanceId(GPU, 3, 0),
    f"MIG-{GPU}/3/0::1": MigInstanceId(GPU, 3, 0, 1),
    "nvidia0": DeviceFileId(0),
    "nvidia0/gi3": DeviceFileId(0, 3),
    "nvidia0/vgpu1": DeviceFileId(0, None, 1),
    "nvidia0/gi3/vgpu1": DeviceFileId(0, 3, 1),
}


@pytest.mark.parametrize("text", IDS)
def test_ids(text):
    assert parse_device_id(text) == IDS[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU-8f3b",
        "nvidia",
        "nvidia0/",
        "nvidia0/gi",
        "nvidia0/vgpu1/gi3",
        "-1",
        "0::",
        "::1",
        f" {GPU}",
        f"{GPU}\n",
        f"{GPU}a",
        f"{GPU}0",
        f"{GPU}- 1",
        f"{GPU}-{'1' * 64}",
        f"card-{GPU}",
        "0-3",
        "/dev/nvidia0",
        "gpu-0",
        "amdgpu_xcp_1",
        "1" * 20,
    ],
)
def test_device_ids_without_a_known_gpu(text):
    assert parse_device_id(text) is None


@given(st.one_of(st.text(), st.text("GPUMIG-0123abnvid/:gv")))
def test_any_text_is_an_id_or_is_none(text):
    found = parse_device_id(text)
    assert found is None or text
