"""Pods as job lists, as printed by `kubectl get pods --all-namespaces --output json`.

That list does not contain deleted pods: `--watch --output-watch-events` prints an object for each
change, of which the last one of a pod counts. Any number of lists, pods and changes may follow one
another.

The kubelet assigns devices to a pod when it admits it (status.startTime), and releases them when
its last container has ended. Kubernetes does not report which GPUs these are. Fields and times:
kubernetes/api:core/v1/types.go; times are whole seconds in UTC.

Shares are those of `railscope.pod_shares`. A list that also contains nodes (`kubectl get
nodes,pods`) provides models, memory and replicas of their GPUs, which are required for shares of
memory and time slices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from railscope import kubernetes_pods, pod_shares, timestamps, untrusted_text
from railscope_collector.jobs import bad_lines, job_list, json_documents

KUBERNETES_UNNAMED = "Kubernetes does not list the GPUs"
_VENDOR, _GPU = "nvidia.com/", "nvidia.com/gpu"
_SHARED = "nvidia.com/gpu.shared"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
_PARTS = ("nvidia.com/gpu.shared", "nvidia.com/mig-")
_COUNT = re.compile("[0-9]{1,19}")
_MAX_LABEL_NUMBER = 1 << 40
_SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError)


class _TerminatedState(msgspec.Struct, rename="camel"):
    finished_at: str | None = None


class _ContainerState(msgspec.Struct):
    running: Any = None
    terminated: _TerminatedState | None = None


class _ContainerStatus(msgspec.Struct, rename="camel"):
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None

    @property
    def has_run(self) -> bool:
        """True if the container has run, in this or an earlier attempt."""
        states = (self.state, self.last_state)
        return any(state and (state.running is not None or state.terminated) for state in states)

    @property
    def finished_at(self) -> str | None:
        """Time at which the container ended; None while it runs or waits, or if it is unknown."""
        ended = self.state and self.state.terminated
        return ended.finished_at if ended else None


class _PodCondition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: str | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str | None = None
    start_time: str | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    conditions: list[_PodCondition] | None = None


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: Any = ""
    resources: _Resources | None = None
    restart_policy: Any = None

    @property
    def limits(self) -> Mapping[str, str | int | float]:
        """Limits by resource."""
        return (self.resources and self.resources.limits) or {}


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    node_name: str | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Pod(msgspec.Struct):
    """Fields of a pod that are read."""

    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


def read_kubernetes(
    text: str, bad: bad_lines.BadLines = bad_lines.RAISE_BAD_LINES
) -> job_list.JobList:
    """The pods of lists and changes, each in its last version. Raises JobListError."""
    # By uid: a pod that is created again may have the name of an earlier one.
    pods: dict[str, tuple[int, Any, bool]] = {}
    nodes: dict[str, NodeGpuLabels] = {}
    for place, (pod, is_gone) in enumerate(_pods(text, bad), start=1):
        try:
            if pod.get("kind") == "Node":
                nodes[pod["metadata"]["name"]] = NodeGpuLabels.parse(
                    pod["metadata"].get("labels") or {}
                )
                continue
            pods[pod["metadata"]["uid"]] = place, pod, is_gone
        except _SHAPE_ERRORS:
            bad.add(bad_lines.JobListError(place, "metadata.uid", "missing field", "pod"))
    builder = job_list.JobListBuilder(bad, "pod")
    for place, listed, is_gone in pods.values():
        with builder.line(place, _shown_name(listed["metadata"])):
            pod = untrusted_text.convert_json(listed, _Pod)
            unplaced, span = _unnamed_gpus(pod, nodes), _span(pod, is_gone=is_gone)
            job_list.check_gpu_count("spec.containers", sum(part.gpus for part in unplaced), 1)
            start_ns, end_ns = span or (0, timestamps.FOREVER_NS)
            bad.check_past("status.startTime", start_ns)
            if end_ns < timestamps.FOREVER_NS:
                bad.check_past("status", end_ns, "end: ")
            tenant, name = _printable(pod, "namespace"), _printable(pod, "name")
            job = job_list.ListedJob(
                start_ns, f"{tenant}/{name}", tenant, "", end_ns, unplaced=unplaced
            )
            builder.add(job, started=span is not None)
    return builder.build()


def _pods(text: str, bad: bad_lines.BadLines) -> Iterator[tuple[Any, bool]]:
    """Every pod in the text, and true if it was reported as deleted."""
    for number, document in json_documents.parse(text, bad):
        if not isinstance(document, dict):
            bad.add(bad_lines.JobListError(number, "", "expected a JSON object", "document"))
        elif "items" in document:
            if isinstance(document["items"], list):
                yield from ((pod, False) for pod in document["items"])
            else:
                bad.add(bad_lines.JobListError(number, "items", "expected a list", "document"))
        elif "object" in document:
            yield document["object"], document.get("type") == "DELETED"
        else:
            yield document, False


def _shown_name(metadata: Mapping[str, Any]) -> str:
    """Namespace and name for messages, whatever their types."""
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _printable(pod: _Pod, field: str) -> str:
    value: str = getattr(pod.metadata, field)
    if not value or not value.isprintable():
        shown = untrusted_text.format_json_value(value)
        bad_lines.reject(f"metadata.{field}", f"{shown}: expected a printable {field}")
    return value


# Time ----------------------------------------------------------------------------------------------


def _span(pod: _Pod, *, is_gone: bool) -> tuple[int, int] | None:
    """Time in which a pod had its devices; without end while it runs, None if it never had any."""
    status = pod.status or _PodStatus()
    statuses = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    has_ended = status.phase in ("Succeeded", "Failed")
    if not status.start_time or (has_ended and not statuses):
        return None  # it is pending, or the kubelet rejected it
    start_ns = _timestamp_ns("status.startTime", status.start_time)
    if not has_ended and not is_gone:
        return start_ns, timestamps.FOREVER_NS
    field = "status.containerStatuses.state.terminated.finishedAt"
    ends = [
        _timestamp_ns(field, container.finished_at)
        for container in statuses
        if container.finished_at
    ]
    # A pod that was deleted by force held its devices also for containers that waited.
    holders = [container for container in statuses if container.has_run or not has_ended]
    if len(ends) < max(len(holders), 1):
        ends.append(_termination_ns(pod, status, has_ended=has_ended))
    return start_ns, max(start_ns, *ends)


def _termination_ns(pod: _Pod, status: _PodStatus, *, has_ended: bool) -> int:
    """Time at which a pod was ended, for containers whose own end is unknown.

    Of a container that it cannot locate, the kubelet writes no `finishedAt` (reason ContainerStatusUnknown,
    kubernetes/kubernetes#122160). It dates an eviction by the condition DisruptionTarget. The deletion of
    a pod that had ended may be days later.
    """
    field, ended = "metadata.deletionTimestamp", pod.metadata.deletion_timestamp
    if has_ended:
        field = "status.conditions.lastTransitionTime"
        disrupted = (
            condition.last_transition_time
            for condition in status.conditions or ()
            if condition.type == "DisruptionTarget" and condition.status == "True"
        )
        ended = next(disrupted, None)
    if not ended:
        state = status.phase if has_ended else "deleted"
        bad_lines.reject(
            "status", f"{state}: expected a time at which each of its containers ended"
        )
    return _timestamp_ns(field, ended)


def _timestamp_ns(field: str, text: str) -> int:
    try:
        seconds = timestamps.parse_timestamp(text) // timestamps.SECOND_NS
    except timestamps.TimestampError:
        seconds = -1
    if not 0 <= seconds < job_list.LATEST_SECONDS:
        bad_lines.reject(
            field,
            f"{untrusted_text.format_json_value(text)}: expected a time from 1970 to 2105 with its zone",
        )
    return seconds * timestamps.SECOND_NS


# Devices -------------------------------------------------------------------------------------------


def _unnamed_gpus(
    pod: _Pod, nodes: Mapping[str, NodeGpuLabels]
) -> tuple[job_list.UnnamedGpus, ...]:
    """Number of GPUs of a pod, or shares of them; a share that cannot be computed is a reason."""
    if pod.metadata.namespace in pod_shares.RESERVATION_NAMESPACES:
        return ()  # its GPU is that of the fractions of its group
    node_name = pod.spec.node_name or ""
    node = nodes.get(node_name, NodeGpuLabels())
    shared = pod_shares.requests_of(_pod_requests(pod), lambda _place: node.memory_mib)
    if shared:
        unnamed = [
            job_list.UnnamedGpus(node_name, 0, f"{part.place} is a part of a GPU, of unknown size")
            if part.is_mig_device
            else job_list.UnnamedGpus(
                node_name,
                part.count,
                KUBERNETES_UNNAMED,
                node.model,
                Fraction(1) if part.share is None else part.share,
            )
            for part in shared.shares
            if part.share != 0
        ]
        return (
            *unnamed,
            *(job_list.UnnamedGpus(node_name, 0, problem) for problem in shared.problems),
        )
    requested = _requested_devices(pod.spec)
    if node.replicas:
        share = Fraction(1, node.replicas)
        # The device plugin may rename the resource of its replicas (renameByDefault).
        replicas = requested.pop(_SHARED, 0) or requested.pop(_GPU, 0)
        if replicas:
            return (
                job_list.UnnamedGpus(node_name, replicas, KUBERNETES_UNNAMED, node.model, share),
            )
    unnamed = (
        [job_list.UnnamedGpus(node_name, requested[_GPU], KUBERNETES_UNNAMED, node.model)]
        if requested[_GPU] and not node.is_partitioned
        else []
    )
    unnamed += [
        job_list.UnnamedGpus(node_name, 0, f"{name}={count} is a part of a GPU, of unknown size")
        for name, count in sorted(requested.items())
        if count and (name.startswith(_PARTS) or (node.is_partitioned and name == _GPU))
    ]
    return tuple(unnamed)


def _pod_requests(pod: _Pod) -> kubernetes_pods.PodEntry:
    """GPU requests of a pod.

    A pod gets the sum of its containers' requests, or the largest request of an init container if
    that is larger; a sidecar is an init container that keeps running
    (kubernetes/kubernetes:pkg/api/v1/resource/helpers.go). Devices of dynamic resource allocation
    (resourceClaims) are not counted: a pod does not contain their number.
    """
    meta = pod.metadata
    containers = [
        (str(container.name), {name: str(amount) for name, amount in container.limits.items()})
        for container in pod.spec.containers
    ]
    return kubernetes_pods.pod_entry(
        (meta.namespace, meta.name),
        "",
        (meta.annotations or {}) | kubernetes_pods.gpu_labels(meta.labels or {}),
        containers,
        [container.restart_policy for container in pod.spec.init_containers or ()],
    )


class NodeGpuLabels(NamedTuple):
    """GPU properties from the labels of a node (NVIDIA/k8s-device-plugin: gpu-feature-discovery).

    With `mig.strategy: single` the device plugin offers each MIG device as nvidia.com/gpu; labels of the
    product (`-MIG-1g.5gb`), memory and replicas are then those of a MIG device. GKE names its size in a label.
    """

    model: str = ""
    memory_mib: int | None = None
    replicas: int = 0
    is_partitioned: bool = False

    @classmethod
    def parse(cls, labels: Mapping[str, str]) -> NodeGpuLabels:
        """Read the labels; missing ones are unknown."""
        memory, replicas = (
            labels.get(f"nvidia.com/gpu.{name}", "") for name in ("memory", "replicas")
        )
        product = labels.get("nvidia.com/gpu.product", "").removesuffix("-SHARED")
        model, mig, _ = product.partition("-MIG-")
        if mig or labels.get(_GKE_PARTITION):
            return cls(model, is_partitioned=True)
        shared = 0 if labels.get(_STRATEGY, "") == "none" else _label_number(replicas) or 0
        return cls(
            model,
            _label_number(memory),
            shared if shared > 1 else 0,
        )


def _label_number(text: str) -> int | None:
    """The number in a node's label; None for anything else."""
    try:
        return untrusted_text.parse_whole(text, _MAX_LABEL_NUMBER)
    except untrusted_text.NumberError:
        return None


def _requested_devices(spec: _PodSpec) -> Counter[str]:
    """The devices that a pod gets, by resource."""
    together: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    for container in spec.init_containers or ():
        requested = _devices(container)
        if container.restart_policy == "Always":
            together += requested
            largest |= together
        else:
            # An init container runs beside the sidecars that began before it.
            largest |= together + requested
    for container in spec.containers:
        together += _devices(container)
    return largest | together


def _devices(container: _Container) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, count in container.limits.items():
        if name.startswith(_VENDOR):
            if not _COUNT.fullmatch(str(count)):
                shown = untrusted_text.format_json_value(count)
                field = f"spec.containers.resources.limits.{name}"
                bad_lines.reject(field, f"{shown}: expected a count of devices")
            counts[name] = int(count)
    return counts
