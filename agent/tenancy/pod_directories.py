"""Pods of the node, from the kubelet's log directories and control groups.

A kubelet may keep listing pods that have ended (kubernetes issues 119423 and 132020). A pod gets its
control group before its log directory, and loses the group first: a pod with a log directory and no group
has ended. Sources: kubernetes/kubernetes:pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory),
pkg/kubelet/cm/pod_container_manager_linux.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agent.host import Host
from agent.sampling.facts import names

LOGS = "/var/log/pods"
_GROUPS = "/sys/fs/cgroup"
_HIERARCHIES = (_GROUPS, f"{_GROUPS}/memory", f"{_GROUPS}/systemd")
_ROOTS = {
    "kubepods.slice": ("kubepods-burstable.slice", "kubepods-besteffort.slice"),
    "kubepods": ("burstable", "besteffort"),
}
_LOG = re.compile(r"(?P<namespace>[^_]+)_(?P<name>[^_]+)_(?P<uid>[0-9a-f-]{32,36})")
_GROUP = re.compile(r"(?:^|-)pod([0-9a-f_-]{32,36})(?:\.slice)?$")


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of the node. `alive` is None if their control groups are not visible."""

    uids: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """By namespace and name; a pod that was created again has several uids."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    alive: frozenset[str] | None = None

    def has_ended(self, namespace: str, name: str) -> bool:
        """True if a pod is certain to have ended."""
        uids = self.uids.get((namespace, name), set())
        return self.alive is not None and bool(uids) and not uids & self.alive


class PodDirectories:
    """Scanner of the kubelet's directories; caches their location."""

    def __init__(self) -> None:
        self._root = ""

    def look(self, host: Host) -> Pods:
        """Return the pods of the node."""
        uids: dict[tuple[str, str], set[str]] = {}
        named: dict[str, tuple[str, str]] = {}
        for directory in names(host, LOGS):
            found = _LOG.fullmatch(directory)
            if found:
                pod = found["namespace"], found["name"]
                uids.setdefault(pod, set()).add(found["uid"])
                named[found["uid"]] = pod
        return Pods(uids, named, self._alive(host) if named else None)

    def _alive(self, host: Host) -> frozenset[str] | None:
        """Return the uids of all pods with a control group; None if no such groups are found."""
        places = [self._root] if self._root else []
        places += [f"{h}/{root}" for h in _HIERARCHIES for root in _ROOTS]
        for place in places:
            try:
                entries = host.names(place)
            except OSError:
                continue
            self._root = place
            for quality in _ROOTS[place.rpartition("/")[2]]:
                if quality in entries:
                    entries = [*entries, *names(host, f"{place}/{quality}")]
            matches = map(_GROUP.search, entries)
            return frozenset(found[1].replace("_", "-") for found in matches if found)
        self._root = ""
        return None
