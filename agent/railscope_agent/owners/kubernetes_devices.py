"""Names of GPUs and their parts in Kubernetes: device ids of device plugins, and devices of resource claims."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
# Bounded, so that the number fits into 32 bits whatever a plugin writes.
_NUMBER = "[0-9]{1,9}"
_REPLICA = rf"::(?P<replica>{_NUMBER})"
_NVIDIA = re.compile(
    rf"(?:(?P<gpu>GPU-{_UUID})(?:\[{_NUMBER}-(?P<place>{_NUMBER})\])?|(?P<mig>MIG-{_UUID})"
    rf"|MIG-(?P<parent>GPU-{_UUID})/(?P<gi>{_NUMBER})/(?P<ci>{_NUMBER}))"
    rf"(?:{_REPLICA}|(?P<part>[^0-9A-Za-z\s][!-~]{{0,63}}))?"
)
_INDEX = re.compile(rf"(?P<index>{_NUMBER})(?::(?P<mig_index>{_NUMBER}))?(?:{_REPLICA})?")
_ANY_UUID = re.compile(rf"(?:GPU|MIG)-{_UUID}")
_GOOGLE = re.compile(
    rf"nvidia(?P<minor>{_NUMBER})(?:/gi(?P<gi>{_NUMBER}))?(?:/vgpu(?P<replica>{_NUMBER}))?"
)


@dataclass(frozen=True, slots=True)
class GpuId:
    """A GPU by its UUID; with a replica, one of several shares of it (time slices or MPS).

    Any other text behind the UUID makes it a part of the device whose size the id does not contain: `-3` of HAMi and
    Volcano, `-_-3` of gpushare (AliyunContainerService/gpushare-device-plugin:pkg/gpu/nvidia/nvidia.go). With an index,
    `UUID[GEOMETRY-INDEX]`, HAMi names the MIG device that NVML lists there
    (Project-HAMi/HAMi:docs/develop/protocol.md).
    """

    uuid: str
    replica: int | None = None
    is_part: bool = False
    mig_index: int | None = None


@dataclass(frozen=True, slots=True)
class GpuIndexId:
    """A GPU by NVML index, or a MIG device by that and its own index; replica as in GpuId."""

    index: int
    mig_index: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class MigDeviceId:
    """A MIG device by its UUID; replica and part as in GpuId."""

    uuid: str
    replica: int | None = None
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class MigInstanceId:
    """A MIG device as drivers before 470 name it: its GPU and its instance ids. Replica and part as in GpuId."""

    gpu_uuid: str
    gpu_instance: int
    compute_instance: int
    replica: int | None = None
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFileId:
    """A GPU by the minor number of its /dev/nvidiaN, as Google's plugin names it."""

    minor: int
    gpu_instance: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a resource claim (DRA). Its UUID is an attribute of the node's ResourceSlice.

    `share` is the id of a share of it, if several claims have one.
    """

    driver: str
    device: str
    share: str = ""


DeviceId: TypeAlias = GpuId | GpuIndexId | MigDeviceId | MigInstanceId | DeviceFileId


def parse_device_id(text: str) -> DeviceId | None:
    """Parse a device id of a kubelet's answer; None for a text that is not the id of a GPU.

    Sources: NVIDIA/k8s-device-plugin:internal/rm/devices.go;
    GoogleCloudPlatform/container-engine-accelerators:pkg/gpu/nvidia;
    NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go.
    """
    if match := _GOOGLE.fullmatch(text):
        return DeviceFileId(int(match["minor"]), _number(match["gi"]), _number(match["replica"]))
    if match := _INDEX.fullmatch(text):
        return GpuIndexId(
            int(match["index"]), _number(match["mig_index"]), _number(match["replica"])
        )
    match = _NVIDIA.fullmatch(text)
    if match is None:
        return None
    replica, is_part = _number(match["replica"]), match["part"] is not None
    if match["gpu"]:
        return GpuId(match["gpu"], replica, is_part, _number(match["place"]))
    if match["mig"]:
        return MigDeviceId(match["mig"], replica, is_part)
    gpu_instance, compute_instance = int(match["gi"]), int(match["ci"])
    return MigInstanceId(match["parent"], gpu_instance, compute_instance, replica, is_part)


def uuids_in(text: str) -> tuple[str, ...]:
    """Return the UUIDs of GPUs and MIG devices that a text contains."""
    return tuple(_ANY_UUID.findall(text))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
