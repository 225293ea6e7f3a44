"""Memory errors, as counted by the kernel's EDAC drivers.

Files: torvalds/linux Documentation/admin-guide/RAS (edac) and
Documentation/ABI/testing/sysfs-devices-edac. Controllers of older processors report ranks instead
of modules; their directories are called rank*, with the same files. A module without a counter file
is omitted.
"""

from __future__ import annotations

import re

from agent.host import Host, KeptFiles
from agent.sampling.facts import counted, known, names, text
from agent.sampling.source import Columns, Finding, Inventory, Table, Verdict
from railscope.catalog import memory_errors as catalog
from railscope.catalog.declare import Metric
from railscope.catalog.entities import DIMM, MEMORY_CONTROLLER, NODE
from railscope.entity import Entity

ROOT = "/sys/devices/system/edac"
_CONTROLLER = re.compile(r"mc\d+")
_MODULE = re.compile(r"(dimm|rank)\d+")
_OF_CONTROLLER = (
    ("ce_count", catalog.CORRECTED),
    ("ue_count", catalog.UNCORRECTED),
    ("ce_noinfo_count", catalog.CORRECTED_NOWHERE),
    ("ue_noinfo_count", catalog.UNCORRECTED_NOWHERE),
)
_OF_MODULE = (
    ("dimm_ce_count", catalog.DIMM_CORRECTED),
    ("dimm_ue_count", catalog.DIMM_UNCORRECTED),
)
_OF_PCI = (
    ("pci_parity_count", catalog.PCI_PARITY),
    ("pci_nonparity_count", catalog.PCI_OTHER),
)


class Edac:
    """Corrected and uncorrected errors of every memory controller and module."""

    name = "edac"
    family = "host"

    def __init__(self, period_seconds: float = 60.0) -> None:
        self.period_seconds = period_seconds
        self._kept: KeptFiles | None = None

    def probe(self, host: Host) -> Inventory:
        """Find the controllers, their modules and the counters of the PCI buses."""
        columns = Columns()
        paths: list[str] = []

        def add(directory: str, files: tuple[tuple[str, Metric], ...], about: Entity) -> None:
            present = set(names(host, directory))
            for file, metric in files:
                if file in present:
                    columns.add(metric, about)
                    paths.append(f"{directory}/{file}")

        controllers = [n for n in names(host, f"{ROOT}/mc") if _CONTROLLER.fullmatch(n)]
        modules = 0
        for controller in controllers:
            directory = f"{ROOT}/mc/{controller}"
            facts = known(model=text(host, f"{directory}/mc_name"))
            add(directory, _OF_CONTROLLER, Entity(MEMORY_CONTROLLER, (controller,), facts))
            for module in names(host, directory):
                if _MODULE.fullmatch(module):
                    modules += 1
                    add(f"{directory}/{module}", _OF_MODULE, _module(host, controller, module))
        add(f"{ROOT}/pci", _OF_PCI, Entity(NODE))
        self.close()
        self._kept = host.keep(paths)
        return Inventory(tuple(columns.columns), (), (_finding(len(controllers), modules),))

    def read(self, host: Host, into: Table) -> None:  # noqa: ARG002 - its files are held open
        """Read every counter."""
        if self._kept:
            self._kept.read_into(into.values, into.reasons, 0)

    def close(self) -> None:
        """Close the open files."""
        if self._kept:
            self._kept.close()
        self._kept = None


def _module(host: Host, controller: str, module: str) -> Entity:
    directory = f"{ROOT}/mc/{controller}/{module}"
    facts = known(
        slot=text(host, f"{directory}/dimm_label"),
        location=text(host, f"{directory}/dimm_location"),
        memory_type=text(host, f"{directory}/dimm_mem_type"),
        device_width=text(host, f"{directory}/dimm_dev_type"),
        edac_mode=text(host, f"{directory}/dimm_edac_mode"),
    )
    return Entity(DIMM, (controller, module), facts)


def _finding(controllers: int, modules: int) -> Finding:
    if not controllers:
        detail = f"{ROOT}/mc has no memory controller (no ECC, no driver for it, or a VM)"
        return Finding("memory errors", Verdict.ABSENT, detail)
    detail = f"{counted(controllers, 'memory controller')}, {counted(modules, 'module')}"
    return Finding("memory errors", Verdict.SUPPORTED, detail)
