"""Shares of GPUs that pods request, by the pod list of the kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from railscope.kubernetes_pods import PodEntry
from railscope.pod_shares import PodShareRequests, requests_of
from railscope_agent.config import TenancySettings
from railscope_agent.host import Host
from railscope_agent.host.owners import KUBELET, PODS
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import claim_provider
from railscope_agent.tenancy.devices import NodeDevices

SUBJECT = "shares of GPUs in pods"
_MAX_QUOTED = 5


@dataclass(slots=True)
class PodRequests:
    """Requests of the pods, read at each poll. If the list cannot be read, the previous one stays."""

    settings: TenancySettings
    """Address of the pod list of the kubelet; an empty URL disables it."""
    ended: frozenset[tuple[str, str]] = frozenset()
    """Ended pods, by namespace and name."""
    findings: tuple[ProbeFinding, ...] = ()
    _entries: tuple[PodEntry, ...] = ()

    def poll(self, host: Host, devices: NodeDevices) -> Mapping[tuple[str, str], PodShareRequests]:
        """Return the requests for shares of each pod, by namespace and name."""
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
        requests = {
            (entry.namespace, entry.name): requests_of(entry, devices.memory_mib)
            for entry in self._entries
            if not entry.has_ended
        }
        requests = {pod: request for pod, request in requests.items() if request}
        if not self.findings:
            self.findings = (_shares_finding(requests),)
        return requests


def _shares_finding(requests: Mapping[tuple[str, str], PodShareRequests]) -> ProbeFinding:
    problems = [text for request in requests.values() for text in request.problems]
    if problems:
        detail = (
            f"no claim for a share that cannot be computed: {'; '.join(problems[:_MAX_QUOTED])}"
        )
        remedy = "run `railscope claim start --share` for these pods, or correct the annotation"
        return ProbeFinding(SUBJECT, ProbeVerdict.BROKEN, detail, remedy)
    return ProbeFinding.supported(SUBJECT, f"{format_count(len(requests), 'pod')} with shares")
