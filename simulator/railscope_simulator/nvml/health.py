"""Health of a GPU and of its NVLinks: memory, PCIe, recommended action, link values.

The available NVLink values depend on the generation (nvml.h, NVML_FI_DEV_NVLINK_*): up to Ampere
errors are separate fields for each link, on Hopper they have the link as their scope, and from
Blackwell on packets and symbols are counted instead.
"""

from __future__ import annotations

from railscope.capture import Json
from railscope_simulator import device_models, node_hardware
from railscope_simulator.gpu import BAD_ADDRESS, PAGE_BYTES, GpuState
from railscope_simulator.gpu_nvlinks import GpuNvLinks, NvLinkState
from railscope_simulator.nvml.results import NOT_SUPPORTED, NvmlResults, supported_if

L1, L2, DRAM, REGISTER_FILE, CBU, SRAM = 0, 1, 2, 3, 6, 7
_LOCATIONS = 8
_VOLTA_LOCATIONS = frozenset({L1, L2, DRAM, REGISTER_FILE, CBU})
_LOCATIONS_SINCE_TURING = frozenset({DRAM, SRAM})
_SRAM_V1 = 0x0100_0068
_PCIE_ERRORS = range(173, 184)
_PCIE_ERRORS_SINCE, _REPAIRS_SINCE, _FLAG_SINCE = 550, 580, 590
_SOURCES = ("L2", "Sm", "Pcie", "Mcu", "Other")


