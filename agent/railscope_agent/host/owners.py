"""Owners of devices, reduced to the fields that the agent needs.

Environments, container settings and virtual machine definitions contain passwords. A capture
records the answer of a call, so fields that are not returned are not recorded.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec

from railscope.capture import Json
from railscope_agent.host.files import RootedFiles
from railscope_agent.owners import OwnerFormatError, pod_resources
from railscope_agent.owners.pod_list import parse_pod_list
from railscope_agent.owners.runtimes import parse_docker_container, parse_domain, parse_qemu_command
from railscope_agent.owners.slurm import parse_slurm_variables

OWNER, KUBELET = "owner", "kubelet"
LIST, ALLOCATABLE, PODS = "List", "GetAllocatableResources", "Pods"
HOST_INTERFACES = {OWNER, KUBELET}
KUBELET_SECONDS = 4.0
"""Timeout; shorter than the period between two calls."""
_CONTAINERS = "/var/lib/docker/containers"


class OwnerCalls:
    """The host interfaces "owner" and "kubelet". Without `live`, there is no kubelet to call."""

    def __init__(self, files: RootedFiles, *, live: bool) -> None:
        self._files = files
        self._live = live
        self._functions: dict[str, Callable[..., Json]] = {
            "environ": lambda pid: parse_slurm_variables(files.read(f"/proc/{pid}/environ")),
            "container": self._container,
            "domain": lambda path: _as_json(parse_domain(files.read(path))),
            "machine": lambda pid: _as_json(parse_qemu_command(files.read(f"/proc/{pid}/cmdline"))),
            "user": self._user,
        }

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError; EBADMSG for an unrecognized format.

        owner.environ(pid)          Slurm's variables in a process' environment, by name
        owner.container(id, label)  name of a Docker container, and the value of a label
        owner.domain(path)          a libvirt virtual machine by its file
        owner.machine(pid)          the virtual machine that a process runs; None if it runs none
        owner.user(number)          the name of a user
        kubelet.List(socket)        pods that have devices; kubelet.GetAllocatableResources(socket)
        kubelet.Pods(url, token_file, ca_file)  annotations and limits of pods that concern GPUs
        """
        try:
            if host_interface == KUBELET and function == PODS:
                return self._pods(*map(str, arguments))
            if host_interface == KUBELET:
                return self._kubelet(function, str(arguments[0]))
            return self._functions[function](*arguments)
        except OwnerFormatError as error:
            raise OSError(errno.EBADMSG, str(error)) from error

    def _kubelet(self, function: str, socket: str) -> Json:
        if not self._live:
            raise FileNotFoundError(errno.ENOENT, "the kubelet is not available in a copied tree")
        if not Path(socket).exists():
            raise FileNotFoundError(errno.ENOENT, f"{socket} does not exist")
        from railscope_agent.host.kubelet import call_kubelet  # noqa: PLC0415 - HTTP/2 takes 2 MiB

        answer = call_kubelet(socket, function, timeout_seconds=KUBELET_SECONDS)
        if function == LIST:
            return _as_json([pod for pod in pod_resources.parse_pods(answer) if _has_devices(pod)])
        if function == ALLOCATABLE:
            return _as_json(pod_resources.parse_allocatable(answer))
        message = f"unknown function {function!r} of the kubelet"
        raise ValueError(message)

    def _pods(self, url: str, token_file: str, ca_file: str) -> Json:
        if not self._live:
            raise FileNotFoundError(errno.ENOENT, "the kubelet is not available in a copied tree")
        from railscope_agent.host.kubelet_pods import read_pod_list  # noqa: PLC0415 - TLS takes 2 MiB

        entries = parse_pod_list(read_pod_list(url, token_file, ca_file, KUBELET_SECONDS))
        return _as_json([pod for pod in entries if pod.concerns_gpus])

    def _container(self, name: str, label: str) -> Json:
        content = self._files.read(f"{_CONTAINERS}/{name}/config.v2.json")
        return parse_docker_container(content, label)

    def _user(self, number: int) -> Json:
        """Name of a user from passwd(5), which lacks users of a directory service."""
        for line in self._files.read("/etc/passwd").decode(errors="replace").splitlines():
            fields = line.split(":")
            # A slice, since a line may have too few fields.
            if fields[2:3] == [str(number)]:
                return fields[0]
        return ""


def _as_json(answer: object) -> Json:
    """Convert to JSON types: lists, dictionaries, strings."""
    return msgspec.json.decode(msgspec.json.encode(answer))


def _has_devices(pod: pod_resources.KubeletPod) -> bool:
    return any(container.devices or container.claims for container in pod.containers)
