"""Owner of a process by its control groups: /proc/PID/cgroup.

Lines are `hierarchy:controllers:path`. cgroup v2 has the one line `0::path`; v1 has one per hierarchy, and
not every hierarchy contains the job or container. Paths are relative to the reader's cgroup namespace: the
agent has to run in that of the host.

Sources: Documentation/admin-guide/cgroup-v2.rst; kubernetes/kubernetes:pkg/kubelet/cm/
cgroup_manager_linux.go; SchedMD/slurm:src/plugins/cgroup/v2/cgroup_v2.c; systemd.unit(5) for escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from railscope_agent.owners import OwnerFormatError, slurm


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """A Slurm job, named by `job` or, if Slurm names control groups by SLUID, by `sluid` alone."""

    job: int | None
    sluid: str


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A Kubernetes pod. The uid is written with dashes, except that of a static pod, which has none."""

    uid: str


@dataclass(frozen=True, slots=True)
class VirtualMachineOwner:
    """A libvirt domain."""

    name: str


@dataclass(frozen=True, slots=True)
class ContainerOwner:
    """A container outside of any pod. The runtime is empty if the path does not contain it.

    The id of a system container (LXC, Incus) is its name. `user_id` is set for a rootless container of a user.
    """

    runtime: str
    id: str
    user_id: int | None


@dataclass(frozen=True, slots=True)
class UserOwner:
    """A user session; `session` is empty for processes under the user's own systemd instance."""

    user_id: int
    session: str


@dataclass(frozen=True, slots=True)
class UnitOwner:
    """A systemd service or scope."""

    name: str


@dataclass(frozen=True, slots=True)
class NoOwner:
    """A process in no group with an owner, such as a kernel thread."""


@dataclass(frozen=True, slots=True)
class OwnerNotVisible:
    """A process outside of the reader's cgroup namespace, whose owner is not visible."""


CgroupOwner: TypeAlias = (
    SlurmTask
    | PodOwner
    | VirtualMachineOwner
    | ContainerOwner
    | UserOwner
    | UnitOwner
    | NoOwner
    | OwnerNotVisible
)

_ID = "[0-9a-f]{64}"
_NUMBER = "[0-9]{1,10}"
_END = "(?=/|$)"
_SLURM = re.compile(
    rf"/(?:slurm(?:_[^/]+)?/uid_{_NUMBER}|(?:[^/]+_)?slurmstepd\.scope)"
    rf"/(?:job_(?P<job>{_NUMBER})|(?P<sluid>{slurm.SLUID_PATTERN})){_END}"
)
_POD = re.compile(
    r"kubepods.*?[-/]pod"
    r"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?=[.:/]|$)"
)
_CONTAINER = re.compile(
    rf"/(?P<prefix>cri-containerd|crio|docker|libpod|nerdctl)-(?:payload-)?(?P<named>{_ID})(?:\.scope)?{_END}"
    rf"|:(?P<manager>[a-z-]+):(?P<managed>{_ID}){_END}"
    rf"|(?:/(?P<directory>docker))?/(?P<bare>{_ID}){_END}"
)
_RUNTIMES = {
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
}
_MACHINE = re.compile(
    rf"/(?:machine-(?P<scope>[^/]+)\.scope|(?P<directory>[^/]+)\.libvirt-[a-z]+){_END}"
)
_LXC = re.compile(rf"/lxc(?:\.payload[./]|/)(?P<name>[^/]+){_END}")
"""LXC, LXD and Incus; `lxc.monitor.NAME` has processes of the host. Source: lxc/lxc:src/lxc/cgroups/cgfsng.c."""
_MANAGER = (
    # Kubernetes: nodes of k3s, k0s, RKE2 and MicroK8s run the kubelet and its pods in one service.
    r"(?:kubelet|k3s(?:-[^/]+)?|k0s(?:worker|controller)|rke2-(?:agent|server)|snap\.microk8s\.daemon-[^/]+"
    r"|containerd|crio|cri-docker|docker|snap\.docker\.dockerd|slurmd(?:@[^/]+)?"
    r"|libvirtd|virtqemud|incus|lxd|snap\.lxd\.daemon|lxc(?:@[^/]+)?)\.service"
    rf"|(?:[^/]+_)?slurmstepd\.scope|(?:cri-containerd|crio|docker|libpod|nerdctl)-{_ID}\.scope"
)
"""Units whose owners name the groups below them after jobs, pods and containers of this node."""
_SUBTREE = re.compile(
    rf"{_LXC.pattern}|/[^/]+\.libvirt-[a-z]+{_END}"
    # Podman adds its container to the service that starts it (podman-run(1), --cgroups=split).
    rf"|/(?!(?:{_MANAGER}){_END})[^/]+\.(?:service|scope)(?:/libpod-payload-{_ID})?{_END}"
)
"""The outermost group whose owner names the groups below it as it likes: a guest, or a unit that is no manager."""
_DOMAIN = re.compile(rf"(?:qemu|lxc|xen|ch)-(?:{_NUMBER}-)?(?P<name>.+)")
"""Driver, number since the start of libvirtd, and name."""
_USER = re.compile(
    rf"^/user\.slice/user-(?P<user>{_NUMBER})\.slice(?:/session-(?P<session>[^/]+)\.scope)?(?P<below>/.*)?$"
)
_UNIT = re.compile(rf"/(?P<name>[^/]+\.(?:service|scope)){_END}")
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
_DELETED = " (deleted)"


