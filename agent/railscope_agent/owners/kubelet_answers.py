"""The kubelet's answers about pods: device ids, PodResources v1 in protobuf, the pod list in JSON.

Device ids are names of GPUs and their parts in Kubernetes. PodResources v1 contains the devices
allocated to pods. The kubelet's `/pods` endpoint lists the pods of a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from railscope import convert_errors, pod_shares, untrusted_text
from railscope_agent.owners import OwnerFormatError


@dataclass(frozen=True, slots=True)
class GpuId:
    """A GPU by its UUID; with a replica, one of several shares of it (time slices or MPS).

    A slot (HAMi, Volcano) names the GPU without the size of the share.
    """

    uuid: str
    replica: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class GpuIndexId:
    """A GPU by NVML index, or a MIG device by that and its own index; replica as in GpuId."""

    index: int
    mig_index: int | None = None
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class MigDeviceId:
    """A MIG device by its UUID; replica as in GpuId."""

    uuid: str
    replica: int | None = None


@dataclass(frozen=True, slots=True)
class MigInstanceId:
    """A MIG device as drivers before 470 name it: its GPU and its instance ids."""

    gpu_uuid: str
    gpu_instance: int
    compute_instance: int
    replica: int | None = None


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


def parse_device_id(text: str) -> DeviceId | None:
    """Parse a device id of a kubelet's answer; None for a text that is not the id of a GPU.

    Sources: NVIDIA/k8s-device-plugin:internal/rm/devices.go;
    GoogleCloudPlatform/container-engine-accelerators:pkg/gpu/nvidia;
    NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go.
    """
    if match := _GOOGLE.fullmatch(text):
        return DeviceFileId(int(match["minor"]), _number(match["gi"]), _number(match["replica"]))
    match = _NVIDIA.fullmatch(text)
    if match is None:
        return None
    replica = _number(match["replica"])
    if match["gpu"]:
        return GpuId(match["gpu"], replica, _number(match["slot"]))
    if match["mig"]:
        return MigDeviceId(match["mig"], replica)
    if match["parent"]:
        return MigInstanceId(match["parent"], int(match["gi"]), int(match["ci"]), replica)
    return GpuIndexId(int(match["index"]), _number(match["mig_index"]), replica)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


class _PodListResources(msgspec.Struct):
    limits: dict[str, str] = {}


class _PodListContainer(msgspec.Struct):
    name: str = ""
    resources: _PodListResources = msgspec.field(default_factory=_PodListResources)


class _PodListSpec(msgspec.Struct):
    containers: list[_PodListContainer] = []


class _PodListMetadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class _PodListStatus(msgspec.Struct):
    phase: str = ""


class _PodListPod(msgspec.Struct):
    metadata: _PodListMetadata = msgspec.field(default_factory=_PodListMetadata)
    spec: _PodListSpec = msgspec.field(default_factory=_PodListSpec)
    status: _PodListStatus = msgspec.field(default_factory=_PodListStatus)


class _PodList(msgspec.Struct):
    items: list[_PodListPod] | None = None


def parse_pod_list(content: bytes) -> tuple[pod_shares.PodEntry, ...]:
    """Parse a PodList in JSON. Raises OwnerFormatError.

    Only annotations and limits that concern GPUs are returned; everything else of a pod (environment,
    volumes, images) is left out. Source: kubernetes/api:core/v1/types.go.
    """
    with convert_errors(untrusted_text.DECODING_ERRORS, OwnerFormatError, "invalid list of pods: "):
        listed = msgspec.json.decode(content, type=_PodList).items or []
    return tuple(
        pod_shares.pod_entry(
            (pod.metadata.namespace, pod.metadata.name),
            pod.status.phase,
            pod.metadata.annotations or {},
            [(container.name, container.resources.limits) for container in pod.spec.containers],
        )
        for pod in listed
    )


_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_BYTES, _RANGE = 10, 1 << 64


class ProtobufMessage:
    """Fields of one message, by number. Raises OwnerFormatError for invalid bytes.

    Limited to the field types of a few simple messages. Encoding:
    protocolbuffers/protocolbuffers.github.io:content/programming-guides/encoding.md. Fields that are not
    requested, or have another type than requested, are skipped, as in every protobuf decoder.
    """

    def __init__(self, content: bytes) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        for number, value in _fields(content):
            self._pieces.setdefault(number, []).append(value)

    def text(self, number: int) -> str:
        """Return a string field; the last value counts, and the default is empty."""
        texts = self.texts(number)
        return texts[-1] if texts else ""

    def texts(self, number: int) -> tuple[str, ...]:
        """Return a repeated string field."""
        try:
            return tuple(piece.decode() for piece in self._pieces.get(number, ()))
        except UnicodeDecodeError as error:
            message = f"field {number}: invalid UTF-8: {error}"
            raise OwnerFormatError(message) from error

    def messages(self, number: int) -> Iterator[ProtobufMessage]:
        """Return a repeated message; the caller merges one that arrives in several pieces."""
        return map(ProtobufMessage, self._pieces.get(number, ()))


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each length-delimited field, in order; skip other fields."""
    offset = 0
    while offset < len(content):
        tag, offset = _varint(content, offset)
        number, kind = tag >> 3, tag & 7
        if not number or number >= 1 << 29:
            message = f"byte {offset}: invalid field number {number}"
            raise OwnerFormatError(message)
        if kind == _VARINT:
            _, offset = _varint(content, offset)
            continue
        if kind == _LENGTH:
            length, offset = _varint(content, offset)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            message = f"byte {offset}: field {number} has the unknown type {kind}"
            raise OwnerFormatError(message)
        if length > len(content) - offset:
            message = f"byte {offset}: truncated field {number}: {len(content) - offset} of {length} bytes"
            raise OwnerFormatError(message)
        if kind == _LENGTH:
            yield number, content[offset : offset + length]
        offset += length


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    """Decode a varint of up to 64 bits, seven per byte, lowest first; return it and its end."""
    value = 0
    for place, byte in enumerate(content[offset : offset + _MAX_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the top bit means that more bytes follow
            if value >= _RANGE:
                break
            return value, offset + place + 1
    message = f"byte {offset}: invalid number: truncated, or more than 64 bits"
    raise OwnerFormatError(message)


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices of one resource (`nvidia.com/gpu`)."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container; the same resource may be in several entries, and all of them count."""

    name: str
    devices: tuple[PodDevices, ...] = ()
    claims: tuple[PodResourceClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class PodResourceClaim:
    """Devices of a resource claim (DRA), with their CDI names."""

    name: str
    namespace: str
    devices: tuple[ClaimedDevice, ...] = ()
    cdi_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """A pod and its containers."""

    name: str
    namespace: str
    containers: tuple[PodContainer, ...] = ()


def parse_pods(content: bytes) -> tuple[KubeletPod, ...]:
    """Return the pods of a ListPodResourcesResponse. Raises OwnerFormatError.

    Source: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto. Pods have no uid there. A kubelet may
    keep listing pods that have ended (kubernetes issues 119423 and 132020); the caller has to drop them.
    """
    return tuple(_pod(pod) for pod in ProtobufMessage(content).messages(1))


def parse_allocatable(content: bytes) -> tuple[PodDevices, ...]:
    """Return all allocatable devices of an AllocatableResourcesResponse. Raises OwnerFormatError."""
    return tuple(_devices(devices) for devices in ProtobufMessage(content).messages(1))


def _pod(message: ProtobufMessage) -> KubeletPod:
    containers = tuple(_container(container) for container in message.messages(3))
    return KubeletPod(message.text(1), message.text(2), containers)


def _container(message: ProtobufMessage) -> PodContainer:
    return PodContainer(
        message.text(1),
        tuple(_devices(devices) for devices in message.messages(2)),
        tuple(_claim(claim) for claim in message.messages(5)),
    )


def _devices(message: ProtobufMessage) -> PodDevices:
    return PodDevices(message.text(1), message.texts(2))


def _claim(message: ProtobufMessage) -> PodResourceClaim:
    resources = list(message.messages(4))
    return PodResourceClaim(
        message.text(2),
        message.text(3),
        tuple(
            ClaimedDevice(resource.text(2), resource.text(4), resource.text(5))
            for resource in resources
        ),
        tuple(device.text(1) for resource in resources for device in resource.messages(1)),
    )
