"""Actual and potential faults: memory errors and repairs, PCIe, the fabric, recovery actions.

Also values that are not needed every second: the performance state, media engines.
"""

from __future__ import annotations

from railscope.catalog import entities, gpu as c, gpu_health as h, gpu_sharing as s
from railscope.reading import Absent, Reading
from railscope_agent.host import Json
from railscope_agent.sources.nvidia.call_table import (
    BatchField,
    CallTable,
    CallTarget,
    NvmlCall,
    PickReading,
    field,
    item,
    items,
    key,
    members,
    of_link,
    packed,
    simple,
)

ENGINES = {"encoder": "Encoder", "decoder": "Decoder", "jpeg": "Jpg", "optical_flow": "Ofa"}
SLOWEST_PERFORMANCE_STATE = 15  # 32 stands for unknown
FABRIC_COMPLETED = 3
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: two bits each, 1 is true. A GPU without a partition, or
# without its fabric manager, is faulty as well: for those the value 2 marks the fault.
CONDITIONS = {
    "degraded_bandwidth": (0, 1),
    "route_recovery": (2, 1),
    "route_unhealthy": (4, 1),
    "access_timeout_recovery": (6, 1),
    "partition_missing": (12, 2),
    "fabric_manager_disconnected": (14, 2),
}
_TWO_BITS, _FOUR_BITS = 0b11, 0b1111
_CONFIGURATION_SHIFT, _CONFIGURATION_RIGHT = 8, 1
SRAM_LOCATIONS = {
    "l2": "L2",
    "sm": "Sm",
    "pcie": "Pcie",
    "microcontroller": "Mcu",
    "other": "Other",
}
_FIRST_PCIE_ERROR = 173
PCIE_ERRORS = (
    "correctable", "nak_received", "receiver", "bad_tlp", "nak_sent", "bad_dllp", "nonfatal", "fatal",
    "unsupported_request", "lcrc", "lane",
)  # fmt: skip
_ECC_FIELDS = {
    ("corrected", "volatile"): (3, (0, 0)),
    ("uncorrected", "volatile"): (4, (1, 0)),
    ("corrected", "aggregate"): (5, (0, 1)),
    ("uncorrected", "aggregate"): (6, (1, 1)),
}


def _performance_state(result: Json) -> Reading:
    return int(result) if int(result) <= SLOWEST_PERFORMANCE_STATE else Absent.UNSUPPORTED


def _status(result: Json) -> Reading:
    # nvml.h, nvmlGpuFabricInfo_t: the status is valid only when the registration has completed.
    return int(result["status"]) if result["state"] == FABRIC_COMPLETED else Absent.UNSUPPORTED


def _health_mask(result: Json) -> int:
    """Fabric health mask; 0, which reports no condition, if the structure is too old to contain one."""
    return packed(result["healthMask"]) if "healthMask" in result else 0


def _condition(shift: int, at_fault: int) -> PickReading:
    def pick(result: Json) -> Reading:
        field = _health_mask(result) >> shift & _TWO_BITS
        if field == _TWO_BITS:
            return Absent.ERROR  # neither true nor false
        return int(field == at_fault) if field else Absent.UNSUPPORTED

    return pick


def _configuration_fault(result: Json) -> Reading:
    field = _health_mask(result) >> _CONFIGURATION_SHIFT & _FOUR_BITS
    return int(field != _CONFIGURATION_RIGHT) if field else Absent.UNSUPPORTED


def _total_ecc(kind: tuple[str, ...], arguments: tuple[int, int]) -> NvmlCall:
    function = "nvmlDeviceGetTotalEccErrors"
    return simple(function, h.GPU_ECC_ERRORS, entities.GPU_ECC, *kind, arguments=arguments)


def _sram_target(member: str, lifetime: str, protection: str) -> CallTarget:
    return CallTarget(h.GPU_SRAM_ERRORS, key(member), entities.GPU_SRAM, (lifetime, protection))


def _sram_location(member: str, location: str) -> CallTarget:
    part = ("uncorrected", "aggregate", location)
    return CallTarget(h.GPU_SRAM_LOCATIONS, key(member), entities.GPU_ECC_LOCATION, part)


def _condition_target(name: str, pick: PickReading) -> CallTarget:
    return CallTarget(h.GPU_FABRIC_CONDITION, pick, entities.GPU_CONDITION, (name,))


