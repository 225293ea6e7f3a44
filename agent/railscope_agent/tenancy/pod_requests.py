"""Shares of GPUs that pods request, by the pod list of the kubelet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from railscope.kubernetes_pods import PodEntry
from railscope.pod_shares import (
    GROUP_PREFIX,
    RESERVATION_NAMESPACES,
    DeviceReference,
    PodShareRequests,
    gpu_groups,
    requests_of,
)
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.host.owners import KUBELET, PODS
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import claim_provider
from railscope_agent.tenancy.devices import NodeDevices, find_device

SUBJECT = "shares of GPUs in pods"
_MAX_QUOTED = 5
_RESERVED = "run.ai/reserve_for_gpu_index"
"""Annotation of a reservation pod: the UUID of its GPU."""


@dataclass(slots=True)
class PodRequests:
    """Requests of the pods, read at each poll. If the list cannot be read, the previous one stays."""

    settings: TenancySettings
    """Address of the pod list of the kubelet; an empty URL disables it."""
    ended: frozenset[tuple[str, str]] = frozenset()
    """Ended pods, by namespace and name."""
    findings: tuple[ProbeFinding, ...] = ()
    _entries: tuple[PodEntry, ...] = ()

    def poll(
        self, host: Host, devices: NodeDevices, reserved: Mapping[tuple[str, str], str]
    ) -> Mapping[tuple[str, str], PodShareRequests]:
        """Return the requests for shares of each pod, by namespace and name.

        `reserved` are the GPUs that the kubelet has allocated to reservation pods.
        """
        url, self.findings = self.settings.kubelet_url, ()
        if not url:
            return {}
        try:
            files = self.settings.kubelet_token_file, self.settings.kubelet_ca_file
            answer = host.call(KUBELET, PODS, url, *files)
            self._entries = msgspec.convert(answer, tuple[PodEntry, ...])
        except (OSError, msgspec.ValidationError) as error:
            remedy = f"check tenancy.kubelet_url {url}, kubelet_token_file and kubelet_ca_file"
            self.findings = (claim_provider.failure_finding(SUBJECT, error, remedy),)
        # Also from the previous list: a kubelet that does not answer must not make ended pods holders again.
        self.ended = frozenset((e.namespace, e.name) for e in self._entries if e.has_ended)
        groups = dict(self._groups(devices, reserved))

        def memory_mib(place: DeviceReference) -> int | None:
            return devices.memory_mib(groups.get(place, place) if isinstance(place, str) else place)

        requests = {
            (entry.namespace, entry.name): _place_groups(
                requests_of(entry, memory_mib), entry, groups
            )
            for entry in self._entries
            if not entry.has_ended and entry.namespace not in RESERVATION_NAMESPACES
        }
        requests = {pod: request for pod, request in requests.items() if request}
        if not self.findings:
            self.findings = (_shares_finding(requests),)
        return requests

    def _groups(
        self, devices: NodeDevices, reserved: Mapping[tuple[str, str], str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the GPU of each group: that of its reservation pod, by the kubelet or by the annotation of the pod."""
        for entry in self._entries:
            if entry.namespace in RESERVATION_NAMESPACES and not entry.has_ended:
                stated = find_device(entry.annotations.get(_RESERVED, ""), devices)
                gpu = reserved.get((entry.namespace, entry.name)) or (stated.gpu if stated else "")
                if gpu:
                    yield from ((f"{GROUP_PREFIX}{group}", gpu) for group in gpu_groups(entry))


def _place_groups(
    requests: PodShareRequests, pod: PodEntry, groups: Mapping[str, str]
) -> PodShareRequests:
    """Return the requests with the GPU of each group in its place; a group without one is a problem."""
    placed = PodShareRequests(problems=list(requests.problems))
    for share in requests.shares:
        is_group = isinstance(share.place, str) and share.place.startswith(GROUP_PREFIX)
        gpu = groups.get(str(share.place))
        if not is_group:
            placed.shares.append(share)
        elif gpu:
            placed.shares.append(replace(share, place=gpu))
        else:
            placed.problems.append(
                f"no reservation pod has a GPU for {share.place} of pod {pod.namespace}/{pod.name}"
            )
    return placed


def _shares_finding(requests: Mapping[tuple[str, str], PodShareRequests]) -> ProbeFinding:
    problems = [text for request in requests.values() for text in request.problems]
    if problems:
        detail = (
            f"no claim for a share that cannot be computed: {'; '.join(problems[:_MAX_QUOTED])}"
        )
        remedy = "run `railscope claim start --share` for these pods, or correct the annotation"
        return ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, remedy)
    return ProbeFinding.supported(SUBJECT, f"{format_count(len(requests), 'pod')} with shares")
