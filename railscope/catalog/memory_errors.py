"""Metrics of memory errors that the kernel's EDAC drivers count."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import DIMM, MEMORY_CONTROLLER, NODE

_MC = "/sys/devices/system/edac/mc/mc*"
_RESETS = "Counts from when the EDAC driver was loaded or its counters were cleared."


def _errors(
    stem: str, about: EntityKind, help_: str, origin: str, node_exporter: str = ""
) -> Metric:
    return Metric(
        f"railscope_{stem}_errors_total",
        Kind.COUNTER,
        about,
        unit=Unit.ERRORS,
        rollups=(Rollup.SUM,),
        resets=_RESETS,
        wraps_at_bits=32,
        help=help_,
        origin=origin,
        other_names={"node_exporter": node_exporter} if node_exporter else {},
    )


CONTROLLER_INFO = Metric(
    "railscope_memory_controller_info",
    Kind.INFO,
    MEMORY_CONTROLLER,
    help="What this memory controller is.",
    origin=f"{_MC}/mc_name",
)
DIMM_INFO = Metric(
    "railscope_dimm_info",
    Kind.INFO,
    DIMM,
    help="Which memory module this is: slot, place at the controller, type, ECC in use.",
    origin=f"{_MC}/{{dimm,rank}}*/dimm_{{label,location,mem_type,dev_type,edac_mode}}",
)
CORRECTED = _errors(
    "memory_corrected",
    MEMORY_CONTROLLER,
    "Memory errors that ECC corrected, all modules of the controller.",
    f"{_MC}/ce_count",
    "node_edac_correctable_errors_total",
)
UNCORRECTED = _errors(
    "memory_uncorrected",
    MEMORY_CONTROLLER,
    "Memory errors that ECC could not correct, all modules of the controller.",
    f"{_MC}/ue_count",
    "node_edac_uncorrectable_errors_total",
)
CORRECTED_NOWHERE = _errors(
    "memory_unplaced_corrected",
    MEMORY_CONTROLLER,
    "Corrected memory errors the controller could not assign to a module.",
    f"{_MC}/ce_noinfo_count",
)
UNCORRECTED_NOWHERE = _errors(
    "memory_unplaced_uncorrected",
    MEMORY_CONTROLLER,
    "Uncorrected memory errors the controller could not assign to a module.",
    f"{_MC}/ue_noinfo_count",
)
DIMM_CORRECTED = _errors(
    "dimm_corrected",
    DIMM,
    "Errors of the memory module that ECC corrected.",
    f"{_MC}/{{dimm,rank}}*/dimm_ce_count",
)
DIMM_UNCORRECTED = _errors(
    "dimm_uncorrected",
    DIMM,
    "Errors of the memory module that ECC could not correct.",
    f"{_MC}/{{dimm,rank}}*/dimm_ue_count",
)
PCI_PARITY = _errors(
    "pci_parity",
    NODE,
    "PCI parity errors of all devices, where the kernel checks for them.",
    "/sys/devices/system/edac/pci/pci_parity_count",
)
PCI_OTHER = _errors(
    "pci_nonparity",
    NODE,
    "PCI errors other than parity of all devices, where the kernel checks for them.",
    "/sys/devices/system/edac/pci/pci_nonparity_count",
)