_CALLS: tuple[NvmlCall, ...] = (
    NvmlCall(("nvmlDeviceGetPerformanceState",), (CallTarget(c.GPU_PERFORMANCE_STATE, _performance_state),)),
    simple("nvmlDeviceGetEnforcedPowerLimit", c.GPU_POWER_LIMIT),
    simple("nvmlDeviceGetMarginTemperature", c.GPU_TEMPERATURE_MARGIN),
    # Not every second: on Hopper and later, where it matters, GPM reports each engine.
    *(
        NvmlCall((f"nvmlDeviceGet{name}Utilization",),
                 (CallTarget(c.GPU_ENGINE_UTILIZATION, item(0), entities.GPU_ENGINE, (engine,)),))
        for engine, name in ENGINES.items()
    ),
    items("nvmlDeviceGetEncoderStats", c.GPU_ENCODER_SESSIONS, c.GPU_ENCODER_FRAME_RATE, c.GPU_ENCODER_LATENCY),
    items("nvmlDeviceGetEccMode", h.GPU_ECC_MODE, h.GPU_ECC_PENDING),
    items("nvmlDeviceGetMigMode", s.GPU_MIG_MODE, s.GPU_MIG_PENDING),
    NvmlCall(("nvmlDeviceGetRemappedRows",), (
        CallTarget(h.GPU_REMAPPED_ROWS, item(0), entities.GPU_REMAP, ("correctable",)),
        CallTarget(h.GPU_REMAPPED_ROWS, item(1), entities.GPU_REMAP, ("uncorrectable",)),
        CallTarget(h.GPU_ROW_REMAP_PENDING, item(2)),
        CallTarget(h.GPU_ROW_REMAP_FAILURE, item(3)),
    )),
    simple("nvmlDeviceGetRetiredPagesPendingStatus", h.GPU_RETIRED_PENDING),
    NvmlCall(("nvmlDeviceGetRepairStatus",), (
        CallTarget(h.GPU_REPAIR_PENDING, item(0), entities.GPU_CONDITION, ("memory_channel",)),
        CallTarget(h.GPU_REPAIR_PENDING, item(1), entities.GPU_CONDITION, ("tpc",)),
    )),
    simple("nvmlDeviceGetUnrepairableMemoryFlag_v1", h.GPU_UNREPAIRABLE),
    members("nvmlDeviceGetSramEccErrorStatus", {"bThresholdExceeded": h.GPU_SRAM_THRESHOLD},
        *(_sram_target(lifetime + member, lifetime, protection)
          for lifetime in ("volatile", "aggregate")
          for member, protection in (("UncParity", "parity"), ("UncSecDed", "sec_ded"))),
        *(_sram_location(f"aggregateUncBucket{name}", location) for location, name in SRAM_LOCATIONS.items())),
    simple("nvmlDeviceGetCurrPcieLinkGeneration", h.GPU_PCIE_GENERATION, pick=of_link),
    simple("nvmlDeviceGetMaxPcieLinkGeneration", h.GPU_PCIE_GENERATION_LIMIT, pick=of_link),
    simple("nvmlDeviceGetCurrPcieLinkWidth", h.GPU_PCIE_WIDTH, pick=of_link),
    simple("nvmlDeviceGetMaxPcieLinkWidth", h.GPU_PCIE_WIDTH_LIMIT, pick=of_link),
    NvmlCall(("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"), (
        CallTarget(h.GPU_FABRIC_STATE, key("state")),
        CallTarget(h.GPU_FABRIC_STATUS, _status),
        CallTarget(h.GPU_FABRIC_HEALTH, key("healthSummary")),
        *(_condition_target(name, _condition(*source)) for name, source in CONDITIONS.items()),
        _condition_target("misconfigured", _configuration_fault),
    )),
)  # fmt: skip

_FIELDS: tuple[BatchField, ...] = (
    *(
        field(number, h.GPU_ECC_ERRORS, entities.GPU_ECC, *kind, otherwise=_total_ecc(kind, arguments))
        for kind, (number, arguments) in _ECC_FIELDS.items()
    ),
    field(230, h.GPU_RECOVERY_ACTION),
    field(94, h.GPU_PCIE_REPLAYS, otherwise=simple("nvmlDeviceGetPcieReplayCounter", h.GPU_PCIE_REPLAYS)),
    field(95, h.GPU_PCIE_ROLLOVERS),
    field(169, h.GPU_PCIE_RECOVERIES),
    *(
        field(number, h.GPU_PCIE_ERRORS, entities.GPU_PCIE_ERROR, error)
        for number, error in enumerate(PCIE_ERRORS, _FIRST_PCIE_ERROR)
    ),
)  # fmt: skip

HEALTH_TABLE = CallTable(_CALLS, _FIELDS)
