"""Pods as job lists, as printed by `kubectl get pods --all-namespaces --output json`.

That list does not contain deleted pods: `--watch --output-watch-events` prints an object for each
change, of which the last one of a pod counts. Any number of lists, pods and changes may follow one
another.

The kubelet assigns devices to a pod when it admits it (status.startTime), and releases them when
its last container has ended. A pod gets the sum of its containers' requests, or the largest request
of an init container if that is larger; a sidecar is an init container that keeps running
(kubernetes/kubernetes:pkg/api/v1/resource/helpers.go). Kubernetes does not report which GPUs these
are. Fields and times: kubernetes/api:core/v1/types.go; times are whole seconds in UTC. Devices of
dynamic resource allocation (resourceClaims) are not counted: a pod does not contain their number.

Shares are those of `railscope.pod_shares`. A list that also contains nodes (`kubectl get
nodes,pods`) provides models, memory and replicas of their GPUs, which are required for shares of
memory and time slices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from collector.jobs import job_list
from railscope import untrusted_text
from railscope.pod_shares import PodEntry, pod_entry, requests_of
from railscope.timestamps import FOREVER_NS, SECOND_NS, TimestampError, parse_timestamp

KUBERNETES_UNNAMED = "Kubernetes does not list the GPUs"
_VENDOR, _GPU = "nvidia.com/", "nvidia.com/gpu"
_SHARED = "nvidia.com/gpu.shared"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_PARTS = ("nvidia.com/gpu.shared", "nvidia.com/mig-")
_COUNT = re.compile("[0-9]{1,19}")
_MAX_LABEL_NUMBER = 1 << 40
_SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError)


class _JobPodTerminatedState(msgspec.Struct):
    finishedAt: str | None = None  # noqa: N815 - as in Kubernetes


class _JobPodContainerState(msgspec.Struct):
    terminated: _JobPodTerminatedState | None = None


class _JobPodContainerStatus(msgspec.Struct):
    state: _JobPodContainerState | None = None


class _JobPodStatus(msgspec.Struct):
    phase: str | None = None
    startTime: str | None = None  # noqa: N815 - as in Kubernetes
    initContainerStatuses: list[_JobPodContainerStatus] | None = None  # noqa: N815 - as in Kubernetes
    containerStatuses: list[_JobPodContainerStatus] | None = None  # noqa: N815 - as in Kubernetes


class _JobPodResources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _JobPodContainer(msgspec.Struct):
    resources: _JobPodResources | None = None


class _JobPodSpec(msgspec.Struct):
    containers: list[_JobPodContainer]
    initContainers: list[_JobPodContainer] | None = None  # noqa: N815 - as in Kubernetes
    nodeName: str | None = None  # noqa: N815 - as in Kubernetes


class _JobPodMetadata(msgspec.Struct):
    name: str
    namespace: str
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815 - as in Kubernetes


class _JobPod(msgspec.Struct):
    """Fields of a pod that are read."""

    metadata: _JobPodMetadata
    spec: _JobPodSpec
    status: _JobPodStatus | None = None


def read_kubernetes(
    text: str, bad: job_list.BadLines = job_list.RAISE_BAD_LINES
) -> job_list.JobList:
    """The pods of lists and changes, each in its last version. Raises JobListError."""
    pods: dict[str, tuple[int, Any, bool]] = {}
    nodes: dict[str, NodeGpuLabels] = {}
    for place, (pod, is_gone) in enumerate(_pods(text, bad), start=1):
        try:
            if pod.get("kind") == "Node":
                nodes[pod["metadata"]["name"]] = NodeGpuLabels.of(
                    pod["metadata"].get("labels") or {}
                )
                continue
            pods[pod["metadata"]["uid"]] = place, pod, is_gone
        except _SHAPE_ERRORS:
            bad.add(job_list.JobListError(place, "metadata.uid", "missing field", "pod"))
    listed: list[tuple[int, job_list.ListedJob]] = []
    without_gpus = never_started = 0
    for place, pod, is_gone in pods.values():
        try:
            untrusted_text.convert_json(pod, _JobPod)
            unplaced, span = _unnamed_gpus(pod, nodes), _span(pod, is_gone=is_gone)
            problem = _problem(unplaced, span, bad.now_ns)
            tenant = _name(pod, "namespace")
            name = f"{tenant}/{_name(pod, 'name')}"
        except untrusted_text.ShapeError as error:
            bad.add(job_list.JobListError(place, error.field, error.reason, "pod"))
            continue
        except _SHAPE_ERRORS as error:
            bad.add(job_list.JobListError(place, "", f"invalid pod: {error}", "pod"))
            continue
        if problem:
            bad.add(job_list.JobListError(place, *problem, "pod"))
        elif not unplaced:
            without_gpus += 1
        elif span is None:
            never_started += 1
        else:
            start_ns, end_ns = span
            listed.append(
                (place, job_list.ListedJob(start_ns, name, tenant, "", end_ns, unplaced=unplaced))
            )
    found = job_list.build_job_list(
        job_list.without_repetitions(listed, "pod", bad), without_gpus, never_started
    )
    return msgspec.structs.replace(found, rejected=tuple(bad.found))


def _problem(
    unplaced: Sequence[job_list.UnnamedGpus], span: tuple[int, int] | None, now_ns: int
) -> tuple[str, str] | None:
    """Field with a value that is invalid for a pod, and the reason."""
    if reason := job_list.excess_reason(sum(one.gpus for one in unplaced), 1):
        return "spec.containers", reason
    if span is None:
        return None
    if reason := job_list.future_reason(span[0], now_ns):
        return "status.startTime", reason
    if span[1] < FOREVER_NS and (reason := job_list.future_reason(span[1], now_ns)):
        return "status", f"end: {reason}"
    return None


def _pods(text: str, bad: job_list.BadLines) -> Iterator[tuple[Any, bool]]:
    """Every pod in the text, and true if it was reported as deleted."""
    for number, document in job_list.json_documents(text, bad):
        if not isinstance(document, dict):
            bad.add(job_list.JobListError(number, "", "expected a JSON object", "document"))
        elif "items" in document:
            if isinstance(document["items"], list):
                yield from ((pod, False) for pod in document["items"])
            else:
                bad.add(job_list.JobListError(number, "items", "expected a list", "document"))
        elif "object" in document:
            yield document["object"], document.get("type") == "DELETED"
        else:
            yield document, False


def _name(pod: Any, field: str) -> str:
    value = pod["metadata"][field]
    if not isinstance(value, str) or not value or not value.isprintable():
        where = f"metadata.{field}"
        raise untrusted_text.ShapeError(
            where, f"{untrusted_text.format_json_value(value)}: expected a printable {field}"
        )
    return value


# Time ----------------------------------------------------------------------------------------------


def _span(pod: Any, *, is_gone: bool) -> tuple[int, int] | None:
    """Time in which a pod had its devices; without end while it runs, None if it never had any."""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    has_ended = status.get("phase") in ("Succeeded", "Failed")
    if not status.get("startTime") or (has_ended and not statuses):
        return None  # it is pending, or the kubelet rejected it
    start_ns = _instant_ns("status.startTime", status["startTime"])
    if not has_ended and not is_gone:
        return start_ns, FOREVER_NS
    ends = [
        _instant_ns(
            "status.containerStatuses.state.terminated.finishedAt",
            state["terminated"]["finishedAt"],
        )
        for one in statuses
        if (state := one.get("state") or {}).get("terminated")
        and state["terminated"].get("finishedAt")
    ]
    if is_gone and len(ends) < len(statuses) and pod["metadata"].get("deletionTimestamp"):
        # Deleted by force: until then its containers may have run.
        ends.append(_instant_ns("metadata.deletionTimestamp", pod["metadata"]["deletionTimestamp"]))
    if not ends:
        state = "deleted" if is_gone else status["phase"]
        field, reason = "status", f"{state}: expected a time at which its containers ended"
        raise untrusted_text.ShapeError(field, reason)
    return start_ns, max(start_ns, *ends)


def _instant_ns(field: str, text: str) -> int:
    try:
        seconds = parse_timestamp(text) // SECOND_NS
    except TimestampError:
        seconds = -1
    if not 0 <= seconds < job_list.LATEST_SECONDS:
        raise untrusted_text.ShapeError(
            field,
            f"{untrusted_text.format_json_value(text)}: expected a time from 1970 to 2105 with its zone",
        )
    return seconds * SECOND_NS


# Devices -------------------------------------------------------------------------------------------


def _unnamed_gpus(pod: Any, nodes: Mapping[str, NodeGpuLabels]) -> tuple[job_list.UnnamedGpus, ...]:
    """Number of GPUs of a pod, or shares of them; a share that cannot be computed is a reason."""
    where = pod["spec"].get("nodeName") or ""
    node = nodes.get(where, NodeGpuLabels())
    shared = requests_of(_pod_requests(pod), lambda _place: node.memory_mib)
    if shared:
        found = [
            job_list.UnnamedGpus(
                where,
                part.count,
                KUBERNETES_UNNAMED,
                node.model,
                Fraction(1) if part.share is None else part.share,
            )
            for part in shared.parts
        ]
        return (*found, *(job_list.UnnamedGpus(where, 0, problem) for problem in shared.problems))
    requested = _requested_devices(pod["spec"])
    if node.replicas:
        share = Fraction(1, node.replicas)
        replicas = requested.pop(_SHARED, 0) or requested.pop(_GPU, 0)
        if replicas:
            return (job_list.UnnamedGpus(where, replicas, KUBERNETES_UNNAMED, node.model, share),)
    found = (
        [job_list.UnnamedGpus(where, requested[_GPU], KUBERNETES_UNNAMED, node.model)]
        if requested[_GPU]
        else []
    )
    found += [
        job_list.UnnamedGpus(where, 0, f"{name}={count} is a part of a GPU, of unknown size")
        for name, count in sorted(requested.items())
        if count and name.startswith(_PARTS)
    ]
    return tuple(found)


def _pod_requests(pod: Any) -> PodEntry:
    """GPU requests of a pod."""
    meta, spec = pod["metadata"], pod["spec"]
    containers = [
        (str(one.get("name", "")), {
            name: str(amount)
            for name, amount in ((one.get("resources") or {}).get("limits") or {}).items()
        })
        for one in spec["containers"]
    ]  # fmt: skip
    return pod_entry(
        (meta["namespace"], meta["name"]), "", meta.get("annotations") or {}, containers
    )


class NodeGpuLabels(NamedTuple):
    """GPU properties from the labels of a node (NVIDIA/k8s-device-plugin: gpu-feature-discovery)."""

    model: str = ""
    memory_mib: int | None = None
    replicas: int = 0

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> NodeGpuLabels:
        """Read the labels; missing ones are unknown."""
        memory, replicas = (
            labels.get(f"nvidia.com/gpu.{name}", "") for name in ("memory", "replicas")
        )
        shared = 0 if labels.get(_STRATEGY, "") == "none" else _label_number(replicas) or 0
        return cls(
            labels.get("nvidia.com/gpu.product", "").removesuffix("-SHARED"),
            _label_number(memory),
            shared if shared > 1 else 0,
        )


def _label_number(text: str) -> int | None:
    """The number in a node's label; None for anything else."""
    try:
        return untrusted_text.parse_whole(text, _MAX_LABEL_NUMBER)
    except untrusted_text.NumberError:
        return None


def _requested_devices(spec: Mapping[str, Any]) -> Counter[str]:
    """The devices that a pod gets, by resource."""
    together: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        one = _devices(container)
        if container.get("restartPolicy") == "Always":
            together += one
            largest |= together
        else:
            largest |= together + one
    for container in spec["containers"]:
        together += _devices(container)
    return largest | together


def _devices(container: Mapping[str, Any]) -> Counter[str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    found: Counter[str] = Counter()
    for name, count in limits.items():
        if name.startswith(_VENDOR):
            if not _COUNT.fullmatch(str(count)):
                field = f"spec.containers.resources.limits.{name}"
                raise untrusted_text.ShapeError(
                    field, f"{untrusted_text.format_json_value(count)}: expected a count of devices"
                )
            found[name] = int(count)
    return found