def add_health(gpu: GpuState, into: NvmlResults) -> None:
    """Add the health of this GPU."""
    model, errors = gpu.model, gpu.errors
    cut = bool(gpu.sharing.mig_devices)
    can_remap = model.remaps_rows and not cut
    pending = int(errors.pending)
    repairs = model.remaps_rows and model.driver_branch >= _REPAIRS_SINCE
    flag = (
        model.generation >= device_models.GpuGeneration.HOPPER
        and model.driver_branch >= _FLAG_SINCE
    )
    lanes, generation = 16, model.pcie_generation
    into.calls(
        PerformanceState=0,
        EnforcedPowerLimit=model.power_limit_milliwatts,
        MarginTemperature=supported_if(model.has_temperature_margins, gpu.silicon.margin_celsius),
        EccMode=[1, 1],
        EncoderStats=[0, 0, 0],
        MigMode=supported_if(model.has_mig, [int(cut), int(cut)]),
        RemappedRows=supported_if(
            can_remap, [errors.correctable_rows, errors.uncorrectable_rows, pending, 0]
        ),
        RowRemapperHistogram=supported_if(can_remap, _banks(gpu)),
        RetiredPagesPendingStatus=supported_if(not model.remaps_rows, pending),
        RepairStatus=supported_if(repairs, [0, 0]),
        UnrepairableMemoryFlag_v1=supported_if(flag, 0),
        SramEccErrorStatus=supported_if(model.remaps_rows, _sram()),
        CurrPcieLinkGeneration=generation,
        MaxPcieLinkGeneration=generation,
        GpuMaxPcieLinkGeneration=generation,
        CurrPcieLinkWidth=lanes,
        MaxPcieLinkWidth=lanes,
        PcieReplayCounter=gpu.pcie_replays,
    )
    rows = (errors.correctable_rows, errors.uncorrectable_rows)
    for cause, count in enumerate(rows):
        pages = [BAD_ADDRESS // PAGE_BYTES * PAGE_BYTES] * count
        into.call("RetiredPages", supported_if(not model.remaps_rows, pages), cause)
    if model.has_recovery_action:
        into.field(230, gpu.recovery_action)
    if repairs and can_remap:
        into.fields(dict(enumerate(rows, 301)))
    _add_memory_errors(gpu, into)
    into.fields({94: gpu.pcie_replays, 95: 0, 169: 0})
    if model.driver_branch >= _PCIE_ERRORS_SINCE:
        into.fields(dict.fromkeys(_PCIE_ERRORS, 0))


def _banks(gpu: GpuState) -> Json:
    """Return banks by their number of remaining spare rows: a bad row has used one of its bank."""
    used_banks = int(gpu.errors.pending)
    return {
        "max": gpu.model.banks - used_banks,
        "high": used_banks,
        "partial": 0,
        "low": 0,
        "none": 0,
    }


def _sram() -> Json:
    none = {f"aggregateUncBucket{source}": 0 for source in _SOURCES}
    for lifetime in ("aggregate", "volatile"):
        none |= {f"{lifetime}{kind}": 0 for kind in ("UncParity", "UncSecDed", "Cor")}
    return {"version": _SRAM_V1, **none, "bThresholdExceeded": 0}


def _add_memory_errors(gpu: GpuState, into: NvmlResults) -> None:
    """Add the errors: all are of the memory; on-chip memory has none."""
    errors = gpu.errors
    counts = (
        (errors.corrected, errors.corrected_for_life),
        (errors.uncorrected, errors.uncorrected_for_life),
    )
    volta = gpu.model.generation == device_models.GpuGeneration.VOLTA
    located = _VOLTA_LOCATIONS if volta else _LOCATIONS_SINCE_TURING
    for type_, lifetimes in enumerate(counts):
        for counter, count in enumerate(lifetimes):
            into.call("TotalEccErrors", count, type_, counter)
            into.field(3 + 2 * counter + type_, count)
            for location in range(_LOCATIONS):
                here = count if location == DRAM else 0
                answer = supported_if(location in located, here)
                into.call("MemoryErrorCounter", answer, type_, counter, location)


_ACTIVE, _LEADS_TO_GPU, _LEADS_TO_SWITCH = 1, 0, 2
_PACKETS_PER_KIBIBYTE = 4
_EARLIER_RUNS = {
    device_models.GpuGeneration.VOLTA: ("crc_flit", "replay", "recovery"),
    device_models.GpuGeneration.AMPERE: ("crc_flit", "crc_data", "replay", "recovery", "ecc_data"),
}
_RUN_STARTS = {
    "crc_flit": (32, 96),
    "crc_data": (39, 102),
    "replay": (46, 108),
    "recovery": (53, 114),
    "ecc_data": (148, 154),
}
_RUN_LENGTH = 6
_ZERO_PACKET_ERRORS = (205, 206, 207, 209, 210, 212)


def add_links(parts: node_hardware.NodeHardware, gpu: GpuState, into: NvmlResults) -> None:
    """Add the traffic and signal quality of every link of this GPU, and once the ends of the links."""
    links = gpu.links
    if links is None:
        into.call("NvLinkState", NOT_SUPPORTED, 0)
        return
    generation, has_ends = gpu.model.generation, bool(into.found)
    into.field(91, len(links.links))
    for number, link in enumerate(links.links):
        if not has_ends:
            _add_link_end(parts, gpu, number, into)
        fields: dict[int, int] = {}
        if generation > device_models.GpuGeneration.VOLTA:
            fields |= {165: _ACTIVE, 164: links.model.raw_megabytes}
        if generation >= device_models.GpuGeneration.HOPPER:
            fields[167] = 0  # at full speed: the links of a job are never idle
        carried = (link.transmitted_kibibytes, link.received_kibibytes)
        fields |= enumerate((*carried, *map(links.raw, carried)), 138)
        if generation >= device_models.GpuGeneration.BLACKWELL:
            fields |= _packets(link) | _signal(links, link)
        elif generation >= device_models.GpuGeneration.HOPPER:
            fields |= {161: link.errors, 162: link.errors // 8, 163: link.errors}
        into.fields(fields, number)
        if generation < device_models.GpuGeneration.HOPPER:
            _add_error_fields(number, generation, link, into)


def _add_link_end(
    parts: node_hardware.NodeHardware, gpu: GpuState, number: int, into: NvmlResults
) -> None:
    links = gpu.model.nvlink
    if links is None:
        return
    into.call("NvLinkState", _ACTIVE, number)
    into.call("NvLinkVersion", links.version, number)
    into.call("NvLinkRemoteDeviceType", _LEADS_TO_GPU if links.peers else _LEADS_TO_SWITCH, number)
    ends = parts.nvswitches
    if links.peers:
        ends = tuple(peer for peer in parts.peers if peer != gpu.identity.pci_address)
    # Switches of the fifth generation are not PCI devices of the host.
    into.call("NvLinkRemotePciInfo", supported_if(ends, _end(ends, number)), number)


def _end(ends: tuple[str, ...], number: int) -> Json:
    return {"busId": f"0000{ends[number % len(ends)]}".upper()} if ends else None


def _add_error_fields(
    number: int, generation: device_models.GpuGeneration, link: NvLinkState, into: NvmlResults
) -> None:
    counts = {"replay": link.errors, "recovery": link.errors // 8, "crc_flit": link.errors}
    for kind in _EARLIER_RUNS[generation]:
        first = _RUN_STARTS[kind][number // _RUN_LENGTH]
        into.field(first + number % _RUN_LENGTH, counts.get(kind, 0))


def _packets(link: NvLinkState) -> dict[int, int]:
    return {
        201: link.transmitted_kibibytes * _PACKETS_PER_KIBIBYTE,
        203: link.received_kibibytes * _PACKETS_PER_KIBIBYTE,
        **dict.fromkeys(_ZERO_PACKET_ERRORS, 0),
        208: link.errors // 16,
        211: link.errors // 16,
        213: link.errors // 32,
        214: 0,
    }


def _signal(links: GpuNvLinks, link: NvLinkState) -> dict[int, int]:
    """Return signal values: symbols are the corrected errors, effective errors the uncorrected ones."""
    raw = links.raw_errors(link)
    return {
        219: link.errors // 2,
        220: links.error_ratio(link.recent_errors // 2),
        221: link.errors,
        222: links.error_ratio(link.recent_errors),
        289: raw // 2,
        290: raw - raw // 2,
        293: links.raw_ratio(link),
        **{235 + symbols: links.codewords(link, symbols) for symbols in range(16)},
        294: 16 * link.transmitted_kibibytes,
        295: 2 * link.errors,
    }
