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
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from collector.jobs.documents import documents
from collector.jobs.job import (
    LATEST_SECONDS,
    NS_PER_SECOND,
    RAISED,
    BadLines,
    Job,
    JobList,
    JobListError,
    Unplaced,
    excess,
    future,
    job_list,
    without_repetitions,
)
from collector.metering.units import FOREVER_NS
from railscope.json_shape import ShapeError, check_shape, shown
from railscope.numeric_text import NumberError, parse_whole
from railscope.pod_entry import PodEntry, pod_entry
from railscope.pod_shares import requests_of

NOT_NAMED = "Kubernetes does not tell which GPUs"
_VENDOR, _GPU = "nvidia.com/", "nvidia.com/gpu"
_SHARED = "nvidia.com/gpu.shared"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_PARTS = ("nvidia.com/gpu.shared", "nvidia.com/mig-")
_COUNT = re.compile("[0-9]{1,19}")
_MAX_LABEL_NUMBER = 1 << 40
_OTHER_FORM = (LookupError, TypeError, ValueError, AttributeError)


class _Terminated(msgspec.Struct):
    finishedAt: str | None = None  # noqa: N815 - as in Kubernetes


class _State(msgspec.Struct):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    state: _State | None = None


class _Status(msgspec.Struct):
    phase: str | None = None
    startTime: str | None = None  # noqa: N815 - as in Kubernetes
    initContainerStatuses: list[_ContainerStatus] | None = None  # noqa: N815 - as in Kubernetes
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815 - as in Kubernetes


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct):
    resources: _Resources | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container]
    initContainers: list[_Container] | None = None  # noqa: N815 - as in Kubernetes
    nodeName: str | None = None  # noqa: N815 - as in Kubernetes


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815 - as in Kubernetes


class _Shape(msgspec.Struct):
    """Fields of a pod that are read."""

    metadata: _Metadata
    spec: _Spec
    status: _Status | None = None


def read_kubernetes(text: str, bad: BadLines = RAISED) -> JobList:
    """The pods of lists and changes, each in its last version. Raises JobListError."""
    pods: dict[str, tuple[int, Any, bool]] = {}
    nodes: dict[str, NodeGpus] = {}
    for place, (pod, is_gone) in enumerate(_pods(text, bad), start=1):
        try:
            if pod.get("kind") == "Node":
                nodes[pod["metadata"]["name"]] = NodeGpus.of(pod["metadata"].get("labels") or {})
                continue
            pods[pod["metadata"]["uid"]] = place, pod, is_gone
        except _OTHER_FORM:
            bad.add(JobListError(place, "metadata.uid", "is missing", "pod"))
    told: list[tuple[int, Job]] = []
    without_gpus = never_started = 0
    for place, pod, is_gone in pods.values():
        try:
            check_shape(pod, _Shape)
            unplaced, span = _unplaced(pod, nodes), _span(pod, is_gone=is_gone)
            problem = _problem(unplaced, span, bad.now_ns)
            tenant = _name(pod, "namespace")
            name = f"{tenant}/{_name(pod, 'name')}"
        except ShapeError as error:
            bad.add(JobListError(place, error.field, error.reason, "pod"))
            continue
        except _OTHER_FORM as error:
            bad.add(JobListError(place, "", f"not as Kubernetes writes it: {error}", "pod"))
            continue
        if problem:
            bad.add(JobListError(place, *problem, "pod"))
        elif not unplaced:
            without_gpus += 1
        elif span is None:
            never_started += 1
        else:
            start_ns, end_ns = span
            told.append((place, Job(start_ns, name, tenant, "", end_ns, unplaced=unplaced)))
    found = job_list(without_repetitions(told, "pod", bad), without_gpus, never_started)
    return msgspec.structs.replace(found, rejected=tuple(bad.found))


def _problem(
    unplaced: Sequence[Unplaced], span: tuple[int, int] | None, now_ns: int
) -> tuple[str, str] | None:
    """Field with a value that is invalid for a pod, and the reason."""
    if reason := excess(sum(one.gpus for one in unplaced), 1):
        return "spec.containers", reason
    if span is None:
        return None
    if reason := future(span[0], now_ns):
        return "status.startTime", reason
    if span[1] < FOREVER_NS and (reason := future(span[1], now_ns)):
        return "status", f"the pod ends at {reason}"
    return None


def _pods(text: str, bad: BadLines) -> Iterator[tuple[Any, bool]]:
    """Every pod in the text, and true if it was reported as deleted."""
    for number, document in documents(text, bad):
        if not isinstance(document, dict):
            bad.add(JobListError(number, "", "no JSON object", "document"))
        elif "items" in document:
            if isinstance(document["items"], list):
                yield from ((pod, False) for pod in document["items"])
            else:
                bad.add(JobListError(number, "items", "is no list", "document"))
        elif "object" in document:
            yield document["object"], document.get("type") == "DELETED"
        else:
            yield document, False


def _name(pod: Any, field: str) -> str:
    value = pod["metadata"][field]
    if not isinstance(value, str) or not value or not value.isprintable():
        where = f"metadata.{field}"
        raise ShapeError(where, f"{shown(value)} is no {field}")
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
        field, reason = "status", f"{state} without a time at which its containers ended"
        raise ShapeError(field, reason)
    return start_ns, max(start_ns, *ends)


def _instant_ns(field: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 0 <= moment.timestamp() < LATEST_SECONDS:
        raise ShapeError(field, f"{shown(text)} is no time from 1970 to 2105 with its zone")
    return int(moment.timestamp()) * NS_PER_SECOND


# Devices -------------------------------------------------------------------------------------------


def _unplaced(pod: Any, nodes: Mapping[str, NodeGpus]) -> tuple[Unplaced, ...]:
    """Number of GPUs of a pod, or shares of them; a share that cannot be computed is a reason."""
    where = pod["spec"].get("nodeName") or ""
    node = nodes.get(where, NodeGpus())
    shared = requests_of(_entry(pod), lambda _place: node.memory_mib)
    if shared:
        found = [
            Unplaced(
                where,
                part.count,
                NOT_NAMED,
                node.model,
                Fraction(1) if part.share is None else part.share,
            )
            for part in shared.parts
        ]
        return (*found, *(Unplaced(where, 0, problem) for problem in shared.problems))
    asked = _asked(pod["spec"])
    if node.replicas:
        share = Fraction(1, node.replicas)
        replicas = asked.pop(_SHARED, 0) or asked.pop(_GPU, 0)
        if replicas:
            return (Unplaced(where, replicas, NOT_NAMED, node.model, share),)
    found = [Unplaced(where, asked[_GPU], NOT_NAMED, node.model)] if asked[_GPU] else []
    found += [
        Unplaced(where, 0, f"{name}={count} is a part of a GPU, of unknown size")
        for name, count in sorted(asked.items())
        if count and name.startswith(_PARTS)
    ]
    return tuple(found)


def _entry(pod: Any) -> PodEntry:
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


class NodeGpus(NamedTuple):
    """GPU properties from the labels of a node (NVIDIA/k8s-device-plugin: gpu-feature-discovery)."""

    model: str = ""
    memory_mib: int | None = None
    replicas: int = 0

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> NodeGpus:
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
        return parse_whole(text, _MAX_LABEL_NUMBER)
    except NumberError:
        return None


def _asked(spec: Mapping[str, Any]) -> Counter[str]:
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
                raise ShapeError(field, f"{shown(count)} is no count of devices")
            found[name] = int(count)
    return found
