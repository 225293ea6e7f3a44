"""Shares of GPUs that the pods of this node request, from the pod list of the kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from agent.host import Host
from agent.host.owners import KUBELET, PODS
from agent.sampling.facts import counted
from agent.sampling.source import Finding, Verdict
from agent.tenancy.devices import Devices
from agent.tenancy.trouble import finding
from railscope.pod_entry import PodEntry
from railscope.pod_shares import Requests, requests_of

WHAT = "shares of GPUs in pods"
_MAX_QUOTED = 5


@dataclass(frozen=True, slots=True)
class KubeletUrl:
    """Address of the pod list of the kubelet; an empty URL disables it."""

    url: str = ""
    token_file: str = ""
    ca_file: str = ""


@dataclass(slots=True)
class PodRequests:
    """Requests of the pods, read at each poll. If the list cannot be read, the previous one stays."""

    kubelet: KubeletUrl = field(default_factory=KubeletUrl)
    ended: frozenset[tuple[str, str]] = frozenset()
    """Ended pods, by namespace and name."""
    findings: tuple[Finding, ...] = ()
    _entries: tuple[PodEntry, ...] = ()

    def look(self, host: Host, devices: Devices) -> Mapping[tuple[str, str], Requests]:
        """Return the requests for shares of each pod, by namespace and name."""
        where, self.findings = self.kubelet, ()
        if not where.url:
            return {}
        try:
            answer = host.call(KUBELET, PODS, where.url, where.token_file, where.ca_file)
            self._entries = msgspec.convert(answer, tuple[PodEntry, ...])
        except (OSError, msgspec.ValidationError) as error:
            remedy = f"see tenancy.kubelet_url {where.url}, kubelet_token_file and kubelet_ca_file"
            self.findings = (finding(WHAT, error, remedy),)
        self.ended = frozenset((e.namespace, e.name) for e in self._entries if e.has_ended)
        found = {
            (entry.namespace, entry.name): requests_of(entry, devices.memory_mib)
            for entry in self._entries
            if not entry.has_ended
        }
        found = {pod: requests for pod, requests in found.items() if requests}
        if not self.findings:
            self.findings = (_finding(found),)
        return found


def _finding(found: Mapping[tuple[str, str], Requests]) -> Finding:
    problems = [text for requests in found.values() for text in requests.problems]
    if problems:
        detail = (
            f"no claim for a share that cannot be computed: {'; '.join(problems[:_MAX_QUOTED])}"
        )
        remedy = "run `railscope claim start --share` for these pods, or correct the annotation"
        return Finding(WHAT, Verdict.BROKEN, detail, remedy)
    return Finding(WHAT, Verdict.SUPPORTED, f"{counted(len(found), 'pod')} with shares")
