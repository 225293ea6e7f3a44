"""Devices allocated to pods: answers of the kubelet's PodResources API v1, in protobuf.

Source: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from dataclasses import dataclass

from railscope_agent.owners.kubernetes_devices import ClaimedDevice
from railscope_agent.owners.protobuf import ProtobufMessage


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
