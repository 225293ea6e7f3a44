"""List of the pods of a node: answer of the kubelet's `/pods` endpoint, in JSON."""

from __future__ import annotations

import msgspec

from railscope import convert_errors, kubernetes_pods, untrusted_text
from railscope_agent.owners import OwnerFormatError


class _PodListResources(msgspec.Struct):
    limits: dict[str, str] = {}


class _PodListContainer(msgspec.Struct):
    name: str = ""
    resources: _PodListResources = msgspec.field(default_factory=_PodListResources)


class _PodListInitContainer(msgspec.Struct, rename="camel"):
    restart_policy: str | None = None


class _PodListSpec(msgspec.Struct, rename="camel"):
    containers: list[_PodListContainer] = []
    init_containers: list[_PodListInitContainer] | None = None


class _PodListMetadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _PodListStatus(msgspec.Struct):
    phase: str = ""


class _PodListPod(msgspec.Struct):
    metadata: _PodListMetadata = msgspec.field(default_factory=_PodListMetadata)
    spec: _PodListSpec = msgspec.field(default_factory=_PodListSpec)
    status: _PodListStatus = msgspec.field(default_factory=_PodListStatus)


class _PodList(msgspec.Struct):
    items: list[_PodListPod] | None = None


def parse_pod_list(content: bytes) -> tuple[kubernetes_pods.PodEntry, ...]:
    """Parse a PodList in JSON. Raises OwnerFormatError.

    Only annotations, labels and limits that concern GPUs are returned; everything else of a pod (environment,
    volumes, images) is left out. Source: kubernetes/api:core/v1/types.go.
    """
    with convert_errors(untrusted_text.DECODING_ERRORS, OwnerFormatError, "invalid list of pods: "):
        listed = msgspec.json.decode(content, type=_PodList).items or []
    return tuple(
        kubernetes_pods.pod_entry(
            (pod.metadata.namespace, pod.metadata.name),
            pod.status.phase,
            (pod.metadata.annotations or {})
            | kubernetes_pods.gpu_labels(pod.metadata.labels or {}),
            [(container.name, container.resources.limits) for container in pod.spec.containers],
            [container.restart_policy for container in pod.spec.init_containers or ()],
        )
        for pod in listed
    )
