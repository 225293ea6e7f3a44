"""NVLink values in NVML; the available ones depend on the generation.

nvml.h, NVML_FI_DEV_NVLINK_*: up to Ampere errors are separate fields for each link, on Hopper they have
the link as their scope, and from Blackwell on packets and symbols are counted instead.
"""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import Generation
from simulator.machine import Machine
from simulator.nvlink import Link, Links
from simulator.nvml.answers import NOT_SUPPORTED, Answers, where

_ACTIVE, _LEADS_TO_GPU, _LEADS_TO_SWITCH = 1, 0, 2
_PACKETS_PER_KIBIBYTE = 4
_EARLIER_RUNS = {
    Generation.VOLTA: ("crc_flit", "replay", "recovery"),
    Generation.AMPERE: ("crc_flit", "crc_data", "replay", "recovery", "ecc_data"),
}
_RUN_STARTS = {
    "crc_flit": (32, 96),
    "crc_data": (39, 102),
    "replay": (46, 108),
    "recovery": (53, 114),
    "ecc_data": (148, 154),
}
_RUN_LENGTH = 6
_SILENT_PACKET_ERRORS = (205, 206, 207, 209, 210, 212)


def tell(parts: Machine, gpu: GpuState, told: Answers) -> None:
    """Add the traffic and signal quality of every link of this GPU."""
    links = gpu.links
    if links is None:
        told.call("NvLinkState", NOT_SUPPORTED, 0)
        return
    generation = gpu.model.generation
    told.field(91, len(links.links))
    for number, link in enumerate(links.links):
        _tell_end(parts, gpu, number, told)
        if generation > Generation.VOLTA:
            told.field(f"165:{number}", _ACTIVE)
            told.field(f"164:{number}", links.model.raw_megabytes)
        if generation >= Generation.HOPPER:
            told.field(f"167:{number}", 0)  # at full speed: the links of a job are never idle
        carried = (link.transmitted_kibibytes, link.received_kibibytes)
        for entry, kibibytes in enumerate((*carried, *map(links.raw, carried)), 138):
            told.field(f"{entry}:{number}", kibibytes)
        if generation >= Generation.BLACKWELL:
            _tell_packets(number, link, told)
            _tell_signal(number, links, link, told)
        elif generation >= Generation.HOPPER:
            for entry, count in ((161, link.errors), (162, link.errors // 8), (163, link.errors)):
                told.field(f"{entry}:{number}", count)
        else:
            _tell_earlier(number, generation, link, told)


def _tell_end(parts: Machine, gpu: GpuState, number: int, told: Answers) -> None:
    links = gpu.model.nvlink
    if links is None:
        return
    told.call("NvLinkState", _ACTIVE, number)
    told.call("NvLinkVersion", links.version, number)
    told.call("NvLinkRemoteDeviceType", _LEADS_TO_GPU if links.peers else _LEADS_TO_SWITCH, number)
    ends = parts.nvswitches
    if links.peers:
        ends = tuple(peer for peer in parts.peers if peer != gpu.identity.pci_address)
    # Switches of the fifth generation are not PCI devices of the host.
    told.call("NvLinkRemotePciInfo", where(ends, _end(ends, number)), number)


def _end(ends: tuple[str, ...], number: int) -> Json:
    return {"busId": f"0000{ends[number % len(ends)]}".upper()} if ends else None


def _tell_earlier(number: int, generation: Generation, link: Link, told: Answers) -> None:
    counts = {"replay": link.errors, "recovery": link.errors // 8, "crc_flit": link.errors}
    for kind in _EARLIER_RUNS[generation]:
        first = _RUN_STARTS[kind][number // _RUN_LENGTH]
        told.field(first + number % _RUN_LENGTH, counts.get(kind, 0))


def _tell_packets(number: int, link: Link, told: Answers) -> None:
    told.field(f"201:{number}", link.transmitted_kibibytes * _PACKETS_PER_KIBIBYTE)
    told.field(f"203:{number}", link.received_kibibytes * _PACKETS_PER_KIBIBYTE)
    for entry in _SILENT_PACKET_ERRORS:
        told.field(f"{entry}:{number}", 0)
    told.field(f"208:{number}", link.errors // 16)
    told.field(f"211:{number}", link.errors // 16)
    told.field(f"213:{number}", link.errors // 32)
    told.field(f"214:{number}", 0)


def _tell_signal(number: int, links: Links, link: Link, told: Answers) -> None:
    """Add signal values: symbols are the corrected errors, effective errors the uncorrected ones."""
    raw = links.raw_errors(link)
    told.field(f"219:{number}", link.errors // 2)
    told.field(f"220:{number}", links.error_ratio(link.recent_errors // 2))
    told.field(f"221:{number}", link.errors)
    told.field(f"222:{number}", links.error_ratio(link.recent_errors))
    told.field(f"289:{number}", raw // 2)
    told.field(f"290:{number}", raw - raw // 2)
    told.field(f"293:{number}", links.raw_ratio(link))
    for symbols in range(16):
        told.field(f"{235 + symbols}:{number}", links.codewords(link, symbols))
    told.field(f"294:{number}", 16 * link.transmitted_kibibytes)
    told.field(f"295:{number}", 2 * link.errors)
