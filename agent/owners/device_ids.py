"""Names of GPUs and their parts in Kubernetes.

Sources: NVIDIA/k8s-device-plugin:internal/rm/devices.go; GoogleCloudPlatform/container-engine-
accelerators:pkg/gpu/nvidia; NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from agent.owners import FormatError


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its UUID; with a replica, one of several shares of it (time slices or MPS).

    A slot (HAMi, Volcano) names the GPU without the size of the share.
    """

    uuid: str
    replica: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class GpuIndex:
    """A GPU by NVML index, or a MIG device by that and its own index; replica as in Gpu."""

    index: int
    mig_index: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device by its UUID; replica as in Gpu."""

    uuid: str
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device as drivers before 470 name it: its GPU and its instance ids."""

    gpu_uuid: str
    gpu_instance: int
    compute_instance: int
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFile:
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
    pool: str
    device: str
    share: str = ""


DeviceId: TypeAlias = Gpu | GpuIndex | MigDevice | MigInstance | DeviceFile

_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_NUMBER = "[0-9]{1,9}"
_NVIDIA = re.compile(
    rf"(?:(?P<gpu>GPU-{_UUID})(?:-(?P<slot>{_NUMBER}))?|(?P<mig>MIG-{_UUID})"
    rf"|MIG-(?P<parent>GPU-{_UUID})/(?P<gi>{_NUMBER})/(?P<ci>{_NUMBER})"
    rf"|(?P<index>{_NUMBER})(?::(?P<mig_index>{_NUMBER}))?)"
    rf"(?:::(?P<replica>{_NUMBER}))?"
)
_GOOGLE = re.compile(
    rf"nvidia(?P<minor>{_NUMBER})(?:/gi(?P<gi>{_NUMBER}))?(?:/vgpu(?P<replica>{_NUMBER}))?"
)


def device_id(text: str) -> DeviceId:
    """Parse a device id of a kubelet's answer. Raises FormatError."""
    found = _NVIDIA.fullmatch(text)
    if found is None:
        found = _GOOGLE.fullmatch(text)
        if found is None:
            message = f"{text[:200]!r} is no name of a GPU that is known"
            raise FormatError(message)
        return DeviceFile(int(found["minor"]), _number(found["gi"]), _number(found["replica"]))
    replica = _number(found["replica"])
    if found["gpu"]:
        return Gpu(found["gpu"], replica, _number(found["slot"]))
    if found["mig"]:
        return MigDevice(found["mig"], replica)
    if found["parent"]:
        return MigInstance(found["parent"], int(found["gi"]), int(found["ci"]), replica)
    return GpuIndex(int(found["index"]), _number(found["mig_index"]), replica)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
