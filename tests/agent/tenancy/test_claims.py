"""Claims of a node: the contents of a node, and all that the agent reports about claims at each poll.

    node GPUS [SETTING=VALUE]   another node; at first it has two GPUs. `set SETTING=VALUE` changes the settings
    cut GPU PROFILE@FIRST+SIZE  MIG devices, with the files of their capabilities; without placements, or most=4
    file PATH CONTENT           a file; \\n begins a line, @+7 is the time of the start and 7 s
    rm PATH, deny PATH          removes a file or a directory; a directory that cannot be listed; `link PATH TARGET` makes a link
    call KEY ANSWER             an answer of the host in JSON
    job PATH pid=N VAR=VALUE    control group of a Slurm job with one task, and the SLURM_ variables of the task
    env N VAR=VALUE             environment of a process
    pod NAME ID... [resource=]  a pod as the kubelet lists it; `unlist NAME`, or all; `allocatable RESOURCE ID...`
    claim POD NAME [K=V]        a resource claim of a pod; share=, cdi=, driver=
    spec NAME K=V C:K=V         a pod in the kubelet's /pods: annotations, and limits of its containers
    keep POD NUMBER             the directories of a pod; its control group is pod/NUMBER
    vm NAME [K=V]               a virtual machine of libvirt; `qemu PID NAME [K=V]` one without it
    pci ADDRESS DRIVER          a GPU on the bus, with another driver
    process DEVICE N GROUP      a process on a GPU or MIG device; `stop DEVICE N` ends it
    booted S, boot ID, wall S   the boot was S seconds ago; the agent in another boot; a step of the wall clock
    restart, show FACT          the agent starts again; a fact is printed with each event
    poll [S]                    every event and every finding that is not in order, S seconds later
    value METRIC DEVICE         a stored value

GPU 1 is g1, MIG device 2 of GPU 0 is m0.2. In place of a content or an answer, EIO and the like is an error.
"""

from __future__ import annotations

import errno
import json
import re
import tempfile
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH

import msgspec
import pytest
from support.clock import NS, START, ManualClock
from support.machine import DENIED
from support.stories import Story
from support.tenancy import (
    ALLOCATABLE,
    LISTED,
    NODE,
    PolledTenancy,
    cut,
    device,
    end_process,
    event_line,
    keeps_pod,
    node,
    pod,
    pod_group,
    start_process,
)

from railscope.frame import NodeTimestamp
from railscope.timestamps import format_timestamp
from railscope_agent.config import TenancySettings
from railscope_agent.host import NvmlError

PODS = "https://gpu-1:10250/pods"


def error(text: str) -> Exception | None:
    """Return the error that a text names, if it does."""
    if found := re.fullmatch(r"NVML(\d+)", text):
        return NvmlError(int(found[1]))
    number = getattr(errno, text, None)
    return OSError(number, text) if number else None


def place(name: str) -> int | str:
    """Return the number of a GPU, or the UUID of a MIG device."""
    return device(name) if "." in name else int(name[1:])


def machine(name: str, given: dict[str, str]) -> dict[str, Any]:
    """Return a virtual machine as the host describes it."""
    lists = {
        key: given[key].split() if key in given else [] for key in ("pci_addresses", "mediated")
    }
    about = {"uuid": given.get("uuid", "u"), "project": "", "project_id": given.get("project", "")}
    return {"name": name, **lists, **about}


def in_namespace(path: str) -> dict[str, str]:
    namespace, _, name = path.rpartition("/")
    return {"name": name, "namespace": namespace or "research"}


