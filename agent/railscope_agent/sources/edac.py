"""Memory errors that the kernel's EDAC drivers count.

Files: torvalds/linux Documentation/admin-guide/RAS (edac) and Documentation/ABI/testing/sysfs-devices-edac.
Controllers of older processors report ranks instead of modules; their directories are called rank*, with
the same files. A module without a counter file is omitted.
"""

from __future__ import annotations

import re

from railscope.catalog import declare, entities, sensors as catalog
from railscope.frame import Entity
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, source

EDAC_ROOT = "/sys/devices/system/edac"
_CONTROLLER = re.compile(r"mc\d+")
_MODULE = re.compile(r"(dimm|rank)\d+")
_OF_CONTROLLER = (
    ("ce_count", catalog.MEMORY_CORRECTED),
    ("ue_count", catalog.MEMORY_UNCORRECTED),
    ("ce_noinfo_count", catalog.MEMORY_UNPLACED_CORRECTED),
    ("ue_noinfo_count", catalog.MEMORY_UNPLACED_UNCORRECTED),
)
_OF_MODULE = (
    ("dimm_ce_count", catalog.DIMM_CORRECTED),
    ("dimm_ue_count", catalog.DIMM_UNCORRECTED),
)
_OF_PCI = (("pci_parity_count", catalog.PCI_PARITY), ("pci_nonparity_count", catalog.PCI_OTHER))


class EdacSource(source.CounterFileSource):
    """Corrected and uncorrected errors of every memory controller and module."""

    name = "edac"
    family = "host"

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the controllers, their modules and the counters of the PCI buses."""
        columns = probe_result.ColumnBuilder()
        paths: list[str] = []

        def add(
            directory: str, files: tuple[tuple[str, declare.Metric], ...], about: Entity
        ) -> None:
            present = set(fact_readers.list_names(host, directory))
            for file, metric in files:
                if file in present:
                    columns.add(metric, about)
                    paths.append(f"{directory}/{file}")

        listed = fact_readers.list_names(host, f"{EDAC_ROOT}/mc")
        controllers = [name for name in listed if _CONTROLLER.fullmatch(name)]
        modules = 0
        for controller in controllers:
            directory = f"{EDAC_ROOT}/mc/{controller}"
            facts = fact_readers.nonempty_facts(
                model=fact_readers.read_text(host, f"{directory}/mc_name")
            )
            add(directory, _OF_CONTROLLER, Entity(entities.MEMORY_CONTROLLER, (controller,), facts))
            for module in fact_readers.list_names(host, directory):
                if _MODULE.fullmatch(module):
                    modules += 1
                    about = _memory_module(host, controller, module)
                    add(f"{directory}/{module}", _OF_MODULE, about)
        add(f"{EDAC_ROOT}/pci", _OF_PCI, Entity(entities.NODE))
        self._keep(host, paths)
        return columns.result(_finding(len(controllers), modules))


def _memory_module(host: Host, controller: str, module: str) -> Entity:
    directory = f"{EDAC_ROOT}/mc/{controller}/{module}"
    facts = fact_readers.nonempty_facts(
        slot=fact_readers.read_text(host, f"{directory}/dimm_label"),
        location=fact_readers.read_text(host, f"{directory}/dimm_location"),
        memory_type=fact_readers.read_text(host, f"{directory}/dimm_mem_type"),
        device_width=fact_readers.read_text(host, f"{directory}/dimm_dev_type"),
        edac_mode=fact_readers.read_text(host, f"{directory}/dimm_edac_mode"),
    )
    return Entity(entities.DIMM, (controller, module), facts)


def _finding(controllers: int, modules: int) -> probe_result.ProbeFinding:
    if not controllers:
        detail = f"{EDAC_ROOT}/mc contains no memory controller (no ECC, no driver for it, or a VM)"
        return probe_result.ProbeFinding.absent("memory errors", detail)
    counts = (
        probe_result.format_count(controllers, "memory controller"),
        probe_result.format_count(modules, "module"),
    )
    return probe_result.ProbeFinding.supported("memory errors", ", ".join(counts))
