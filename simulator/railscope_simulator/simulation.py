"""Simulation of a node: from a spec to a capture.

Each time step results in a state of all interfaces; a capture contains the differences.
Directory entries follow from all other results: a NIC's PCI device can be reached by its address,
its interface and its RDMA device; everything that is recorded below one of these paths is present
below all of them. The entries of a removed NIC vanish, and every access to them fails.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, repeat
from operator import ne
from typing import TypeAlias

from railscope.capture import SECTIONS, Capture, CaptureMetadata, CaptureMoment, Json, failure
from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    device_models,
    host_files,
    interface_settings,
    kernel_log,
    lldp_neighbours,
    network_interfaces,
    node_hardware,
    node_model,
    nvml,
    owners,
    rdma_devices,
)
from railscope_simulator.spec import NodeSpec, seconds_to_ns

_NET, _RDMA, _PCI = "/sys/class/net", "/sys/class/infiniband", "/sys/bus/pci/devices"
_NOTHING = object()
_OF_ALL_DEVICES = {"driver", "net", "subsystem"}
NodeView: TypeAlias = Callable[[node_model.NodeModel, CaptureMoment], None]
"""Adds the state of a model to a `CaptureMoment`."""


class SimulatedDirectories:
    """Directory entries, which are computed again only after a path has appeared, vanished or failed."""

    def __init__(self) -> None:
        self._paths: tuple[frozenset[str], ...] = ()
        self._entries: dict[str, set[str]] = {}

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Add the directory entries to a `CaptureMoment` that contains all other results."""
        # A path that begins to fail is no longer an entry of its directory, although the results have the
        # same paths.
        failed = frozenset(path for path, content in into.files.items() if type(content) is dict)
        paths = (frozenset(into.files), frozenset(into.links), failed)
        if paths != self._paths:
            self._paths, self._entries = paths, _entries(into)
        _show_directories(model, into, self._entries)


def _show_directories(
    model: node_model.NodeModel, into: CaptureMoment, entries: dict[str, set[str]]
) -> None:
    for cable in model.present_cables:
        _show_nic_directories(into, cable.port, entries)
    into.names[f"{_NET}/{node_hardware.LOOPBACK}"] = sorted(
        entries[f"{_NET}/{node_hardware.LOOPBACK}"] - {"device"}
    )
    directory = f"{_NET}/{node_hardware.ETHERNET}"
    into.names[directory] = sorted(entries[directory])
    into.names[f"{directory}/device"] = sorted(_OF_ALL_DEVICES)
    into.links[f"{directory}/device/driver"] = "/sys/bus/virtio/drivers/virtio_net"


def _show_nic_directories(
    into: CaptureMoment, port: node_hardware.SimulatedPort, entries: dict[str, set[str]]
) -> None:
    net, pci = f"{_NET}/{port.interface}", f"{_PCI}/{port.pci_address}"
    rdma = f"{_RDMA}/{port.rdma_device}"
    into.names[net] = sorted(entries[net])
    paths = (pci, f"{net}/device", f"{rdma}/device")
    names = set().union(*(entries[path] for path in paths), _OF_ALL_DEVICES, {"infiniband"})
    into.names[f"{net}/device"] = sorted(names)
    into.names[f"{net}/device/infiniband"] = [port.rdma_device]
    into.links[f"{net}/device/driver"] = into.links[f"{pci}/driver"]


def _entries(moment: CaptureMoment) -> dict[str, set[str]]:
    """Return the entries of all directories that a `CaptureMoment` has content for."""
    entries: dict[str, set[str]] = defaultdict(set)
    for section in (moment.files, moment.links):
        for path, content in section.items():
            if path.startswith((_NET, _RDMA, _PCI)) and not isinstance(content, dict):
                directory, _, name = path.rpartition("/")
                # Up to a directory that is known: its own entry was added before.
                while name and name not in entries[directory]:
                    entries[directory].add(name)
                    directory, _, name = directory.rpartition("/")
    return entries


class NicRemoval:
    """Records the entries of the first `CaptureMoment`, and makes those of a NIC fail after its removal."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, str]] = []
        self._recorded: dict[str, list[tuple[str, str]]] = {}

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Make files, directories, links and calls of removed NICs fail."""
        # Of the first moment, in which every NIC is present.
        if not self._entries:
            self._entries = [
                (section, key) for section in SECTIONS for key in getattr(into, section)
            ]
        for cable in model.cables:
            if cable.removed:
                port = cable.port
                if port.pci_address not in self._recorded:
                    self._recorded[port.pci_address] = _keys(port, self._entries)
                for section, key in self._recorded[port.pci_address]:
                    code = errno.ENODEV if section == "calls" else errno.ENOENT
                    getattr(into, section)[key] = failure(OSError(code, ""))


