"""GPUs with every feature: an answer to every call of the sources, with distinct numbers."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.clock import ManualClock
from support.reading import ORIGIN
from support.standin_table import SRAM

from railscope_agent.config import AgentSettings
from railscope_agent.host import Json
from railscope_agent.host.file_groups import PlainFiles
from railscope_agent.host.recorded_host import BATCH_FUNCTIONS, call_key
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import SourceReader

LINKS = 18
_LINK_COUNT, _STATE, _MEMORY_TEMPERATURE, _THRESHOLDS = 91, 165, 82, range(193, 197)
_BIT_ERRORS = {220, 222, 293}
_EFFECTIVE_RATIO = 0x30C  # 3e-12
_BIG = 1 << 53
"""From here on a double is no longer exact: counters must not pass through one."""


def nvml_sources() -> list[Source]:
    """Return every source that calls NVML, as the agent has them."""
    return [source for source in machine_sources(AgentSettings()) if source.lane == "nvml"]


def full_gpus(
    count: int, *, cut: Sequence[int] = (), virtual: Sequence[int] = ()
) -> dict[str, Json]:
    """Return all calls about a number of GPUs, and their answers, as a capture contains them.

    GPUs in `cut` have two MIG devices with a hole between them, those in `virtual` a virtual GPU.
    """
    host = _Plentiful(count, frozenset(cut), frozenset(virtual))
    readers = [SourceReader(source, host, ORIGIN) for source in nvml_sources()]
    for _ in range(3):  # processes present in two reads are reported one by one, and queried
        for reader in readers:
            outcome = reader.run()
            assert not outcome.problem, outcome.problem
    return host.answers


@dataclass
class _Plentiful:
    count: int
    cut: frozenset[int]
    virtual: frozenset[int]
    clock: ManualClock = field(default_factory=ManualClock)
    boot_id: str = "boot-1"
    answers: dict[str, Json] = field(default_factory=dict)

    def read(self, path: str) -> bytes:
        raise FileNotFoundError(errno.ENOENT, "there are no files", path)

    def names(self, path: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, "there are no directories", path)

    resolve = read

    def open_file_group(self, paths: Sequence[str]) -> PlainFiles:
        return PlainFiles(self.read, paths)

    @property
    def statistics_period_ns(self) -> int:
        return 0

    def kernel_log(self) -> None:
        raise FileNotFoundError(errno.ENOENT, "there is no log")

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if function not in BATCH_FUNCTIONS:
            answer = self._answer(function, arguments)
            return self.answers.setdefault(call_key(host_interface, function, arguments), answer)
        device, *entries = arguments
        pairs = []
        for entry in entries:
            key = call_key(host_interface, function, (device, entry))
            pairs.append(self.answers.setdefault(key, [0, _entry(function, key, entry)]))
        return [[value for _, value in pairs], [code for code, _ in pairs]]

    def _answer(self, function: str, arguments: Sequence[int | str]) -> Json:
        key = call_key("", function, arguments)
        name = function.removeprefix("nvmlDeviceGet").removeprefix("nvml")
        about = arguments[0] if arguments else ""
        if name in _SHARED:
            return _SHARED[name](self, about)
        shape = _SHAPES.get(name)
        return shape(key) if shape else _number(key)


def _number(key: str) -> int:
    return zlib.crc32(key.encode()) % 1000 + 1


def _large(key: str) -> int:
    return _BIG + _number(key)


def _entry(function: str, key: str, entry: int | str) -> Json:
    number = int(str(entry).partition(":")[0])
    if function == "nvmlGpmMetricsGet":
        return _number(key) / 16
    if number == _LINK_COUNT:
        return LINKS
    if number in _THRESHOLDS:
        return -_number(key)
    small = {_MEMORY_TEMPERATURE: 55, _STATE: 1} | dict.fromkeys(_BIT_ERRORS, _EFFECTIVE_RATIO)
    return small.get(number, _number(key) if number in _NARROW else _large(key))


_NARROW = {94, 95, 164, 170, 172, *range(185, 191), 192, 230}
"""Fields of 32 bits."""


def _memory(key: str) -> Json:
    """Return an answer about memory that a GPU can have, with more in total than in any part."""
    parts = {name: (1 << 40) + _number(key + name) for name in ("reserved", "free", "used")}
    return {"total": 1 << 49, **parts}


def _members(*names: str, number: Callable[[str], int] = _number) -> Callable[[str], Json]:
    return lambda key: {name: number(key + name) for name in names}


def _list(length: int) -> Callable[[str], Json]:
    return lambda key: [_number(f"{key}{position}") for position in range(length)]


def _text(key: str) -> str:
    return f"text {_number(key)}"


def _pci_at(bus: int) -> Json:
    return {
        "busIdLegacy": f"0000:{bus:02X}:00.0",
        "domain": 0,
        "bus": bus,
        "device": 0,
        "pciDeviceId": 0x2330_10DE,
        "pciSubSystemId": 0x16C1_10DE,
        "busId": f"00000000:{bus:02X}:00.0",
    }


def _processes(key: str) -> Json:
    pid = _number(key)
    return [
        {
            "pid": pid,
            "usedGpuMemory": _large(key),
            "gpuInstanceId": 0xFFFF_FFFF,
            "computeInstanceId": 0xFFFF_FFFF,
        },
        {"pid": pid + 1000, "usedGpuMemory": None, "gpuInstanceId": 3, "computeInstanceId": 1},
    ]


def _sample(whose: str) -> Callable[[str], Json]:
    def samples(key: str) -> Json:
        uses = {name: _number(key + name) for name in ("smUtil", "memUtil", "encUtil", "decUtil")}
        one = (
            _VGPU
            if whose == "vgpuInstance"
            else _number(key.replace("GetProcessUtilization", "GetComputeRunningProcesses"))
        )
        return [{whose: one, "timeStamp": 1_790_000_000_000_000, **uses}]

    return samples


_VGPU = 3_251_634_191
_ALL_REASONS = 0x7FF
_SHAPES: dict[str, Callable[[str], Json]] = {
    **dict.fromkeys(
        ("Name", "Serial", "VbiosVersion", "BoardPartNumber", "GspFirmwareVersion",
         "VgpuTypeGetName", "VgpuInstanceGetUUID", "SystemGetDriverVersion", "InforomImageVersion"),
        _text,
    ),
    **dict.fromkeys(
        ("CudaComputeCapability", "EccMode", "EncoderUtilization", "DecoderUtilization",
         "JpgUtilization", "OfaUtilization", "RepairStatus", "GspFirmwareMode",
         "PowerManagementLimitConstraints"),
        _list(2),
    ),
    "NvLinkRemotePciInfo": lambda key: _pci_at(_number(key) % 256),
    **dict.fromkeys(("ComputeRunningProcesses", "GraphicsRunningProcesses"), _processes),
    **dict.fromkeys(("MPSComputeRunningProcesses",), lambda _: []),
    **dict.fromkeys(
        ("TotalEnergyConsumption", "TotalEccErrors", "MemoryErrorCounter",
         "VgpuInstanceGetFbUsage"),
        _large,
    ),
    "RemappedRows": _list(4),
    "EncoderStats": _list(3),
    "SupportedClocksEventReasons": lambda _: _ALL_REASONS,
    "RetiredPages": _list(3),
    "MarginTemperature": lambda key: -_number(key),
    "PerformanceState": lambda _: 2,
    "NumFans": lambda _: 2,
    "Architecture": lambda _: 9,
    "Samples": lambda key: [[1_790_000_000_000_000 + step, _number(key)] for step in (0, 10**6)],
    "ProcessUtilization": _sample("pid"),
    "VgpuUtilization": _sample("vgpuInstance"),
    "VgpuInstanceGetVmID": lambda key: [_text(key), 1],
    "UtilizationRates": _members("gpu", "memory"),
    "MemoryInfo": _memory,
    "ConfComputeProtectedMemoryUsage": _members("total", "free", "used", number=_large),
    "BAR1MemoryInfo": _members("bar1Total", "bar1Free", "bar1Used", number=_large),
    "RowRemapperHistogram": _members("max", "high", "partial", "low", "none"),
    "C2cModeInfoV": _members("isC2cEnabled"),
    "SystemGetConfComputeState": _members("environment", "ccFeature", "devToolsMode"),
    "SramEccErrorStatus": _members(*SRAM),
    "Attributes_v2": _members(
        "multiprocessorCount", "gpuInstanceSliceCount", "computeInstanceSliceCount", "memorySizeMB"
    ),
    "GpuFabricInfoV": lambda key: {
        "clusterUuid": [_number(f"{key}{place}") % 256 for place in range(16)], "status": 0,
        "cliqueId": _number(key), "state": 3, "healthMask": 0x5555_5555, "healthSummary": 1,
    },
    "PlatformInfo": lambda key: {
        "ibGuid": "\xe8\xeb\xd3\x03\x01\xc4", "chassisSerialNumber": f"C{_number(key)}",
        "slotNumber": "\x12", "trayIndex": "\x08", "hostId": "\x01", "peerType": "\x01",
        "moduleId": "\xff",
    },
}  # fmt: skip


def _mig(host: _Plentiful, gpu: int | str) -> Json:
    return [
        {
            "uuid": f"MIG-{gpu}-{index}",
            "index": index,
            "gpu": index + 7,
            "compute": 0,
            "most": 3,
            "start": index,
            "size": 1,
        }
        for index in (0, 2)
        if gpu in host.cut
    ]


_SHARED: dict[str, Callable[[_Plentiful, int | str], Json]] = {
    "Count": lambda host, _: host.count,
    "UUID": lambda _, gpu: f"GPU-{gpu}",
    "PciInfo": lambda _, gpu: _pci_at(int(gpu) + 1),
    "MigMode": lambda host, gpu: [int(gpu in host.cut)] * 2,
    "MigDevices": _mig,
    "ActiveVgpus": lambda host, gpu: [_VGPU] if gpu in host.virtual else [],
    "EventSetWait": lambda *_: [
        [1, 0, 0x1, 0, 0xFFFF_FFFF, 0xFFFF_FFFF], [2, 0, 0x8, 94, 1, 2], [3, 0, 0x8000, 4, 0, 0],
    ],
}  # fmt: skip