def parse_owner(content: bytes) -> CgroupOwner:
    """Return the owner of a process, from the content of its /proc/PID/cgroup.

    A job precedes the pod that slurmd may run in, and a pod precedes the container that the whole
    Kubernetes node may run in. Users can create directories with any name below their own systemd slice, so
    there only a container of that user is accepted. A machine, a system container and a unit that manages no
    jobs, pods or containers of the node name everything below their own group (systemd.io, Control Group APIs
    and Delegation): that part is not parsed. Raises OwnerFormatError.
    """
    paths = [_path(line) for line in content.decode(errors="backslashreplace").split("\n") if line]
    # The kernel prints paths outside of the reader's cgroup namespace with /../ (cgroup_namespaces(7)).
    if any(".." in path.split("/") for path in paths):
        return OwnerNotVisible()
    # Kinds of owners in the outer loop: with cgroup v1 a job may be in one hierarchy and its container in
    # another.
    for find in _FINDERS:
        for path in paths:
            owner = find(path)
            if owner is not None:
                return owner
    return NoOwner()


def _path(line: str) -> str:
    """Return the path of one line down to a group that names its own subtree, without the mark of a deleted group.

    Units of a user are no owners: everything below the user's slice belongs to the user.
    """
    hierarchy, _, controllers = line.partition(":")
    _, colon, path = controllers.partition(":")
    if not colon or not hierarchy.isdecimal() or not path.startswith("/"):
        message = f"invalid line of /proc/PID/cgroup: {line[:200]!r}"
        raise OwnerFormatError(message)
    path = path.removesuffix(_DELETED)
    subtree = (_LXC if _USER.search(path) else _SUBTREE).search(path)
    return path[: subtree.end()] if subtree else path


def _user_container(path: str) -> CgroupOwner | None:
    """Return a user's container, or the user: nothing else is accepted below a user's slice."""
    user = _USER.search(path)
    if user is None:
        return None
    user_id, below = int(user["user"]), user["below"] or ""
    if container := _CONTAINER.search(below):
        return _container_of(container, user_id)
    if container := _LXC.search(below):  # the user chose the name, which others may have, too
        return ContainerOwner("lxc", f"{container['name']}@{user_id}", user_id)
    return UserOwner(user_id, user["session"] or "")


def _outside_user_slices(
    find: Callable[[str], CgroupOwner | None],
) -> Callable[[str], CgroupOwner | None]:
    """Restrict a finder to paths where users cannot create directories."""
    return lambda path: None if _USER.search(path) else find(path)


def _slurm(path: str) -> SlurmTask | None:
    match = _SLURM.search(path)
    # slurmd itself may run in a pod: then a job below it is that of the node.
    if match is None or (_container(path[: match.start()]) and not _pod(path)):
        return (
            None  # a container that is no pod has no slurmd of the node: its guest chose the name
        )
    return SlurmTask(int(match["job"]) if match["job"] else None, match["sluid"] or "")


def _pod(path: str) -> PodOwner | None:
    match = _POD.search(path)
    return PodOwner(match[1].replace("_", "-")) if match else None


def _machine(path: str) -> VirtualMachineOwner | None:
    match = _MACHINE.search(path)
    domain = match and _DOMAIN.fullmatch(unescape_unit_name(match["scope"] or match["directory"]))
    return VirtualMachineOwner(domain["name"]) if domain else None


def _container(path: str) -> ContainerOwner | None:
    """Return the outermost container: the one of the host's runtime."""
    if match := _CONTAINER.search(path):
        return _container_of(match)
    system = _LXC.search(path)
    return ContainerOwner("lxc", system["name"], None) if system else None


def _container_of(match: re.Match[str], user_id: int | None = None) -> ContainerOwner:
    runtime = match["prefix"] or match["manager"] or match["directory"] or ""
    name = match["named"] or match["managed"] or match["bare"]
    return ContainerOwner(_RUNTIMES.get(runtime, runtime), name, user_id)


def _unit(path: str) -> UnitOwner | None:
    """Return the outermost unit: a unit may name the groups below it as it likes."""
    match = _UNIT.search(path)
    return UnitOwner(unescape_unit_name(match["name"])) if match else None


def unescape_unit_name(name: str) -> str:
    r"""Return a systemd name with escapes such as `\x2d` replaced (systemd.unit(5))."""
    return _ESCAPED.sub(_bytes_of, name)


def _bytes_of(escaped: re.Match[str]) -> str:
    # A run of escapes at once: the bytes of one character of UTF-8 belong together.
    raw = bytes.fromhex(escaped[0].replace(r"\x", ""))
    return raw.decode(errors="backslashreplace")


_FINDERS: tuple[Callable[[str], CgroupOwner | None], ...] = (
    *map(_outside_user_slices, (_slurm, _pod, _container, _machine)),
    _user_container,
    _outside_user_slices(_unit),
)
"""Owner parsers in order of precedence, over all hierarchies."""
