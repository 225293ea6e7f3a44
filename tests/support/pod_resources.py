"""The kubelet's answers in its encoding: protobuf by its specification."""

from __future__ import annotations

from railscope_agent.owners.pod_resources import (
    KubeletPod,
    PodContainer,
    PodDevices,
    PodResourceClaim,
)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def integer(number: int, value: int) -> bytes:
    return tag(number, 0) + varint(value)


def piece(number: int, content: bytes) -> bytes:
    return tag(number, 2) + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """Encode a string; an empty one is omitted."""
    return piece(number, value.encode()) if value else b""


def pod_entry(sent: KubeletPod) -> bytes:
    """Encode a pod as an entry of a list."""
    return piece(1, pod(sent))


def pod(sent: KubeletPod) -> bytes:
    containers = b"".join(piece(3, container(each)) for each in sent.containers)
    return text(1, sent.name) + text(2, sent.namespace) + containers


def container(sent: PodContainer) -> bytes:
    given = b"".join(piece(2, devices(each)) for each in sent.devices)
    claims = b"".join(piece(5, claim(each)) for each in sent.claims)
    return text(1, sent.name) + given + claims


def devices(sent: PodDevices) -> bytes:
    ids = b"".join(piece(2, each.encode()) for each in sent.ids)
    nodes = piece(3, piece(1, integer(1, 1)))  # NUMA nodes, which are not read
    return text(1, sent.resource) + ids + nodes


def claim(sent: PodResourceClaim) -> bytes:
    """Encode a claim; all CDI names are in the first device."""
    resources = b""
    for place, device in enumerate(sent.devices):
        names = sent.cdi_names if place == 0 else ()
        resources += piece(
            4,
            b"".join(piece(1, piece(1, name.encode())) for name in names)
            + text(2, device.driver)
            + text(3, "node-1")
            + text(4, device.device)
            + text(5, device.share),
        )
    return text(2, sent.name) + text(3, sent.namespace) + resources
