"""Whose a process is, by the control groups it is in: /proc/PID/cgroup.

Lines are `hierarchy:controllers:path`; cgroup v2 has the one line `0::path`, v1 one for each hierarchy,
of which not all need to know a job or container. Paths are those that the reader's cgroup namespace
shows: the agent has to run in the host's.

Sources: Documentation/admin-guide/cgroup-v2.rst; kubernetes/kubernetes:pkg/kubelet/cm/
cgroup_manager_linux.go; SchedMD/slurm:src/plugins/cgroup/v2/cgroup_v2.c; systemd.unit(5) for escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from agent.owners import FormatError, sluid


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """A job of Slurm. It is named by `job` or, where Slurm names cgroups so, by `sluid` alone.

    `task` is empty outside of tasks and `special` for helpers; `daemon` says that the process is not
    the user's but Slurm's own. `node` names the slurmd where several share a server.
    """

    job: int | None
    sluid: str
    step: str
    task: str
    daemon: bool
    user_id: int | None
    node: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A container of a Kubernetes pod; it is empty for what belongs to the pod as a whole.

    The uid is written with dashes, except that of a static pod, which has none.
    """

    uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A domain of libvirt: its driver (`qemu`), its name, its number since libvirtd started."""

    driver: str
    name: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Container:
    """A container outside of any pod. The runtime is empty where the path does not tell it.

    `user_id` is set for one that a user runs without privilege.
    """

    runtime: str
    id: str
    user_id: int | None


@dataclass(frozen=True, slots=True)
class User:
    """A user who logged in; `session` is empty for what runs under the user's own systemd."""

    user_id: int
    session: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A service or scope of systemd."""

    name: str


@dataclass(frozen=True, slots=True)
class Nobody:
    """A process in no group that has an owner, as the kernel's own are."""


@dataclass(frozen=True, slots=True)
class NotVisible:
    """A process outside of the cgroup namespace of the reader, who cannot tell whose it is."""


Owner: TypeAlias = SlurmTask | Pod | Machine | Container | User | Unit | Nobody | NotVisible

_ID = "[0-9a-f]{64}"
_NUMBER = "[0-9]{1,10}"
_END = "(?=/|$)"
_SLURM = re.compile(
    rf"/(?:slurm(?:_(?P<node_v1>[^/]+))?/uid_(?P<user>{_NUMBER})"
    r"|(?:(?P<node_v2>[^/]+)_)?slurmstepd\.scope)"
    rf"/(?:job_(?P<job>{_NUMBER})|(?P<sluid>{sluid.PATTERN}))"
    r"(?:/step_(?P<step>[^/]+)(?P<daemon>/slurm)?(?:/user)?"
    rf"(?:/task_(?P<task>{_NUMBER}|special))?)?{_END}"
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
_DOMAIN = re.compile(rf"(?P<driver>qemu|lxc|xen|ch)-(?:(?P<number>{_NUMBER})-)?(?P<name>.+)")
_USER = re.compile(
    rf"^/user\.slice/user-(?P<user>{_NUMBER})\.slice(?:/session-(?P<session>[^/]+)\.scope)?(?P<below>/.*)?$"
)
_UNIT = re.compile(rf"/(?P<name>[^/]+\.(?:service|scope)){_END}")
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
_DELETED = " (deleted)"


def owner(content: bytes) -> Owner:
    """Whose a process is, by the content of its /proc/PID/cgroup.

    A job is told before the pod that Slurm's daemon may run in, a pod before the container that the
    whole Kubernetes node may run in. Below a user's own systemd directories are named by the user, and
    may say what they like: only a container of that user is believed. Raises FormatError.
    """
    paths = [_path(line) for line in content.decode(errors="backslashreplace").split("\n") if line]
    if any(".." in path.split("/") for path in paths):
        return NotVisible()
    for find in _FINDERS:
        for path in paths:
            found = find(path)
            if found is not None:
                return found
    return Nobody()


def _path(line: str) -> str:
    """The path of one line; the kernel marks that of a group which is gone (cgroup v2)."""
    hierarchy, _, rest = line.partition(":")
    _, colon, path = rest.partition(":")
    if not colon or not hierarchy.isdecimal() or not path.startswith("/"):
        message = f"{line[:200]!r} is no line of /proc/PID/cgroup"
        raise FormatError(message)
    return path.removesuffix(_DELETED)


def _user_container(path: str) -> Owner | None:
    """A container that a user runs, or the user: whatever is below a user's slice is nothing else."""
    user = _USER.search(path)
    if user is None:
        return None
    user_id = int(user["user"])
    container = _CONTAINER.search(user["below"] or "")
    if container:
        return _container_of(container, user_id)
    return User(user_id, user["session"] or "")


def _trusted(find: Callable[[str], Owner | None]) -> Callable[[str], Owner | None]:
    """Look only where no user can make directories."""
    return lambda path: None if _USER.search(path) else find(path)


def _slurm(path: str) -> SlurmTask | None:
    found = _SLURM.search(path)
    if found is None:
        return None
    return SlurmTask(
        job=int(found["job"]) if found["job"] else None,
        sluid=found["sluid"] or "",
        step=found["step"] or "",
        task=found["task"] or "",
        daemon=found["daemon"] is not None,
        user_id=int(found["user"]) if found["user"] else None,
        node=found["node_v1"] or found["node_v2"] or "",
    )


def _pod(path: str) -> Pod | None:
    found = _POD.search(path)
    if found is None:
        return None
    container = _CONTAINER.search(path, found.end())
    return Pod(found[1].replace("_", "-"), _container_of(container).id if container else "")


def _machine(path: str) -> Machine | None:
    found = _MACHINE.search(path)
    domain = found and _DOMAIN.fullmatch(unescaped(found["scope"] or found["directory"]))
    if not domain:
        return None
    return Machine(
        domain["driver"], domain["name"], int(domain["number"]) if domain["number"] else None
    )


def _container(path: str) -> Container | None:
    """The outermost container: the one that the runtime of the server knows."""
    found = _CONTAINER.search(path)
    return _container_of(found) if found else None


def _container_of(found: re.Match[str], user_id: int | None = None) -> Container:
    runtime = found["prefix"] or found["manager"] or found["directory"] or ""
    name = found["named"] or found["managed"] or found["bare"]
    return Container(_RUNTIMES.get(runtime, runtime), name, user_id)


def _unit(path: str) -> Unit | None:
    """The outermost unit: what is below is the unit's own to name."""
    found = _UNIT.search(path)
    return Unit(unescaped(found["name"])) if found else None


def unescaped(name: str) -> str:
    r"""A name of systemd with `\x2d` turned back into what it stands for (systemd.unit(5))."""
    return _ESCAPED.sub(_bytes_of, name)


def _bytes_of(escaped: re.Match[str]) -> str:
    raw = bytes.fromhex(escaped[0].replace(r"\x", ""))
    return raw.decode(errors="backslashreplace")


_FINDERS: tuple[Callable[[str], Owner | None], ...] = (
    *map(_trusted, (_slurm, _pod, _machine, _container)),
    _user_container,
    _trusted(_unit),
)
"""In the order in which they are believed, over all hierarchies."""
