"""Pods of a node as the kubelet's `/pods` endpoint lists them: annotations and limits that concern GPUs.

Everything else of a pod (environment, volumes, images) is left out of the answer. Source: kubernetes/api:
core/v1/types.go.
"""

from __future__ import annotations

import msgspec

from agent.owners import FormatError
from railscope.pod_entry import PodEntry, pod_entry


class _Resources(msgspec.Struct):
    limits: dict[str, str] = {}


class _Container(msgspec.Struct):
    name: str = ""
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _PodList(msgspec.Struct):
    items: list[_Pod] | None = None


def pod_entries(content: bytes) -> tuple[PodEntry, ...]:
    """Parse a PodList in JSON. Raises FormatError."""
    try:
        listed = msgspec.json.decode(content, type=_PodList).items or []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"invalid list of pods: {error}"
        raise FormatError(message) from error
    return tuple(
        pod_entry(
            (pod.metadata.namespace, pod.metadata.name), pod.status.phase,
            pod.metadata.annotations or {},
            [(one.name, one.resources.limits) for one in pod.spec.containers],
        )
        for pod in listed
    )  # fmt: skip