def _keys(
    port: node_hardware.SimulatedPort, entries: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Sections and keys of a NIC's entries."""
    directories = tuple(
        f"{directory}/"
        for directory in (
            f"/sys/class/infiniband/{port.rdma_device}",
            f"/sys/class/net/{port.interface}",
            f"/sys/bus/pci/devices/{port.pci_address}",
        )
    )
    calls = (f"({port.interface})", f"({port.interface},", f"({port.rdma_device},")
    return [
        (section, key)
        for section, key in entries
        if f"{key}/".startswith(directories) or any(part in key for part in calls)
    ]


def simulate(spec: NodeSpec, seconds: int, step_seconds: float = 1.0) -> Capture:
    """Simulate a node and return the complete capture in memory."""
    return Capture(capture_metadata(spec, seconds), tuple(moments(spec, seconds, step_seconds)))


def capture_metadata(spec: NodeSpec, seconds: int) -> CaptureMetadata:
    """Return the capture's metadata. Raises ValueError for an unknown GPU model."""
    mode = "" if spec.mode == "whole" else f"GPUs in mode {spec.mode}, "
    model = device_models.find_model(spec.model).name
    nics = {device_models.nic_of(spec.nic, rail).name for rail in range(spec.gpus)}
    return CaptureMetadata(
        node=spec.node,
        boot_id=spec.boot_id,
        started_wall_ns=spec.started_wall_ns,
        started_boot_ns=spec.started_boot_ns,
        duration_ns=seconds * SECOND_NS,
        origin=f"simulated: {spec.scenario}, {mode}seed {spec.seed}",
        hardware=f"{spec.gpus} x {model}, one {' or '.join(sorted(nics))} per GPU and two for storage",
    )


def moments(spec: NodeSpec, seconds: int, step_seconds: float = 1.0) -> Iterator[CaptureMoment]:
    """Simulate a node, one `CaptureMoment` per step, from offset zero to the end.

    Raises ValueError immediately for an empty simulation, or an invalid node.
    """
    step_ns, duration_ns = seconds_to_ns(step_seconds), seconds * SECOND_NS
    if step_ns < 1 or duration_ns < step_ns:
        message = f"invalid step: {step_seconds} s: expected more than 0, and at most {seconds} s"
        raise ValueError(message)
    return _moments(node_model.NodeModel(spec, duration_ns), duration_ns, step_ns)


class NodeInterfaces:
    """All interface views of a simulated node."""

    def __init__(self, model: node_model.NodeModel, *views: NodeView) -> None:
        self._model = model
        self._views: tuple[NodeView, ...] = (
            nvml.SimulatedNvml(model).show,
            host_files.show_driver_files,
            rdma_devices.show_rdma_devices,
            network_interfaces.show_interfaces,
            network_interfaces.show_links,
            interface_settings.show_settings,
            network_interfaces.show_transceivers,
            lldp_neighbours.show_neighbours,
            interface_settings.show_ofed_files,
            host_files.show_pci_devices,
            SimulatedDirectories().show,
            host_files.show_host,
            owners.show_owners,
            kernel_log.SimulatedKernelLog(model).show,
            NicRemoval().show,
            *views,
        )

    def show(self) -> CaptureMoment:
        """Return the present state of the model."""
        now = CaptureMoment(self._model.offset_ns)
        for show in self._views:
            show(self._model, now)
        return now


def _moments(
    model: node_model.NodeModel, duration_ns: int, step_ns: int
) -> Iterator[CaptureMoment]:
    recorder = CaptureRecorder(model)
    for offset_ns in range(0, duration_ns + 1, step_ns):
        if offset_ns:
            model.advance(offset_ns)
        yield recorder.changes()


class CaptureRecorder:
    """Records the state of a model, in its own views and further ones, as differences."""

    def __init__(self, model: node_model.NodeModel, *views: NodeView) -> None:
        self._interfaces = NodeInterfaces(model, *views)
        self._recorded: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}

    def changes(self) -> CaptureMoment:
        """Return the results of all interfaces that differ from those of the last call."""
        now = self._interfaces.show()
        changed = CaptureMoment(now.offset_ns, log=now.log)
        for section in SECTIONS:
            recorded = self._recorded[section]
            current: dict[str, Json] = getattr(now, section)
            # With functions in C instead of a loop: a node has thousands of results at each step.
            before = map(recorded.get, current, repeat(_NOTHING))
            fresh = dict(compress(current.items(), map(ne, current.values(), before)))
            recorded.update(fresh)
            getattr(changed, section).update(fresh)
        return changed
