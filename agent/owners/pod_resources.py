"""The kubelet's answer about devices allocated to pods: PodResources v1.

Source: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto. Pods have no uid here. A kubelet may keep
listing pods that have ended (kubernetes issues 119423 and 132020); the caller has to drop them.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.owners.device_ids import ClaimedDevice
from agent.owners.protobuf import Message


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of one resource (`nvidia.com/gpu`), and the NUMA nodes near them."""

    resource: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """A container; the same resource may be in several entries, and all of them count."""

    name: str
    devices: tuple[Devices, ...] = ()
    claims: tuple[Claim, ...] = ()

    def ids(self, resource: str) -> tuple[str, ...]:
        """Return all devices of one resource."""
        return tuple(
            name for entry in self.devices if entry.resource == resource for name in entry.ids
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices of a resource claim (DRA), with their CDI names."""

    name: str
    namespace: str
    devices: tuple[ClaimedDevice, ...] = ()
    cdi_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod and its containers."""

    name: str
    namespace: str
    containers: tuple[Container, ...] = ()


def pods(content: bytes) -> tuple[Pod, ...]:
    """Return the pods of a ListPodResourcesResponse. Raises FormatError."""
    return tuple(_pod(pod) for pod in Message(content).messages(1))


def pod(content: bytes) -> Pod | None:
    """Return the pod of a GetPodResourcesResponse; None if it has none. Raises FormatError."""
    found = [_pod(pod) for pod in Message(content).messages(1)]
    return found[-1] if found else None


def allocatable(content: bytes) -> tuple[Devices, ...]:
    """Return all allocatable devices of an AllocatableResourcesResponse. Raises FormatError."""
    return tuple(_devices(devices) for devices in Message(content).messages(1))


def _pod(message: Message) -> Pod:
    containers = tuple(_container(container) for container in message.messages(3))
    return Pod(message.text(1), message.text(2), containers)


def _container(message: Message) -> Container:
    return Container(
        message.text(1),
        tuple(_devices(devices) for devices in message.messages(2)),
        tuple(_claim(claim) for claim in message.messages(5)),
    )


def _devices(message: Message) -> Devices:
    numa_nodes = tuple(
        node.integer(1) for topology in message.messages(3) for node in topology.messages(1)
    )
    return Devices(message.text(1), message.texts(2), numa_nodes)


def _claim(message: Message) -> Claim:
    resources = list(message.messages(4))
    return Claim(
        message.text(2),
        message.text(3),
        tuple(
            ClaimedDevice(resource.text(2), resource.text(3), resource.text(4), resource.text(5))
            for resource in resources
        ),
        tuple(device.text(1) for resource in resources for device in resource.messages(1)),
    )