class Node:
    """A node, and the agent's claims of it. A method is a command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node("2")

    def run(self, line: str) -> list[str]:
        """Run a command; its arguments in the form KEY=VALUE are keywords."""
        word, *words = line.split(" ")
        if word.startswith("_") or not hasattr(self, word):
            pytest.fail(f"unknown command: {line}")
        self.text = " ".join(words[1:])
        pairs = (each.partition("=") for each in words)
        given = {key: device(value) for key, equals, value in pairs if equals}
        return getattr(self, word)(*[each for each in words if "=" not in each], **given) or []

    def node(self, gpus: str, **settings: str) -> None:
        self.host = node(int(gpus))
        self.host.calls[LISTED] = []
        for gpu in range(int(gpus)):
            self.host.calls[f"nvml.nvmlDeviceGetMemoryInfo({gpu})"] = {"total": 81559 << 20}
        self.settings, self.shown = settings, list[str]()
        self.agent: PolledTenancy | None = None
        self.state = Path(tempfile.mkdtemp(dir=self.directory))

    def set(self, **settings: str) -> None:
        self.settings |= settings

    def show(self, *facts: str) -> None:
        self.shown = list(facts)

    def cut(self, gpu: str, *parts: str, most: str = "7") -> None:
        placed = [re.fullmatch(r"(\S+?)(?:@(\d)\+(\d))?", each) for each in parts]
        groups = [each.groups() if each else ("", None, None) for each in placed]
        instances = [
            (name, first and int(first), size and int(size)) for name, first, size in groups
        ]
        cut(self.host, int(gpu), instances, int(most))
        for number in range(1, len(parts) + 1):
            directory = f"/proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{number}"
            self.host.files[f"{directory}/access"] = f"DeviceFileMinor: {9 * number}\n"
            self.host.files[f"{directory}/ci0/access"] = f"DeviceFileMinor: {9 * number + 1}\n"

    def file(self, path: str, /, *_: str, **__: str) -> None:
        def time(found: re.Match[str]) -> str:
            return format_timestamp(START.wall_ns + int(found[1]) * NS)

        text = device(re.sub(r"@([+-]\d+)", time, self.text.replace("\\n", "\n")))
        self.host.files[path] = error(text) or text
        if text.startswith("zone:"):
            found = (Path(root, text.removeprefix("zone:")) for root in TZPATH)
            self.host.files[path] = next(each.read_bytes() for each in found if each.is_file())

    def rm(self, path: str) -> None:
        for name in [each for each in self.host.files if f"{each}/".startswith(f"{path}/")]:
            del self.host.files[name]

    def deny(self, directory: str) -> None:
        names = self.host.names

        def denying(path: str) -> list[str]:
            if path.startswith(directory):
                raise DENIED
            return names(path)

        self.host.names = denying  # type: ignore[method-assign]

    def link(self, path: str, target: str) -> None:
        self.host.links[path] = target

    def call(self, key: str, /, *_: str) -> None:
        self.host.calls[key] = error(self.text) or json.loads(device(self.text))

    def job(
        self, path: str, /, pid: str = "", daemon: str = "", step: str = "step_0", **given: str
    ) -> None:
        path = (
            path if path.startswith("/") else f"/sys/fs/cgroup/system.slice/slurmstepd.scope/{path}"
        )
        task = f"{path}/{step}/task_0" if "/slurm/uid_" in path else f"{path}/{step}/user/task_0"
        self.host.files[f"{task}/cgroup.procs"] = pid
        self.host.files[f"{path}/{step}/slurm/cgroup.procs"] = daemon
        if given:
            self.env(pid, **given)

    def env(self, pid: str, name: str = "", /, **given: str) -> None:
        variables = {key if key.startswith("CUDA") else f"SLURM_{key}": given[key] for key in given}
        self.host.calls[f"owner.environ({pid})"] = error(name) or variables

    def pod(self, path: str, /, *ids: str, **given: Any) -> None:
        about = in_namespace(path)
        found = pod(about.pop("name"), *map(device, ids), **about, **given)
        self.host.calls[LISTED].append(found)

    def unlist(self, name: str = "") -> None:
        listed = self.host.calls[LISTED]
        self.host.calls[LISTED] = [each for each in listed if name and each["name"] != name]

    def allocatable(self, resource: str, *ids: str) -> None:
        entry = {"resource": resource, "ids": [*map(device, ids)], "numa_nodes": []}
        self.host.calls[ALLOCATABLE] = [*self.host.calls.get(ALLOCATABLE, []), entry]

    def claim(self, path: str, /, *names: str, cdi: str = "", **given: str) -> None:
        about = {**in_namespace(path), "cdi_names": [cdi.replace(":", "=")] if cdi else []}
        about |= {"name": given.pop("name")} if "name" in given else {}
        each = {"driver": "gpu.nvidia.com", "pool": NODE, "share": "", **given}
        self.pod(path, claims=[{**about, "devices": [{**each, "device": name} for name in names]}])

    def spec(self, path: str, /, phase: str = "Running", sidecars: str = "-", **given: str) -> None:
        limits = dict[str, dict[str, str]]()
        for key in [each for each in given if ":" in each]:
            container, _, resource = key.partition(":")
            limits.setdefault(container, {}).update({resource: given[key]} if resource else {})
            del given[key]
        containers = [
            {"name": name, "limits": found} for name, found in (limits or {"main": {}}).items()
        ]
        entry = {
            **in_namespace(path),
            "phase": phase,
            "annotations": given,
            "containers": containers,
        }
        entry["sidecars"] = None if sidecars == "-" else [each == "1" for each in sidecars]
        self.settings["kubelet_url"] = PODS
        self.host.calls.setdefault(f"kubelet.Pods({PODS},,)", []).append(entry)

    def keep(self, path: str, number: str) -> None:
        keeps_pod(self.host, int(number), **in_namespace(path))

    def vm(self, name: str, **given: str) -> None:
        self.host.files[f"/run/libvirt/qemu/{name}.xml"] = ""
        self.host.calls[f"owner.domain(/run/libvirt/qemu/{name}.xml)"] = machine(name, given)

    def qemu(self, pid: str, name: str, **given: str) -> None:
        self.host.files[f"/proc/{pid}/comm"] = "qemu-system-x86\n"
        self.host.calls[f"owner.machine({pid})"] = error(name) or machine(name, given)

    def pci(self, address: str, driver: str) -> None:
        directory = f"/sys/bus/pci/devices/{address}"
        self.host.files |= {f"{directory}/vendor": "0x10de\n", f"{directory}/class": "0x030200\n"}
        self.host.links[f"{directory}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        self.host.files[f"/sys/bus/pci/drivers/{driver}/bind"] = ""

    def process(self, name: str, pid: str, group: str, **given: Any) -> None:
        instance = (
            {"gpuInstanceId": int(name[3]) + 1, "computeInstanceId": 0} if "." in name else {}
        )
        group = pod_group(int(group[4:]))[1] if group.startswith("pod/") else group
        start_process(self.host, place(name), int(pid), group, listed=instance, **given)

    def stop(self, name: str, pid: str) -> None:
        end_process(self.host, place(name), int(pid))

    def booted(self, seconds: str) -> None:
        self.host.clock = ManualClock(NodeTimestamp(START.wall_ns, int(seconds) * NS))

    def boot(self, boot_id: str) -> None:
        self.host.boot_id, self.agent = boot_id, None

    def wall(self, seconds: str) -> None:
        self.host.clock.step_wall(float(seconds))

    def restart(self) -> None:
        self.agent = None

    def value(self, metric: str, name: str) -> list[str]:
        assert self.agent
        return [str(self.agent.value(metric, device(name)))]

    def poll(self, seconds: str = "5") -> list[str]:
        if self.agent is None:
            self.agent = PolledTenancy(self.host, msgspec.convert(self.settings, TenancySettings))
            self.agent.tenancy.remember(self.state, self.host.boot_id)
        events = self.agent.poll(float(seconds))
        return [event_line(event, self.shown) for event in events] + self.agent.finding_lines


def test_story(story: Story, tmp_path: Path) -> None:
    story.play(Node(tmp_path).run)
