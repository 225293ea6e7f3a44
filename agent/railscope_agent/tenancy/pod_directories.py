"""Pods that run on the node, by the directories of the kubelet.

The kubelet's log directories and control groups identify the pods that run: a kubelet may keep
listing pods that have ended (kubernetes issues 119423 and 132020). A pod gets its control group
before its log directory, and loses the group first: a pod with a log directory and no group has
ended. Sources: kubernetes/kubernetes:pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory),
pkg/kubelet/cm/pod_container_manager_linux.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import list_names

POD_LOGS = "/var/log/pods"
_GROUPS = "/sys/fs/cgroup"
_HIERARCHIES = (_GROUPS, f"{_GROUPS}/memory", f"{_GROUPS}/systemd")
_ROOTS = {
    "kubepods.slice": ("kubepods-burstable.slice", "kubepods-besteffort.slice"),
    "kubepods": ("burstable", "besteffort"),
}
_LOG = re.compile(r"(?P<namespace>[^_]+)_(?P<name>[^_]+)_(?P<uid>[0-9a-f-]{32,36})")
_GROUP = re.compile(r"(?:^|-)pod([0-9a-f_-]{32,36})(?:\.slice)?$")


@dataclass(frozen=True, slots=True)
class NodePods:
    """Pods of the node. `alive` is None if their control groups are not visible."""

    uids: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """UIDs by namespace and name; a recreated pod has several."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    alive_pods: frozenset[str] | None = None

    def has_ended(self, namespace: str, name: str) -> bool:
        """True if a pod is certain to have ended."""
        uids = self.uids.get((namespace, name), set())
        # A recreated pod has several uids: it has ended only if none of them runs.
        return self.alive_pods is not None and bool(uids) and not uids & self.alive_pods

    def is_running(self, namespace: str, name: str) -> bool:
        """True if a pod has a control group."""
        return bool(self.uids.get((namespace, name), set()) & (self.alive_pods or set()))


def scan_pods(host: Host) -> NodePods:
    """Return the pods of the node."""
    uids: dict[tuple[str, str], set[str]] = {}
    named: dict[str, tuple[str, str]] = {}
    for directory in list_names(host, POD_LOGS):
        match = _LOG.fullmatch(directory)
        if match:
            pod = match["namespace"], match["name"]
            uids.setdefault(pod, set()).add(match["uid"])
            named[match["uid"]] = pod
    # Without log directories no pod could be identified, so their groups need not be read.
    return NodePods(uids, named, _running_pods(host) if named else None)


def _running_pods(host: Host) -> frozenset[str] | None:
    """Return the uids of all pods with a control group; None if no such groups are found.

    A kubelet whose cgroup driver changes leaves the root of the other driver, and the pods in it: the pods of
    all roots run (kubernetes.io, "Configuring a cgroup driver").
    """
    uids: set[str] | None = None
    for root, qualities in _ROOTS.items():
        for place in (f"{hierarchy}/{root}" for hierarchy in _HIERARCHIES):
            try:
                entries = host.names(place)
            except OSError:
                continue
            for quality in qualities:
                if quality in entries:
                    entries = [*entries, *list_names(host, f"{place}/{quality}")]
            matches = map(_GROUP.search, entries)
            uids = (uids or set()) | {match[1].replace("_", "-") for match in matches if match}
    return None if uids is None else frozenset(uids)
