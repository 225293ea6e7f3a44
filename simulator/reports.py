"""Driver reports of a fault: lines of the kernel log, and the corresponding NVML events.

Texts are in the form of the driver's own (open-gpu-kernel-modules, NVIDIA's Xid catalogue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simulator.conditions import Scenario
from simulator.gpu_model import Generation
from simulator.gpu_scenarios import DRAIN_AND_RESET, GPU_RESET, NODE_REBOOT
from simulator.machine import Gpu, Machine
from simulator.memory import BAD_ADDRESS, PAGE_BYTES
from simulator.nvlink import STRUCK_LINK
from simulator.spec import NodeSpec

# nvml.h, nvmlEventType*.
DOUBLE_BIT_ECC, XID, DRAM_RETIREMENT, RECOVERY_ACTION = 0x2, 0x8, 0x400, 0x8000

_KINDS_SINCE = 590
"""First driver branch with events of retirement and of the recovery action."""

_RECOVERY_WORDS = {
    GPU_RESET: "GPU Reset Required",
    NODE_REBOOT: "Node Reboot Required",
    DRAIN_AND_RESET: "Drain and Reset",
}
_NOBODY = "pid='<unknown>', name=<unknown>, "


@dataclass(frozen=True, slots=True)
class Report:
    """A line of the kernel log, an NVML event (type and data), or both."""

    line: str = ""
    event: tuple[int, int] | None = None


def strikes_gpu(spec: NodeSpec) -> bool:
    """True for a fault of a GPU, which is reset when the fault is repaired."""
    return spec.scenario in _FAULTS or spec.scenario == "thermal"


def reports(scenario: Scenario, parts: Machine) -> list[Report]:
    """Return the driver's reports at the onset, in order."""
    fault = _FAULTS.get(scenario.spec.scenario)
    if fault is None:
        return []
    driver = _Driver(parts, parts.gpus[scenario.spec.struck])
    return [*driver.introduction(), *fault(driver)]


@dataclass(frozen=True, slots=True)
class _Driver:
    """Driver of the struck GPU."""

    parts: Machine
    gpu: Gpu

    @property
    def address(self) -> str:
        return self.gpu.log_address

    def introduction(self) -> Iterator[Report]:
        """Yield the lines that precede the first Xid of a GPU."""
        yield Report(f"NVRM: GPU at PCI:{self.address}: {self.gpu.uuid}")
        yield Report(f"NVRM: GPU Board Serial Number: {self.gpu.serial}")

    def xid(self, number: int, text: str, *, dead: bool = False) -> Report:
        """Return an Xid. A GPU with a failed bus or firmware emits no event."""
        line = f"NVRM: Xid (PCI:{self.address}): {number}, {text}"
        return Report(line, None if dead else (XID, number))

    def recovery(self, action: int, *, dead: bool = False) -> Iterator[Report]:
        """Yield the recovery action, if the driver reports one."""
        model = self.parts.model
        if model.tells_recovery:
            word = _RECOVERY_WORDS[action]
            text = f"GPU recovery action changed from 0x0 (None) to {action:#x} ({word})"
            yield self.xid(154, text, dead=dead)
        if model.driver_branch >= _KINDS_SINCE and not dead:
            yield Report(event=(RECOVERY_ACTION, action))

    def bad_memory(self) -> Iterator[Report]:
        """A row is marked for remapping, or a page is retired."""
        model = self.parts.model
        if model.remaps_rows:
            what = f"Row Remapper: New row (0x{BAD_ADDRESS:016x}) marked for remapping, reset gpu to activate."
        else:
            what = f"Dynamic Page Retirement: New page retired, reboot to activate (0x{BAD_ADDRESS // PAGE_BYTES:016x})."
        yield self.xid(63, _NOBODY + what)
        if model.driver_branch >= _KINDS_SINCE:
            yield Report(event=(DRAM_RETIREMENT, 0))


def _lost(driver: _Driver) -> Iterator[Report]:
    yield driver.xid(79, _NOBODY + "GPU has fallen off the bus.", dead=True)
    yield Report(f"NVRM: GPU {driver.address}.0: GPU has fallen off the bus.")
    yield from driver.recovery(NODE_REBOOT, dead=True)


def _hung(driver: _Driver) -> Iterator[Report]:
    text = (
        f"Timeout after 6s of waiting for RPC response from GPU{driver.gpu.index} GSP!"
        " Expected function 76 (GSP_RM_CONTROL) (0x20803039 0x4)."
    )
    yield driver.xid(119, _NOBODY + text, dead=True)
    yield from driver.recovery(GPU_RESET, dead=True)


def _row_remap(driver: _Driver) -> Iterator[Report]:
    yield from driver.bad_memory()
    yield from driver.recovery(DRAIN_AND_RESET)


def _uncorrected(driver: _Driver) -> Iterator[Report]:
    where = f"physical address 0x{BAD_ADDRESS:x} partition 6, subpartition 1"
    text = f"An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at {where}."
    yield driver.xid(48, _NOBODY + text)
    yield Report(event=(DOUBLE_BIT_ECC, 0))
    yield from driver.bad_memory()
    if driver.parts.model.remaps_rows:
        yield driver.xid(94, _NOBODY + "Contained: SM (0x1). RST: No, D-RST: Yes")
    yield from driver.recovery(DRAIN_AND_RESET)


def _nvlink(driver: _Driver) -> Iterator[Report]:
    links = driver.parts.model.nvlink
    link = min(STRUCK_LINK, links.links - 1) if links else 0
    if driver.parts.model.generation >= Generation.BLACKWELL:
        word = 0x0008_0226 | link << 13  # the link number is in the interrupt status word
        yield driver.xid(
            149,
            f"NETIR_BER_EVENT Nonfatal XC0 i0 Link {link:02d}"
            f" (0x{word:08x} 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
        )
        return
    if driver.parts.nvswitches:
        place = link % len(driver.parts.nvswitches)
        switch = f"nvidia-nvswitch{place}: SXid (PCI:{driver.parts.nvswitches[place]}): 20009"
        port = 4 * driver.gpu.index + place
        yield Report(f"{switch}, Non-fatal, Link {port:02d} RX Short Error Rate")
        yield Report(f"{switch}, Severity 0 Engine instance {port:02d} Sub-engine instance 00")
        yield Report(f"{switch}, Data {{0x00000020, 0x00000020, 0x00000000, 0x00000020}}")
    yield driver.xid(
        74,
        f"{_NOBODY}NVLink: fatal error detected on link {link}"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    )
    yield from driver.recovery(GPU_RESET)


_FAULTS: dict[str, Callable[[_Driver], Iterator[Report]]] = {
    "xid79": _lost,
    "gpu_hung": _hung,
    "row_remap": _row_remap,
    "ecc_uncorrected": _uncorrected,
    "nvlink_errors": _nvlink,
}
