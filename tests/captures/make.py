"""Write the test cases of this directory again, or those that are named.

    make cases
    PYTHONPATH=tests python -m captures.make NAME ...

Writes the captures of simulated cases, and `expected.prom` of all cases. The simulated nodes have few
GPUs, to keep the files small.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from support.cases import (
    CASES,
    EXPECTED,
    CaseError,
    CaseSimulation,
    CaseSources,
    names,
    page,
    read_case,
    without_agent_metrics,
)
from support.flight_recorders import hung_job
from support.inspector_logs import inspected_job

from railscope.capture import SECTIONS, Capture, CaptureMoment
from railscope_simulator import capture_metadata, moments

_PCI = "/sys/bus/pci/devices"
_PCI_FACTS = ("vendor", "device", "class")
_GPU_CLASS = "0x0302"
_NIC_CLASSES = ("0x0200", "0x0207")
_PATH_FACTS = (
    *_PCI_FACTS, "numa_node",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
)  # fmt: skip
_NIC_FACTS = (*_PATH_FACTS, "aer_dev_correctable", "aer_dev_fatal", "vpd")
_GPU_FACTS = (*_PATH_FACTS, "local_cpulist")
_NETWORK_ROOTS = ("/sys/class/infiniband", "/sys/class/net")
_NETWORK_FILES = ("/proc/net/route", "/proc/sys/kernel/hostname")
_NETWORK_INTERFACES = ("ethtool.", "netlink.", "lldp.")
_KEPT_FILES = re.compile(
    r"/proc/(?:\d+/(?:comm|stat|cgroup)|sys/kernel/hostname|driver/nvidia/.*)|/sys/fs/cgroup/.*"
)
_KEPT_DIRECTORIES = ("/sys/fs/cgroup/", "/var/log/pods")
_GPU_INTERFACES = ("nvml.", "kubelet.", "owner.")


def simulated(name: str, simulation: CaseSimulation) -> Capture:
    """Return the capture of a simulated case; the node has the name of the case."""
    spec = simulation.spec(name)
    every_ns = simulation.seconds * 10**9 // simulation.moments
    fine = moments(spec, simulation.seconds, simulation.step_seconds)
    whole = tuple(_thinned(fine, every_ns))
    if simulation.sources is CaseSources.NETWORK:
        kept = tuple(_network_only(iter(whole)))
    elif simulation.sources is CaseSources.GPU:
        kept = tuple(_gpus_only(iter(whole)))
    else:
        gpus = _gpus_only(iter(whole))
        kept = tuple(map(_joined, gpus, _network_only(iter(whole))))
    if simulation.hung_job:
        kept[0].calls.update(hung_job(kept[0], spec.started_wall_ns))
    if simulation.inspected_job:
        kept[0].calls.update(inspected_job(kept[0], spec.started_wall_ns))
    return Capture(capture_metadata(spec, simulation.seconds), kept)


def _joined(moment: CaptureMoment, other: CaptureMoment) -> CaptureMoment:
    """One moment with the data of two; of a directory the longer listing."""
    names_ = moment.names | {
        path: max(there, moment.names.get(path, []), key=len) for path, there in other.names.items()
    }
    return CaptureMoment(
        moment.offset_ns,
        files=moment.files | other.files,
        names=names_,
        links=moment.links | other.links,
        calls=moment.calls | other.calls,
        log=moment.log,
    )


def _thinned(fine: Iterator[CaptureMoment], every_ns: int) -> Iterator[CaptureMoment]:
    """Some of the moments, each with what has changed since the one before."""
    changes = CaptureMoment(0)
    for moment in fine:
        changes.offset_ns = moment.offset_ns
        changes.log += moment.log
        for section in SECTIONS:
            getattr(changes, section).update(getattr(moment, section))
        if moment.offset_ns % every_ns == 0:
            yield changes
            changes = CaptureMoment(0)


def _gpus_only(whole: Iterator[CaptureMoment]) -> Iterator[CaptureMoment]:
    """Inputs of the GPU sources: NVML, the kernel log, claims, processes and their owners."""
    gpus: set[str] = set()
    for moment in whole:
        gpus |= {
            path.split("/")[-2]
            for path, text in moment.files.items()
            if path.endswith("/class") and str(text).startswith(_GPU_CLASS)
        }
        facts = {f"{_PCI}/{gpu}/{fact}" for gpu in gpus for fact in _PCI_FACTS}
        drivers = {f"{_PCI}/{gpu}/driver" for gpu in gpus}
        yield CaptureMoment(
            moment.offset_ns,
            files={
                path: text
                for path, text in moment.files.items()
                if path in facts or _KEPT_FILES.fullmatch(path)
            },
            names=({_PCI: sorted(gpus)} if _PCI in moment.names else {})
            | {
                path: there
                for path, there in moment.names.items()
                if path.startswith(_KEPT_DIRECTORIES)
            },
            links={path: end for path, end in moment.links.items() if path in drivers},
            calls={call: a for call, a in moment.calls.items() if call.startswith(_GPU_INTERFACES)},
            log=moment.log,
        )


def _network_only(whole: Iterator[CaptureMoment]) -> Iterator[CaptureMoment]:
    """Inputs of the network sources: NICs, the ports above them, and positions of the GPUs."""
    all_of_it = tuple(whole)
    wanted = _places(all_of_it[0])
    facts = {f"{_PCI}/{device}/{fact}" for device, kept in wanted.items() for fact in kept}
    facts -= _tables_without_errors(all_of_it)
    for moment in all_of_it:
        # Without NVML's answers, a GPU with a driver would count as one whose driver does not respond.
        drivers = {
            f"{_PCI}/{device}/driver" for device, kept in wanted.items() if kept is not _GPU_FACTS
        }
        devices = {f"{_PCI}/{device}" for device in wanted}
        yield CaptureMoment(
            moment.offset_ns,
            files={
                path: text
                for path, text in moment.files.items()
                if path in facts or path in _NETWORK_FILES or path.startswith(_NETWORK_ROOTS)
            },
            names={
                path: [device for device in entries if path != _PCI or device in wanted]
                if isinstance(entries, list)
                else entries
                for path, entries in moment.names.items()
                if path == _PCI or path.startswith(_NETWORK_ROOTS)
            },
            links={
                path: end
                for path, end in moment.links.items()
                if path in drivers | devices or path.startswith(_NETWORK_ROOTS)
            },
            calls={
                c: answer for c, answer in moment.calls.items() if c.startswith(_NETWORK_INTERFACES)
            },
            log=moment.log,
        )


def _tables_without_errors(moments_: tuple[CaptureMoment, ...]) -> set[str]:
    """Files of error counts that stay at zero: they are many, without information."""
    texts: dict[str, str] = {}
    for moment in moments_:
        for path, text in moment.files.items():
            if "/aer_dev_" in path:
                texts[path] = texts.get(path, "") + str(text)
    return {path for path, text in texts.items() if not re.search(r" [1-9]", text)}


def _places(first: CaptureMoment) -> dict[str, tuple[str, ...]]:
    """NICs, GPUs and every port above them, with the recorded facts of each."""
    classes = {
        path.split("/")[-2]: str(text)
        for path, text in first.files.items()
        if path.startswith(_PCI) and path.endswith("/class")
    }
    wanted: dict[str, tuple[str, ...]] = {}
    for device, kind in classes.items():
        if not kind.startswith((*_NIC_CLASSES, _GPU_CLASS)):
            continue
        path = [part for part in first.links[f"{_PCI}/{device}"].split("/") if part in classes]
        wanted |= {part: _PATH_FACTS for part in path if part not in wanted}
        wanted |= dict.fromkeys(path[-2:], _NIC_FACTS) if kind.startswith(_NIC_CLASSES) else {}
        wanted |= {device: _GPU_FACTS} if kind.startswith(_GPU_CLASS) else {}
    return wanted


def write(directory: Path) -> None:
    """Write the capture of a simulated case, and the metrics of any."""
    case = read_case(directory)
    if case.simulation is not None:
        simulated(directory.name, case.simulation).write(directory)
    metrics = without_agent_metrics(page(directory))
    (directory / EXPECTED).write_text(metrics, encoding="utf-8")


def main(wanted: list[str], root: Path = CASES) -> int:
    """Write the cases; return the exit status."""
    try:
        for name in wanted or names(root):
            write(root / name)
    except CaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
