"""Counter files of RDMA devices, with their metrics, in the order in which they are read.

Layout: torvalds/linux:drivers/infiniband/core/sysfs.c. Reading one file of a set makes the driver
refresh the whole set, so the files of a set are read back to back.

Kernels before 4.5 have the 64-bit counters of a port in counters_ext/. Counters of a device for all
its ports together are in its own hw_counters/; they are reported as port 0, which is the kernel's
number for the device itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from railscope.catalog import declare, rdma as catalog
from railscope.catalog.entities import RDMA_COUNTER
from railscope.frame import Entity
from railscope.reading import is_failure
from railscope_agent.host import Host

DEVICE = "0"
_WIDEST_FIRST = ("counters_ext", "counters", "hw_counters")
_REFRESHED = "hw_counters"
# The minimum time between two refreshes of the set, in milliseconds.
_NO_COUNTERS = {"lifespan"}
_USUAL = {"counters": ("port_rcv_data", "port_xmit_data")}
"""Usual files of a set whose directory cannot be read: they are absent for their own reasons."""

_DRIVERS = {
    "mlx5_core": "mlx5",
    "mlx5_core.sf": "mlx5",
    "mlx4_core": "mlx4",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "hns3": "hns",
}
_NAMED = ("mlx5", "mlx4", "bnxt_re", "irdma", "efa", "erdma", "hfi1", "hns", "ionic", "mana")


def rdma_driver(pci_driver: str, device: str) -> str:
    """RDMA driver, by the driver of its PCI device; else by the device's name."""
    by_name = next((driver for driver in _NAMED if device.startswith(driver)), "")
    return _DRIVERS.get(pci_driver, pci_driver) or by_name


@dataclass(frozen=True, slots=True)
class CounterFile:
    """A counter file, with its metric and entity."""

    directory: str
    name: str
    metric: declare.Metric
    about: Entity
    step: int
    is_narrow: bool
    """True if it wraps to zero at 2^32."""
    highest: int
    """Maximum at which it sticks; 0 if it does not."""


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device: its driver, itself as an entity, and the directory and entity of each port."""

    driver: str
    directory: str
    whole: Entity
    ports: tuple[tuple[str, Entity], ...]


def counter_files(host: Host, device: RdmaDevice) -> Iterator[CounterFile]:
    """Every counter file of a device, set by set, in reading order: back to back.

    Of two files with the same metric of a port the first counts; the other one, and sums of the
    device over its ports, are reported under their own names.
    """
    metrics: set[declare.Metric] = set()
    for directory, port in device.ports:
        sets = [f"{directory}/{name}" for name in _WIDEST_FIRST]
        files = list(_files_of(host, device.driver, sets, port, set()))
        metrics |= {file.metric for file in files}
        yield from files
    sets = [f"{device.directory}/{_REFRESHED}"]
    yield from _files_of(host, device.driver, sets, device.whole, metrics)


def counter_directories(device: RdmaDevice) -> Iterator[str]:
    """Yield the directories of a device that list its ports and its counter files; not each kernel has all."""
    yield f"{device.directory}/ports"
    for directory, _ in device.ports:
        yield from (f"{directory}/{name}" for name in _WIDEST_FIRST)
    yield f"{device.directory}/{_REFRESHED}"


def _listed(host: Host, directory: str) -> Sequence[str]:
    try:
        return host.names(directory)
    except OSError as error:
        return _USUAL.get(directory.rpartition("/")[2], ()) if is_failure(error) else ()


def _files_of(
    host: Host, driver: str, sets: Sequence[str], about: Entity, metrics: set[declare.Metric]
) -> Iterator[CounterFile]:
    taken, generic = set(metrics), set[str]()
    for directory in sets:
        refreshed = directory.endswith(_REFRESHED)
        for name in _listed(host, directory):
            if name in _NO_COUNTERS:
                continue
            narrow = refreshed and catalog.wraps_at_32_bits(driver, name)
            highest = 0 if refreshed else catalog.highest(name)
            metric = catalog.meaning(driver, name)
            if metric and metric not in taken:
                taken.add(metric)
                step = catalog.bytes_per_step(driver, name)
                yield CounterFile(directory, name, metric, about, step, narrow, highest)
            elif name not in generic:
                generic.add(name)
                part = about.child(RDMA_COUNTER, name)
                yield CounterFile(directory, name, catalog.other(name), part, 1, narrow, highest)
