"""GPUs, through NVML.

What a GPU does not support is learned and not asked again until the next probe. A GPU that is lost keeps its columns, without values: it is not absent, it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.facts import known
from agent.host import Host, Json, NvmlError
from agent.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict, nvml_reason
from agent.sources.gpu_calls import HEALTH, LOAD, Call
from agent.topology import gpu_addresses, pci_address
from railscope.catalog.entities import GPU
from railscope.entity import Entity
from railscope.reading import Absent

_LIBRARY_NOT_FOUND = 12
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _DEPRECATED = 3, 13, 26
_LOST = {15, 16, 2, 999}
_FALL_BACK = {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _DEPRECATED, 25}
_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip


class Gpu(HoldsNothing):
    """A set of NVML calls for every GPU, at one period."""

    family = "nvml"

    def __init__(self, name: str, calls: Sequence[Call], period_seconds: float) -> None:
        self.name = name
        self.period_seconds = period_seconds
        self._calls = tuple(calls)
        self._gpus: dict[int, Entity] = {}
        self._unsupported: set[tuple[int, str, tuple[int, ...]]] = set()

    @classmethod
    def load(cls, period_seconds: float = 1.0) -> Gpu:
        """What changes from second to second: activity, memory, clocks, power, temperature."""
        return cls("gpu", LOAD, period_seconds)

    @classmethod
    def health(cls, period_seconds: float = 10.0) -> Gpu:
        """What changes rarely: ECC, remapped rows, limits, PCIe link."""
        return cls("gpu_health", HEALTH, period_seconds)

    def probe(self, host: Host) -> Inventory:
        """Count the GPUs and ask each who it is. Raises NvmlError where the driver is sick."""
        try:
            count = host.call("nvml", "nvmlDeviceGetCount")
        except NvmlError as error:
            if error.code != _LIBRARY_NOT_FOUND:
                raise
            return Inventory((), (), (_no_library(host),))
        except FileNotFoundError:
            return Inventory((), (), (_no_library(host),))
        driver = _text(host, "nvmlSystemGetDriverVersion")
        addresses = gpu_addresses(host)
        found = {index: self._identify(host, index, driver, addresses) for index in range(count)}
        gpus = {index: gpu for index, gpu in found.items() if gpu}
        # Another driver or another MIG mode supports other things: learn anew, once a minute.
        self._unsupported.clear()
        self._gpus = gpus
        columns = Columns()
        for gpu in gpus.values():
            for call in self._calls:
                for target in call.targets:
                    about = gpu.part(target.kind, *target.part) if target.kind else gpu
                    columns.add(target.metric, about)
        detail = f"{len(gpus)} of {count} GPUs, driver {driver}"
        verdict = Verdict.SUPPORTED if len(gpus) == count else Verdict.BROKEN
        return Inventory(tuple(columns.columns), (), (Finding("GPUs", verdict, detail),))

    def read(self, host: Host, into: Table) -> None:
        """Make every call for every GPU; a failed call costs only its own columns."""
        column = 0
        for index in self._gpus:
            for call in self._calls:
                self._fill(host, index, call, into, column)
                column += len(call.targets)

    def _fill(self, host: Host, index: int, call: Call, into: Table, column: int) -> None:
        width = len(call.targets)
        try:
            result = self._ask(host, index, call)
        except NvmlError as error:
            into.put_none(column, width, nvml_reason(error.code))
            return
        except FileNotFoundError:
            into.put_none(column, width, Absent.UNSUPPORTED)
            return
        for offset, target in enumerate(call.targets):
            try:
                into.put(column + offset, target.pick(result))
            except (KeyError, IndexError, TypeError, ValueError):
                into.put(column + offset, Absent.ERROR)

    def _ask(self, host: Host, index: int, call: Call) -> Json:
        """The result of the first function the driver supports for this GPU."""
        for function in call.functions:
            key = (index, function, call.arguments)
            if key in self._unsupported:
                continue
            try:
                return host.call("nvml", function, index, *call.arguments)
            except NvmlError as error:
                if error.code not in _FALL_BACK:
                    raise
                self._unsupported.add(key)
        raise NvmlError(_NOT_SUPPORTED)

    def _identify(
        self, host: Host, index: int, driver: str, addresses: Sequence[str]
    ) -> Entity | None:
        try:
            uuid = host.call("nvml", "nvmlDeviceGetUUID", index)
            bus = pci_address(host.call("nvml", "nvmlDeviceGetPciInfo", index)["busId"])
        except NvmlError as error:
            return self._gpus.get(index) if error.code in _LOST else None
        architecture = _text(host, "nvmlDeviceGetArchitecture", index)
        facts = known(
            index=str(index),
            model=_text(host, "nvmlDeviceGetName", index),
            pci_address=bus,
            serial=_text(host, "nvmlDeviceGetSerial", index),
            minor=_text(host, "nvmlDeviceGetMinorNumber", index),
            architecture=_ARCHITECTURES.get(int(architecture or 0), architecture),
            vbios=_text(host, "nvmlDeviceGetVbiosVersion", index),
            driver=driver,
            rail=str(_rail(addresses, bus, index)),
        )
        return Entity(GPU, (uuid,), facts)


def _rail(addresses: Sequence[str], bus: str, index: int) -> int:
    """The GPU's place in bus order; its NVML index where the PCI tree cannot be seen."""
    return addresses.index(bus) if bus in addresses else index


def _text(host: Host, function: str, *arguments: int) -> str:
    try:
        return str(host.call("nvml", function, *arguments))
    except (NvmlError, OSError):
        return ""


def _no_library(host: Host) -> Finding:
    present = len(gpu_addresses(host))
    if present:
        detail = f"{present} NVIDIA GPUs on the PCI bus, but no libnvidia-ml.so.1"
        return Finding("GPUs", Verdict.BROKEN, detail, "install the NVIDIA driver on this server")
    return Finding("GPUs", Verdict.ABSENT, "no NVIDIA driver library (libnvidia-ml.so.1)")
