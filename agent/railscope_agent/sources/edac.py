"""Memory errors that the kernel's EDAC drivers count.

Files: torvalds/linux Documentation/admin-guide/RAS (edac) and Documentation/ABI/testing/sysfs-devices-edac.
Controllers of older processors report ranks instead of modules; their directories are called rank*, with
the same files. A module without a counter file is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from railscope.catalog import entities, sensors as catalog
from railscope.frame import Entity
from railscope_agent.host import Host
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources.scan_source import Found, ScanSource, counters, facts, matching

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
_FACTS = {
    "slot": "dimm_label",
    "location": "dimm_location",
    "memory_type": "dimm_mem_type",
    "device_width": "dimm_dev_type",
    "edac_mode": "dimm_edac_mode",
}
_OF_PCI = (("pci_parity_count", catalog.PCI_PARITY), ("pci_nonparity_count", catalog.PCI_OTHER))


class EdacSource(ScanSource):
    """Corrected and uncorrected errors of every memory controller and module."""

    name = "edac"
    lane = SYSTEM
    period_seconds = 60.0

    def readings(self, host: Host) -> Iterator[Found]:
        """Yield the counters of the controllers, of their modules, and of the PCI buses."""
        for controller in matching(host, f"{EDAC_ROOT}/mc", _CONTROLLER):
            directory = f"{EDAC_ROOT}/mc/{controller[0]}"
            about = facts(host, directory, model="mc_name")
            whole = Entity(entities.MEMORY_CONTROLLER, (controller[0],), about)
            yield from counters(host, directory, _OF_CONTROLLER, whole)
            for module in matching(host, directory, _MODULE):
                place = f"{directory}/{module[0]}"
                about = facts(host, place, **_FACTS)
                part = Entity(entities.DIMM, (controller[0], module[0]), about)
                yield from counters(host, place, _OF_MODULE, part)
        yield from counters(host, f"{EDAC_ROOT}/pci", _OF_PCI, Entity(entities.NODE))
